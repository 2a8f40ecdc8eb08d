"""Which statements of a program are one step: those that one worker runs in a row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from burnish.compiler.codegen.llvm import generate
from burnish.compiler.ir import scalar as s
from burnish.compiler.ir.loops import Buffer, For, Program, Store, loop
from burnish.compiler.ir.scalar import Load, Var
from burnish.compiler.ir.types import F32
from burnish.compiler.target import TARGETS

from ..compiled.kernels import build_program, execute, load

TARGET = TARGETS["x86-64"]
SIZE = 10


def statement(kind: str, read: str, written: str) -> For:
    """written[i] = read[9 - i] + 1, in loops whose variables have one name."""
    value = Load(read, (s.const(SIZE - 1) - Var("i"),), F32) + s.const(1.0, F32)
    return loop("i", SIZE, Store(written, (Var("i"),), value), kind=kind)


def program(*kinds: str) -> Program:
    """Statements of which each reads what the one before it wrote."""
    params = tuple(Buffer(name, F32, (SIZE,), "param") for name in ("x", "y"))
    names = ["x", *(f"t{n}" for n in range(1, len(kinds))), "y"]
    temps = tuple(Buffer(name, F32, (SIZE,), "global") for name in names[1:-1])
    body = tuple(statement(kind, *names[n : n + 2]) for n, kind in enumerate(kinds))
    return Program("kernel", params, body, temps)


@pytest.mark.parametrize(
    "kinds, tasks",
    [
        (("serial",), [1]),
        (("serial", "serial", "serial"), [1]),
        (("parallel", "serial", "serial", "parallel"), [SIZE, 1, SIZE]),
        (("serial", "parallel", "serial"), [1, SIZE, 1]),
        (("parallel", "parallel"), [SIZE, SIZE]),
    ],
)
def test_parallel_loops_are_steps_and_what_stands_between_them(kinds, tasks):
    whole = program(*kinds)
    build = build_program(whole, TARGET)
    assert [step.tasks for step in build.code.steps] == tasks
    x = np.arange(SIZE, dtype=np.float32)
    (y,) = execute(build, load([build], TARGET), [x], at_end=True)
    np.testing.assert_array_equal(y, (x if len(kinds) % 2 == 0 else x[::-1]) + len(kinds))


def test_a_gang_waits_after_each_statement():
    gang = replace(program("serial", "serial"), gang=True)
    assert [step.symbol for step in generate(gang, TARGET).steps] == ["kernel_s0", "kernel_s1"]
