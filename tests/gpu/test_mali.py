"""Kernels for ARM Mali, compiled offline by Mesa where it is, and what it says of them."""

from __future__ import annotations

import math
import struct

import pytest
from burnish.compiler.build_kernel import generate
from burnish.compiler.codegen.c_dialect import kernel_programs, module_source
from burnish.compiler.codegen.device_code import encode
from burnish.compiler.codegen.kernel_code import Launch
from burnish.compiler.codegen.opencl import DIALECT
from burnish.compiler.lower.lower import finished
from burnish.compiler.ops.reduction import Softmax
from burnish.compiler.target import get_target
from burnish.errors import InputError, ToolError
from burnish.runtime.mali import MaliCompiler, find_root, parse
from burnish.settings import MALI_ROOT

from ..ops.case import Case
from . import test_blocks, test_tiles
from .cases import build
from .nvcc import sources_of
from .test_cases import sample

MIDGARD_TARGET = get_target("mali-t860")
NEEDS = struct.Struct("<40xII")  # kernels, flags of what the device must have

BIFROST = (
    "SHADER-DB: MESA_SHADER_KERNEL shader: 2855 inst, 1882 tuples, 270 clauses, 304.000000 cycles, "
    "78.416664 arith, 0.000000 texture, 0.000000 vary, 304.000000 ldst, 2172 quadwords, 1 threads, "
    "0 preloads, 1 loops, 11:249 spills:fills\n"
)
MIDGARD = (
    "SHADER-DB: MESA_SHADER_KERNEL shader: 651 inst, 417 bundles, 562 quadwords, 8 registers, 2 threads, "
    "1 loops, 48:128 spills:fills\n"
)
VALHALL = (
    "SHADER-DB: MESA_SHADER_KERNEL shader: 22 inst, 3.000000 cycles, 0.015625 fma, 0.203125 cvt, "
    "0.312500 sfu, 0.000000 v, 0.000000 t, 3.000000 ls, 16 quadwords, 2 threads, 0 loops, 0:0 spills:fills\n"
)
SOURCE = """
static inline float twice(float x) { return 2 * x; }

__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void first(__global float *x) {
  int i = (int)get_group_id(0) * 64 + (int)get_local_id(0);
  x[i] = twice(x[i]);
}

__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void second(__global float *x) {
  int i = (int)get_group_id(0) * 64 + (int)get_local_id(0);
  for (int n = 0; n < 9; n++) x[i] = fma(x[i], twice(x[i + n]), 1.0f);
}
"""


def test_what_mesa_says_of_bifrost():
    said = parse(BIFROST)
    assert (said.instructions, said.cycles, said.registers, said.spills, said.fills) == (
        2855,
        304,
        64,
        11,
        249,
    )
    assert said.pipes == {"arithmetic": 78.416664, "load/store": 304, "texture": 0}


def test_what_mesa_says_of_midgard():
    said = parse(MIDGARD)
    assert (said.instructions, said.cycles, said.registers, said.spills, said.fills) == (
        651,
        None,
        8,
        48,
        128,
    )
    assert said.pipes == {"bundles": 417}


def test_what_mesa_says_of_valhall():
    said = parse(VALHALL)
    assert (said.instructions, said.cycles, said.registers, said.spills) == (22, 3, 32, 0)
    assert said.pipes == {"fma": 0.015625, "cvt": 0.203125, "sfu": 0.3125, "texture": 0, "load/store": 3}


@pytest.mark.parametrize("line", ["SHADER-DB: none", MIDGARD.replace("spills", "leaks")])
def test_other_words_are_an_error(line):
    with pytest.raises(ToolError, match="Mesa says something else"):
        parse(line)


def test_a_program_for_each_kernel():
    programs = kernel_programs(DIALECT, SOURCE)
    assert len(programs) == 2 and all(p.count("__kernel") == p.count("float twice(") == 1 for p in programs)
    assert "first(" in programs[0] and "second(" in programs[1]
    assert module_source(DIALECT, [SOURCE, SOURCE]).count("float twice(") == 1
    assert kernel_programs(DIALECT, "\n") == []


def test_a_name_is_no_double_precision():
    single = "__kernel void f_26c34f64(__global f32 *x) { x[0] = 1.0f; }"
    for source, needed in ((single, False), (single.replace("f32", "f64"), True)):
        assert ("cl_khr_fp64" in module_source(DIALECT, [source])) == needed
        encoded = encode("opencl", [source], ["f_26c34f64"], {"f_26c34f64": Launch()})
        assert NEEDS.unpack_from(encoded)[1] == needed


def test_blocks_have_no_more_threads_than_the_gpu_runs():
    """With the registers that its kernels use a Midgard core runs 64 threads at once."""
    limit = MIDGARD_TARGET.gpu.block_threads
    for case in (Case(Softmax(1), ("f32[1,1000]",)), *test_blocks.CASES, *test_tiles.CASES, *sample()):
        for node in build(case, MIDGARD_TARGET, "k").programs:
            for program in node.values():
                code = generate(finished(program, MIDGARD_TARGET), MIDGARD_TARGET)
                assert all(math.prod(step.launch.block) <= limit for step in code.steps), (case, program.name)


def test_without_the_compiler(monkeypatch, tmp_path):
    monkeypatch.delenv(MALI_ROOT.name, raising=False)
    with pytest.raises(InputError, match="give --root or BURNISH_MALI_ROOT"):
        find_root(None)
    with pytest.raises(ToolError, match=r"no usr/lib/.*/libOpenCL\.so\.1; unpack Debian's ocl-icd"):
        find_root(tmp_path)


def test_without_an_emulator(mali_root, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("BURNISH_EMULATOR", raising=False)
    with pytest.raises(ToolError, match="install qemu-aarch64"):
        MaliCompiler("mali-g76", mali_root)


def test_mesa_compiles_and_refuses(mali_root):
    compiler = MaliCompiler("mali-g76", mali_root)
    first, second = compiler.compile(kernel_programs(DIALECT, SOURCE))
    assert first.instructions < second.instructions and first.spills == second.spills == 0
    assert first.cycles is not None and first.cycles == max(first.pipes.values())
    with pytest.raises(ToolError, match="mali-g76: use of undeclared identifier 'nothing'"):
        list(compiler.compile(["__kernel void f(__global int *p) { p[0] = nothing; }"]))


@pytest.mark.parametrize(("chip", "network"), [("mali-g76", "c4"), ("mali-t860", "c2")])
def test_a_networks_kernels_spill_nothing(mali_root, chip, network):
    programs = [
        p for source in sources_of(network, get_target(chip)) for p in kernel_programs(DIALECT, source)
    ]
    found = list(MaliCompiler(chip, mali_root).compile(programs))
    assert len(found) == len(programs) >= 2 and all(k.spills == k.fills == 0 for k in found), found
