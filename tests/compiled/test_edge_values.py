"""Every scalar operator, function and conversion on all pairs of edge values: machine code against numpy."""

from collections.abc import Iterator

import numpy as np
import pytest
from burnish.compiler.ir import scalar as s
from burnish.compiler.ir.loops import Buffer, Program, Stmt, Store, loop
from burnish.compiler.ir.numpy_scalar import evaluate
from burnish.compiler.ir.scalar import ARITHMETIC, COMPARISONS, LOGICAL, Binary, Call, Cast, Expr, Load, Var
from burnish.compiler.ir.types import BOOL, DTYPES, DType
from burnish.compiler.target import get_target

from .forked import run_forked
from .kernels import build_program, execute, load, runnable_targets

FLOAT_EDGES = (0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 3.0, 1e-7, 6e4, 255.5, -128.9, 2.0**31, -(2.0**31))
NARROW, ADDED = ("i8", "u8", "i16", "u16"), (0.0, 3.0, -128.0, 0.25)  # what quantising adds to what it rounds
SPECIAL = (np.nan, np.inf, -np.inf, 2.0**63, -(2.0**63), 2.0**64, 1e30, -1e30, 1e-40, 7e-8)
INTEGER_OPERATORS = ARITHMETIC - {"pow"}
FLOAT_OPERATORS = ("add", "sub", "mul", "div", "rem", "min", "max")
FLOAT_CALLS = ("neg", "abs", "sign", "floor", "ceil", "trunc", "round", "sqrt")
DIVISORS = (1, 3, 8, 100)
WITH_CONSTANTS = ("i8", "u8", "i32", "i64", "u64")
LANES = 8


def edges(dtype: DType) -> np.ndarray:
    if dtype is BOOL:
        return np.array([False, True])
    if dtype.is_float:
        with np.errstate(over="ignore"):
            return np.unique(np.array(FLOAT_EDGES + SPECIAL, np.float64).astype(dtype.numpy))
    info = np.iinfo(dtype.numpy)
    near = [info.min, info.min + 1, info.max - 1, info.max, info.max // 2, info.min // 2]
    small = range(max(-9, info.min), 10)
    return np.unique(np.array([*near, *small, dtype.bits - 1, dtype.bits, dtype.bits + 1], dtype.numpy))


def pairs(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """Every edge value with every other, up to a whole number of vectors."""
    values = edges(dtype)
    a, b = (g.reshape(-1) for g in np.meshgrid(values, values, indexing="ij"))
    room = -len(a) % LANES
    return np.concatenate([a, a[:1].repeat(room)]), np.concatenate([b, b[:1].repeat(room)])


def expressions(dtype: DType, a: Expr, b: Expr) -> Iterator[Expr]:
    """All that is defined on this type, divisions by constants too."""
    for op in sorted(COMPARISONS):
        yield Binary(op, a, b)
    for to in DTYPES.values():
        yield Cast(a, to)
    if dtype is BOOL:
        for op in ("and", "or", "xor", "min", "max"):
            yield Binary(op, a, b)
        yield Call("not", (a,))
    elif dtype.is_float:
        for op in FLOAT_OPERATORS:
            yield Binary(op, a, b)
        for name in (*FLOAT_CALLS, "isnan", "isinf"):
            yield Call(name, (a,))
        yield Call("copysign", (a, b))
        for to in NARROW:
            for added in ADDED:
                yield Cast(Call("round", (a,)) + s.const(added, dtype), DTYPES[to])
            yield Cast(Call("round", (a,)), DTYPES[to])
    else:
        for op in sorted(INTEGER_OPERATORS | LOGICAL):
            yield Binary(op, a, b)
        for name in ("neg", "abs", "not", "sign"):
            yield Call(name, (a,))
        if dtype.name not in WITH_CONSTANTS:
            return
        for op in ("div", "rem", "floordiv", "mod", "shl", "shr"):
            for divisor in (*DIVISORS, int(s.highest(dtype).value)):
                yield Binary(op, a, s.const(divisor, dtype))
            yield Binary(op, s.const(7, dtype), b)
        for op in (*sorted(COMPARISONS), "min", "max", "add", "sub", "mul"):
            for value in (3, int(s.lowest(dtype).value), int(s.highest(dtype).value)):
                yield Binary(op, a, s.const(value, dtype))


def program_of(dtype: DType, size: int, lanes: int) -> tuple[Program, list[Expr]]:
    """One step for each expression; output y<n> holds its values."""
    i = Var("i")
    plain = list(expressions(dtype, Load("a", (i,), dtype), Load("b", (i,), dtype)))
    at = Var("o") * lanes + Var("v")
    steps: list[Stmt] = []
    for n, e in enumerate(plain):
        store = Store(f"y{n}", (at,), s.substitute(e, {"i": at}))
        inner = loop("v", lanes, store, kind="vector" if lanes > 1 else "serial")
        steps.append(loop("o", size // lanes, inner, kind="parallel"))
    outputs = [Buffer(f"y{n}", e.dtype, (size,)) for n, e in enumerate(plain)]
    params = (Buffer("a", dtype, (size,)), Buffer("b", dtype, (size,)), *outputs)
    return Program(f"{dtype}_{lanes}", params, tuple(steps)), plain


def check(dtype: DType, target_name: str) -> None:
    target = get_target(target_name)
    arrays = pairs(dtype)
    variables = {"i": np.arange(len(arrays[0]))}
    programs = [program_of(dtype, len(arrays[0]), lanes) for lanes in (1, LANES)]
    builds = [build_program(program, target) for program, _ in programs]
    code = load(builds, target)
    for built, (program, plain) in zip(builds, programs):
        outputs = execute(built, code, arrays, at_end=True)
        for e, got in zip(plain, outputs, strict=True):
            with np.errstate(all="ignore"):
                want = np.broadcast_to(evaluate(e, variables, dict(zip("ab", arrays))), got.shape)
            assert got.dtype == want.dtype
            if e.dtype.name == "bf16":  # numpy does not find its NaN
                got, want = got.astype(np.float32), want.astype(np.float32)
            np.testing.assert_array_equal(got, want, f"{s.text(e)} in {program.name} on {target_name}")


@pytest.mark.parametrize("target", runnable_targets())
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_edge_values(dtype: DType, target: str) -> None:
    (message,) = run_forked([dtype], lambda d: check(d, target))
    assert message is None, message
