"""Times alone are not times in a network: the fastest configs are compared with the default ones inside it.

Module 0 of the network has the default config of every task, module k the task's k-th fastest one alone that
no network has seen yet. They run in turns (`turns`), so that one run compares some configs of all tasks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from ..compiler.build_kernel import Kernel
from ..compiler.kernel_task import KernelTask
from .costs import record_of
from .hardware import Hardware
from .measure import Measurement
from .records import Record
from .space import Point
from .tuned_task import TunedTask
from .turns import MOST_ROUNDS, Times, Turns

BEST = 3  # configs of a task that are compared with its default
LEAST_SECONDS, SECONDS = 0.5, 8.0  # of turns
PREPARING = 3.0  # seconds, until it is known
TIME_LIMIT = 60.0  # seconds of preparing, at most


class Network(Protocol):
    """Runs the network's module as the plan of now says.

    name   a digest of what that plan runs
    """

    @property
    def name(self) -> str: ...

    def __call__(self, variants: Sequence[Mapping[str, Point]], seconds: float, time_limit: float) -> Turns:
        """Turns of modules whose tasks have these configs, by digest; the default one where there is none."""

    def keep(self, task: KernelTask, point: Point, kernel: Kernel) -> None:
        """A kernel that a module may need."""


class Confirming:
    """Compares configs inside of a network; every comparison is a record. `failure` says what went wrong."""

    def __init__(self, network: Network, threads: int, cold: bool, hardware: Hardware):
        self.network, self.threads, self.cold, self.hardware = network, threads, cold, hardware
        self.failure = ""
        self._preparing = PREPARING

    def keep(self, found: TunedTask, point: Point, kernel: Kernel | None) -> None:
        """The kernel of a config that may be compared; others are not kept."""
        if kernel is not None and point in (found.default, *_fastest(found)):
            self.network.keep(found.task, point, kernel)

    def expected(self, tasks: Sequence[TunedTask], network: float) -> float:
        """Seconds that comparing will take, where a run of the network takes `network`."""
        if not any(t.count and t.fastest != t.default and not _seen(t, t.fastest) for t in tasks):
            return 0.0
        return self._preparing + self._seconds(1 + BEST, network)

    def compare(self, tasks: Sequence[TunedTask], network: float, left: float) -> Iterator[Record]:
        """The records of the fastest configs of the plan's tasks, and of their defaults, if any are left to
        compare; in about `left` seconds, or as many as the least number of rounds takes.

        A module that fails is an outcome of the configs in it; the others are compared without it.
        """
        tasks = [found for found in tasks if found.count]
        variants = _variants(tasks)
        while len(variants) > 1 and not self.failure:
            seconds = min(left - self._preparing, self._seconds(len(variants), network))
            turns = self.network(variants, max(0.0, seconds), TIME_LIMIT)
            self._preparing = turns.preparing
            if turns.failed is None:
                yield from self._compared(tasks, variants, turns.rounds)
                return
            if turns.failed == 0:
                self.failure = f"{turns.error} of the network's module: {turns.detail}"
                return
            failed = variants.pop(turns.failed)
            wrong = Measurement.failed(turns.error, turns.detail)
            for found in tasks:
                if failed[found.task.digest] != variants[0][found.task.digest]:
                    yield self._record(found, failed[found.task.digest], wrong)

    def _seconds(self, count: int, network: float) -> float:
        """Of turns: two runs each."""
        return min(SECONDS, LEAST_SECONDS + 2 * count * MOST_ROUNDS * network)

    def _compared(
        self, tasks: Sequence[TunedTask], variants: Sequence[Mapping[str, Point]], rounds: list[list[Times]]
    ) -> Iterator[Record]:
        for found in tasks:
            digest = found.task.digest
            points = {v[digest]: n for n, v in reversed(list(enumerate(variants)))}
            if len(points) < 2 or digest not in rounds[0][0]:
                continue
            own = np.array([[times[digest] for times in each] for each in rounds]) / found.count
            if not own.all():
                continue  # shorter than the clock can tell
            against = float(np.median(own[:, 0]))
            for point, n in sorted(points.items(), key=lambda p: p[1]):
                low, share, high = np.percentile(own[:, n] / own[:, 0], (25, 50, 75))
                result = Measurement(float(share) * against, float((high - low) / share), len(rounds))
                yield self._record(found, point, result, against)

    def _record(
        self, found: TunedTask, point: Point, result: Measurement, against: float | None = None
    ) -> Record:
        result = replace(result, config=dict(point))
        record = record_of(found.task, result, self.threads, self.cold, self.hardware)
        return replace(record, network=self.network.name, against=against)


def _variants(tasks: Sequence[TunedTask]) -> list[dict[str, Point]]:
    """The configs of each module by task: of the first one the defaults."""
    ranks = {t.task.digest: [_base(t), *_doubted(t)] for t in tasks if t.count}
    most = max(map(len, ranks.values()), default=0)
    return [{d: own[n] if n < len(own) else own[0] for d, own in ranks.items()} for n in range(most)]


def _base(found: TunedTask) -> Point:
    """The default config, unless it fails."""
    return found.fastest if found.default in found.failed else found.default


def _doubted(found: TunedTask) -> list[Point]:
    """Of the fastest, those that no network has seen."""
    return [point for point in _fastest(found) if not _seen(found, point)]


def _seen(found: TunedTask, point: Point) -> bool:
    return any(tuple(r.config.items()) == point for r in found.inside)


def _fastest(found: TunedTask) -> list[Point]:
    """Those that are faster alone than the default config, if that works."""
    better = [p for p in found.times if found.time(p) < found.before < math.inf and p != found.default]
    return sorted(better, key=found.time)[:BEST]
