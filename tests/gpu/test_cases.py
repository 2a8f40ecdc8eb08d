"""Operators as kernels for a GPU: what loops of small cases mean; a larger case of each on what there is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from burnish.compiler.ir import loops_interpreter
from burnish.compiler.ir.loops import print_program
from burnish.compiler.ops.sorting import TopK
from burnish.compiler.target import TARGETS, Target
from burnish.compiler.templates.gpu import bind

from ..compiled.programs import run_program, work_of
from ..ops.case import Case
from .cases import Built, build, check, check_all, gpu_cases
from .on_this_device import small as of_size

CHUNKS = 4
WORK_LIMIT = 1200
"""Statements of a case's programs; the interpreter takes some microseconds for each."""


def sample() -> list[Case]:
    """The largest that is small of every operator, of elementwise ones and reductions of every function."""
    groups: dict[tuple[object, ...], list[Case]] = {}
    for case in gpu_cases():
        functions = [case.op.attributes().get(name) for name in ("fn", "op", "to")]
        groups.setdefault((case.op.name, *functions), []).append(case)
    return [of_size(cases)[-1] for cases in groups.values()]


class Interpreted:
    """Instead of a device, as numpy executes it."""

    def __init__(self, built: Built, order: str):
        self.programs = {p.name: p for found in built.programs for p in found.values()}
        self.order = order

    def run(self, name: str, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        return run_program(self.programs[name], inputs, self.order)


def work(built: Built) -> int:
    return sum(work_of(p.body) for found in built.programs for p in found.values())


def small(cases: Sequence[Case], target: Target) -> list[Built]:
    """Those within the limit, and the smallest."""
    found = sorted((build(case, target, "k") for case in cases), key=work)
    return [built for n, built in enumerate(found) if n == 0 or work(built) <= WORK_LIMIT]


@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("target", ["cuda-sm90", "mali-t860"])
def test_the_loops_mean_the_operators(target, chunk):
    """Of every operator, by every template, in both orders of blocks and threads."""
    cases, failures = gpu_cases(), []
    for name in sorted({case.op.name for case in cases})[chunk::CHUNKS]:
        for built in small([case for case in cases if case.op.name == name], TARGETS[target]):
            for order in loops_interpreter.ORDERS:
                try:
                    check(built, Interpreted(built, order))
                except AssertionError as error:
                    failures.append(f"{order}: {error}")
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("most", [1, 100])
@pytest.mark.parametrize("name", ["TopK", "Det"])
def test_scratch_memory_by_turns(monkeypatch, name, most):
    """Of threads that take several rows each, where each row's would be too much."""
    monkeypatch.setattr(bind, "MOST_SCRATCH", most)
    turns = 0
    for built in small([case for case in gpu_cases() if case.op.name == name], TARGETS["cuda-sm90"]):
        programs = [p for found in built.programs for p in found.values()]
        turns += sum(bind.TURN in print_program(p) for p in programs)
        for order in loops_interpreter.ORDERS:
            check(built, Interpreted(built, order))
    assert turns


def test_scratch_memory_of_many_rows_is_bounded():
    (built,) = small([Case(TopK(1, 1), ("f32[1,150,512,512]",))], TARGETS["cuda-sm90"])
    (program,) = (p for found in built.programs for p in found.values())
    assert 0 < sum(b.nbytes for b in program.temps) <= bind.MOST_SCRATCH


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_operators(device, chunk):
    check_all(sample()[chunk::CHUNKS], device)
