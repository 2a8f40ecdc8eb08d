"""Measurements to learn from: configs of many tasks, some of chance, some next to the fastest known.

What the records hold counts, so that collecting goes on where it was interrupted.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ..compiler.kernel_task import KernelTask
from .costs import record_of
from .hardware import this_hardware
from .isolate import measure_isolated
from .measure import Measurement
from .records import Record, Records
from .space import TRIES, Point, Space

FASTEST = 4
"""Whose neighbours are drawn."""
SECONDS = 0.03  # of a candidate's own time
TIME_LIMIT = 20.0

Progress = Callable[[str, int, int], None]
Kind = tuple[str, bool]
"""A task by its digest, and whether it is measured with weights from memory."""


class Collector:
    """Measures `samples` configs of each task, the default first; (task, cold) may come once only."""

    def __init__(
        self,
        tasks: Sequence[tuple[KernelTask, bool]],
        records: Records,
        samples: int,
        *,
        measure: Callable[..., Measurement] = measure_isolated,
        progress: Progress | None = None,
    ):
        self.tasks, self.records, self.samples = tasks, records, samples
        self.measure, self.progress = measure, progress
        self.measured = 0
        self.known = samples_of(records)
        self._spaces: dict[str, Space] = {}

    def run(self, budget: float | None = None) -> None:
        """Until there are enough samples or `budget` seconds are over; each task gets one in turn."""
        started, going = time.monotonic(), list(self.tasks)
        total = self.samples * len(going)
        while going:
            for task, cold in list(going):
                if budget is not None and time.monotonic() - started >= budget:
                    return
                own = self.known.setdefault((task.digest, cold), {})
                point = self._next(task, own) if len(own) < self.samples else None
                if point is None:
                    going.remove((task, cold))
                    continue
                own[point] = self._measure(task, cold, point)
                if self.progress:
                    self.progress(f"measuring {task.name}", self._have(), total)

    def _have(self) -> int:
        return sum(min(len(self.known.get((t.digest, c), ())), self.samples) for t, c in self.tasks)

    def _next(self, task: KernelTask, own: dict[Point, float | None]) -> Point | None:
        """A config that is not known; every second one is next to a fast one. None where the space ends."""
        space = self._spaces.setdefault(task.digest, Space(task))
        default = space.default()
        if default not in own:
            return default
        rng = random.Random(f"{task.digest} {len(own)}")
        worked = sorted((seconds, point) for point, seconds in own.items() if seconds is not None)[:FASTEST]
        for attempt in range(TRIES):
            near = worked and len(own) % 2 and 2 * attempt < TRIES  # unless their neighbours are all known
            point = space.neighbour(rng.choice(worked)[1], rng) if near else space.draw(rng)
            if point not in own:
                return point
        return None

    def _measure(self, task: KernelTask, cold: bool, point: Point) -> float | None:
        result = self.measure(
            *(task, Space.config(point)),
            threads=task.threads,
            seconds=SECONDS,
            cold=cold,
            time_limit=TIME_LIMIT,
        )
        record = record_of(task, replace(result, config=dict(point)), task.threads, cold)
        self.records.add(record)
        self.measured += 1
        return record.seconds


def samples_of(records: Iterable[Record]) -> dict[Kind, dict[Point, float | None]]:
    """Every config's fastest time on this machine, whatever compiler made it; None where it never worked."""
    machine = this_hardware()
    found: dict[Kind, dict[Point, float | None]] = {}
    for r in records:
        if r.hardware == machine:
            own, point = found.setdefault((r.task, r.cold), {}), tuple(r.config.items())
            times = [t for t in (own.get(point), r.seconds) if t is not None]
            own[point] = min(times, default=None)
    return found
