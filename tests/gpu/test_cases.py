"""Operators as kernels for a GPU, on an OpenCL driver: the first and the last case of each."""

from __future__ import annotations

import pytest
from burnish.compiler.target import get_target

from ..ops.case import Case
from .cases import check_all, gpu_cases

CHUNKS = 8


def sample() -> list[Case]:
    by_operator: dict[str, list[Case]] = {}
    for case in gpu_cases():
        by_operator.setdefault(case.op.name, []).append(case)
    return [
        case for cases in by_operator.values() for case in {c.id: c for c in (cases[0], cases[-1])}.values()
    ]


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_operators(opencl, chunk):
    check_all(sample()[chunk::CHUNKS], get_target("opencl"))
