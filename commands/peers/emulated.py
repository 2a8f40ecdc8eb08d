"""Contestants for a CPU that this machine is not: programs that an emulator runs and counts.

A peer's program is a library of the emulated system: a root file system with Python and, in its folder
`site`, the library's wheel (docs/performance.md says how to make one). Each runs the network as often as its
last argument says, on one thread, and leaves the outputs in a file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...compiler.target import Target
from ...errors import InputError, ToolError
from ...runtime.emulated import join_inputs, split_outputs
from ...settings import EMULATOR_ROOT
from .base import PRECISION_TOLERANCE, Arrays, Network
from .burnish_peer import Burnish, algorithms
from .litert_peer import fit
from .tflite import CHANNELS_FIRST, CHANNELS_LAST, load_schema, to_tflite


@dataclass(frozen=True)
class EmulatedProgram:
    """`command` takes the number of runs as one more argument, `options` are the emulator's.

    `outputs` and `algorithm` may be asked once it has run.
    """

    command: tuple[object, ...]
    outputs: Callable[[], dict[str, np.ndarray]]
    options: tuple[object, ...] = ()
    algorithm: Callable[[], str] = str


class EmulatedPeer(ABC):
    """As `base.Peer`, for another CPU."""

    name: str
    subject: bool = False
    tolerance: float = PRECISION_TOLERANCE["f32"]

    def version(self) -> str:
        """ToolError where it is not installed."""
        return ""

    @abstractmethod
    def prepare(self, network: Network, inputs: Arrays, folder: Path) -> EmulatedProgram:
        """A program in `folder`, which is empty; any exception becomes the reason of a failed row."""


class EmulatedBurnish(EmulatedPeer):
    """`compile(model, threads=1)` gives a Module for the emulated CPU."""

    subject = True

    def __init__(self, compile: Callable[..., Any], name: str = "burnish"):
        self.compile, self.name = compile, name

    def version(self) -> str:
        return Burnish(self.compile).version()

    def prepare(self, network: Network, inputs: Arrays, folder: Path) -> EmulatedProgram:
        module = self.compile(network.model, threads=1)
        program, given, made = (folder / name for name in ("program", "inputs", "outputs"))
        module.save_program(program)
        given.write_bytes(join_inputs(module.inputs, inputs))

        def outputs() -> dict[str, np.ndarray]:
            return split_outputs(module.outputs, made.read_bytes())

        return EmulatedProgram((program, given, made, 1), outputs, algorithm=lambda: algorithms(module))


@dataclass(frozen=True)
class System:
    """The root file system of the emulated machine."""

    root: Path

    @classmethod
    def find(cls, root: Path | None, target: Target) -> System:
        """At `root`, else at $BURNISH_EMULATOR_ROOT. InputError where that is nothing of the kind."""
        given = root or (Path(EMULATOR_ROOT.value) if EMULATOR_ROOT.value else None)
        if given is None:
            raise InputError(
                f"other libraries for {target.name} run on a root file system of {target.arch}: give --root "
                f"or {EMULATOR_ROOT.name} (docs/performance.md says how to make one), or --against none"
            )
        if not (given / "usr").is_dir():
            raise InputError(
                f"{given}: expected a root file system of {target.arch}, but there is no usr in it"
            )
        return cls(given.resolve())

    @property
    def site(self) -> Path:
        return self.root / "site"

    @property
    def options(self) -> tuple[object, ...]:
        """Of the emulator. Without a hash seed no two runs of Python execute the same instructions."""
        return ("-L", self.root, "-E", f"PYTHONPATH={self.site}", "-E", "PYTHONHASHSEED=0")

    @cached_property
    def python(self) -> Path:
        found = sorted(self.root.glob("usr/bin/python3.[0-9]*"))
        if not found:
            raise ToolError(f"not installed: no usr/bin/python3.* in {self.root}")
        return found[0]

    def version(self, package: str) -> str:
        """Of a wheel in the folder `site`. ToolError where there is none."""
        for info in self.site.glob(f"{package.replace('-', '_')}-*.dist-info"):
            return info.name.removesuffix(".dist-info").split("-")[1]
        raise ToolError(f"not installed: no {package} in {self.site}")


ONNXRUNTIME = """
import sys, numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
names, *arrays = numpy.load(sys.argv[2]).values()
feeds = dict(zip(names.tolist(), arrays))
for _ in range(int(sys.argv[4])):
    outputs = session.run(None, feeds)
numpy.savez(sys.argv[3], *outputs)
"""


class EmulatedOnnxRuntime(EmulatedPeer):
    name = "onnxruntime"

    def __init__(self, system: System):
        self.system = system

    def version(self) -> str:
        return self.system.version("onnxruntime")

    def prepare(self, network: Network, inputs: Arrays, folder: Path) -> EmulatedProgram:
        model = folder / "model.onnx"
        model.write_bytes(network.serialized)
        return _python_program(self.system, ONNXRUNTIME, model, inputs, network.output_names, folder)


LITERT = """
import sys, numpy
from ai_edge_litert.interpreter import Interpreter
interpreter = Interpreter(model_path=sys.argv[1], num_threads=1)
interpreter.allocate_tensors()
_, *arrays = numpy.load(sys.argv[2]).values()
for detail, array in zip(interpreter.get_input_details(), arrays):
    interpreter.set_tensor(detail["index"], array.astype(detail["dtype"], copy=False))
for _ in range(int(sys.argv[4])):
    interpreter.invoke()
numpy.savez(sys.argv[3], *(interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()))
"""


class EmulatedLiteRT(EmulatedPeer):
    """`files` maps names of networks to .tflite files; others are written from the ONNX model (tflite.py)."""

    name = "litert"

    def __init__(self, system: System, files: Mapping[str, Path]):
        self.system, self.files = system, dict(files)

    def version(self) -> str:
        return self.system.version("ai-edge-litert")

    def prepare(self, network: Network, inputs: Arrays, folder: Path) -> EmulatedProgram:
        schema = load_schema(self.system.site)
        given = self.files.get(network.name)
        if given is not None and not given.is_file():
            raise InputError(f"{given}: no such .tflite file")
        data = given.read_bytes() if given else to_tflite(network.model, schema)
        model = folder / "model.tflite"
        model.write_bytes(data)
        shapes = _input_shapes(data, schema)
        if len(shapes) != len(network.input_names):
            raise ToolError("the .tflite file has other inputs than the ONNX file")
        inward, outward = ((), ()) if given else (CHANNELS_LAST, CHANNELS_FIRST)
        feeds = {n: fit(inputs[n], shape, n, inward) for n, shape in zip(network.input_names, shapes)}
        program = _python_program(self.system, LITERT, model, feeds, network.output_names, folder)

        def outputs() -> dict[str, np.ndarray]:
            arrays = program.outputs()
            wanted = {name: network.output_shape(name) for name in arrays}
            return {n: fit(a, wanted[n] or a.shape, n, outward) for n, a in arrays.items()}

        return EmulatedProgram(program.command, outputs, program.options)


def _input_shapes(data: bytes, schema: Any) -> list[tuple[int, ...]]:
    graph = schema.Model.GetRootAs(data, 0).Subgraphs(0)
    tensors = (graph.Tensors(graph.Inputs(n)) for n in range(graph.InputsLength()))
    return [tuple(int(t.Shape(axis)) for axis in range(t.ShapeLength())) for t in tensors]


def _python_program(
    system: System, source: str, model: Path, inputs: Arrays, names: tuple[str, ...], folder: Path
) -> EmulatedProgram:
    script, given, made = (folder / name for name in ("peer.py", "inputs.npz", "outputs.npz"))
    script.write_text(source)
    np.savez(given, np.array([*inputs], str), *inputs.values())

    def outputs() -> dict[str, np.ndarray]:
        with np.load(made) as arrays:
            return dict(zip(names, (arrays[name] for name in arrays.files)))

    return EmulatedProgram((system.python, script, model, given, made), outputs, system.options)
