"""Modules of a network's plan with other configs than its own, and the one that is compiled without
measuring, for a tuner that compares them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import numpy as np

from .compiler.build_kernel import Kernel, device_program, different
from .compiler.ir.graph import Graph
from .compiler.ir.plan import KernelCall, Plan, Step
from .compiler.kernel_task import Config, DefaultConfig, KernelTask
from .compiler.target import host_threads
from .errors import BurnishError
from .graph_passes.make_plan import Packed, make_plan
from .graph_passes.make_tasks import kernel_tasks
from .kernel_cache import KernelStore
from .module import Module
from .network_plans import NetworkPlans
from .op_tuner.confirm import PlanTimes, limit, plan_record, plan_times, turning
from .op_tuner.hardware import hardware_of
from .op_tuner.measure import Measurement, require_runnable
from .op_tuner.record import NOISY
from .op_tuner.records import Records
from .op_tuner.space import Point, Space
from .op_tuner.turns import Loaded, Turns, take_turns
from .op_tuner.whole_plans import PlanPair
from .runtime.binding import Context
from .runtime.nvcc import fatbin

SEED = 0
COMPARISONS = 2  # of two plans, at most, where the machine disturbs them
LOADING = 0.4  # seconds to put together and load the modules of a comparison, but for their weights


class NetworkTurns:
    """Runs modules of the plan of now, and of that without measuring. Those of one plan share their weights,
    which no config changes."""

    def __init__(self, plans: NetworkPlans, store: KernelStore):
        self.plans, self.store = plans, store

    @property
    def name(self) -> str:
        """A digest of what the plan of now runs."""
        return hashlib.sha256(repr(sorted(self.plans.calls.items())).encode()).hexdigest()[:16]

    @property
    def differs(self) -> bool:
        """Whether the plan of now is another one than that without measuring."""
        return self.plans.differs

    @property
    def preparing(self) -> float:
        """Seconds to make the modules, about, where their kernels are in the store."""
        return LOADING + (1 + self.differs) * self.plans.carrying

    def pair(self) -> PlanPair:
        """These two, and what is known of them."""
        return self.plans.pair()

    def keep(self, task: KernelTask, point: Point, kernel: Kernel) -> None:
        """What has been built need not be built again, neither here nor when the model is compiled."""
        self.store.put(task, Space.config(point), kernel)

    def __call__(
        self, variants: Sequence[Mapping[str, Point] | None], seconds: float, time_limit: float
    ) -> Turns:
        """Turns of modules whose tasks have these configs, by digest; the default one where there is none.
        None stands for the plan that is made without measuring: tasks that the plan of now runs, too, have
        there the configs of the first variant, the others what records say."""
        make = _Modules(self.plans, self.store, variants)
        start = time.monotonic()
        if self.plans.target.cuda:
            make.compile_ahead()
        ahead = time.monotonic() - start
        turns = take_turns(
            make,
            len(variants),
            threads=self.plans.threads,
            seconds=seconds,
            time_limit=time_limit,
            on_gpu=self.plans.target.gpu is not None,
        )
        return replace(turns, preparing=turns.preparing + ahead)


def compare(plans: NetworkPlans, records: Records, store: KernelStore) -> bool:
    """Runs the best plan by times of kernels in turns with the one that is made without measuring, and keeps
    what the network says of it, that its module fails, too; where that was disturbed, once more. False where
    nothing is to be compared, the first one's module fails, or memory is short. InputError if this process
    cannot measure."""
    plans.solve()
    before = len(plans.pair().heard)
    for _ in range(before, COMPARISONS):
        if not plans.differs or any(record.spread <= NOISY for record in plans.pair().heard):
            break
        require_runnable(plans.target)
        network = plans.seconds
        variants = [plans.recorded(), None]
        turns = NetworkTurns(plans, store)(variants, turning(2, network), limit(2, network))
        if turns.failed == 1 or turns.blameless:
            break
        times: PlanTimes = Measurement.failed(turns.error, turns.detail), None
        if turns.failed is None:
            other, first = ([sum(each[n].values()) for each in turns.rounds] for n in (0, 1))
            times = plan_times(other, first)
        how = (next(iter(plans.tasks.values())), plans.threads, plans.evict, hardware_of(plans.target))
        records.add(plan_record(plans.pair(), times, *how))
    return len(plans.pair().heard) > before


class _Modules:
    """Makes them in the process that calls it; graphs and their weights, and what it has made ahead, once."""

    def __init__(
        self, plans: NetworkPlans, store: KernelStore, variants: Sequence[Mapping[str, Point] | None]
    ):
        self.plans, self.store = plans, store
        first = {**plans.recorded(first=True), **(variants[0] or {})}
        self.variants = [(first if v is None else v, v is not None) for v in variants]
        self.graphs: dict[bool, Graph] = {}  # by whether the plan is that of now
        self.weights: dict[bool, np.ndarray] = {}
        self.made: dict[int, Made] = {}

    def compile_ahead(self) -> None:
        """Fills the cache of programs for a GPU, which take seconds each, by all cores; the process that runs
        modules has one. What is wrong with one is seen there."""

        def compiled(packed: Packed, kernels: Mapping[int, Kernel]) -> None:
            with suppress(BurnishError):
                device_program(different(kernels.values()), packed.plan.kernels, self.plans.target, fatbin)

        with ThreadPoolExecutor(host_threads()) as pool:
            for n in range(len(self.variants)):
                pool.submit(compiled, *self._made(n)[:2])

    def __call__(self, n: int) -> Loaded:
        target, threads = self.plans.target, self.plans.threads
        packed, kernels, tasks = self._made(n)
        owners = {step.symbol: tasks[n].digest for n, k in kernels.items() for step in k.steps}
        if target.cuda:
            packed = replace(packed, plan=_timed_by_node(packed.plan, owners))
        module = Module.from_kernels(  # from the cache, where programs were made ahead
            packed, different(kernels.values()), target, threads, cache=True
        )
        context = module.context()
        _feed(context)
        return Loaded(context, [owners.get(step.kernel, "") for step in context.module.steps])

    def _made(self, n: int) -> Made:
        if n not in self.made:
            self.made[n] = self._make(n)
        return self.made[n]

    def _make(self, n: int) -> Made:
        target, threads = self.plans.target, self.plans.threads
        points, now = self.variants[n]
        if now not in self.graphs:
            self.graphs[now] = self.plans.graph_of_now() if now else self.plans.first_graph()
        tasks = kernel_tasks(self.graphs[now], target, threads)

        def pick(task: KernelTask) -> Config:
            if not task.asks:
                return DefaultConfig()
            return Space.config(points.get(task.digest) or Space(task).default())

        kernels = self.store.build_all(tasks, pick)
        packed = make_plan(self.graphs[now], kernels, {}, target)
        return replace(packed, weights=self.weights.setdefault(now, packed.weights)), kernels, tasks


Made = tuple[Packed, dict[int, Kernel], dict[int, KernelTask]]
"""A plan, and its nodes' kernels and tasks."""


def _timed_by_node(plan: Plan, owners: Mapping[str, str]) -> Plan:
    """With one event for a node, so that nothing stands between its kernels; `owners`: tasks by symbol."""

    steps: list[Step] = []
    before: tuple[str, str] | None = None  # task and node of the last kernel
    for step in plan.steps:
        own = (owners[step.kernel], step.node) if isinstance(step, KernelCall) else None
        steps.append(replace(step, node="") if own and own == before else step)
        before = own
    return replace(plan, steps=tuple(steps))


def _feed(context: Context) -> None:
    """Seeded numbers into floating-point inputs; zeros, which are valid indices, into others."""
    rng = np.random.default_rng(SEED)
    for info in context.module.inputs:
        if info.dtype.kind == "f":
            context.input(info.name)[...] = rng.standard_normal(info.shape)
