"""Modules that were just compiled for a GPU: its driver is not needed before the first run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import binding
from .arrays import TensorInfo
from .binding import Context, StepInfo, StepTime


class LateModule:
    """The interface of `binding.Module`. `open` makes the one that runs, once."""

    def __init__(
        self,
        name: str,
        target: str,
        inputs: Sequence[TensorInfo],
        outputs: Sequence[TensorInfo],
        steps: Sequence[StepInfo],
        open: Callable[[], binding.Module],
    ):
        self.name, self.target = name, target
        self.inputs, self.outputs, self.steps = tuple(inputs), tuple(outputs), tuple(steps)
        self._open = open
        self._opening = threading.Lock()
        self._opened: binding.Module | None = None

    @property
    def _module(self) -> binding.Module:
        with self._opening:
            if self._opened is None:
                self._opened = self._open()
            return self._opened

    def context(self, threads: int = 1) -> Context:
        return self._module.context(threads)

    def run(
        self, feeds: Mapping[str, Any], threads: int = 1, out: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        return self._module.run(feeds, threads, out)

    def run_profiled(self, feeds: Mapping[str, Any], threads: int = 1) -> list[StepTime]:
        return self._module.run_profiled(feeds, threads)
