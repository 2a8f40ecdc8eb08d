"""Tunes the tasks of a network together: each batch of measurements goes where it should gain the most time.

Every measurement is a record at once, so that whatever ends a tuner loses nothing, and the next one goes on
from there.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Protocol

from ..compiler.kernel_task import KernelTask
from ..errors import InputError
from .costs import made_by, record_of
from .hardware import Hardware
from .isolate import Candidate, Local, Spans
from .learner import Learner
from .measure import SECONDS, Measurement
from .model import OBJECTIVES
from .records import Records
from .search import Annealing, Genetic, Random, Strategy
from .space import Point, Space

STRATEGIES = ("annealing", "genetic", "random")
BATCH = 8  # measurements between two decisions
RECENT = 0.2  # weight of what a task gained lately, against what it may gain if times fall as 1 / trials
WINDOW = 2 * BATCH  # trials that are recent
CONFIRMED = 3  # measurements of a config that is to replace the default, and of the default
SEARCHING = 0.9  # share of a time budget; the rest is for confirming
TIME_LIMIT = 20.0  # seconds for one candidate, building and checking included

Progress = Callable[[str, int, int], None]


class Measurer(Protocol):
    """Measures candidates, in this process's children (`isolate.Local`) or on other machines.

    hardware   that the times are of
    spans      when candidates were being built or run
    """

    hardware: Hardware
    spans: Spans

    def __call__(
        self, candidates: Sequence[Candidate], alone: bool = False
    ) -> Generator[tuple[int, Measurement], None, None]:
        """(position, measurement) of each in the order in which they end; `alone` is slower and precise."""


@dataclass
class Spent:
    """Seconds that a tuning took. Building and running overlap; `overhead` is what was neither."""

    whole: float = 0.0
    building: float = 0.0
    running: float = 0.0
    overhead: float = 0.0


@dataclass
class TunedTask:
    """One task: how often the network runs it, and what is known. Times are in seconds."""

    task: KernelTask
    count: int
    space: Space
    strategy: Strategy
    default: Point
    times: dict[Point, list[float]] = field(default_factory=dict)  # of what worked
    failed: set[Point] = field(default_factory=set)
    course: list[float] = field(default_factory=list)  # the best after each trial
    exhausted: bool = False

    @property
    def before(self) -> float:
        """Of the default config; infinite if it fails or has not been measured."""
        return self.time(self.default)

    @property
    def after(self) -> float:
        return self.time(self.best)

    @property
    def best(self) -> Point:
        """The config with the smallest median, the default among them."""
        return min(self.times, key=self.time, default=self.default)

    @property
    def trials(self) -> int:
        return len(self.course)

    def time(self, point: Point) -> float:
        """The median of a config's measurements."""
        return statistics.median(self.times[point]) if point in self.times else float("inf")

    def learn(self, point: Point, seconds: float | None) -> None:
        new = point not in self.times and point not in self.failed
        if seconds is None:
            self.failed.add(point)
        else:
            self.times.setdefault(point, []).append(seconds)
        known = point in self.times
        self.strategy.tell(point, self.time(point) if known else None)
        if new:
            self.course.append(min([*self.course[-1:], seconds or float("inf")]))

    def gain(self) -> float:
        """Seconds of the whole network that one more trial may save, roughly.

        After Ansor's task scheduler (Zheng et al. 2020, section 6): what the latest trials gained each, and
        best / trials, the gain of the next one if times fell in proportion to 1 / trials. 0 where nothing
        has worked so far.
        """
        if not self.trials or self.course[-1] == float("inf"):
            return 0.0
        now, window = self.course[-1], min(WINDOW, self.trials)
        then = self.course[-window]
        recent = (then - now) / window if then < float("inf") else 0.0
        return self.count * (RECENT * recent + (1 - RECENT) * now / self.trials)


class Tuner:
    """Measures configs of `tasks`, each with how often the network runs it.

    The default config of every task is measured first and competes with all others; a config that is to
    replace it is measured again, as is the default. Records of this machine and compiler count as measured.
    """

    def __init__(
        self,
        tasks: Sequence[tuple[KernelTask, int]],
        records: Records,
        *,
        threads: int,
        cold: bool = True,
        strategy: str = "annealing",
        objective: str = "rank",
        seed: int = 0,
        seconds: float = SECONDS,
        time_limit: float = TIME_LIMIT,
        measure: Measurer | None = None,
        progress: Progress | None = None,
    ):
        if strategy not in STRATEGIES:
            raise InputError(f"strategy {strategy!r}: expected one of {', '.join(STRATEGIES)}")
        if objective not in OBJECTIVES:
            raise InputError(f"objective {objective!r}: expected one of {', '.join(OBJECTIVES)}")
        self.records, self.threads, self.cold = records, threads, cold
        self.measure = measure or Local(threads, cold=cold, seconds=seconds, time_limit=time_limit)
        self.progress = progress
        self.measured = 0
        self.spent = Spent()
        self.interrupted = False
        learner = Learner(objective, seed) if strategy == "annealing" else None
        self._limit: int | None = None
        self._budget: float | None = None
        self._started = 0.0
        self.tasks = [self._task(task, count, strategy, learner, seed) for task, count in tasks]

    def _task(self, task: KernelTask, count: int, name: str, learner: Learner | None, seed: int) -> TunedTask:
        space = Space(task)
        strategy: Strategy
        if learner is not None:
            strategy = Learning(space, learner, seed)
        else:
            strategy = {"genetic": Genetic, "random": Random}[name](space, seed)
        found = TunedTask(task, count, space, strategy, space.default())
        machine, here = self.measure.hardware, made_by()
        for r in self.records.of(task):
            if r.hardware == machine and r.cold == self.cold and r.made_by == here:
                found.learn(tuple(r.config.items()), r.seconds)
        return found

    @property
    def before(self) -> float:
        """Seconds of all tasks, each as often as the network runs it, with default configs."""
        return sum(t.count * t.before for t in self.tasks)

    @property
    def after(self) -> float:
        return sum(t.count * t.after for t in self.tasks)

    def run(self, trials: int | None = None, budget: float | None = None) -> None:
        """Until `trials` more configs have been measured, defaults included, or `budget` seconds are over.

        Ctrl-C ends it, too, and sets `interrupted`; what was measured is kept.
        """
        if trials is None and budget is None:
            raise InputError("how long? give a number of trials or a budget of seconds")
        self._limit, self._budget, self._started = trials, budget, time.monotonic()
        busy = self.measure.spans.seconds
        try:
            self._search()
            self._confirm()
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            whole = time.monotonic() - self._started
            self.spent.whole += whole
            self.spent.overhead += max(0.0, whole - (self.measure.spans.seconds - busy))

    def _search(self) -> None:
        new = [t for t in self.tasks if not t.times and t.default not in t.failed]
        self._try([(found, found.default) for found in new])
        while not self._over(SEARCHING):
            open_tasks = [t for t in self.tasks if not t.exhausted and t.gain() > 0]
            if not open_tasks:
                return
            best = max(open_tasks, key=TunedTask.gain)
            left = BATCH if self._limit is None else self._limit - self.measured
            points = best.strategy.propose(min(BATCH, left))
            best.exhausted = not points
            self._try([(best, point) for point in points])

    def _over(self, share: float = 1.0) -> bool:
        if self._limit is not None and self.measured >= self._limit:
            return True
        return self._late(share)

    def _late(self, share: float = 1.0) -> bool:
        return self._budget is not None and time.monotonic() - self._started >= share * self._budget

    def _confirm(self) -> None:
        """Measures winners and their defaults again, those first that save most; not counted as trials."""
        for found in sorted(self.tasks, key=lambda t: -t.count * _saved(t)):
            while found.best != found.default and not self._late():
                doubted = [p for p in (found.default, found.best) if len(found.times.get(p, ())) < CONFIRMED]
                doubted = [p for p in doubted if p not in found.failed]
                if not doubted:
                    break
                for _ in self._measure([(found, point) for point in doubted], alone=True):
                    self._tell(f"confirming {found.task.name}")

    def _try(self, wanted: Sequence[tuple[TunedTask, Point]]) -> None:
        """Until trials or time are over."""
        if self._limit is not None:
            wanted = wanted[: self._limit - self.measured]
        if self._over(SEARCHING):
            return
        for found in self._measure(wanted):
            self.measured += 1
            was = "" if found.best == found.default else f" (default {_micro(found.before)})"
            whole = f"{1e3 * self.after:.3f} ms" if self.after < float("inf") else "not yet known"
            self._tell(f"{found.task.name}: {_micro(found.after)}{was}, network {whole}")
            if self._over(SEARCHING):
                return

    def _measure(self, wanted: Sequence[tuple[TunedTask, Point]], alone: bool = False) -> Iterator[TunedTask]:
        """The tasks, as soon as the record of each is kept."""
        candidates = [
            Candidate(found.task, Space.config(point), float("inf") if alone else found.after)
            for found, point in wanted
        ]
        with closing(self.measure(candidates, alone)) as results:
            for n, result in results:
                found, point = wanted[n]
                if result.error:  # a crash tells only of the answers before it
                    result = replace(result, config=dict(point))
                record = record_of(found.task, result, self.threads, self.cold, self.measure.hardware)
                self.records.add(record)
                self.spent.building += result.building
                self.spent.running += result.running
                found.learn(point, record.seconds)
                yield found

    def _tell(self, text: str) -> None:
        if self.progress is None:
            return
        if self._limit is not None:
            self.progress(text, self.measured, max(self._limit, self.measured))
        elif self._budget is not None:
            spent = int(time.monotonic() - self._started)
            self.progress(text, spent, max(int(self._budget), spent))


class Learning(Annealing):
    """Annealing on a model that learns from every measurement."""

    def __init__(self, space: Space, learner: Learner, seed: int):
        self.own = learner.task(space.task)
        super().__init__(space, self.own, seed)

    def tell(self, point: Point, seconds: float | None) -> None:
        super().tell(point, seconds)
        self.own.tell(point, seconds)


def _saved(found: TunedTask) -> float:
    return found.before - found.after if found.before < float("inf") else float("inf")


def _micro(seconds: float) -> str:
    return f"{1e6 * seconds:.1f} µs" if seconds < float("inf") else "fails"
