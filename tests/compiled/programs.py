"""Loop programs of operator cases as numpy executes them: schedules and lowering keep the meaning."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from burnish.compiler.ir import loops_interpreter, loops_verifier
from burnish.compiler.ir.loops import Alloc, Body, For, If, Program, Store

from ..ops.case import Case, assert_outputs, build_graph
from .cases import ORDER_OF_SUMS, pieces
from .kernels import build

WORK_LIMIT = 600  # statements executed; the interpreter takes some microseconds for each


def check_programs(case: Case, target: str) -> None:
    """Each algorithm's programs pass the verifier, as scheduled and as lowered; the lowered ones, parallel
    loops taken backwards, give the reference's outputs.
    """
    graph = build_graph(case)
    todo = pieces(graph, target)
    inputs = dict(zip(graph.inputs, (a for a in case.arrays() if a is not None)))
    for algorithm in dict.fromkeys(a for piece in todo for a in piece.tasks if a != "loops"):
        builds = [build(piece.tasks[piece.algorithm(algorithm)], "kernel") for piece in todo]
        for b in builds:
            loops_verifier.verify(b.scheduled)
            loops_verifier.verify(b.lowered)
        if sum(work_of(b.lowered.body) for b in builds) > WORK_LIMIT:
            continue
        values: dict[str, np.ndarray] = {**graph.constants, **inputs}
        for piece, b in zip(todo, builds):
            outputs = run_program(b.lowered, [values[v] for v in piece.reads], "backward")
            for name, array in zip(piece.makes, outputs):
                values[name] = array.reshape(graph.types[name].dims)
        try:
            assert_outputs(case, [values[o] for o in graph.outputs], ORDER_OF_SUMS)
        except AssertionError as error:
            raise AssertionError(f"{algorithm}: {error}") from None


def work_of(body: Body) -> int:
    """Statements that a program executes; loops of unknown extent count once, both sides of branches too."""
    total = 0
    for st in body:
        match st:
            case For():
                total += work_of(st.body) * (1 if st.extent is None or st.kind == "vector" else st.extent)
            case If():
                total += work_of(st.then) + work_of(st.other)
            case Alloc():
                total += work_of(st.body)
            case Store():
                total += 1
    return total


def run_program(program: Program, arrays: Sequence[np.ndarray], order: str) -> tuple[np.ndarray, ...]:
    """The params behind the given ones, as the interpreter fills them."""
    blank = [np.zeros(b.shape, b.dtype.numpy) for b in program.params[len(arrays) :]]
    shaped = [a.reshape(b.shape) for a, b in zip(arrays, program.params)]
    loops_interpreter.interpret(program, [*shaped, *blank], order=order)
    return tuple(blank)
