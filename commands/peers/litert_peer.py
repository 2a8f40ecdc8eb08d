"""LiteRT (XNNPACK) on a .tflite file of the same network, which the user gives or tflite.py writes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError, ToolError
from .base import Arrays, Network, Peer, Runner
from .tflite import CHANNELS_FIRST, CHANNELS_LAST, load_schema, to_tflite


def _permutation(
    source: tuple[int, ...], target: tuple[int, ...], known: tuple[int, ...] = ()
) -> tuple[int, ...] | None:
    """Axes that turn `source` into `target`: those `known`, none, channels first ↔ last, else the first that
    fit."""
    rank = len(source)
    if rank != len(target):
        return None
    usual = [known] if len(known) == rank else []
    usual.append(tuple(range(rank)))
    if rank >= 3:
        usual += [(0, *range(2, rank), 1), (0, rank - 1, *range(1, rank - 1))]
    for axes in itertools.chain(usual, itertools.permutations(range(rank))):
        if tuple(source[axis] for axis in axes) == target:
            return axes
    return None


def fit(array: np.ndarray, shape: tuple[int, ...], name: str, known: tuple[int, ...] = ()) -> np.ndarray:
    """`array` with its axes in the order of `shape`; ToolError where it cannot be. `known`: the order, for
    arrays of as many axes, as `to_tflite` writes them: shapes do not tell where sizes are equal."""
    axes = _permutation(array.shape, shape, known)
    if axes is not None:
        return np.asarray(array.transpose(axes), order="C")
    if array.size == np.prod(shape, dtype=np.int64):
        return np.asarray(array.reshape(shape), order="C")
    raise ToolError(f"'{name}' is {array.shape} in the ONNX file and {shape} in the .tflite file")


class LiteRTRunner(Runner):
    def __init__(self, interpreter: Any, network: Network, given: bool):
        self.interpreter = interpreter
        self.inward: tuple[int, ...] = () if given else CHANNELS_LAST
        self.outward: tuple[int, ...] = () if given else CHANNELS_FIRST
        self.network = network
        self.inputs = interpreter.get_input_details()
        self.details = interpreter.get_output_details()
        if len(self.inputs) != len(network.input_names) or len(self.details) != len(network.output_names):
            raise ToolError("the .tflite file has other inputs or outputs than the ONNX file")

    def bind(self, inputs: Arrays) -> Callable[[], object]:
        for name, detail in zip(self.network.input_names, self.inputs):
            shape = tuple(int(dim) for dim in detail["shape"])
            array = fit(inputs[name], shape, name, self.inward)
            self.interpreter.set_tensor(detail["index"], array.astype(detail["dtype"], copy=False))
        return self.interpreter.invoke

    def outputs(self, result: object) -> dict[str, np.ndarray]:
        arrays = {}
        for name, detail in zip(self.network.output_names, self.details):
            array = self.interpreter.get_tensor(detail["index"])
            shape = self.network.output_shape(name)
            arrays[name] = array if shape is None else fit(array, shape, name, self.outward)
        return arrays

    def close(self) -> None:
        self.interpreter = None


class LiteRT(Peer):
    """`files` maps names of networks to .tflite files; others are written from the ONNX model."""

    name = "litert"
    packages = ("ai-edge-litert",)
    modules = ("ai_edge_litert",)

    def __init__(self, files: Mapping[str, Path]):
        self.files = dict(files)

    def prepare(self, network: Network, threads: int) -> Runner:
        path = self.files.get(network.name)
        if path is not None and not path.is_file():
            raise InputError(f"{path}: no such .tflite file")
        import ai_edge_litert
        from ai_edge_litert.interpreter import Interpreter

        site = Path(ai_edge_litert.__file__).parents[1]
        data = path.read_bytes() if path else to_tflite(network.model, load_schema(site))
        interpreter = Interpreter(model_content=data, num_threads=threads)
        interpreter.allocate_tensors()
        return LiteRTRunner(interpreter, network, given=path is not None)
