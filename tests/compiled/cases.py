"""Operator cases as kernels: every node of a case, by every algorithm that fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from burnish.compiler.ir.graph import Graph
from burnish.compiler.kernel_task import KernelTask
from burnish.compiler.ops.base import Op
from burnish.compiler.target import Target, get_target
from burnish.compiler.templates.registry import algorithms
from burnish.graph_passes.make_tasks import task_of

from ..ops.case import Case, assert_outputs, build_graph
from .kernels import build, build_drawn, execute, load

ORDER_OF_SUMS = 8.0
"""Widens the tolerance: sums are taken in another order than numpy takes them, with fused multiply-adds."""
MOVING = ("movement", "indexing")
"""Modules of operators that compute nothing, but where they scatter with a reduction."""


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


def pieces(graph: Graph, target: str | Target, threads: int = 2) -> list[Piece]:
    """The graph's nodes in order, each a kernel of its own."""
    found = []
    for node in graph.nodes:
        task = task_of(graph, node, get_target(target), threads)
        names = algorithms(task)
        if task.target.kind == "cpu":
            names.append("loops" if task.program else "naive")
        tasks = {a: replace(task, algorithm=a) for a in names}
        found.append(Piece(tasks, node.reads, node.outputs))
    return found


def moves(op: Op) -> bool:
    """Whether every element of the result is one of an operand's."""
    *_, module = type(op).__module__.split(".")
    return module in MOVING and op.attributes().get("reduction", "none") == "none"


def check_nodes(
    case: Case,
    graph: Graph,
    run: Callable[[int, list[np.ndarray]], Sequence[np.ndarray]],
    what: str,
) -> None:
    """The case's results against the reference, where `run` gives those of node n on its operands.

    AssertionError says `what` was run.
    """
    values = {**graph.constants, **dict(zip(graph.inputs, (a for a in case.arrays() if a is not None)))}
    for n, node in enumerate(graph.nodes):
        outputs = run(n, [values[v] for v in node.reads])
        for name, array in zip(node.outputs, outputs):  # templates drop and fuse axes
            values[name] = array.reshape(graph.types[name].dims)
    try:
        assert_outputs(case, [values[o] for o in graph.outputs], 0.0 if moves(case.op) else ORDER_OF_SUMS)
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from None


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

    def run(algorithm: str, at_end: bool, n: int, operands: list[np.ndarray]) -> Sequence[np.ndarray]:
        return execute(builds[n, todo[n].algorithm(algorithm)], code, operands, at_end=at_end)

    for algorithm in dict.fromkeys(a for piece in todo for a in piece.tasks):
        for at_end in (True, False):
            what = f"{algorithm} on {target}, at_end={at_end}"
            check_nodes(case, graph, partial(run, algorithm, at_end), what)
