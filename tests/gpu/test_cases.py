"""Operators as kernels for a GPU: what loops of small cases mean; a larger case of each on what there is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from burnish.compiler.ir import loops_interpreter
from burnish.compiler.target import TARGETS, Target

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


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_operators(device, chunk):
    check_all(sample()[chunk::CHUNKS], device)
