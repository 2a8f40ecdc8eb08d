"""Operator cases as kernels for a GPU: every node of a case, by every template that fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TypeVar

import numpy as np
from burnish.compiler.ir import loops_interpreter
from burnish.compiler.ir.graph import Graph
from burnish.compiler.ir.loops import Program
from burnish.compiler.ir.loops_verifier import verify
from burnish.compiler.kernel_task import Config, DefaultConfig
from burnish.compiler.lower.lower import scheduled
from burnish.compiler.target import Target
from burnish.compiler.templates.registry import algorithms
from burnish.graph_passes.make_tasks import task_of

from ..compiled.cases import ORDER_OF_SUMS
from ..ops.case import Case, all_cases, assert_outputs, build_graph
from .device import Kernels

T = TypeVar("T")
MakeConfig = Callable[[], Config]


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


def build(case: Case, target: Target, label: str, config: MakeConfig = DefaultConfig) -> Built:
    graph = build_graph(case)
    programs: list[dict[str, Program]] = []
    for n, node in enumerate(graph.nodes):
        task = task_of(graph, node, target, threads=1)
        found = {}
        for algorithm in algorithms(task):
            named = replace(task, algorithm=algorithm, name=f"{label}_{n}_{algorithm}")
            found[algorithm] = scheduled(named, config())
            verify(found[algorithm])
        programs.append(found)
    return Built(case, graph, programs)


def check(built: Built, kernels: Kernels) -> None:
    """The results of each template against the reference."""
    case, graph = built.case, built.graph
    inputs = dict(zip(graph.inputs, (a for a in case.arrays() if a is not None)))
    for algorithm in dict.fromkeys(a for programs in built.programs for a in programs):
        values: dict[str, np.ndarray] = {**graph.constants, **inputs}
        for node, programs in zip(graph.nodes, built.programs):
            program = programs.get(algorithm) or next(iter(programs.values()))
            outputs = kernels.run(program.name, [values[v] for v in node.reads])
            for name, array in zip(node.outputs, outputs):
                values[name] = array.reshape(graph.types[name].dims)
        try:
            assert_outputs(case, [values[o] for o in graph.outputs], ORDER_OF_SUMS)
        except AssertionError as error:
            raise AssertionError(f"{case.id}, {algorithm}: {error}") from None


def check_all(cases: Sequence[Case], target: Target, config: MakeConfig = DefaultConfig) -> None:
    """All cases, built together; AssertionError names each that is wrong."""
    found = [build(case, target, f"k{n}", config) for n, case in enumerate(cases)]
    programs = [p for built in found for node in built.programs for p in node.values()]
    kernels = Kernels(programs, target)
    failures = []
    for built in found:
        try:
            check(built, kernels)
        except AssertionError as error:
            failures.append(str(error))
    assert not failures, "\n".join(failures)


def check_meaning(case: Case, target: Target, template: str, configs: int = 4) -> None:
    """The program of a case of one node, interpreted in both orders of blocks and threads, with the default
    config and drawn ones.
    """
    rng = Random(case.id)
    graph = build_graph(case)
    for n in range(configs):
        built = build(case, target, "meaning", (lambda: Drawn(rng)) if n else DefaultConfig)
        program = built.programs[0][template]
        for order in loops_interpreter.ORDERS:
            arrays = [a for a in case.arrays() if a is not None]
            memory = [np.zeros(b.shape, b.dtype.numpy) for b in program.params[len(arrays) :]]
            inputs = [a.reshape(b.shape) for a, b in zip(arrays, program.params)]
            loops_interpreter.interpret(program, [*inputs, *memory], order=order)
            results = [m.reshape(graph.types[o].dims) for m, o in zip(memory, graph.outputs)]
            assert_outputs(case, results, ORDER_OF_SUMS)
