"""Operator cases as kernels for a GPU: every node of a case, by every template that fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TypeVar

import numpy as np
from burnish.compiler.ir import loops_interpreter
from burnish.compiler.ir.graph import Graph
from burnish.compiler.ir.loops import Program
from burnish.compiler.ir.loops_verifier import verify
from burnish.compiler.ir.types import Layout
from burnish.compiler.kernel_task import Config, DefaultConfig
from burnish.compiler.lower.lower import scheduled
from burnish.compiler.target import Target

from ..compiled.cases import check_nodes, pieces
from ..compiled.programs import run_nodes
from ..ops.case import Case, all_cases, build_graph
from .device import Kernels, kernels

T = TypeVar("T")
MakeConfig = Callable[[], Config]
Run = Callable[[int, list[np.ndarray]], Sequence[np.ndarray]]
"""The results of a graph's node by number on its operands."""


class Drawn(DefaultConfig):
    """Any of the options, drawn anew for every question."""

    def __init__(self, rng: Random):
        super().__init__()
        self.rng = rng

    def choose(self, knob: str, options: Sequence[T], default: T) -> T:
        self.chosen[knob] = self.rng.choice(options)
        return self.chosen[knob]  # type: ignore[return-value]


def gpu_cases() -> list[Case]:
    """Without those of operators that exist for CPUs alone, on weights packed for them."""
    return [case for case in all_cases() if not case.op.name.startswith("Packed")]


@dataclass
class Built:
    """A case's graph, and the programs of its nodes, by each of the templates that fit."""

    case: Case
    graph: Graph
    programs: list[dict[str, Program]]


def laid_out(graph: Graph, layout: Layout | None) -> Graph:
    """The graph with this layout of its first input and its outputs."""
    types = {v: graph.types[v].with_layout(layout) for v in (graph.inputs[0], *graph.outputs) if layout}
    return replace(graph, types={**graph.types, **types})


def build(
    case: Case,
    target: Target,
    label: str,
    config: MakeConfig = DefaultConfig,
    only: str = "",
    layout: Layout | None = None,
) -> Built:
    """`only`: by that template alone, where it fits; `layout`: of the first input and the outputs."""
    graph = laid_out(build_graph(case), layout)
    programs: list[dict[str, Program]] = []
    for n, piece in enumerate(pieces(graph, target, threads=1)):
        names = [piece.algorithm(only)] if only else piece.tasks
        tasks = {a: replace(piece.tasks[a], name=f"{label}_{n}_{a}") for a in names}
        programs.append({a: scheduled(task, config()) for a, task in tasks.items()})
        for program in programs[-1].values():
            verify(program)
    return Built(case, graph, programs)


def on_layouts(graph: Graph, run: Run, n: int, operands: list[np.ndarray]) -> list[np.ndarray]:
    """What `run` gives on physical arrays, as logical ones."""
    node = graph.nodes[n]
    layouts = [(graph.types[v], graph.types[v].layout) for v in (*node.reads, *node.outputs)]
    outputs = run(n, [a if lay is None else lay.pack(a) for a, (_, lay) in zip(operands, layouts)])
    results = zip(outputs, layouts[len(node.reads) :])
    return [a if lay is None else lay.unpack(a.reshape(t.physical_shape), t.dims) for a, (t, lay) in results]


def check(built: Built, code: Kernels) -> None:
    """The results of each template against the reference."""

    def run(algorithm: str, n: int, operands: list[np.ndarray]) -> Sequence[np.ndarray]:
        programs = built.programs[n]
        return code.run((programs.get(algorithm) or next(iter(programs.values()))).name, operands)

    for algorithm in dict.fromkeys(a for programs in built.programs for a in programs):
        logical = partial(on_layouts, built.graph, partial(run, algorithm))
        check_nodes(built.case, built.graph, logical, f"{built.case.id}, {algorithm}")


def check_all(
    cases: Sequence[Case],
    target: Target,
    config: MakeConfig = DefaultConfig,
    only: str = "",
    layout: Layout | None = None,
) -> None:
    """All cases, built together; AssertionError names each that is wrong."""
    found = [build(case, target, f"k{n}", config, only, layout) for n, case in enumerate(cases)]
    programs = [p for built in found for node in built.programs for p in node.values()]
    code = kernels(programs, target)
    failures = []
    for built in found:
        try:
            check(built, code)
        except AssertionError as error:
            failures.append(str(error))
    assert not failures, "\n".join(failures)


def check_meaning(
    case: Case, target: Target, template: str, configs: int = 4, layout: Layout | None = None
) -> None:
    """The programs of a case, interpreted in both orders of blocks and threads, with the default config and
    drawn ones.
    """
    rng = Random(case.id)
    for n in range(configs):
        config = (lambda: Drawn(rng)) if n else DefaultConfig
        built = build(case, target, "meaning", config, template, layout)
        assert any(template in programs for programs in built.programs)
        programs = [next(iter(found.values())) for found in built.programs]
        for order in loops_interpreter.ORDERS:
            logical = partial(on_layouts, built.graph, partial(run_nodes, programs, order))
            check_nodes(case, built.graph, logical, order)
