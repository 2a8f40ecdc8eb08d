"""Kernels for AMD GPUs, compiled offline by clang."""

from __future__ import annotations

import re

import pytest
from burnish.compiler.build_kernel import generate
from burnish.compiler.ir.types import F64
from burnish.compiler.kernel_task import DefaultConfig
from burnish.compiler.lower.lower import finished, scheduled
from burnish.compiler.target import get_target

from ..conftest import is_required
from . import test_winograd
from .amdgcn import compiled, compiler, sources_of
from .cases import build
from .test_cases import sample
from .test_tiles import CASES

TARGET = get_target("amd-rdna3")
OF_THE_DRIVER = re.compile(r"\b(fmod|pow|sin|cos|tan|expm1|log1p)\(")
"""Functions of f64, which clang alone does not have."""


@pytest.fixture(autouse=True)
def clang():
    if compiler() is None:
        what = "there is no clang that compiles for amdgcn (Debian: clang-19)"
        (pytest.fail if is_required("clang") else pytest.skip)(what)


def test_a_networks_kernels_spill_nothing():
    kernels = compiled(sources_of("dqn", TARGET), TARGET)
    assert len(kernels) >= 5
    for k in kernels:
        assert k.spilt == k.private == 0 and k.registers <= TARGET.gpu.registers, k
        assert k.shared <= TARGET.gpu.shared
    assert any(k.shared for k in kernels)


def test_operators_compile():
    of_doubles = [c for c in sample() if any(t is not None and t.dtype is F64 for t in c.types)]
    cases = [*CASES, *(c for c in sample()[::2] if c not in of_doubles)]
    built = [build(case, TARGET, f"k{n}") for n, case in enumerate(cases)]
    programs = [p for b in built for node in b.programs for p in node.values()]
    sources = [generate(finished(p, TARGET), TARGET).ir for p in programs]
    whole = [source for source in sources if not OF_THE_DRIVER.search(source)]
    assert len(compiled(whole, TARGET)) >= len(whole) >= 0.9 * len(programs)


def test_winograd_spills_nothing():
    found = test_winograd.items(test_winograd.CASES[3:4], TARGET.name)
    programs = [scheduled(item.task, DefaultConfig()) for item in found]
    kernels = compiled([generate(finished(p, TARGET), TARGET).ir for p in programs], TARGET)
    assert len(kernels) == 3 * len(found) and all(k.spilt == k.private == 0 for k in kernels), kernels


def test_what_does_not_compile_says_why():
    with pytest.raises(RuntimeError, match="use of undeclared identifier 'nothing'"):
        compiled(["__kernel void f(__global int *p) { p[0] = nothing; }"], TARGET)
