"""ncnn, from the ONNX file through pnnx, in float32 storage and arithmetic."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ...errors import ToolError
from .base import Arrays, Network, Peer, Runner

CONVERSION_SECONDS = 300
_PNNX_TYPES: dict[int, str] = {
    onnx.TensorProto.FLOAT: "f32",
    onnx.TensorProto.INT64: "i64",
    onnx.TensorProto.INT32: "i32",
}


class NcnnRunner(Runner):
    def __init__(self, net: Any, network: Network, script: str):
        self.net = net
        self.network = network
        # ncnn has no batch axis: pnnx's own test script tells which axis of each value it dropped.
        self.batch_in = _batch_axes(r"ncnn\.Mat\(in(\d+)\.numpy\(\)(?:, batch_index=(\d+))?\)", script)
        self.batch_out = _batch_axes(r"out(\d+)\.numpy\((?:batch_index=(\d+))?\)", script)
        self.mats: list[Any] = []

    def bind(self, inputs: Arrays) -> Callable[[], object]:
        import ncnn

        self.mats = []
        for index, name in enumerate(self.network.input_names):
            array = np.asarray(inputs[name], order="C")
            if array.dtype == np.int64:
                array = array.astype(np.int32)
            axis = self.batch_in.get(index)
            mat = ncnn.Mat(array) if axis is None else ncnn.Mat(array, batch_index=axis)
            self.mats.append(mat.clone())
        feeds = [(f"in{index}", mat) for index, mat in enumerate(self.mats)]
        fetches = [f"out{index}" for index in range(len(self.network.output_names))]
        create = self.net.create_extractor

        def infer() -> object:
            extractor = create()
            for name, mat in feeds:
                extractor.input(name, mat)
            return [extractor.extract(name) for name in fetches]

        return infer

    def outputs(self, result: Any) -> dict[str, np.ndarray]:
        arrays = {}
        for index, (name, (code, mat)) in enumerate(zip(self.network.output_names, result)):
            if code != 0:
                raise ToolError(f"ncnn returned {code} for output '{name}'")
            axis = self.batch_out.get(index)
            array = np.array(mat.numpy() if axis is None else mat.numpy(batch_index=axis))
            shape = self.network.output_shape(name)
            fits = shape is not None and np.prod(shape, dtype=np.int64) == array.size
            arrays[name] = array.reshape(shape) if fits else array
        return arrays

    def close(self) -> None:
        self.mats = []
        self.net.clear()


class Ncnn(Peer):
    name = "ncnn"
    packages = ("ncnn", "pnnx")
    modules = ("ncnn", "pnnx")

    def prepare(self, network: Network, threads: int) -> Runner:
        import ncnn

        with tempfile.TemporaryDirectory(prefix="burnish-ncnn-") as folder:
            _convert(network, Path(folder))
            net = ncnn.Net()
            net.opt.num_threads = threads
            for option in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_packed", "bf16_storage"):
                if hasattr(net.opt, f"use_{option}"):
                    setattr(net.opt, f"use_{option}", False)
            for load, suffix in ((net.load_param, "param"), (net.load_model, "bin")):
                if load(str(Path(folder, f"model.ncnn.{suffix}"))) != 0:
                    raise ToolError(f"ncnn cannot load model.ncnn.{suffix}, which pnnx wrote")
            return NcnnRunner(net, network, Path(folder, "model_ncnn.py").read_text())


def _convert(network: Network, folder: Path) -> None:
    import pnnx

    shapes = []
    for value in network.inputs:
        kind = _PNNX_TYPES.get(value.type.tensor_type.elem_type)
        if kind is None:
            raise ToolError(f"pnnx: no input type for '{value.name}'")
        shapes.append(f"[{','.join(map(str, network.input_shape(value.name)))}]{kind}")
    (folder / "model.onnx").write_bytes(network.serialized)
    command = [pnnx.EXEC_PATH, "model.onnx", f"inputshape={','.join(shapes)}", "fp16=0"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=CONVERSION_SECONDS
    )
    if not (folder / "model.ncnn.param").is_file():
        lines = (done.stderr + done.stdout).strip().splitlines() or ["no message"]
        raise ToolError(f"pnnx could not convert the model (exit {done.returncode}): {lines[-1].strip()}")
    require_layers((folder / "model.ncnn.param").read_text())


def require_layers(param: str) -> None:
    """ToolError naming the layer types of a .param file that ncnn does not have."""
    import ncnn

    # A magic number, a line of counts, then one line per layer that starts with its type.
    types = {line.split()[0] for line in param.splitlines()[2:] if line.strip()}
    missing = sorted(kind for kind in types if ncnn.create_layer(kind) is None)
    if missing:
        raise ToolError(f"ncnn lacks what pnnx made of this model: {', '.join(missing)}")


def _batch_axes(pattern: str, script: str) -> dict[int, int]:
    return {int(index): int(axis) for index, axis in re.findall(pattern, script) if axis}
