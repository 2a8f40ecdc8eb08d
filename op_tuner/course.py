"""How well a strategy searches, trial by trial, so that strategies can be compared.

A config is measured once: whichever strategy tries it later, with whichever seed, is told the same time.
Courses are repeated from the records and the seed, so that one that was interrupted goes on where it stood.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from ..compiler.kernel_task import KernelTask
from ..errors import InputError
from .choosing import Learning
from .costs import made_by, record_of
from .isolate import Candidate, Local, Measurer
from .learner import Learner
from .measure import SECONDS, Built
from .model import OBJECTIVES
from .record import Record
from .records import Records
from .search import Genetic, Random, Strategy
from .space import Point, Space
from .tuner import BATCH, TIME_LIMIT

SURE = 3
"""Measurements of what may be the fastest."""
CLOSE = 1.01
"""Within which times of the fastest a config may be it."""
TOLD = 2
"""Trials after which a model is told of them: the first ones tell it most. A tuner waits for more, so that
candidates are built side by side."""
STRATEGIES = (*OBJECTIVES, "genetic", "random")
"""By what they learn: annealing on a model that ranks, or on one of times; crossing the fastest; nothing."""


class Times:
    """Times of configs on this machine and compiler, from the records or else measured now and kept.

    What a course is told is a config's first record, or the median of the first SURE where that was CLOSE to
    the fastest: of many that are measured once, the fastest is the luckiest. What it is worth in the end is
    the median of its last. With `brief` times of what is clearly slower than the fastest are of a few runs.
    """

    def __init__(
        self,
        records: Records,
        *,
        threads: int = 1,
        evict: int = 0,
        seconds: float = SECONDS,
        time_limit: float = TIME_LIMIT,
        brief: bool = False,
        measure: Measurer | None = None,
    ):
        self.records, self.threads, self.evict, self.brief = records, threads, evict, brief
        self.measure = measure or Local(threads, evict=evict, seconds=seconds, time_limit=time_limit)
        self.measured = 0
        self._known: dict[str, dict[Point, list[float | None]]] = {}
        self._order: dict[str, list[Point]] = {}
        self._errors: dict[tuple[str, Point], str | None] = {}

    def of(self, task: KernelTask) -> dict[Point, list[float | None]]:
        """Each config's times in the order of the records; None where it failed."""
        if task.digest not in self._known:
            known: dict[Point, list[float | None]] = {}
            order: list[Point] = []
            machine, here = self.measure.hardware, made_by()
            for r in self.records.of(task):
                if r.hardware == machine and r.made_by == here and r.evict == self.evict:
                    order.append(tuple(r.config.items()))
                    self._errors[task.digest, order[-1]] = r.error
                    known.setdefault(order[-1], []).append(r.seconds)
            self._known[task.digest], self._order[task.digest] = known, order
        return self._known[task.digest]

    def first(self, task: KernelTask, point: Point) -> float | None:
        """Seconds; None if the config fails."""
        self.measure_missing(task, [point])
        return told(self.of(task)[point])

    def error(self, task: KernelTask, point: Point) -> str | None:
        """Of its last measurement."""
        return self._errors[task.digest, point]

    def measure_missing(self, task: KernelTask, points: Iterable[Point]) -> None:
        """And what is close to the fastest often enough, though an earlier session was interrupted before."""
        missing = [p for p in dict.fromkeys(points) if p not in self.of(task)]
        for record in self._measured(task, missing):
            self._keep(task, record)
        times = {p: told(t) or float("inf") for p, t in self.of(task).items()}
        bound = CLOSE * min(times.values(), default=float("inf"))
        close = [p for p, t in self.of(task).items() if times[p] <= bound < float("inf") and len(t) < SURE]
        if close:
            self._repeat(task, close, SURE - 1)

    def again(self, task: KernelTask, points: Iterable[Point], rounds: int) -> dict[Point, float]:
        """The median of `rounds` measurements beside the first, in turns. Where one of the points lacks some,
        or had its last ones without the others, all are measured anew: what was measured at different times
        does not compare."""
        different = list(dict.fromkeys(points))
        self.measure_missing(task, different)
        if different and not self._in_turns(task, different, rounds):
            self._repeat(task, different, SURE - 1 + rounds)  # so that none lacks any afterwards
        found = {p: [t for t in self.of(task)[p][-rounds:] if t is not None] for p in different}
        return {p: statistics.median(times) if times else float("inf") for p, times in found.items()}

    def _in_turns(self, task: KernelTask, points: Sequence[Point], rounds: int) -> bool:
        """Whether all have enough measurements, the last `rounds` of each in turns of all."""
        if any(len(self.of(task)[point]) < SURE + rounds for point in points):
            return False
        wanted, turn = set(points), len(points)
        order = [p for p in self._order[task.digest] if p in wanted][-rounds * turn :]
        return all(set(order[n : n + turn]) == wanted for n in range(0, len(order), turn))

    def _repeat(self, task: KernelTask, points: Sequence[Point], rounds: int) -> None:
        """In turns, of which whole ones are kept: points are compared by the same ones, also where these are
        of several sessions. What can be kept of a candidate is built once."""
        built: dict[Point, Built | None] = {}
        for _ in range(rounds):
            self._keep(task, *self._measured(task, points, built, alone=True))

    def _keep(self, task: KernelTask, *records: Record) -> None:
        self.records.add(*records)
        for record in records:
            point = tuple(record.config.items())
            self.of(task).setdefault(point, []).append(record.seconds)
            self._errors[task.digest, point] = record.error
            self._order[task.digest].append(point)

    def _measured(
        self,
        task: KernelTask,
        points: Sequence[Point],
        built: dict[Point, Built | None] | None = None,
        alone: bool = False,
    ) -> Iterator[Record]:
        """As the measurer gives them. `built` is what candidates were built to before, and then now, where
        that can be kept."""
        known = (seconds for t in self.of(task).values() if (seconds := told(t)) is not None)
        beat = min(known, default=math.inf) if self.brief else math.inf
        built = {} if built is None else built
        candidates = [Candidate(task, Space.config(point), beat, built.get(point)) for point in points]
        with closing(self.measure(candidates, alone)) as results:
            for n, result in results:
                built[points[n]] = result.built
                # one that died may not have asked everything
                result = replace(result, config=dict(points[n]))
                self.measured += 1
                yield record_of(task, result, self.threads, self.evict, self.measure.hardware)


def told(times: Sequence[float | None]) -> float | None:
    """What a course hears of a config's times in the order of the records."""
    worked = [t for t in times[:SURE] if t is not None]
    return times[0] if len(times) < SURE or not worked else statistics.median(worked)


@dataclass
class Course:
    """One strategy on one task, `batch` trials at a time; `times` are in seconds, None where one failed."""

    strategy: Strategy
    batch: int = BATCH
    points: list[Point] = field(default_factory=list)
    times: list[float | None] = field(default_factory=list)
    thinking: float = 0.0  # seconds that the strategy itself took

    def propose(self, trials: int) -> list[Point]:
        """The next batch, up to `trials` in all; none once there is nothing more to try."""
        started = time.perf_counter()
        batch = self.strategy.propose(min(self.batch, trials - len(self.times)))
        self.thinking += time.perf_counter() - started
        return batch

    def hear(self, times: Times, task: KernelTask, batch: Sequence[Point]) -> None:
        """What a batch took."""
        times.measure_missing(task, batch)
        for point in batch:
            seconds = times.first(task, point)
            self.points.append(point)
            self.times.append(seconds)
            self.strategy.tell(point, seconds, times.error(task, point) if seconds is None else None)

    def advance(self, times: Times, task: KernelTask, trials: int) -> bool:
        """One batch further, up to `trials` in all; False once there is nothing more to try."""
        batch = self.propose(trials)
        self.hear(times, task, batch)
        return bool(batch) and len(self.times) < trials

    def fastest(self, count: int) -> list[Point]:
        """Of what worked, the fastest by the time that the course was told."""
        worked = [(t, n) for n, t in enumerate(self.times) if t is not None]
        return [self.points[n] for _, n in sorted(worked)[:count]]


def strategy(name: str, space: Space, seed: int, learner: Learner | None = None) -> Strategy:
    """One of STRATEGIES; `learner` may know other tasks. ToolError if xgboost is missing that it needs."""
    if name in OBJECTIVES:
        return Learning(space, learner or Learner(name, seed), seed)
    if name not in STRATEGIES:
        raise InputError(f"strategy {name!r}: expected one of {', '.join(STRATEGIES)}")
    return {"genetic": Genetic, "random": Random}[name](space, seed)


def begin(name: str, space: Space, seed: int, learner: Learner | None = None) -> Course:
    """The course of one of STRATEGIES, before its first trial; as `strategy`."""
    return Course(strategy(name, space, seed, learner), TOLD if name in OBJECTIVES else BATCH)


def best_so_far(times: Sequence[float | None]) -> list[float]:
    """Seconds after each trial; infinite until one works."""
    found: list[float] = []
    for seconds in times:
        found.append(min([*found[-1:], float("inf") if seconds is None else seconds]))
    return found
