"""Predicted costs of layouts and algorithms on GPUs: those of the kernels that would run, by `gpu_time`."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from ..compiler.ir.graph import Graph, Node
from ..compiler.ir.types import Layout
from ..compiler.kernel_task import DefaultConfig, KernelTask
from ..compiler.lower.lower import scheduled
from ..compiler.target import Gpu, Target
from .alternatives import Decision, decides
from .gpu_time import program_time
from .pairs import KEPT
from .predict import PredictedCost
from .task_cost import decided_task
from .views import joins_in_place

CONVERSION = 3.0
"""Times a value's bytes move when its layout changes: read, written, and parts of sectors more than once."""


def predicted_cost(target: Target, threads: int) -> PredictedCost:
    return PredictedGpuCost(target, threads) if target.gpu else PredictedCost(target, threads)


@dataclass(frozen=True)
class PredictedGpuCost(PredictedCost):
    """In seconds, with default configs."""

    _known: dict[str, float] = field(default_factory=dict, compare=False, repr=False)  # by task

    @property
    def model(self) -> str:
        return "analytic-gpu-2"

    @property
    def _gpu(self) -> Gpu:
        assert self.target.gpu is not None
        return self.target.gpu

    def node(self, graph: Graph, node: Node, decision: Decision) -> float:
        """0 for operators that are no choice, infinite for pairs, which only CPUs have templates for."""
        if KEPT in (decision.reads, decision.writes):
            return inf
        if not decides(node):
            return 0.0
        if decision.reads == decision.writes and joins_in_place(graph, node, decision.reads):
            return 0.0
        return self.task_time(decided_task(graph, node, decision, self.target, self.threads))

    def task_time(self, task: KernelTask) -> float:
        if task.digest not in self._known:
            self._known[task.digest] = program_time(scheduled(task, DefaultConfig()), self._gpu)
        return self._known[task.digest]

    def conversion(self, graph: Graph, value: str, source: Layout | None, target: Layout | None) -> float:
        return self._gpu.launch + CONVERSION * graph.types[value].nbytes / self._gpu.bandwidth
