"""The module of a network's plan with other configs than its own, for a tuner that compares them there."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from .compiler.build_kernel import Kernel
from .compiler.ir.graph import Graph
from .compiler.kernel_task import Config, DefaultConfig, KernelTask
from .graph_passes.make_plan import make_plan
from .kernel_cache import KernelStore
from .module import Module
from .network_plans import NetworkPlans
from .op_tuner.space import Point, Space
from .op_tuner.turns import Loaded, Turns, take_turns
from .pipeline import kernel_tasks
from .runtime.binding import Context

SEED = 0


class NetworkTurns:
    """Runs modules of the plan of now. They share their weights, which no config changes."""

    def __init__(self, plans: NetworkPlans, store: KernelStore):
        self.plans, self.store = plans, store

    @property
    def name(self) -> str:
        """A digest of what the plan of now runs."""
        return hashlib.sha256(repr(sorted(self.plans.calls.items())).encode()).hexdigest()[:16]

    def keep(self, task: KernelTask, point: Point, kernel: Kernel) -> None:
        """What has been built need not be built again, neither here nor when the model is compiled."""
        self.store.put(task, Space.config(point), kernel)

    def __call__(self, variants: Sequence[Mapping[str, Point]], seconds: float, time_limit: float) -> Turns:
        """Turns of modules whose tasks have these configs, by digest; the default one where there is none."""
        make = _Modules(self.plans, self.store, variants)
        threads = self.plans.threads
        return take_turns(make, len(variants), threads=threads, seconds=seconds, time_limit=time_limit)


class _Modules:
    """Makes them in the process that calls it; the graph and its weights once."""

    def __init__(self, plans: NetworkPlans, store: KernelStore, variants: Sequence[Mapping[str, Point]]):
        self.plans, self.store, self.variants = plans, store, variants
        self.weights: np.ndarray | None = None

    @cached_property
    def graph(self) -> Graph:
        return self.plans.graph_of_now()

    def __call__(self, n: int) -> Loaded:
        target, threads = self.plans.target, self.plans.threads
        tasks = kernel_tasks(self.graph, target, threads)

        def pick(task: KernelTask) -> Config:
            point = self.variants[n].get(task.digest)
            return DefaultConfig() if point is None else Space.config(point)

        kernels = self.store.build_all(tasks, pick)
        packed = make_plan(self.graph, kernels, {}, target)
        if self.weights is None:
            self.weights = packed.weights
        packed = replace(packed, weights=self.weights)
        different = list({k.name: k for k in kernels.values()}.values())
        context = Module.from_kernels(packed, different, target, threads).context()
        _feed(context)
        owners = {step.symbol: tasks[n].digest for n, k in kernels.items() for step in k.steps}
        return Loaded(context, [owners.get(step.kernel, "") for step in context.module.steps])


def _feed(context: Context) -> None:
    """Seeded numbers into floating-point inputs; zeros, which are valid indices, into others."""
    rng = np.random.default_rng(SEED)
    for info in context.module.inputs:
        if info.dtype.kind == "f":
            context.input(info.name)[...] = rng.standard_normal(info.shape)
