"""What a tuner knows of one task: its measurements, and what more of them may gain."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from ..compiler.kernel_task import KernelTask
from . import expected_gain
from .costs import PASSING
from .record import Record
from .search import Strategy
from .space import Point, Space
from .verdict import CONFIRMED, WRONG, Confirmed, confirmed, refuted, typical

RECENT = 0.2  # weight of what a task gained lately, against what is expected of its next trials
WINDOW = 16  # trials that are recent
HOPELESS = 64  # trials of which none worked, after which there are no more


@dataclass(frozen=True)
class Wanted:
    """A task that a network's plan runs `count` times, or that might stand in the plan.

    predicted_count  times that the plan which is made without measuring runs it
    targets   for each place where it might stand: seconds below which that would pay
    expected  seconds, until it is measured
    """

    task: KernelTask
    count: int = 0
    predicted_count: int = 0
    targets: tuple[float, ...] = ()
    expected: float = math.inf


@dataclass(eq=False)
class TunedTask:
    """Times are in seconds."""

    wanted: Wanted
    space: Space
    strategy: Strategy
    default: Point
    told: Point | None = None  # what records of another compiler or machine would take
    told_by: str = ""  # that machine; "" for this one
    times: dict[Point, list[float]] = field(default_factory=dict)  # alone, of what worked
    unsure: set[Point] = field(default_factory=set)  # of these, what no measurement is sure of
    set_aside: Counter[Point] = field(default_factory=Counter)  # that were not, beside some that were
    inside: list[Record] = field(default_factory=list)  # of networks
    failed: set[Point] = field(default_factory=set)
    wrong: set[Point] = field(default_factory=set)  # once or more
    course: list[float] = field(default_factory=list)  # the best after each trial
    exhausted: bool = False
    disturbed: bool = False  # the default's latest measurement
    excused: set[Point] = field(default_factory=set)  # of a failure that may have been the machine's
    tried: int = 0  # measurements of this run but the first, which prepares others
    spent: float = 0.0  # on these
    first: float = 0.0  # on the first
    _fastest: Point | None = None
    _confirmed: Confirmed | None = None

    @property
    def task(self) -> KernelTask:
        return self.wanted.task

    @property
    def count(self) -> int:
        """Calls in a run of the network by the plan of now."""
        return self.wanted.count

    @property
    def planned(self) -> bool:
        """Whether the plan of now or the one to compare with runs it."""
        return bool(self.count or self.wanted.predicted_count)

    @property
    def before(self) -> float:
        """Of the default config; infinite if it fails, was wrong once, or has not been measured."""
        return math.inf if self.default in self.wrong else self.time(self.default)

    @property
    def begun(self) -> float:
        """What trials begin with: the time of the default config, or of what records would take if that is
        less. What others have found says nothing of what more trials gain."""
        return self.before if self.told is None else min(self.before, self.time(self.told))

    @property
    def gained(self) -> float:
        """Logarithm of what trials have gained so far."""
        return math.log(self.begun / self.after) if 0 < self.after < self.begun < math.inf else 0.0

    @property
    def after(self) -> float:
        """Of the best config: alone, or the share of the default's time that it takes in the network."""
        found = self.confirmed
        if found is None or self.before == math.inf:
            return self.time(self.best)
        return found.share * self.before

    @property
    def best(self) -> Point:
        """The config to take: the fastest in the network, see `confirmed`, or alone."""
        return self.fastest if self.confirmed is None else self.confirmed.config

    @property
    def confirmed(self) -> Confirmed | None:
        """What times in the network say; None where there are none, or none alone to say how long that is."""
        found = self._confirmed
        known = found is not None and (self.before < math.inf or found.config in self.times)
        return found if known else None

    @property
    def fastest(self) -> Point:
        """The config with the smallest time alone, the default among them, that no network has refuted and
        that was never wrong. What nothing is sure of comes behind all others."""
        if self._fastest is None:
            wrong = refuted(self.inside) | self.wrong
            fit = [point for point in self.times if point not in wrong]
            rank = lambda point: (point in self.unsure, self.time(point))  # noqa: E731
            self._fastest = min(fit, key=rank, default=self.default)
        return self._fastest

    @property
    def doubtful(self) -> list[Point]:
        """What seems to be faster than that, but nothing is sure of, and may be asked again."""
        asked = [p for p in self.unsure - self.failed if len(self.times[p]) < CONFIRMED]
        return [p for p in asked if self.time(p) <= self.time(self.fastest)]

    @property
    def trials(self) -> int:
        return len(self.course)

    @property
    def default_known(self) -> bool:
        return self.default in self.times or self.default in self.failed

    @property
    def hints(self) -> list[Point]:
        """What was told and has not been measured."""
        known = self.told is None or self.told in self.times or self.told in self.failed
        return [] if known or self.told is None else [self.told]

    @property
    def saved(self) -> float:
        """Seconds of one call that the best config saves."""
        return self.before - self.after if self.before < math.inf else math.inf

    def time(self, point: Point) -> float:
        """The typical one of a config's measurements."""
        return typical(self.times[point]) if point in self.times else math.inf

    def learn(
        self,
        point: Point,
        seconds: float | None,
        error: str | None = None,
        sure: bool = True,
        earlier: bool = False,
    ) -> None:
        """What a measurement said; one that is not `sure` says nothing beside one that is.

        What failed once for a passing reason may be asked again: the default, and others where that was in an
        `earlier` run."""
        if error in PASSING and (earlier or point == self.default) and point not in self.excused:
            self.excused.add(point)
            self.strategy.avoid(point)
            return
        new = point not in self.times and point not in self.failed
        settles = seconds is not None and sure and point in self.unsure
        if seconds is None:
            self.failed.add(point)
            if error in WRONG:
                self.wrong.add(point)
                self._confirm()
        else:
            self._keep_time(point, seconds, sure)
        self._fastest = None
        known = self.time(point)
        self.strategy.tell(point, known if point in self.times else None, error)
        if new:
            self.course.append(min([*self.course[-1:], known if sure or not self.course else math.inf]))
        elif settles:
            self.course[-1] = min(self.course[-1], known)

    def _keep_time(self, point: Point, seconds: float, sure: bool) -> None:
        if point not in self.times and not sure:
            self.unsure.add(point)
        elif point in self.unsure and sure:
            self.unsure.remove(point)
            del self.times[point]
        if sure or point in self.unsure:
            self.times.setdefault(point, []).append(seconds)
        else:
            self.set_aside[point] += 1

    def asked(self, point: Point) -> bool:
        """Whether it has been measured often enough, or as often in vain."""
        return max(len(self.times.get(point, ())), self.set_aside[point]) >= CONFIRMED

    def learn_inside(self, record: Record) -> None:
        """What a network said of a config."""
        self.inside.append(record)
        self._fastest = None
        self._confirm()

    def _confirm(self) -> None:
        self._confirmed = confirmed(r for r in self.inside if tuple(r.config.items()) not in self.wrong)

    def took(self, seconds: float) -> None:
        """How long a measurement lasted, with all that belongs to it."""
        if not self.first:
            self.first = seconds
        else:
            self.spent, self.tried = self.spent + seconds, self.tried + 1

    def gain(self, curve: float) -> float:
        """Seconds of the whole network that one more trial may save, roughly; without end where it cannot do
        without the task, of which nothing has worked yet.

        `curve` is what many trials gain (`expected_gain`). What the latest ones gained counts, too,
        after Ansor's task scheduler (Zheng et al. 2020, section 6)."""
        now = self.after if self.trials else self.wanted.expected
        if self.count and self.trials and now == math.inf:
            return math.inf if self.trials < HOPELESS else 0.0
        expected = self.gain_at(self._own(curve), self.trials, now)
        return (1 - RECENT) * expected + RECENT * self.count * self._recent()

    def _own(self, curve: float) -> float:
        """What many trials gain of this task, by what they have gained so far."""
        if not max(self.before, self.after) < math.inf:
            return curve
        return expected_gain.fitted([(1.0, self.trials, self.gained)], curve)

    def gain_at(self, curve: float, trials: int, now: float) -> float:
        """What is expected of the next trial behind so many, the best taking `now`."""
        own = self.count * expected_gain.rate(curve, trials, now, now, trials > 0)
        return own + sum(expected_gain.rate(curve, trials, now, t, trials > 0) for t in self.wanted.targets)

    def _recent(self) -> float:
        """Seconds that each of the latest trials saved of one call."""
        window = min(WINDOW, self.trials - 1)
        then = min(self.course[-1 - window], self.begun) if window > 0 else math.inf
        return max(0.0, then - self.course[-1]) / window if then < math.inf else 0.0

    @property
    def crosses(self) -> bool:
        """Whether it has become fast enough to stand in the plan elsewhere."""
        return bool(self.trials) and any(self.after < target for target in self.wanted.targets)
