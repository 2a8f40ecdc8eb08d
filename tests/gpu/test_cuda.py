"""Kernels as CUDA C++, compiled for NVIDIA GPUs where there is a compiler: none is needed to run them."""

from __future__ import annotations

import re

import pytest
from burnish.compiler.build_kernel import generate
from burnish.compiler.codegen.c_dialect import module_source
from burnish.compiler.codegen.cuda import DIALECT, OPTIONS
from burnish.compiler.kernel_task import DefaultConfig
from burnish.compiler.lower.lower import finished, scheduled
from burnish.compiler.ops.elementwise import Cast
from burnish.compiler.target import get_target
from burnish.errors import ToolError
from burnish.runtime.nvcc import fatbin

from ..ops.case import Case
from . import test_cells, test_window, test_winograd
from .cases import build
from .nvcc import compiled, instructions, sources_of
from .test_cases import sample

pytestmark = pytest.mark.usefixtures("nvcc")


@pytest.mark.parametrize("name", ["cuda-sm80", "cuda-sm90"])
def test_a_networks_kernels_spill_nothing(name):
    target = get_target(name)
    kernels = compiled(sources_of("dqn", target), target)
    assert len(kernels) >= 5
    assert all(k.spilt == k.stack == 0 and k.registers <= 128 for k in kernels), kernels


def test_operators_compile():
    """A part of them, since nvcc takes a second for each."""
    target = get_target("cuda-sm90")
    built = [build(case, target, f"k{n}") for n, case in enumerate(sample()[::4])]
    programs = [p for b in built for node in b.programs for p in node.values()]
    kernels = compiled([generate(finished(p, target), target).ir for p in programs], target)
    assert len(kernels) >= len(programs) - 5  # those of empty tensors have none


def test_narrow_floats_are_rounded_by_instructions():
    target = get_target("cuda-sm80")
    casts = [("f16", "f32"), ("f32", "f16"), ("bf16", "f32")]
    built = [build(Case(Cast(to), (f"{of}[40]",)), target, f"k{to}{of}") for to, of in casts]
    programs = [p for b in built for node in b.programs for p in node.values()]
    sources = [generate(finished(p, target), target).ir for p in programs]
    for source, (to, of) in zip(sources, casts, strict=True):
        assert source.count(f"{of}_to_{to}(") == 2, "defined and called"
    assert len(compiled(sources, target)) == 3


def test_templates_spill_nothing():
    """Those that write out much code, as they are by default."""
    target = get_target("cuda-sm80")
    cases = [(c, "window") for c in test_window.CASES[:5]] + [(test_cells.CASES[4], "cells")]
    built = [build(case, target, f"k{n}", only=only) for n, (case, only) in enumerate(cases)]
    programs = [p for b in built for node in b.programs for p in node.values()]
    convolutions = test_winograd.items(test_winograd.CASES[3:4], target.name)
    programs += [scheduled(item.task, DefaultConfig()) for item in convolutions]
    kernels = compiled([generate(finished(p, target), target).ir for p in programs], target)
    assert len(kernels) > len(cases) + 3 * len(convolutions)
    assert all(k.spilt == k.stack == 0 and k.registers <= 128 for k in kernels), kernels


@pytest.mark.parametrize("network", ["dqn", "lstm_lm_step"])
def test_no_memory_is_read_before_the_kernel_before_has_ended(network):
    """The compiler might move loads of constant memory that nothing else writes ahead of the wait."""
    target = get_target("cuda-sm90")
    found = instructions(sources_of(network, target), target)
    assert len(found) >= 5
    for name, code in found.items():
        assert any(map(touches_memory, code)), name
        assert not any(map(touches_memory, code[: code.index("ACQBULK")])), name


def touches_memory(instruction: str) -> bool:
    """Global memory, by whatever way."""
    return re.search(r"\b(LDG?|STG?|LDGSTS|ATOMG?|RED|UBLKCP|UTMA\w*)\b", instruction) is not None


def test_a_module_holds_machine_code_and_ptx(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE_DIR", str(tmp_path))
    source = module_source(DIALECT, sources_of("digits", get_target("cuda-sm80"))[:1])
    code = fatbin(source, "sm_80", OPTIONS)
    assert b".nv.info" in code and fatbin(source, "sm_80", OPTIONS) == code
    (kept,) = (tmp_path / "cuda").iterdir()
    kept.write_bytes(kept.read_bytes()[:-1])  # damaged: made anew
    assert fatbin(source, "sm_80", OPTIONS) == code
    with pytest.raises(ToolError, match=r"nvcc failed: .*architecture"):
        fatbin(source, "sm_1", OPTIONS)
