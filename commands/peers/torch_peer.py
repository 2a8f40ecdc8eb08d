"""PyTorch through onnx2torch: operator by operator ("torch"), and compiled by inductor."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from .base import Arrays, Network, Peer, Runner


def _import_onnx2torch() -> Any:
    """onnx2torch needs torchvision for NonMaxSuppression and RoiAlign only, yet cannot be imported
    without it; a torchvision built for another torch raises RuntimeError."""
    try:
        importlib.import_module("torchvision")
        return importlib.import_module("onnx2torch")
    except (ImportError, RuntimeError):
        pass
    for name in [name for name in sys.modules if name.partition(".")[0] in ("torchvision", "onnx2torch")]:
        del sys.modules[name]
    vision, ops = ModuleType("torchvision"), ModuleType("torchvision.ops")
    vision.ops, ops.roi_align = ops, None  # type: ignore[attr-defined]
    sys.modules.update({"torchvision": vision, "torchvision.ops": ops})
    try:
        return importlib.import_module("onnx2torch")
    finally:
        del sys.modules["torchvision"], sys.modules["torchvision.ops"]


class TorchRunner(Runner):
    def __init__(self, call: Callable[..., Any], network: Network, threads: int, compiled: bool):
        self.call: Callable[..., Any] | None = call
        self.network = network
        self.threads = threads
        self.compiled = compiled

    def bind(self, inputs: Arrays) -> Callable[[], object]:
        import torch

        # A setting of the whole process, which another torch contestant may have changed.
        torch.set_num_threads(self.threads)
        arguments = [torch.from_numpy(np.asarray(inputs[n], order="C")) for n in self.network.input_names]
        call = self.call
        assert call is not None

        def infer() -> object:
            with torch.inference_mode():
                return call(*arguments)

        return infer

    def outputs(self, result: Any) -> dict[str, np.ndarray]:
        values = result if isinstance(result, list | tuple) else (result,)
        return {name: value.numpy().copy() for name, value in zip(self.network.output_names, values)}

    def close(self) -> None:
        import torch

        self.call = None
        if self.compiled:
            torch._dynamo.reset()


class Torch(Peer):
    packages = ("torch", "onnx2torch")
    modules = ("torch", "onnx2torch")

    def __init__(self, compiled: bool = False):
        self.name = "torch-inductor" if compiled else "torch"
        self.compiled = compiled

    def prepare(self, network: Network, threads: int) -> Runner:
        import torch

        torch.set_num_threads(threads)
        call = _import_onnx2torch().convert(network.model).eval()
        if self.compiled:
            call = torch.compile(call, backend="inductor", options={"freezing": True})
        return TorchRunner(call, network, threads, self.compiled)
