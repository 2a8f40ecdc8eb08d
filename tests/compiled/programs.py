"""Loop programs of operator cases as numpy executes them: schedules and lowering keep the meaning."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from burnish.compiler.ir import loops_interpreter, loops_verifier
from burnish.compiler.ir.loops import Alloc, Body, For, If, Program, Store

from ..ops.case import Case, assert_outputs, build_graph
from .cases import ORDER_OF_SUMS, pieces
from .kernels import build

WORK_LIMIT = 2000  # statements executed; the interpreter takes some microseconds for each


def check_programs(case: Case, target: str) -> None:
    """Each algorithm's scheduled and lowered program passes the verifier and gives the right outputs."""
    graph = build_graph(case)
    if any(node.op.has("loops") for node in graph.nodes):
        return
    todo = pieces(graph, target)
    inputs = dict(zip(graph.inputs, (a for a in case.arrays() if a is not None)))
    for algorithm in dict.fromkeys(a for piece in todo for a in piece.tasks):
        builds = [build(piece.tasks[piece.algorithm(algorithm)], "kernel") for piece in todo]
        for form, order in (("scheduled", "forward"), ("lowered", "backward")):
            programs: list[Program] = [getattr(b, form) for b in builds]
            for program in programs:
                loops_verifier.verify(program)
            if sum(work_of(program.body) for program in programs) > WORK_LIMIT:
                continue
            values: dict[str, np.ndarray] = {**graph.constants, **inputs}
            for piece, program in zip(todo, programs):
                outputs = run_program(program, [values[v] for v in piece.reads], order)
                for name, array in zip(piece.makes, outputs):
                    values[name] = array.reshape(graph.types[name].dims)
            try:
                assert_outputs(case, [values[o] for o in graph.outputs], ORDER_OF_SUMS)
            except AssertionError as error:
                raise AssertionError(f"{form} by {algorithm}: {error}") from None


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
