"""Operators as kernels for a GPU, on what there is: the last case of each."""

from __future__ import annotations

import pytest

from ..ops.case import Case
from .cases import check_all, gpu_cases

CHUNKS = 4


def sample() -> list[Case]:
    return list({case.op.name: case for case in gpu_cases()}.values())


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_operators(device, chunk):
    check_all(sample()[chunk::CHUNKS], device)
