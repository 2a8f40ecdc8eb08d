"""Random scalar expressions for hypothesis; their floating operators are exact, so results must be equal."""

from __future__ import annotations

from burnish.compiler.ir import scalar as s
from burnish.compiler.ir.scalar import Binary, Call, Cast, Const, Expr, Load, Select, Var
from burnish.compiler.ir.types import BOOL, DTYPES, I64, DType
from hypothesis import strategies as st

POINTS = 24
"""Iterations of the loop variable `i`; the tensor x_<dtype> has this many elements."""

DATA_DTYPES = tuple(DTYPES[n] for n in ("f32", "f64", "f16", "i8", "u8", "i32", "u32", "i64", "u64", "bool"))
_INT_OPS = (
    "add",
    "sub",
    "mul",
    "div",
    "floordiv",
    "mod",
    "rem",
    "min",
    "max",
    "and",
    "or",
    "xor",
    "shl",
    "shr",
)
_FLOAT_CALLS = ("floor", "ceil", "trunc", "round", "abs", "neg")


def constants(dtype: DType) -> st.SearchStrategy[Expr]:
    if dtype is BOOL:
        return st.booleans().map(lambda v: Const(v, BOOL))
    if dtype.is_float:
        return st.sampled_from([0.0, 1.0, -2.5, 3.0, 100.0, float("inf"), float("nan")]).map(
            lambda v: Const(v, dtype)
        )
    low, high = int(s.lowest(dtype).value), int(s.highest(dtype).value)
    return st.sampled_from(sorted({0, 1, 2, 3, 7, low, high, max(low, -5)})).map(lambda v: Const(v, dtype))


def indices(name: str) -> st.SearchStrategy[Expr]:
    """Expressions that are within [0, POINTS), some of them only under the guard that `loads` adds."""
    i = Var("i")
    plain = [i, Const(3, I64), Binary("sub", Const(POINTS - 1, I64), i), Binary("floordiv", i, Const(2, I64))]
    data = Cast(Load("x_u8", (i,), DTYPES["u8"]), I64)
    return st.sampled_from([*plain, Binary("mod", data, Const(POINTS, I64))])


def loads(dtype: DType) -> st.SearchStrategy[Expr]:
    name = f"x_{dtype}"
    plain = indices(name).map(lambda index: Load(name, (index,), dtype))

    def guarded(shift: int, other: Expr) -> Expr:
        at = Binary("add", Var("i"), Const(shift, I64))
        return Select(s.within(at, POINTS), Load(name, (at,), dtype), other)

    return st.one_of(plain, st.builds(guarded, st.integers(-9, 9), constants(dtype)))


def scalars(dtype: DType, depth: int = 3) -> st.SearchStrategy[Expr]:
    """Expressions of `dtype` over the loop variable `i` and the tensors x_<dtype>[POINTS]."""
    leaves = [constants(dtype), loads(dtype)] + ([st.just(Var("i"))] if dtype is I64 else [])
    if depth == 0:
        return st.one_of(leaves)
    sub = st.deferred(lambda: scalars(dtype, depth - 1))
    cond = st.deferred(lambda: scalars(BOOL, depth - 1))
    source = st.sampled_from(DATA_DTYPES).flatmap(lambda d: scalars(d, depth - 1))
    choices = [*leaves, st.builds(Select, cond, sub, sub), source.map(lambda e: Cast(e, dtype))]
    if dtype is BOOL:
        choices.append(st.builds(Binary, st.sampled_from(["and", "or", "xor"]), sub, sub))
        choices.append(sub.map(lambda e: Call("not", (e,))))
        pairs = st.sampled_from(DATA_DTYPES[:-1]).flatmap(
            lambda d: st.tuples(scalars(d, depth - 1), scalars(d, depth - 1))
        )
        compare = st.sampled_from(sorted(s.COMPARISONS))
        choices.append(st.builds(lambda op, ab: Binary(op, *ab), compare, pairs))
    elif dtype.is_float:
        choices.append(st.builds(Binary, st.sampled_from(["add", "sub", "mul", "min", "max"]), sub, sub))
        choices.append(st.builds(lambda op, e: Call(op, (e,)), st.sampled_from(_FLOAT_CALLS), sub))
    else:
        choices.append(st.builds(Binary, st.sampled_from(_INT_OPS), sub, sub))
        choices.append(st.builds(lambda op, e: Call(op, (e,)), st.sampled_from(["neg", "abs", "not"]), sub))
        choices.append(st.builds(lambda a, b, c: Call("fma", (a, b, c)), sub, sub, sub))
    return st.one_of(choices)


def any_scalar(depth: int = 3) -> st.SearchStrategy[Expr]:
    return st.sampled_from(DATA_DTYPES).flatmap(lambda d: scalars(d, depth))
