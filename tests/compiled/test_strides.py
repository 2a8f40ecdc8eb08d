"""Vector loops that read every second, third … element read what is needed and nothing outside of it."""

import numpy as np
import pytest
from burnish.compiler.ir import scalar as s
from burnish.compiler.ir.loops import Buffer, If, Program, Stmt, Store, loop
from burnish.compiler.ir.scalar import Expr, Load, Var
from burnish.compiler.ir.types import DTYPES, DType
from burnish.compiler.target import get_target

from .forked import run_forked
from .kernels import build_program, execute, load, runnable_targets

LANES = 8
SIZES = (1, 2, 8, 9, 13)
STRIDES = (2, 3, 4, 5)
ROW, AT = Var("r"), Var("o") * LANES + Var("v")


def length(size: int, stride: int) -> int:
    """Of rows whose last element is the last that is read."""
    return (size - 1) * stride + 1


def vectors(size: int, *body: Stmt) -> Stmt:
    return loop("o", -(-size // LANES), loop("v", LANES, *body, kind="vector"))


def program_of(name: str, type: DType, size: int, stride: int) -> Program:
    """y[r, i] = x[r, i · stride], stored in some lanes or, "selected", zero behind the end."""
    rows = 3
    x = Buffer("x", type, (rows, length(size, stride)))
    value: Expr = Load("x", (ROW, AT * stride), type)
    inside = s.lt(AT, size)
    if name == "stored":
        y = Buffer("y", type, (rows, size))
        body: Stmt = If(inside, (Store("y", (ROW, AT), value),))
    else:
        y = Buffer("y", type, (rows, -(-size // LANES) * LANES))
        body = Store("y", (ROW, AT), s.select(inside, value, s.const(0, type)))
    return Program(f"{name}_{type.name}_{size}_{stride}", (x, y), (loop("r", rows, vectors(size, body)),))


def behind_the_first(size: int, stride: int) -> Program:
    """y[i] = x[i · stride - 2], where that is an element: vectors that lack their first lanes."""
    type = DTYPES["f32"]
    at = AT * stride - 2
    x, y = Buffer("x", type, (length(size, stride),)), Buffer("y", type, (-(-size // LANES) * LANES,))
    inside = s.within(at, x.shape[0])
    body = Store("y", (AT,), s.select(inside, Load("x", (at,), type), s.const(0, type)))
    return Program(f"behind_{size}_{stride}", (x, y), (vectors(size, body),))


def check_rows(type: DType, machine: str) -> None:
    keys = [(n, size, stride) for n in ("stored", "selected") for size in SIZES for stride in STRIDES]
    builds = [build_program(program_of(n, type, *key), get_target(machine)) for n, *key in keys]
    code = load(builds, get_target(machine))
    for built, (_, size, stride) in zip(builds, keys):
        x = np.arange(1, 3 * length(size, stride) + 1).reshape(3, -1).astype(type.numpy)
        for at_end in (True, False):
            (got,) = execute(built, code, [x], at_end=at_end)
            name = f"{built.scheduled.name} on {machine}"
            np.testing.assert_array_equal(got.reshape(3, -1)[:, :size], x[:, ::stride], name)
            assert not got.reshape(3, -1)[:, size:].any(), name


def check_behind(machine: str) -> None:
    keys = [(size, stride) for size in SIZES for stride in STRIDES]
    builds = [build_program(behind_the_first(*key), get_target(machine)) for key in keys]
    code = load(builds, get_target(machine))
    for built, (size, stride) in zip(builds, keys):
        x = np.arange(1, length(size, stride) + 1, dtype=np.float32)
        at = np.arange(-(-size // LANES) * LANES) * stride - 2
        inside = (at >= 0) & (at < len(x))
        wanted = np.where(inside, x[np.where(inside, at, 0)], 0)
        for at_end in (True, False):
            (got,) = execute(built, code, [x], at_end=at_end)
            np.testing.assert_array_equal(got, wanted, f"{built.scheduled.name} on {machine}")


@pytest.mark.parametrize("machine", runnable_targets())
@pytest.mark.parametrize("type", ["f32", "f64", "u8", "bool"])
def test_every_stride(type: str, machine: str) -> None:
    (message,) = run_forked([None], lambda _: check_rows(DTYPES[type], machine))
    assert message is None, message


@pytest.mark.parametrize("machine", runnable_targets())
def test_first_lanes_outside(machine: str) -> None:
    (message,) = run_forked([None], lambda _: check_behind(machine))
    assert message is None, message
