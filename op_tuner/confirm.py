"""Times alone are not times in a network: the fastest configs are compared with the default ones inside it,
and the plan that was found with the one that is made without measuring.

Module 0 of the network has the default config of every task, module k the k-th of what no network has seen
yet: what records would take without tuning, which is not always among the fastest alone, then the task's
fastest. The last module is that of the plan without measuring, if that is another one. They run in turns
(`turns`), so that one run compares some configs of all tasks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from ..compiler.build_kernel import Kernel
from ..compiler.kernel_task import KernelTask
from .costs import record_of
from .hardware import Hardware
from .isolate import Spans
from .measure import Built, Measurement, middle
from .record import PLAN, Record
from .space import Point
from .tuned_task import TunedTask
from .turns import LEAST_ROUNDS, MOST_ROUNDS, Times, Turns
from .whole_plans import PlanPair

BEST = 3  # configs of a task that are compared with its default
LEAST_SECONDS, SECONDS = 0.5, 8.0  # of turns
TIME_LIMIT = 60.0  # seconds of preparing, at most


class Network(Protocol):
    """Runs the network's module as the plan of now says.

    name      a digest of what that plan runs
    differs   whether that is something else than the plan without measuring does
    preparing seconds that making its modules takes, about
    """

    @property
    def name(self) -> str: ...

    @property
    def differs(self) -> bool: ...

    @property
    def preparing(self) -> float: ...

    def pair(self) -> PlanPair:
        """The plan without measuring and that of now, with the configs that records say now."""

    def __call__(
        self, variants: Sequence[Mapping[str, Point] | None], seconds: float, time_limit: float
    ) -> Turns:
        """Turns of modules whose tasks have these configs, by digest; the default one where there is none.
        None stands for the plan that is made without measuring: tasks that the plan of now runs, too, have
        there the configs of the first variant, the others what records say."""

    def keep(self, task: KernelTask, point: Point, kernel: Kernel) -> None:
        """A kernel that a module may need."""


class Confirming:
    """Compares configs inside of a network; every comparison is a record. `failure` says what went wrong.

    spans              are told when modules were made and run
    building, running  seconds of that, so far
    """

    def __init__(self, network: Network, threads: int, evict: int, hardware: Hardware, spans: Spans):
        self.network, self._how, self.spans = network, (threads, evict, hardware), spans
        self.building = self.running = 0.0
        self.failure = ""
        self._prepared: float | None = None  # seconds that preparing took

    def keep(self, found: TunedTask, point: Point, built: Built | None) -> None:
        """The kernel of a config that may be compared; others are not kept."""
        if built is not None and point in (found.default, *_rivals(found)):
            self.network.keep(found.task, point, built.kernel)

    def expected(self, tasks: Sequence[TunedTask], network: float) -> float:
        """Seconds that comparing will take, where a run of the network takes `network`."""
        if self.network.differs:
            return 2 * self.usual(network)  # if the plan is refused, the other's kernels are compared, too
        return self.usual(network) if any(t.count and _asks(t) for t in tasks) else 0.0

    def usual(self, network: float) -> float:
        """Seconds that comparing takes, if anything is to be compared."""
        count = 1 + BEST + self.network.differs
        return self._preparing + max(turning(count, network), least(count, network))

    @property
    def _preparing(self) -> float:
        return self.network.preparing if self._prepared is None else self._prepared

    def shortest(self, network: float) -> float:
        """Seconds of the shortest comparison."""
        return self._preparing + least(1 + BEST + self.network.differs, network)

    def compare(self, tasks: Sequence[TunedTask], network: float, left: float) -> Iterator[Record]:
        """The records of the fastest configs of the plan's tasks, and of their defaults, if any are left to
        compare, and of the plan; in about `left` seconds, or as many as the least number of rounds takes. A
        task's are to be learnt before those of the plan, which has the configs that they leave.

        A module that fails is an outcome of the config in it that is not the default one; where there are
        several, of those in the half that fails, and so on, while time is left; then of all. Where memory is
        short, of none. The others are compared without it.
        """
        end, short = time.monotonic() + left, ""
        tasks = [found for found in tasks if found.count]
        configs = _variants(tasks)
        differs = len(configs) > 0 and self.network.differs
        first = [None] if differs and (len(configs) > 1 or not self.network.pair().heard) else []
        while len(variants := [*configs, *first]) > 1:
            seconds = min(end - time.monotonic() - self._preparing, turning(len(variants), network))
            turns = self._turns(variants, max(0.0, seconds), network)
            if turns.failed is None:
                yield from self._compared(tasks, configs, turns.rounds)
                if first:
                    yield self._plan_record(tasks, turns.rounds)
                return
            wrong = Measurement.failed(turns.error, turns.detail)
            if turns.failed == 0 and first and not turns.blameless:
                yield plan_record(self.network.pair(), (wrong, None), tasks[0].task, *self._how)
                return
            if turns.failed == 0:
                self.failure = f"{turns.error} of the network's module: {turns.detail}"
                return
            if turns.failed == len(configs):
                first = []
                continue
            failed = configs.pop(turns.failed)
            other = [t for t in tasks if failed[t.task.digest] != configs[0][t.task.digest]]
            if turns.error == "memory":
                short = turns.detail
            elif len(other) == 1 or time.monotonic() + self._preparing > end:
                for found in other:
                    yield self._record(found, failed[found.task.digest], wrong)
            else:
                half = {t.task.digest for t in other[: len(other) // 2]}
                for digests in (half, {t.task.digest for t in other} - half):
                    configs.append({d: failed[d] if d in digests else p for d, p in configs[0].items()})
        if short:
            self.failure = f"not enough memory for two of the network's modules: {short}"

    def _turns(self, variants: Sequence[Mapping[str, Point] | None], seconds: float, network: float) -> Turns:
        start = time.monotonic()
        turns = self.network(variants, seconds, limit(len(variants), network))
        took = time.monotonic() - start
        self.spans.add(took)
        self._prepared = turns.preparing
        self.building += min(took, turns.preparing)
        self.running += max(0.0, took - turns.preparing)
        return turns

    def _compared(
        self, tasks: Sequence[TunedTask], variants: Sequence[Mapping[str, Point]], rounds: list[list[Times]]
    ) -> Iterator[Record]:
        for found in tasks:
            digest = found.task.digest
            points = {v[digest]: n for n, v in reversed(list(enumerate(variants)))}
            if len(points) < 2 or digest not in rounds[0][0]:
                continue
            own = np.array([[t[digest] for t in each[: len(variants)]] for each in rounds]) / found.count
            if not own.all():
                continue  # shorter than the clock can tell
            target = found.task.target
            against = middle(own[:, 0], target)
            for point, n in sorted(points.items(), key=lambda p: p[1]):
                low, share, high = np.percentile(own[:, n] / own[:, 0], (25, 50, 75))
                seconds = middle(own[:, n], target) if target.gpu else float(share) * against
                result = Measurement(seconds, float((high - low) / share), len(rounds))
                yield self._record(found, point, result, against)

    def _plan_record(self, tasks: Sequence[TunedTask], rounds: list[list[Times]]) -> Record:
        """What all kernels take by the plan of now over what they take by the one without measuring. In the
        first and the last module the tasks of now have default configs; their best ones leave a share."""
        shares = {t.task.digest: t.confirmed.share for t in tasks if t.confirmed}
        now, first = (
            [sum(s * shares.get(digest, 1.0) for digest, s in each[n].items()) for each in rounds]
            for n in (0, -1)
        )
        return plan_record(self.network.pair(), plan_times(now, first), tasks[0].task, *self._how)

    def _record(
        self, found: TunedTask, point: Point, result: Measurement, against: float | None = None
    ) -> Record:
        result = replace(result, config=dict(point))
        record = record_of(found.task, result, *self._how)
        return replace(record, network=self.network.name, against=against)


def turning(count: int, network: float) -> float:
    """Seconds of turns of so many modules, two runs each, where a run takes `network`."""
    return min(SECONDS, LEAST_SECONDS + 2 * count * MOST_ROUNDS * network)


def least(count: int, network: float) -> float:
    """Seconds of the fewest rounds that there are."""
    return 2 * count * LEAST_ROUNDS * network


def limit(count: int, network: float) -> float:
    """Seconds beyond those of turns after which something hangs: making them, and twice the fewest rounds."""
    return TIME_LIMIT + count * network + 2 * least(count, network)


PlanTimes = tuple[Measurement, float | None]
"""What the other plan's module took or failed of, and the seconds that the first one's took."""


def plan_times(other: Sequence[float], first: Sequence[float]) -> PlanTimes:
    """From seconds that both took in the same rounds."""
    low, share, high = np.percentile(np.array(other) / np.array(first), (25, 50, 75))
    against = float(np.median(first))
    return Measurement(float(share) * against, float((high - low) / share), len(first)), against


def plan_record(
    pair: PlanPair,
    times: PlanTimes,
    task: KernelTask,
    threads: int,
    evict: int,
    hardware: Hardware,
) -> Record:
    """`task` is one that a plan runs."""
    result, against = times
    record = record_of(task, result, threads, evict, hardware)
    record = replace(record, task=pair.first, key=pair.key, algorithm=PLAN, config={PLAN: pair.other})
    return replace(record, network=pair.other, against=against)


def _variants(tasks: Sequence[TunedTask]) -> list[dict[str, Point]]:
    """The configs of each module by task: of the first one the defaults."""
    ranks = {t.task.digest: [_base(t), *_doubted(t)] for t in tasks if t.count}
    most = max(map(len, ranks.values()), default=0)
    return [{d: own[n] if n < len(own) else own[0] for d, own in ranks.items()} for n in range(most)]


def _base(found: TunedTask) -> Point:
    """The default config, if that works."""
    return found.default if found.before < math.inf else found.fastest


def _doubted(found: TunedTask) -> list[Point]:
    """Those of the rivals that no network has seen."""
    return [point for point in _rivals(found) if not _seen(found, point)][:BEST]


def _asks(found: TunedTask) -> bool:
    """Whether no network has seen what records would take, or the fastest alone."""
    rivals = _rivals(found)
    return any(p in rivals and not _seen(found, p) for p in (found.told, found.fastest))


def _seen(found: TunedTask, point: Point) -> bool:
    return any(tuple(r.config.items()) == point for r in found.inside)


def _rivals(found: TunedTask) -> list[Point]:
    """Of the default config, if that works: what records would take, and those that are the fastest alone."""
    if not found.before < math.inf:
        return []
    unfit = {found.default} | found.wrong | found.unsure
    others = [p for p in found.times if p not in unfit]
    told = [p for p in others if p == found.told]
    fastest = sorted((p for p in others if found.time(p) < found.before), key=found.time)
    return list(dict.fromkeys([*told, *fastest[:BEST]]))
