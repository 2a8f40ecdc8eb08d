"""Loop programs of operator cases as numpy executes them: schedules and lowering keep the meaning."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from burnish.compiler.ir import loops_interpreter, loops_verifier
from burnish.compiler.ir.loops import Alloc, Body, For, If, Program, Store
from burnish.compiler.kernel_task import DefaultConfig
from burnish.compiler.lower.lower import finished, scheduled

from ..ops.case import Case, build_graph
from .cases import check_nodes, pieces

WORK_LIMIT = 600  # statements executed; the interpreter takes some microseconds for each


def check_programs(case: Case, target: str) -> None:
    """Each algorithm's programs pass the verifier, as scheduled and as lowered; the lowered ones, parallel
    loops taken backwards, give the reference's outputs.
    """
    graph = build_graph(case)
    todo = pieces(graph, target)
    for algorithm in dict.fromkeys(a for piece in todo for a in piece.tasks if a != "loops"):
        lowered = []
        for task in (piece.tasks[piece.algorithm(algorithm)] for piece in todo):
            program = scheduled(task, DefaultConfig())
            lowered.append(finished(program, task.target))
            loops_verifier.verify(program)
            loops_verifier.verify(lowered[-1])
        if sum(work_of(program.body) for program in lowered) > WORK_LIMIT:
            continue
        check_nodes(case, graph, partial(run_nodes, lowered, "backward"), algorithm)


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


def run_nodes(
    programs: Sequence[Program], order: str, n: int, arrays: Sequence[np.ndarray]
) -> tuple[np.ndarray, ...]:
    """For `check_nodes`: the n-th of the programs, as the interpreter runs it."""
    return run_program(programs[n], arrays, order)


def run_program(
    program: Program, arrays: Sequence[np.ndarray], order: str, workers: int = 3
) -> tuple[np.ndarray, ...]:
    """The params behind the given ones, as the interpreter fills them; `workers` are a gang's."""
    blank = [np.zeros(b.shape, b.dtype.numpy) for b in program.params[len(arrays) :]]
    shaped = [a.reshape(b.shape) for a, b in zip(arrays, program.params)]
    loops_interpreter.interpret(
        program, [*shaped, *blank], order=order, workers=workers if program.gang else 1
    )
    return tuple(blank)
