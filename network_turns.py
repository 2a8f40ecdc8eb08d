"""Modules of a network's current plan with several configs, and of the predicted one, for a tuner that
compares them. What the two plans are says `network_plans.NetworkPlans`."""

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
    """Runs modules of both plans. Those of one plan share their weights, which no config changes."""

    def __init__(self, plans: NetworkPlans, store: KernelStore):
        self.plans, self.store = plans, store

    @property
    def name(self) -> str:
        """A digest of what the current plan runs."""
        return hashlib.sha256(repr(sorted(self.plans.calls.items())).encode()).hexdigest()[:16]

    @property
    def differs(self) -> bool:
        """Whether the two plans run other tasks."""
        return self.plans.differs

    @property
    def preparing(self) -> float:
        """Seconds to make the modules, about, where their kernels are in the store."""
        return LOADING + (1 + self.differs) * self.plans.carry_out_seconds

    def pair(self) -> PlanPair:
        """Both, and what is known of them."""
        return self.plans.pair()

    def keep(self, task: KernelTask, point: Point, kernel: Kernel) -> None:
        """What has been built need not be built again, neither here nor when the model is compiled."""
        self.store.put(task, Space.config(point), kernel)

    def __call__(
        self, variants: Sequence[Mapping[str, Point] | None], seconds: float, time_limit: float
    ) -> Turns:
        """Turns of modules whose tasks have these configs, by digest; the default one where there is none.
        None stands for the predicted plan: tasks that the current plan runs, too, have there the configs of
        the first variant, the others what records say."""
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


def compare_plans(plans: NetworkPlans, records: Records, store: KernelStore) -> bool:
    """Runs the modules of both plans in turns and records which is faster, or that the current one's failed;
    once more where the machine was disturbed. False if nothing was recorded: the plans are equal, the
    predicted one's module failed, or memory ran out. InputError if this process cannot measure."""
    plans.plan_again()
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
            current, predicted = ([sum(each[n].values()) for each in turns.rounds] for n in (0, 1))
            times = plan_times(current, predicted)
        how = (next(iter(plans.tasks.values())), plans.threads, plans.evict, hardware_of(plans.target))
        records.add(plan_record(plans.pair(), times, *how))
    return len(plans.pair().heard) > before


class _Modules:
    """Makes them in the process that calls it; graphs, their weights and what is built ahead once."""

    def __init__(
        self, plans: NetworkPlans, store: KernelStore, variants: Sequence[Mapping[str, Point] | None]
    ):
        self.plans, self.store = plans, store
        predicted = {**plans.recorded(predicted=True), **(variants[0] or {})}
        self.variants = [(predicted if v is None else v, v is None) for v in variants]
        self.graphs: dict[bool, Graph] = {}  # by whether the plan is the predicted one
        self.weights: dict[bool, np.ndarray] = {}
        self.parts: dict[int, Parts] = {}

    def compile_ahead(self) -> None:
        """Fills the cache of programs for a GPU, which take seconds each, by all cores; the process that runs
        modules has one. What is wrong with one is seen there."""

        def compiled(packed: Packed, kernels: Mapping[int, Kernel]) -> None:
            with suppress(BurnishError):
                device_program(different(kernels.values()), packed.plan.kernels, self.plans.target, fatbin)

        with ThreadPoolExecutor(host_threads()) as pool:
            for n in range(len(self.variants)):
                pool.submit(compiled, *self._parts(n)[:2])

    def __call__(self, n: int) -> Loaded:
        target, threads = self.plans.target, self.plans.threads
        packed, kernels, tasks = self._parts(n)
        owners = {step.symbol: tasks[node].digest for node, k in kernels.items() for step in k.steps}
        if target.cuda:
            packed = replace(packed, plan=_timed_by_node(packed.plan, owners))
        module = Module.from_kernels(  # from the cache, where programs were made ahead
            packed, different(kernels.values()), target, threads, cache=True
        )
        context = module.context()
        _feed(context)
        return Loaded(context, [owners.get(step.kernel, "") for step in context.module.steps])

    def _parts(self, n: int) -> Parts:
        if n not in self.parts:
            self.parts[n] = self._build_parts(*self.variants[n])
        return self.parts[n]

    def _build_parts(self, points: Mapping[str, Point], predicted: bool) -> Parts:
        target, threads = self.plans.target, self.plans.threads
        if predicted not in self.graphs:
            self.graphs[predicted] = self.plans.graph_of(predicted)
        graph = self.graphs[predicted]
        tasks = kernel_tasks(graph, target, threads)

        def pick(task: KernelTask) -> Config:
            if not task.asks:
                return DefaultConfig()
            return Space.config(points.get(task.digest) or Space(task).default())

        kernels = self.store.build_all(tasks, pick)
        packed = make_plan(graph, kernels, {}, target)
        packed = replace(packed, weights=self.weights.setdefault(predicted, packed.weights))
        return packed, kernels, tasks


Parts = tuple[Packed, dict[int, Kernel], dict[int, KernelTask]]
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
