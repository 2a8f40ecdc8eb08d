"""Small operator cases on the first OpenCL device.

python -m tests.gpu.on_this_device WORD…   of operators whose names contain one of the words
python -m tests.gpu.on_this_device stray   a kernel that reads behind its buffer
"""

from __future__ import annotations

import sys

import numpy as np
from burnish.compiler.ir import scalar as s
from burnish.compiler.ir.loops import Buffer, Program, Store
from burnish.compiler.ir.scalar import Load, Var
from burnish.compiler.ir.types import F32
from burnish.compiler.target import TARGETS
from burnish.compiler.templates.gpu.common import spread

from ..ops.case import Case
from .cases import check_all, gpu_cases
from .device import kernels

SMALL = 3000  # elements of a case's operands


def small_cases(words: list[str]) -> list[Case]:
    cases = gpu_cases()
    return [c for word in words for c in small([c for c in cases if word.lower() in c.op.name.lower()])]


def small(cases: list[Case]) -> list[Case]:
    """Two of them, the largest that are small."""

    def size(case: Case) -> int:
        return sum(t.size for t in case.types if t is not None)

    return sorted((case for case in cases if size(case) <= SMALL), key=size)[-2:]


def stray() -> None:
    x, y = Buffer("x", F32, (8,)), Buffer("y", F32, (8,))
    body = spread([("i", 8)], 8, [Store("y", (Var("i"),), Load("x", (s.binary("add", Var("i"), 1),), F32))])
    code = kernels([Program("stray", (x, y), (body,))], TARGETS["opencl"])
    code.run("stray", [np.zeros(8, np.float32)])


if __name__ == "__main__":
    if sys.argv[1:] == ["stray"]:
        stray()
    else:
        check_all(small_cases(sys.argv[1:]), TARGETS["opencl"])
