"""What a kernel task costs on this machine: from the records, else measured and recorded, else predicted.

Every answer names where it comes from. What was measured is kept at once, so that work which was interrupted
goes on where it stood.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ..compiler.ir.graph import Graph, Node
from ..compiler.ir.types import Layout, TensorType
from ..compiler.kernel_task import Config, DefaultConfig, KernelTask
from ..compiler.ops.fused import FusedOp, expression
from ..compiler.ops.movement import Identity
from ..compiler.price import Price
from ..compiler.target import Target
from ..compiler.templates.registry import algorithms
from ..errors import InputError
from .hardware import Hardware, hardware_of
from .isolate import Candidate, Local
from .measure import Measurement
from .record import NOISY, Record, llvm_version, made_by, version
from .records import RecordedConfig, Records
from .space import Point, Space
from .verdict import config_records, confirmed, fastest, sound
from .whole_plans import plan_pair

Progress = Callable[[str, int, int], None]
SIDE_BY_SIDE = 16  # kernels that are built before they are measured, one after the other
CLOCK_NOISE = 2e-6  # seconds by which runs may differ for no reason of theirs
PASSING = frozenset({"crash", "exit", "timeout", "memory"})
"""Failures that may be the machine's and not the candidate's: a single one is tried again."""


@dataclass(frozen=True)
class Predictor:
    """A model of costs by its name."""

    name: str
    seconds: Callable[[KernelTask], float]


class MeasuredCosts:
    """cost(task), for tasks of one target.

    records   file to look up in and to append to (None: the user's own)
    measure   whether to measure what no record of this machine and compiler says; else records of an older
              compiler count too, then `predict`, then records of the most similar machine
    pick_config  the config to measure a task with (default: the best that the records know)
    hardware  whose times count (default: `Records.hardware_for` the target)
    """

    def __init__(
        self,
        records: str | Path | Records | None,
        target: Target,
        threads: int,
        progress: Progress | None = None,
        *,
        measure: bool = True,
        predict: Predictor | None = None,
        evict: int = 0,
        seconds: float = 0.05,
        time_limit: float = 30.0,
        pick_config: Callable[[KernelTask], Config] | None = None,
        hardware: Hardware | None = None,
    ):
        path = Path(records) if isinstance(records, str | Path) else None
        self.records = records if isinstance(records, Records) else Records(path)
        self.target, self.threads, self.progress = target, threads, progress
        self.measure, self.predict, self.evict = measure, predict, evict
        self.seconds, self.time_limit = seconds, time_limit
        self.hardware = hardware or self.records.hardware_for(target)
        self.pick_config = pick_config or partial(self.records.pick_config, evict=evict)
        self.measured = 0
        self._known: dict[str, Price] = {}

    def __call__(self, task: KernelTask) -> Price:
        """InputError if nothing is known of the task and it may neither be measured nor predicted."""
        if task.digest not in self._known:
            self._known[task.digest] = self._find(task)
        return self._known[task.digest]

    def ensure(self, tasks: Iterable[KernelTask]) -> int:
        """Measures those that no record tells of, with progress; returns how many. May be interrupted.

        The most disturbed, at most a quarter, are measured once more at the end, when the machine may be
        quieter.
        """
        different = {task.digest: task for task in tasks}
        missing = [task for task in different.values() if self.measure and self._recorded(task) is None]
        doubts: list[tuple[float, KernelTask]] = []
        with closing(self._measure(missing)) as found:
            for done, (task, price) in enumerate(found, 1):
                self._tell(task, done, len(missing))
                self._keep(task, price)
                if price.spread > NOISY:
                    doubts.append((price.spread * price.seconds, task))
        doubts.sort(key=lambda d: -d[0])
        disturbed = [task for doubt, task in doubts[: len(missing) // 4] if doubt > CLOCK_NOISE]
        total = len(missing) + len(disturbed)
        with closing(self._measure(disturbed)) as found:
            for done, (task, again) in enumerate(found, len(missing) + 1):
                self._tell(task, done, total)
                self._keep(task, again)
        return len(missing)

    def _keep(self, task: KernelTask, measured: Price) -> None:
        """As the next plan finds it in the records, where a sure time counts before a faster one."""
        kept = self._recorded(task)
        self._known[task.digest] = replace(kept, source=measured.source) if kept else measured

    def _tell(self, task: KernelTask, done: int, total: int) -> None:
        if self.progress:
            self.progress(f"measuring {task.name}", done, total)

    @property
    def compared(self) -> bool:
        """Whether there are records of whole plans."""
        return bool(self.records.of_plans)

    def refuses(self, first: Sequence[KernelTask], other: Sequence[KernelTask]) -> bool:
        """Whether a network has shown that a plan of these other tasks is not faster than the first one."""
        return self.compared and plan_pair(first, other, self.records, self.hardware, self.evict).given_up

    def price_of(self, task: KernelTask) -> Price | None:
        """What records of this machine say, or was measured now; None if nothing."""
        if task.digest in self._known:
            return self._known[task.digest]
        return self._recorded(task)

    def _find(self, task: KernelTask) -> Price:
        if (price := self._recorded(task)) is not None:
            return price
        if self.measure:
            self._keep(task, next(price for _, price in self._measure([task])))
            return self._known[task.digest]
        if self.predict is not None:
            return Price(self.predict.seconds(task), "predicted", self.predict.name)
        sibling = self.records.nearest(task)
        if sibling is None:
            raise InputError(
                f"nothing is known of the cost of {task.name} ({task.algorithm}): allow measuring, "
                "or give a model that predicts"
            )
        return _price(sibling, "sibling")

    def _recorded(self, task: KernelTask) -> Price | None:
        """Of the config that is taken, else of the last that failed for a reason of its own.

        All prices are times of kernels alone, so that they can be compared: what a config gains inside of the
        network is its share of the default's."""
        machine, here = self.hardware, made_by()
        fitting = [
            r
            for r in self.records.of(task)
            if r.hardware == machine and r.evict == self.evict and (r.made_by == here or not self.measure)
        ]
        inside = [
            r for r in self.records.in_networks(task) if r.hardware == machine and r.evict == self.evict
        ]
        right = sound([*fitting, *inside])
        if times := config_records(r for r in right if not r.network):
            default = times.get(_default(task))
            if default is None:
                liked = confirmed(r for r in right if r.network)
                return _price(times.get(liked.config if liked else ()) or fastest(times), "record")
            seconds = default.seconds or 0.0
            inside = [r for r in right if r.network and r.made_by == default.made_by]
            if found := confirmed(inside):
                return replace(_price(found.record, "record"), seconds=found.share * seconds, default=seconds)
            return replace(_price(fastest(times, inside), "record"), default=seconds)
        failed = [r for r in fitting if r.error and r.error not in PASSING]
        last = failed[-1] if failed else fitting[-1] if len(fitting) > 1 else None
        return _price(last, "record") if last else None

    def _measure(self, tasks: Sequence[KernelTask]) -> Generator[tuple[KernelTask, Price], None, None]:
        """Of each, as soon as it is kept."""
        measure = Local(self.threads, evict=self.evict, seconds=self.seconds, time_limit=self.time_limit)
        for begin in range(0, len(tasks), SIDE_BY_SIDE):
            some = tasks[begin : begin + SIDE_BY_SIDE]
            configs = [self.pick_config(task) for task in some]
            for n, result in measure([Candidate(t, c) for t, c in zip(some, configs)], alone=True):
                if result.error:  # one that died may not have asked everything
                    result = replace(result, config=_answers(configs[n], some[n]) or result.config)
                record = record_of(some[n], result, self.threads, self.evict)
                self.records.add(record)
                self.measured += 1
                yield some[n], _price(record, "measured")


def _price(record: Record, source: str) -> Price:
    seconds = float("inf") if record.seconds is None else record.seconds
    return Price(seconds, source, record.id, record.spread)


def _answers(config: Config, task: KernelTask) -> dict[str, object]:
    """All of a config's; none of one that is not known."""
    if isinstance(config, RecordedConfig):
        return dict(config.answers)
    return dict(_default(task)) if type(config) is DefaultConfig else {}


def _default(task: KernelTask) -> Point:
    """The config of the template's own rule."""
    return Space(task).default() if task.asks else ()


def record_of(
    task: KernelTask, result: Measurement, threads: int, evict: int, hardware: Hardware | None = None
) -> Record:
    """The record of a measurement; on this machine, if no other is named."""
    return Record(
        task=task.digest,
        key=task.key,
        algorithm=task.algorithm,
        target=f"{task.target.name}/{task.target.cpu}",
        threads=threads,
        hardware=hardware or hardware_of(task.target),
        config=dict(result.config),
        evict=evict,
        seconds=None if result.error else result.seconds,
        spread=result.spread,
        runs=result.runs,
        error=result.error,
        detail=result.detail,
        burnish=version(),
        llvm=llvm_version(),
    )


def conversion_task(
    type: TensorType, source: Layout | None, wanted: Layout | None, target: Target, threads: int
) -> KernelTask:
    """The copy of a value into another layout: the same task as that of such a copy in a graph."""
    source = None if type.with_layout(source).is_whole_blocks else source
    node = Node(Identity(), ("x",), ("y",))
    plain = type.with_layout(None)
    op = FusedOp(Graph("copy", ("x",), ("y",), (node,), {"x": plain, "y": plain}))
    expr = expression(op, (type.with_layout(source),))
    names = (expr.params[0][0], expr.outputs[0])
    layouts = tuple(
        (n, lay) for n, lay in zip(names, (source, wanted)) if lay is not None and not lay.is_plain
    )
    result = type.with_layout(wanted)
    name = f"identity_{type.dtype}" + (f"_{result.layout}" if result.layout else "")
    task = KernelTask(
        *(re.sub(r"\W", "_", name), expr, layouts, frozenset(), "", target, threads),
        op=op,
        types=(type.with_layout(source),),
    )
    return replace(task, algorithm=algorithms(task)[0])
