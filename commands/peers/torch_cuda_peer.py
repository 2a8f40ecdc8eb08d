"""PyTorch on an NVIDIA GPU: operator by operator (cuDNN, cuBLAS), the same as one CUDA graph, and compiled.

Inputs and outputs lie on the GPU, and every inference is waited for. Eager and graph take the faster of both
layouts of images; what a contestant compiles or tries out counts as its time to load.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from ...compiler.in_child import in_child
from .base import PRECISION_TOLERANCE, Arrays, Network, Peer, Runner
from .torch_graph import torch_module

WAYS = ("eager", "graph", "compile", "max-autotune")
WARM = 3  # runs before anything is recorded or timed
WARMING, TURNS = 0.1, 25  # seconds of a layout before, and runs of each by turns

Call = Callable[[], Any]


class TorchCuda(Peer):
    packages = ("torch",)
    modules = ("torch",)

    def __init__(self, way: str = "eager", precision: str = "f32", device: str = "cuda"):
        parts = ["torch", way, precision]
        self.name = "-".join(part for part in parts if part not in ("eager", "f32"))
        self.way, self.precision, self.device = way, precision, device
        self.tolerance = PRECISION_TOLERANCE[precision]

    def available(self) -> str | None:
        reason = super().available()
        if reason is not None or self.device != "cuda":
            return reason
        return _about_torch().get("without GPU")

    def version(self) -> str:
        return _about_torch()["version"]

    def prepare(self, network: Network, threads: int) -> Runner:
        return TorchCudaRunner(network, self.way, self.precision, self.device)


@cache
def _about_torch() -> dict[str, str]:
    """Its version and, if so, why it has no GPU. Asked in a child: once a process has asked, those that it
    forks to measure have no GPU."""
    return in_child(_ask_torch) or {"version": "unknown", "without GPU": "torch ended the process it was in"}


def _ask_torch() -> dict[str, str]:
    import torch

    version = f"{torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
    if torch.cuda.is_available():
        return {"version": version}
    why = "finds no GPU" if torch.version.cuda else "is built without CUDA"
    return {"version": version, "without GPU": f"torch {torch.__version__} {why}"}


def set_precision(precision: str) -> None:
    """Of the whole process: what float32 products are rounded to."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = True
    if hasattr(torch.backends.cudnn, "fp32_precision"):  # which what `compile` generates itself goes by
        torch.backends.cudnn.fp32_precision = "tf32" if precision == "tf32" else "ieee"


class TorchCudaRunner(Runner):
    def __init__(self, network: Network, way: str, precision: str, device: str):
        import torch

        self.torch = torch
        self.network, self.way, self.precision, self.device = network, way, precision, device
        self.inputs: list[Any] = []
        self.call: Call | None = None
        self.layout = ""

    @property
    def algorithm(self) -> str:
        return self.layout

    def bind(self, inputs: Arrays) -> Callable[[], object]:
        set_precision(self.precision)  # another contestant may have changed it
        given = [self._tensor(inputs[name]) for name in self.network.input_names]
        if self.call is None:
            self.call = self._fastest(given)
        for own, tensor in zip(self.inputs, given):
            own.copy_(tensor)
        call, wait = self.call, self._waiting()
        wait()

        def infer() -> object:
            result = call()
            wait()
            return result

        return infer

    def outputs(self, result: Any) -> dict[str, np.ndarray]:
        return {name: value.cpu().numpy() for name, value in zip(self.network.output_names, result)}

    def close(self) -> None:
        self.call, self.inputs = None, []
        if self.way in ("compile", "max-autotune"):
            self.torch._dynamo.reset()
        if self.device == "cuda":
            self.torch.cuda.empty_cache()

    def _tensor(self, array: np.ndarray) -> Any:
        tensor = self.torch.from_numpy(np.asarray(array, order="C"))
        half = self.precision == "f16" and tensor.dtype == self.torch.float32
        return tensor.half() if half else tensor

    def _waiting(self) -> Callable[[], object]:
        """Waits for the stream that all work is on: less to do than for the device."""
        if self.device == "cuda":
            return self.torch.cuda.current_stream().synchronize
        return lambda: None

    def _fastest(self, given: list[Any]) -> Call:
        """The call, over `inputs` that stay where they are; compilers choose layouts themselves."""
        torch = self.torch
        plain, last = torch.contiguous_format, torch.channels_last
        module = self._module(plain)
        images = any(buffer.dim() == 4 for buffer in module.buffers())
        tried: list[tuple[Call, list[Any]]] = []
        for layout in (plain, last) if images and self.way in ("eager", "graph") else (plain,):
            module = module if layout is plain else self._module(layout)
            inputs = [self._placed(tensor, layout) for tensor in given]
            tried.append((self._make(module, inputs), inputs))
        choice = fastest([call for call, _ in tried], self._waiting())
        self.layout = ("channels first", "channels last")[choice] if len(tried) > 1 else ""
        call, self.inputs = tried[choice]
        return call

    def _module(self, layout: Any) -> Any:
        module = torch_module(self.network.model, self.precision == "f16").to(self.device)
        return module.to(memory_format=layout)

    def _placed(self, tensor: Any, layout: Any) -> Any:
        tensor = tensor.to(self.device)
        return tensor.to(memory_format=layout) if tensor.dim() == 4 else tensor

    def _make(self, module: Any, inputs: list[Any]) -> Call:
        torch = self.torch
        if self.way == "graph":
            return self._recorded(module, inputs)
        if self.way != "eager":
            module = torch.compile(module, mode=None if self.way == "compile" else self.way)
            for tensor in inputs:
                torch._dynamo.mark_static_address(tensor)  # or CUDA graphs would copy it

        def call() -> Any:
            with torch.inference_mode():
                return module(*inputs)

        return call

    def _recorded(self, module: Any, inputs: list[Any]) -> Call:
        torch = self.torch
        side, main = torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.inference_mode(), torch.cuda.stream(side):
            for _ in range(WARM):  # cuDNN and cuBLAS choose their algorithms before they are recorded
                module(*inputs)
        main.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(), torch.cuda.graph(graph):
            result = module(*inputs)

        def call() -> Any:
            graph.replay()
            return result

        return call


def fastest(calls: Sequence[Call], wait: Callable[[], object]) -> int:
    """Which one, by medians of turns; the first call of each also builds what it needs."""

    def seconds(call: Call) -> float:
        start = time.perf_counter()
        call()
        wait()
        return time.perf_counter() - start

    for call in calls:
        for _ in range(WARM):
            seconds(call)
        end = time.perf_counter() + WARMING
        while len(calls) > 1 and time.perf_counter() < end:
            seconds(call)
    if len(calls) == 1:
        return 0
    turns = [[seconds(call) for call in calls] for _ in range(TURNS)]
    return int(np.argmin(np.median(turns, axis=0)))
