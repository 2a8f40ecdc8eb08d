"""Costs of layouts and algorithms that come from kernel tasks: measured ones, or a model's of tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..compiler.ir.graph import Graph, Node
from ..compiler.ir.types import Layout, TensorType
from ..compiler.kernel_task import KernelTask
from ..compiler.target import Target
from .alternatives import ANY, Decision, decides, wanted
from .make_tasks import task_of
from .pack_weights import Packer


@dataclass(frozen=True)
class TaskCost:
    """In seconds. `task` prices a task, `copy` the conversion of a value of some type between two layouts."""

    target: Target
    threads: int
    task: Callable[[KernelTask], float]
    copy: Callable[[TensorType, Layout | None, Layout | None], float]

    def node(self, graph: Graph, node: Node, decision: Decision) -> float:
        if not decides(node):
            return 0.0
        return self.task(decided_task(graph, node, decision, self.target, self.threads))

    def conversion(self, graph: Graph, value: str, source: Layout | None, target: Layout | None) -> float:
        return self.copy(graph.types[value], source, target)


def decided_task(graph: Graph, node: Node, decision: Decision, target: Target, threads: int) -> KernelTask:
    """The task that a node becomes under a decision, all its operands in the layouts that it wants."""
    packer = Packer(graph, target.lanes(4))
    packed = packer.pack(node, decision)
    types = {**graph.types, **packer.types}
    for value in node.reads:
        layout = wanted(graph, node, decision, value)
        if layout != ANY:
            assert layout is None or isinstance(layout, Layout)
            types[value] = types[value].with_layout(layout)
    for value in node.outputs:
        types[value] = types[value].with_layout(decision.writes)
    constants = {**graph.constants, **packer.constants}
    return task_of(replace(graph, types=types, constants=constants), packed, target, threads)
