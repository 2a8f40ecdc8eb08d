"""Burnish itself, behind the same interface as its peers."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from typing import Any

import numpy as np

from .base import Arrays, Network, Peer, Runner


class BurnishRunner(Runner):
    def __init__(self, module: Any, threads: int, network: Network):
        self.module = module
        self.context = module.context(threads)
        self.names = network.output_names

    def bind(self, inputs: Arrays) -> Callable[[], object]:
        arrays = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
        run = self.context.run
        return lambda: run(arrays)

    def outputs(self, result: Any) -> dict[str, np.ndarray]:
        return {name: np.array(result[name]) for name in self.names}

    def close(self) -> None:
        self.context = self.module = None


class Burnish(Peer):
    """`compile(model, threads=N)` is `burnish.pipeline.compile`, with the user's options bound."""

    name = "burnish"
    packages = ("burnish",)
    modules = ("burnish",)
    subject = True

    def __init__(self, compile: Callable[..., Any], name: str = "burnish"):
        self.compile = compile
        self.name = name

    def version(self) -> str:
        try:
            return super().version()
        except PackageNotFoundError:
            return "source tree"

    def prepare(self, network: Network, threads: int) -> Runner:
        return BurnishRunner(self.compile(network.model, threads=threads), threads, network)
