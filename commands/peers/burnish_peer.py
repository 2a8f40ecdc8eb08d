"""Burnish itself, behind the same interface as its peers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError
from typing import Any

import numpy as np

from .base import PRECISION_TOLERANCE, Arrays, Network, Peer, Runner, TuningTime

NOTABLE = 0.1


def algorithms(module: Any) -> str:
    """Those of at least a tenth of the operations, the most first; and how many configs come from records."""
    work = getattr(module, "operations", {})
    shares = sorted(((count / max(1, sum(work.values())), name) for name, count in work.items()))
    names = ", ".join(name for share, name in reversed(shares) if share >= NOTABLE)
    recorded = getattr(module, "recorded", 0)
    return names + f" ({recorded} configs from records)" * bool(recorded)


class BurnishRunner(Runner):
    def __init__(self, module: Any, threads: int, network: Network):
        self.module = module
        self.context = module.context(threads)
        self.names = network.output_names

    @property
    def algorithm(self) -> str:
        return algorithms(self.module)

    def bind(self, inputs: Arrays) -> Callable[[], object]:
        for name, array in inputs.items():
            self.context.bind_input(name, array)
        return self.context.run

    def outputs(self, result: object) -> dict[str, np.ndarray]:
        return {name: self.context.output(name).copy() for name in self.names}

    def close(self) -> None:
        self.context = self.module = None


class BurnishCudaRunner(BurnishRunner):
    """Inputs and outputs lie on the GPU, in the context's own memory."""

    def bind(self, inputs: Arrays) -> Callable[[], object]:
        for name, array in inputs.items():
            self.context.bind_input(name, array)
        self.context.run()  # uploads them
        for name in inputs:
            self.context.bind_input(name, self.context.device_input(name))
        for name in self.names:
            self.context.bind_output(name, self.context.device_output(name))
        return self.context.run

    def outputs(self, result: object) -> dict[str, np.ndarray]:
        for name in self.names:
            self.context.bind_output(name, None)
        self.context.run()  # once more, with copies of the outputs to the host
        return super().outputs(result)


class Burnish(Peer):
    """`compile(model, threads=N)` gives a runtime Module: `pipeline.compile` with the user's options."""

    name = "burnish"
    packages = ("burnish",)
    modules = ("burnish",)
    subject = True

    def __init__(
        self,
        compile: Callable[..., Any],
        name: str = "burnish",
        cuda: bool = False,
        tuning: Mapping[tuple[str, int], TuningTime] | None = None,
        precision: str = "f32",
    ):
        self.compile = compile
        self.name = name if precision == "f32" else f"{name}-{precision}"
        self.precision, self.tolerance = precision, PRECISION_TOLERANCE[precision]
        self.cuda = cuda
        self.tuning = {} if tuning is None else tuning  # filled later

    def version(self) -> str:
        try:
            return super().version()
        except PackageNotFoundError:
            return "source tree"

    def prepare(self, network: Network, threads: int) -> Runner:
        runner = BurnishCudaRunner if self.cuda else BurnishRunner
        return runner(self.compile(network.model, threads=threads), threads, network)
