"""What `burnish bench` asks of every contestant: prepare a network, bind inputs, run, close."""

from __future__ import annotations

import gc
import importlib.metadata
import importlib.util
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np
import onnx

from ...errors import InputError
from ...frontends.onnx.interface import fed_inputs, static_shape

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Network:
    """A model and the name that the user knows it by."""

    name: str
    model: onnx.ModelProto

    @cached_property
    def serialized(self) -> bytes:
        return self.model.SerializeToString()

    @cached_property
    def inputs(self) -> tuple[onnx.ValueInfoProto, ...]:
        """Graph inputs that a caller has to feed, in the graph's order."""
        return tuple(fed_inputs(self.model.graph))

    @cached_property
    def input_names(self) -> tuple[str, ...]:
        return tuple(value.name for value in self.inputs)

    @cached_property
    def output_names(self) -> tuple[str, ...]:
        return tuple(value.name for value in self.model.graph.output)

    def input_shape(self, name: str) -> tuple[int, ...]:
        """The declared shape of input `name`; InputError where a dimension is left open."""
        shape = static_shape(next(value for value in self.inputs if value.name == name))
        if shape is None:
            raise InputError(
                f"{self.name}: input '{name}' has open dimensions; fix them with --shape or --dim"
            )
        return shape

    def output_shape(self, name: str) -> tuple[int, ...] | None:
        """The declared shape of output `name`, None where it is not static."""
        return static_shape(next(value for value in self.model.graph.output if value.name == name))


class Runner(ABC):
    """One network, ready to run on one contestant with a fixed number of threads."""

    @abstractmethod
    def bind(self, inputs: Arrays) -> Callable[[], object]:
        """A call that runs one inference over `inputs`, with as little else as the library allows.

        The arrays must stay unchanged while the call is in use; it holds until the next `bind`.
        """

    @property
    def algorithm(self) -> str:
        """What it was chosen to run, where that is known."""
        return ""

    @abstractmethod
    def outputs(self, result: object) -> dict[str, np.ndarray]:
        """The outputs, by name, of the bound call that has just returned `result`."""

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        return self.outputs(self.bind(inputs)())

    def time(self, inputs: Arrays, repeats: int) -> float:
        """Seconds for `repeats` inferences in a row, after a few untimed ones."""
        call = self.bind(inputs)
        collecting = gc.isenabled()
        gc.disable()
        try:
            for _ in range(1 + repeats // 10):
                call()
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            return time.perf_counter() - start
        finally:
            if collecting:
                gc.enable()

    def close(self) -> None:  # noqa: B027 (most libraries free everything with the object)
        """Free what the garbage collector would not."""


PRECISION_TOLERANCE = {"f32": 1e-4, "tf32": 2e-2, "f16": 5e-2, "bf16": 5e-2}
"""By precision, the most exact one first: the largest difference of a right output, over the largest."""


@dataclass(frozen=True)
class TuningTime:
    """Seconds of a tuning, and of these the tuner's own: while nothing was built or measured."""

    whole: float
    overhead: float


class Peer(ABC):
    """A way to run a network.

    `precision` is what it computes in. A `subject`, which is what the peers are there for, is compared with
    those that round no more; peers with those of f32. `tolerance` is the largest difference from the
    reference, relative to the largest absolute value of an output, at which its outputs count as right.
    `tuning` says what was spent on tuning before `prepare`, by network and threads.
    """

    name: str
    packages: tuple[str, ...] = ()  # distributions, the first one gives the version
    modules: tuple[str, ...] = ()
    precision: str = "f32"
    subject: bool = False
    tolerance: float = PRECISION_TOLERANCE["f32"]
    tuning: Mapping[tuple[str, int], TuningTime] = MappingProxyType({})

    def available(self) -> str | None:
        """None, or the reason why it cannot be used here."""
        missing = [
            package
            for package, module in zip(self.packages, self.modules)
            if importlib.util.find_spec(module) is None
        ]
        return f"not installed: pip install {' '.join(missing)}" if missing else None

    def version(self) -> str:
        try:
            return importlib.metadata.version(self.packages[0])
        except importlib.metadata.PackageNotFoundError:  # of another name, such as onnxruntime-gpu
            names = importlib.metadata.packages_distributions().get(self.modules[0], [])
            return f"{importlib.metadata.version(names[0])} ({names[0]})" if names else "unknown"

    @abstractmethod
    def prepare(self, network: Network, threads: int) -> Runner:
        """Load or compile `network`; any exception becomes the reason of a failed row."""
