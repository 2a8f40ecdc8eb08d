"""Operator cases as kernels: every node of a case, by every algorithm that fits."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from burnish.compiler.ir.graph import Graph
from burnish.compiler.kernel_task import KernelTask
from burnish.compiler.target import get_target
from burnish.compiler.templates.registry import algorithms
from burnish.graph_passes.make_tasks import task_of

from ..ops.case import Case, assert_outputs, build_graph
from .kernels import build, build_drawn, execute, load

ORDER_OF_SUMS = 8.0
"""Widens the tolerance: sums are taken in another order than numpy takes them, with fused multiply-adds."""


@dataclass(frozen=True)
class Piece:
    """One node of a case: its tasks by algorithm, the most specific first, and the values that it reads and
    makes.
    """

    tasks: dict[str, KernelTask]
    reads: tuple[str, ...]
    makes: tuple[str, ...]

    def algorithm(self, wanted: str) -> str:
        return wanted if wanted in self.tasks else next(iter(self.tasks))


def pieces(graph: Graph, target: str) -> list[Piece]:
    """The graph's nodes in order, each a kernel of its own."""
    found = []
    for node in graph.nodes:
        task = task_of(graph, node, get_target(target), threads=2)
        names = [*algorithms(task), "loops" if task.program else "naive"]
        tasks = {a: replace(task, algorithm=a) for a in names}
        found.append(Piece(tasks, node.reads, node.outputs))
    return found


def check_compiled(case: Case, target: str, every: bool = True, drawn: bool = False) -> None:
    """Runs the case's kernels, with guard pages on either side, against the reference: by `every` algorithm
    or by the most specific one, with its default answers or with `drawn` ones.
    """
    graph = build_graph(case)
    todo = pieces(graph, target)
    if not every:
        todo = [replace(piece, tasks=dict([next(iter(piece.tasks.items()))])) for piece in todo]
    make = build_drawn if drawn else build
    builds = {
        (n, algorithm): make(task, f"k{n}_{algorithm}")
        for n, piece in enumerate(todo)
        for algorithm, task in piece.tasks.items()
    }
    code = load(list(builds.values()), get_target(target))
    inputs = dict(zip(graph.inputs, (a for a in case.arrays() if a is not None)))
    for algorithm in dict.fromkeys(a for piece in todo for a in piece.tasks):
        for at_end in (True, False):
            values: dict[str, np.ndarray] = {**graph.constants, **inputs}
            for n, piece in enumerate(todo):
                built = builds[n, piece.algorithm(algorithm)]
                outputs = execute(built, code, [values[v] for v in piece.reads], at_end=at_end)
                for name, array in zip(piece.makes, outputs):  # templates drop and fuse axes
                    values[name] = array.reshape(graph.types[name].dims)
            try:
                assert_outputs(case, [values[o] for o in graph.outputs], ORDER_OF_SUMS)
            except AssertionError as error:
                raise AssertionError(f"{algorithm} on {target}, at_end={at_end}: {error}") from None
