"""Operators as kernels for a GPU, on an OpenCL driver: the last case of each."""

from __future__ import annotations

import pytest
from burnish.compiler.target import TARGETS

from ..ops.case import Case
from .cases import check_all, gpu_cases

CHUNKS = 4


def sample() -> list[Case]:
    return list({case.op.name: case for case in gpu_cases()}.values())


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_operators(opencl, chunk):
    check_all(sample()[chunk::CHUNKS], TARGETS["opencl"])
