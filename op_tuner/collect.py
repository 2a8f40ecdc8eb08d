"""Measurements to learn from: configs of many tasks, some of chance, some next to the fastest known.

What the records hold counts, so that collecting goes on where it was interrupted.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace

from ..compiler.kernel_task import KernelTask
from .costs import record_of
from .hardware import this_hardware
from .isolate import Candidate, Local, Measurer
from .record import Record
from .records import Records
from .space import TRIES, Point, Space
from .verdict import config_records, sound

BATCH = 8
"""Configs of a task that are measured together: its operands are made once for all of them."""
FASTEST = 4
"""Whose neighbours are drawn."""
SECONDS = 0.03
"""Of a candidate's own time."""

Progress = Callable[[str, int, int], None]
Kind = tuple[str, int]
"""A task by its digest, and the bytes that its measurements evict."""


def local(threads: int, evict: int) -> Measurer:
    return Local(threads, evict=evict, seconds=SECONDS)


class Collector:
    """Measures `samples` configs of each task, the default first; (task, evict) may come once only."""

    def __init__(
        self,
        tasks: Sequence[tuple[KernelTask, int]],
        records: Records,
        samples: int,
        *,
        measurer: Callable[[int, int], Measurer] = local,
        progress: Progress | None = None,
    ):
        self.tasks, self.records, self.samples = tasks, records, samples
        self.progress = progress
        self.measured = 0
        self.known = samples_of(records)
        self._measurers = {kind: measurer(*kind) for kind in {(t.threads, evict) for t, evict in tasks}}

    def run(self, budget: float | None = None) -> None:
        """Until there are enough samples or `budget` seconds are over; whoever has fewest gets a batch."""
        started, going = time.monotonic(), list(self.tasks)
        while going and (budget is None or time.monotonic() - started < budget):
            task, evict = min(going, key=lambda kind: len(self._own(*kind)))
            own = self._own(task, evict)
            batch = self._draw(task, own, min(BATCH, self.samples - len(own)))
            if not batch:
                going.remove((task, evict))
                continue
            self._measure(task, evict, batch, own)
            if self.progress:
                have = sum(min(len(self._own(*kind)), self.samples) for kind in self.tasks)
                self.progress(f"measuring {task.name}", have, self.samples * len(self.tasks))

    def _own(self, task: KernelTask, evict: int) -> dict[Point, float | None]:
        return self.known.setdefault((task.digest, evict), {})

    def _draw(self, task: KernelTask, own: dict[Point, float | None], count: int) -> list[Point]:
        """Configs that are not known, every second one next to a fast one; fewer where the space ends."""
        if count <= 0:
            return []
        space, rng = Space(task), random.Random(f"{task.digest} {len(own)}")
        worked = sorted((seconds, point) for point, seconds in own.items() if seconds is not None)[:FASTEST]
        found = {space.default(): None} if space.default() not in own else {}
        for attempt in range(TRIES * count):
            if len(found) == count:
                break
            near = worked and attempt % 2
            point = space.neighbour(rng.choice(worked)[1], rng) if near else space.draw(rng)
            if point not in own:
                found[point] = None
        return list(found)

    def _measure(
        self, task: KernelTask, evict: int, batch: Sequence[Point], own: dict[Point, float | None]
    ) -> None:
        measurer = self._measurers[task.threads, evict]
        candidates = [Candidate(task, Space.config(point)) for point in batch]
        with closing(measurer(candidates)) as results:
            for n, result in results:
                result = replace(result, config=dict(batch[n]))  # one that died may not have asked everything
                record = record_of(task, result, task.threads, evict, measurer.hardware)
                self.records.add(record)
                self.measured += 1
                own[batch[n]] = record.seconds


def samples_of(records: Iterable[Record]) -> dict[Kind, dict[Point, float | None]]:
    """Every config's time on this machine, see `config_records`; by an older compiler where this has none;
    None where it never worked, or was wrong."""
    machine = this_hardware()
    own: dict[Kind, dict[Point, list[Record]]] = {}
    for r in records:
        if r.hardware == machine:
            points = own.setdefault((r.task, r.evict), {})
            points.setdefault(tuple(r.config.items()), []).append(r)
    return {kind: {p: _time(rs) for p, rs in points.items()} for kind, points in own.items()}


def _time(records: Sequence[Record]) -> float | None:
    """Of one config."""
    typical = list(config_records(sound(records)).values())
    return typical[0].seconds if typical else None
