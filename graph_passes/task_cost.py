"""Costs of layouts and algorithms that come from kernel tasks: measured ones, or a model's of tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..compiler.ir.graph import Graph, Node
from ..compiler.ir.types import Layout, TensorType
from ..compiler.kernel_task import KernelTask
from ..compiler.target import Target
from .alternatives import ANY, Decision, decides, first_half, wanted
from .make_tasks import task_of
from .pack_weights import Packer
from .pairs import KEPT, merged


@dataclass(frozen=True)
class TaskCost:
    """In seconds. `task` prices a task, `copy` the conversion of a value of some type between two layouts."""

    target: Target
    threads: int
    task: Callable[[KernelTask], float]
    copy: Callable[[TensorType, Layout | None, Layout | None], float]

    def node(self, graph: Graph, node: Node, decision: Decision) -> float:
        if not decides(node) or decision.writes == KEPT:  # the second of a pair costs both
            return 0.0
        return self.task(decided_task(graph, node, decision, self.target, self.threads))

    def conversion(self, graph: Graph, value: str, source: Layout | None, target: Layout | None) -> float:
        return self.copy(graph.types[value], source, target)


def decided_task(graph: Graph, node: Node, decision: Decision, target: Target, threads: int) -> KernelTask:
    """The task that a node becomes under a decision, all its operands in the layouts that it wants.

    That of the second node of a pair is the task of both.
    """
    packer = Packer(graph, target.lanes(4))
    packed = packer.pack(node, decision)
    parts = [(node, decision)]
    if decision.reads == KEPT:
        before, its = first_half(graph, node, decision, target.lanes(4))
        packed = merged(packer.pack(before, its), packed)
        parts.append((before, its))
    types = dict(graph.types)
    for part, how in parts:
        for value in part.reads:
            layout = wanted(graph, part, how, value)
            if layout != ANY:
                assert layout is None or isinstance(layout, Layout)
                types[value] = types[value].with_layout(layout)
        for value in part.outputs:
            types[value] = types[value].with_layout(how.writes)
    types.update(packer.types)
    constants = {**graph.constants, **packer.constants}
    return task_of(replace(graph, types=types, constants=constants), packed, target, threads)
