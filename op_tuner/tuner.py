"""Tunes the tasks of a network together: each batch of measurements goes where it should gain the most time.

    defaults   of the tasks in the plan are measured; the plan is solved again, until nothing new enters it
    search     batches go to tasks in the plan and to those that are close to a place in it
    confirm    the fastest are compared with their defaults in the network (`confirm`); where none can be run,
               winners and their defaults are measured again

The plan is solved again whenever that may change it. Every measurement is a record at once, so that whatever
ends a tuner loses nothing, and the next one goes on from there.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

from ..errors import InputError, InternalError, RunError
from .child import interrupts_later
from .chooser import Elsewhere
from .choosing import Choosing
from .confirm import Confirming, Network
from .costs import CLOCK_NOISE, record_of
from .forecast import Forecast, Outlook, curve, foretold, play, winning
from .hardware import hardware_of
from .isolate import Candidate, Local, Measurer
from .measure import SECONDS, Measurement
from .model import OBJECTIVES, CostModel
from .records import RecordedConfig, Records, is_own
from .space import Point, Space
from .tuned_task import TunedTask, Wanted
from .verdict import CONFIRMED

STRATEGIES = ("annealing", "genetic", "random")
BATCH, LARGEST = 8, 32  # measurements between two decisions
CALIBRATION = 4  # batches before the forecast, and of the latest the time to choose them counts
EARLY = 0.2  # share of a run behind which the forecast waits no longer
CONFIRMING = 0.25  # share of a time budget that is kept for that, at most
REPLANNING = 0.1  # share of the time that planning again may take
PATIENCE = 8  # batches after which the plan is solved again, though no rival has become faster
ROUNDS = 10  # of planning in a row, each with tasks that are new to the plan
AGAIN = 0.6  # the time of a trial over that of its task's first, which computes what results should be
UNKNOWN = "trials or time were over before all default configs had been measured; give more"
LATE = "time was over before all that the plan runs was compared; give more"
INTERRUPTED = "it was interrupted"
TIME_LIMIT = 20.0  # seconds for one candidate, building and checking included

Progress = Callable[[str, int, int], None]
Replan = Callable[[], Sequence[Wanted]]


def require_limits(trials: Any, budget: Any) -> None:
    """InputError unless each is None, or a number of trials and of seconds that a run can end with."""
    if not (trials is None or (isinstance(trials, Integral) and int(trials) >= 0)):
        raise InputError(f"trials is {trials!r}: expected a whole number")
    if not (budget is None or (isinstance(budget, Real) and 0 <= float(budget) < math.inf)):
        raise InputError(f"budget is {budget!r}: expected a number of seconds")


@dataclass
class Spent:
    """Seconds that a tuning took. Building and running overlap, so that their shares and that of `overhead`,
    which is what was neither, add up to more than the whole."""

    whole: float = 0.0
    building: float = 0.0
    running: float = 0.0
    overhead: float = 0.0

    def __str__(self) -> str:
        parts = (("building", self.building), ("running", self.running), ("the tuner itself", self.overhead))
        return "of this time: " + ", ".join(f"{s / max(self.whole, 1e-9):.0%} {what}" for what, s in parts)


@dataclass(frozen=True)
class Trial:
    """One measurement in the course of a run. Times are in seconds."""

    task: str  # digest
    batch: int  # 0 before the search
    score: float | None  # of the model, larger is faster; None where it was not asked
    seconds: float | None  # None where the candidate failed
    best: float  # of the task so far
    network: float  # by the plan of then, with the best configs so far
    at: float  # since the start


class Tuner:
    """Measures configs of the tasks that are wanted.

    The default config of every task in the plan is measured first and competes with all others, then what
    records of another compiler or machine would take. A config that is to replace the default is compared
    with it once more, in the `network` if that is given. Records of this machine and compiler count as
    measured. `replan` gives what is wanted by all that is recorded by now; `announce` is told how long the
    run will take and what it will gain, by other networks before it begins, and once trials have shown it;
    `prior` is what a learned model begins with.
    """

    def __init__(
        self,
        tasks: Sequence[Wanted],
        records: Records,
        *,
        threads: int,
        evict: int = 0,
        strategy: str = "annealing",
        objective: str = "rank",
        seed: int = 0,
        seconds: float = SECONDS,
        time_limit: float = TIME_LIMIT,
        measure: Measurer | None = None,
        progress: Progress | None = None,
        replan: Replan | None = None,
        announce: Callable[[Forecast], None] | None = None,
        prior: CostModel | None = None,
        network: Network | None = None,
    ):
        if strategy not in STRATEGIES:
            raise InputError(f"strategy {strategy!r}: expected one of {', '.join(STRATEGIES)}")
        if objective not in OBJECTIVES:
            raise InputError(f"objective {objective!r}: expected one of {', '.join(OBJECTIVES)}")
        self.records, self.threads, self.evict = records, threads, evict
        hardware = hardware_of(tasks[0].task.target) if tasks else None
        self.measure = measure or Local(
            threads, evict=evict, seconds=seconds, time_limit=time_limit, hardware=hardware
        )
        self.progress, self.replan, self.announce = progress, replan, announce
        how = (threads, evict, self.measure.hardware, self.measure.spans)
        self.confirming = None if network is None else Confirming(network, *how)
        self.measured = self._earlier = 0
        self.spent = Spent()
        self.interrupted, self.failure = False, ""
        self.forecast: Forecast | None = None
        self.history: list[Trial] = []
        self._choosing = Choosing(strategy, objective, seed, prior, self.measure.idle)
        self._next: TunedTask | None = None  # whose configs are being chosen
        self._limit: int | None = None
        self._budget: float | None = None
        self._started = 0.0
        self._batches = 0
        self._choices: list[float] = []  # seconds by point, of each batch that was chosen in the way of now
        self._by_model = not self._choosing.learns
        self._planning = _Planning()
        self._tasks: dict[str, TunedTask] = {}
        self._dropped: list[TunedTask] = []  # what the latest plan runs no more
        self._settled = False  # whether the defaults of a whole plan have been known
        self._want(tasks)

    @property
    def tasks(self) -> list[TunedTask]:
        return list(self._tasks.values())

    @property
    def _done(self) -> int:
        """Trials of this run."""
        return self.measured - self._earlier

    @property
    def before(self) -> float:
        """Seconds of the plan to compare with, with default configs."""
        return sum(t.wanted.predicted_count * t.before for t in self.tasks if t.wanted.predicted_count)

    @property
    def by_chance(self) -> str:
        """Why chance chose from some moment on; "" if it did not."""
        return self._choosing.failure

    @property
    def after(self) -> float:
        """Seconds of the plan of now, with the best configs."""
        return sum(t.count * t.after for t in self.tasks if t.count)

    def run(
        self, trials: int | None = None, budget: float | None = None, started: float | None = None
    ) -> None:
        """Until `trials` more configs have been measured, defaults included, or `budget` seconds are over,
        since `started` (`time.monotonic`; default: now), confirming included.

        Ctrl-C ends it, too, and sets `interrupted`, as does what is nobody's fault, such as a full disk or no
        more processes, of which `failure` tells; what was measured is kept.
        """
        if trials is None and budget is None:
            raise InputError("how long? give a number of trials or a budget of seconds")
        require_limits(trials, budget)
        self._limit, self._budget, self._earlier = trials, budget, self.measured
        self._started = time.monotonic() if started is None else started
        busy = self.measure.spans.seconds
        try:
            self._foretell()
            self._settle()
            self._search()
            self._confirm()
        except KeyboardInterrupt:
            self._stops(INTERRUPTED)
        except (RunError, InternalError, OSError, MemoryError) as error:
            self.failure = " ".join((str(error) or type(error).__name__).split())
            self._stops(self.failure)
            self._tell(self.failure)
        finally:
            self._choosing.close()
            self._next = None
            whole = self._elapsed()
            self.spent.whole += whole
            if self.confirming is not None:
                self.spent.building += self.confirming.building
                self.spent.running += self.confirming.running
                self.confirming.building = self.confirming.running = 0.0
            self.spent.overhead += max(0.0, whole - (self.measure.spans.seconds - busy))

    def _stops(self, why: str) -> None:
        self.interrupted = True
        if self.confirming is not None:
            self.confirming.failure = self.confirming.failure or why

    def _want(self, wanted: Sequence[Wanted]) -> bool:
        """Takes up what a plan says; whether it runs other tasks than before."""
        before = {digest: t.count for digest, t in self._tasks.items() if t.count}
        for task in self._tasks.values():
            task.wanted = Wanted(task.task)
        for one in wanted:
            if one.task.digest in self._tasks:
                self._tasks[one.task.digest].wanted = one
            else:
                self._tasks[one.task.digest] = self._task(one)
        after = {digest: t.count for digest, t in self._tasks.items() if t.count}
        self._dropped = [self._tasks[digest] for digest in before if digest not in after]
        return before != after

    def _task(self, wanted: Wanted) -> TunedTask:
        space = Space(wanted.task)
        config = self.records.told(wanted.task, self.measure.hardware, self.evict)
        found = TunedTask(wanted, space, self._choosing.strategy(wanted.task), space.default())
        if isinstance(config, RecordedConfig):
            found.told, found.told_by = space.point(config.answers), config.origin
        for r in self.records.of(wanted.task):
            if is_own(r, self.measure.hardware, self.evict):
                found.learn(tuple(r.config.items()), r.seconds, r.error, r.sure, earlier=True)
        for r in self.records.in_networks(wanted.task):
            if is_own(r, self.measure.hardware, self.evict):
                found.learn_inside(r)
        return found

    def _settle(self) -> None:
        """Measures the defaults of what the plan runs, and plans again, until nothing new enters it.

        A default that was disturbed, or lost its place by one measurement, is measured once more: neither the
        search nor the plan should depend on a slow moment of the machine."""
        for _ in range(ROUNDS):
            new = self._unknown()
            for n in range(0, len(new), BATCH):
                self._choosing.prepare([t.strategy for t in [*self._ranking(), *new[n:]]])
                self._try([(found, found.default) for found in new[n : n + BATCH]])
            excused = [t for t in new if t.default in t.excused and not t.default_known]
            self._try([(found, found.default) for found in excused])
            known = [t for t in self.tasks if t.planned and t.default_known]
            hints = [(found, point) for found in known for point in found.hints]
            for n in range(0, len(hints), BATCH):
                self._try(hints[n : n + BATCH])
            again = [t for t in new if t.disturbed] + self._dropped
            self._measure_again([(t, t.default) for t in again if len(t.times.get(t.default, ())) == 1])
            self._settled = self._settled or not self._unknown()
            if self._over(self._reserve()) or not self.plan_again():
                return

    def plan_again(self) -> bool:
        """By all that is known now; whether another plan than before came out."""
        if self.replan is None:
            return False
        start = time.monotonic()
        changed = self._want(self.replan())
        self._planning = _Planning(self._batches, time.monotonic(), time.monotonic() - start)
        return changed

    def _may_change(self) -> bool:
        """Whether the plan should be solved again: not so often that this takes much of the time."""
        if self.replan is None:
            return False
        last = self._planning
        if time.monotonic() - last.at < last.took / REPLANNING:
            return False
        return any(t.crosses for t in self.tasks) or self._batches - last.batches >= PATIENCE

    def _search(self) -> None:
        while not self._over(self._reserve()):
            calibrated = self._by_model and len(self._choices) >= CALIBRATION
            late = self._progress() >= EARLY and self._mean_cost() > 0  # nothing is tried yet with records
            if self.forecast is None and (calibrated or late):
                self._predict()
            ranking, best = self._ranking(), self._next
            if best is None or best not in ranking or not self._choosing.ready(best.strategy):
                best = next(iter(ranking), None)
            if best is None:
                return
            self._batch(best)
            if self._may_change() and self.plan_again():
                self._settle()

    def _ranking(self) -> list[TunedTask]:
        """Tasks by expected gain, the largest first; per second of measuring where time is what is given."""
        gain = curve(self.tasks)
        timed = self._budget is not None
        gains = [(t.gain(gain) / (self._cost(t) or 1.0 if timed else 1.0), t) for t in self.tasks]
        return [t for g, t in sorted(gains, key=lambda g: -g[0]) if g > 0 and not t.exhausted]

    def _batch(self, found: TunedTask) -> None:
        self._batches += 1
        if not found.default_known or found.hints:
            points = [] if found.default_known else [found.default]
            self._try([(found, point) for point in (*points, *found.hints)])
            return
        start = time.monotonic()
        left = max(1, self._left(found))
        run = (self._elapsed(), self._whole())
        points, scores = self._choosing.propose(found.strategy, min(BATCH, left), *run)
        points = points[:left]
        found.exhausted = not points
        if scores and not self._by_model:
            self._choices, self._by_model = [], True
        if points:
            self._choices.append((time.monotonic() - start) / len(points))
        self._ask_ahead()
        self._try([(found, point) for point in points], scores)

    def _ask_ahead(self) -> None:
        """What to measure next is chosen meanwhile, by what is known before the batch of now: as much as is
        measured while it takes to choose."""
        ranking = self._ranking()
        self._choosing.prepare([t.strategy for t in ranking])
        best, self._next = next(iter(ranking), None), None
        if best is not None and best.default_known and isinstance(best.strategy, Elsewhere):
            meanwhile = math.ceil(best.strategy.took / (self._cost(best) or math.inf))
            self._choosing.ask(best.strategy, min(max(BATCH, meanwhile), LARGEST))
            self._next = best

    def _over(self, reserve: float = 0.0) -> bool:
        """Whether trials are used up, or one more would not end before the last `reserve` seconds begin."""
        if self._limit is not None and self._done >= self._limit:
            return True
        return self._late(reserve)

    def _left(self, found: TunedTask) -> int:
        """Trials of a task that there is still room for, LARGEST at most."""
        left = LARGEST if self._limit is None else self._limit - self._done
        if self._budget is None or not (cost := self._cost(found)):
            return left
        return min(left, int((self._budget - self._reserve() - self._elapsed()) / cost))

    def _late(self, reserve: float = 0.0) -> bool:
        if self._budget is None:
            return False
        return self._elapsed() + self._mean_cost() + reserve > self._budget

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def _whole(self) -> float:
        """Seconds that the run will take, about."""
        if self._budget is not None:
            return self._budget
        return self._elapsed() + ((self._limit or 0) - self._done) * self._mean_cost()

    def _progress(self) -> float:
        """The share of the run that is over."""
        by_trials = self._done / self._limit if self._limit else 0.0
        return max(by_trials, self._elapsed() / self._budget if self._budget else 0.0)

    def _cost(self, found: TunedTask) -> float:
        """Seconds of one more trial of a task, choosing it included; 0 where nothing has been measured."""
        if not found.first:
            return self._mean_cost()
        latest = self._choices[-CALIBRATION:]
        measuring = found.spent / found.tried if found.tried else self._again() * found.first
        return measuring + (statistics.fmean(latest) if latest else 0.0)

    def _mean_cost(self) -> float:
        costs = [self._cost(t) for t in self.tasks if t.first]
        return statistics.fmean(costs) if costs else 0.0

    def _again(self) -> float:
        """The time of a trial over that of its task's first one."""
        firsts = sum(t.first * t.tried for t in self.tasks)
        return sum(t.spent for t in self.tasks) / firsts if firsts else AGAIN

    def _reserve(self) -> float:
        """Seconds that confirming will take."""
        if self._budget is None:
            return 0.0
        if self.confirming is not None:
            expected = self.confirming.expected(self.tasks, self._network())
            return min(CONFIRMING * self._budget, expected)
        wanted = sum(len(self._doubted(t)) * self._cost(t) for t in self.tasks if t.count)
        return min(CONFIRMING * self._budget, (CONFIRMED - 1) * wanted)

    def _foretell(self) -> None:
        """Says it before anything is measured, roughly."""
        if self.announce is not None:
            within = [math.inf if limit is None else limit for limit in (self._limit, self._budget)]
            tasks = [t for t in self.tasks if t.count]
            network = sum(t.count * t.wanted.expected for t in tasks if t.wanted.expected < math.inf)
            confirming = 0.0 if self.confirming is None else self.confirming.usual(network)
            how = {"spent": self._elapsed(), "confirming": confirming}
            self.announce(foretold(tasks, *within, cold=self.evict > 0, **how))

    def _predict(self) -> None:
        """Says how long the run will take, and what it will gain."""
        spent = self._elapsed()
        left = math.inf if self._budget is None else self._budget - spent - self._reserve()
        trials = math.inf if self._limit is None else self._limit - self._done
        ahead = play(self.tasks, BATCH, self._cost, left, trials)
        whole = spent + ahead.seconds + self._confirming_of(ahead)
        if self._budget is not None:
            whole = min(whole, self._budget)
        found = (self._done + ahead.trials, self.before, self.after - ahead.saved)
        self.forecast = Forecast(whole, *found, spent)
        if self.announce is not None:
            self.announce(self.forecast)

    def _confirming_of(self, ahead: Outlook) -> float:
        """Seconds that confirming what is tried will take."""
        if self.confirming is not None:
            return self.confirming.usual(self._network())
        tried = [t for t in self.tasks if t.count and (t in ahead.tried or t.trials > BATCH)]
        return 2 * (CONFIRMED - 1) * winning(self.tasks, BATCH) * sum(map(self._cost, tried))

    def _confirm(self) -> None:
        if self.confirming is None:
            self._confirm_alone()
            return
        self.plan_again()
        for done in range(ROUNDS):
            brought = self._measure_unknown()
            if self._unknown():
                self.confirming.failure = LATE if done else UNKNOWN
                return
            network = self._network()
            over = 0.0 if done or brought else CONFIRMING * (self._budget or 0.0)
            if self._left_over() + over < self.confirming.shortest(network):
                if self.confirming.expected(self.tasks, network):
                    self.confirming.failure = LATE
                return
            self._tell("comparing the fastest configs in the network")
            compared = 0
            for record in self.confirming.compare(self.tasks, network, self._left_over()):
                with interrupts_later():
                    self.records.add(record)
                    if record.task in self._tasks:  # else it is of the plan
                        self._tasks[record.task].learn_inside(record)
                compared += 1
            if not compared or not self.plan_again():
                return

    def _unknown(self) -> list[TunedTask]:
        """Tasks of either plan whose default config has not been measured."""
        return [t for t in self.tasks if t.planned and not t.default_known]

    def _measure_unknown(self) -> bool:
        """What the latest plan brought, while there is time; whether it brought anything. Not counted as
        trials, where these were enough for what the first plans ran."""
        unknown = self._unknown()
        if unknown and not (self._late() if self._settled else self._over()):
            for found in self._measure([(found, found.default) for found in unknown], alone=True):
                self._tell(f"{found.task.name}: {_micro(found.after)}")
                if self._late() and not self.measure.ready:
                    break
        return bool(unknown)

    def _left_over(self) -> float:
        """Seconds of the budget that are left."""
        return math.inf if self._budget is None else self._budget - self._elapsed()

    def _network(self) -> float:
        """Seconds of a run by the plan of now, as far as they are known."""
        return sum(t.count * t.after for t in self.tasks if t.count and t.after < math.inf)

    def _confirm_alone(self) -> None:
        """Measures winners and their defaults again, those first that save most; not counted as trials. What
        that brings into the plan is measured, too."""
        for _ in range(ROUNDS):
            for found in sorted(self.tasks, key=lambda t: -t.count * t.saved):
                while found.count and not self._late() and (doubted := self._doubted(found)):
                    for _ in self._measure([(found, point) for point in doubted], alone=True):
                        self._tell(f"confirming {found.task.name}")
                        if self._late() and not self.measure.ready:
                            return
            if self._late() or not self.plan_again():
                return

    def _doubted(self, found: TunedTask) -> list[Point]:
        """The best config and the default, as far as they have not been measured often enough."""
        if found.best == found.default:
            return [] if found.default_known else [found.default]
        points = [p for p in (found.default, found.best) if not found.asked(p)]
        return [p for p in points if p not in found.failed]

    def _try(self, wanted: Sequence[tuple[TunedTask, Point]], scores: Sequence[float] | None = None) -> None:
        """Until trials or time are over."""
        if self._limit is not None:
            wanted = wanted[: self._limit - self._done]
        if self._over(self._reserve()):
            return
        for found in self._measure(wanted, scores):
            was = "" if found.best == found.default else f" (default {_micro(found.before)})"
            whole = f"{1e3 * self.after:.3f} ms" if self.after < math.inf else "not yet known"
            self._tell(f"{found.task.name}: {_micro(found.after)}{was}, network {whole}")
            if self._over(self._reserve()) and not self.measure.ready:
                return
        tried = dict.fromkeys(found for found, _ in wanted)
        for _ in range(CONFIRMED - 1):  # else the search goes on from it, and others are measured briefly
            self._measure_again([(t, point) for t in tried for point in t.doubtful])

    def _measure_again(self, wanted: Sequence[tuple[TunedTask, Point]]) -> None:
        """While there is time; not counted as trials."""
        if not wanted or self._over(self._reserve()):
            return
        for found in self._measure(wanted, alone=True):
            self._tell(f"{found.task.name}: {_micro(found.after)}, measured again")
            if self._over(self._reserve()) and not self.measure.ready:
                return

    def _measure(
        self,
        wanted: Sequence[tuple[TunedTask, Point]],
        scores: Sequence[float] | None = None,
        alone: bool = False,
    ) -> Iterator[TunedTask]:
        """The tasks, as soon as the record of each is kept; those that are not `alone` count as trials."""
        candidates = [
            Candidate(found.task, Space.config(point), math.inf if alone else found.time(found.fastest))
            for found, point in wanted
        ]
        start, took = time.monotonic(), list[tuple[TunedTask, float]]()
        try:
            with closing(self.measure(candidates, alone)) as results:
                for n, result in results:
                    found, point = wanted[n]
                    took.append((found, result.building + result.running))
                    with interrupts_later():  # what is kept is what is counted
                        self._learn(found, point, result, scores[n] if scores else None)
                        self.measured += not alone
                    yield found
        finally:
            self._share(took, time.monotonic() - start)

    def _learn(self, found: TunedTask, point: Point, result: Measurement, score: float | None) -> None:
        if result.error:  # a crash tells only of the answers before it
            result = replace(result, config=dict(point))
        record = record_of(found.task, result, self.threads, self.evict, self.measure.hardware)
        self.records.add(record)
        self.spent.building += result.building
        self.spent.running += result.running
        found.learn(point, record.seconds, record.error, record.sure)
        if point == found.default:
            found.disturbed = result.noisy and result.spread * result.seconds > CLOCK_NOISE
        if self.confirming is not None:
            self.confirming.keep(found, point, result.built)
        where = (found.task.digest, self._batches, score, record.seconds)
        self.history.append(Trial(*where, found.after, self.after, self._elapsed()))

    def _share(self, took: Sequence[tuple[TunedTask, float]], whole: float) -> None:
        """The time of a batch among its candidates: they are built and run at the same time as others."""
        total = sum(seconds for _, seconds in took)
        for found, seconds in took:
            found.took(whole * seconds / total if total else whole / len(took))

    def _tell(self, text: str) -> None:
        if self.progress is None:
            return
        if self._limit is not None:
            self.progress(text, self._done, max(self._limit, self._done))
        elif self._budget is not None:
            spent = int(self._elapsed())
            self.progress(text, spent, max(int(self._budget), spent))


@dataclass(frozen=True)
class _Planning:
    """When the plan was last solved: behind so many batches, at a time; and how long that took."""

    batches: int = 0
    at: float = 0.0
    took: float = 0.0


def _micro(seconds: float) -> str:
    return f"{1e6 * seconds:.1f} µs" if seconds < math.inf else "fails"
