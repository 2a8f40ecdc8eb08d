"""The last, partial vector of a loop: stores of every width write what is inside and nothing else."""

import numpy as np
import pytest
from burnish.compiler.ir import scalar as s
from burnish.compiler.ir.loops import Buffer, If, Program, Stmt, Store, loop
from burnish.compiler.ir.scalar import Cast, Expr, Load, Var
from burnish.compiler.ir.types import DTYPES
from burnish.compiler.target import get_target

from .forked import run_forked
from .kernels import build_program, execute, load, runnable_targets

LANES = 8
CASTS = [("i64", "i32"), ("i64", "bool"), ("i32", "i16"), ("i32", "u8"), ("f32", "bf16"), ("f32", "f16"),
         ("f64", "f32"), ("f32", "f64"), ("u8", "f32"), ("i8", "i64"), ("bool", "f32")]  # fmt: skip


def inside(case: str, at: Expr, lane: Expr, size: int) -> Expr:
    """Which lanes write: those before the end, every other one, or all but the first and the last but one."""
    last = s.lt(at, size)
    if case == "odd":
        return s.both(last, s.eq(lane % 2, 1))
    if case == "middle":
        return s.both(last, s.ge(lane, 1), s.binary("ne", at, size - 2))
    return last


def program_of(source: str, target: str, size: int, case: str) -> Program:
    x = Buffer("x", DTYPES[source], (size,))
    y = Buffer("y", DTYPES[target], (size,))
    at = Var("o") * LANES + Var("v")
    blank: Stmt = loop("i", size, Store("y", (Var("i"),), s.const(1, y.dtype)))
    store = Store("y", (at,), Cast(Load("x", (at,), x.dtype), y.dtype))
    guarded = If(inside(case, at, Var("v"), size), (store,))
    vectors = loop("o", -(-size // LANES), loop("v", LANES, guarded, kind="vector"))
    return Program(f"{source}_{target}_{size}_{case}", (x, y), (blank, vectors))


def check(source: str, target: str, machine: str) -> None:
    keys = [(size, case) for size in (1, 2, 3, 7, 8, 9, 12, 15) for case in ("before", "odd", "middle")]
    builds = [build_program(program_of(source, target, *key), get_target(machine)) for key in keys]
    code = load(builds, get_target(machine))
    for built, (size, case) in zip(builds, keys):
        x = (np.arange(size) * 3 % 7).astype(DTYPES[source].numpy)
        at = np.arange(size)
        wanted = at >= 0
        if case == "odd":
            wanted = at % LANES % 2 == 1
        if case == "middle":
            wanted = (at % LANES >= 1) & (at != size - 2)
        expected = np.where(wanted, x.astype(DTYPES[target].numpy), np.ones(size, DTYPES[target].numpy))
        for at_end in (True, False):
            (got,) = execute(built, code, [x], at_end=at_end)
            np.testing.assert_array_equal(got, expected, f"{built.scheduled.name} on {machine}")


@pytest.mark.parametrize("machine", runnable_targets())
@pytest.mark.parametrize(("source", "target"), CASTS)
def test_tails(source: str, target: str, machine: str) -> None:
    (message,) = run_forked([None], lambda _: check(source, target, machine))
    assert message is None, message
