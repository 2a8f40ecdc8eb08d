"""Scalar expressions: construction, traversal, and their numpy meaning at the edges."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from burnish.compiler.ir import scalar as s
from burnish.compiler.ir.numpy_scalar import convert, evaluate
from burnish.compiler.ir.scalar import Binary, Call, Const, Load, Select, Var
from burnish.compiler.ir.types import BF16, BOOL, DTYPES, F16, F32, I8, I32, I64, U8
from burnish.errors import InternalError, RunError


def value(e, **tensors):
    return evaluate(e, {}, tensors)


def integers(op, a, b, dtype=I32):
    return int(value(Binary(op, Const(a, dtype), Const(b, dtype))))


@pytest.mark.parametrize(
    ("op", "a", "b", "expected"),
    [
        ("div", -7, 2, -3), ("div", 7, -2, -3), ("div", 5, 0, 0),
        ("rem", -7, 2, -1), ("rem", 7, -2, 1), ("rem", 5, 0, 0),
        ("floordiv", -7, 2, -4), ("floordiv", 5, 0, 0),
        ("mod", -7, 2, 1), ("mod", 7, -2, -1), ("mod", 5, 0, 0),
        ("add", 2**31 - 1, 1, -(2**31)), ("mul", 65536, 65536, 0), ("div", -(2**31), -1, -(2**31)),
        ("shl", 1, 31, -(2**31)), ("shl", 1, 32, 0), ("shr", -8, 1, -4), ("shl", 1, -1, 0),
        ("pow", 3, 4, 81), ("pow", 2, -1, 0), ("pow", -1, -3, -1),
    ],
)  # fmt: skip
def test_integer_operators(op, a, b, expected):
    assert integers(op, a, b) == expected


@pytest.mark.parametrize("op", ["min", "max"])
def test_minimum_and_maximum_give_nan(op):
    nan, one = Const(float("nan"), F32), Const(1.0, F32)
    assert np.isnan(value(Binary(op, nan, one))) and np.isnan(value(Binary(op, one, nan)))


def test_casts_saturate_and_wrap():
    floats = np.array([np.nan, np.inf, -np.inf, 300.7, -3.9, 127.5, 1e30], np.float32)
    assert convert(floats, I8).tolist() == [0, 127, -128, 127, -3, 127, 127]
    assert convert(floats, U8).tolist() == [0, 255, 0, 255, 0, 127, 255]
    assert convert(floats, I64).tolist()[-1] == 2**63 - 1
    assert convert(np.array([300, -1], np.int32), U8).tolist() == [44, 255]
    assert convert(floats, BOOL).tolist() == [True] * 7
    assert convert(np.array([70000.0], np.float32), F16).tolist() == [np.inf]


def test_bfloat16_is_rounded_once_from_f64():
    halfway = np.array(
        [1.0 + 2.0**-8 + 2.0**-40]
    )  # rounding to f32 first would lose the last bit, then tie to even
    assert convert(halfway, BF16)[0] == ml_dtypes.bfloat16(1.0 + 2.0**-7)


def test_a_guarded_load_may_lie_outside():
    i = Var("i")
    x = np.arange(4, dtype=np.float32)
    load = Load("x", (i - 2,), F32)
    points = {"i": np.arange(8)}
    guarded = Select(s.within(i - 2, 4), load, Const(-1.0, F32))
    assert evaluate(guarded, points, {"x": x}).tolist() == [-1, -1, 0, 1, 2, 3, -1, -1]
    with pytest.raises(InternalError, match="outside"):
        evaluate(load, points, {"x": x})


def test_checked_reports_only_where_it_is_needed():
    i = Var("i")
    points = {"i": np.arange(6)}
    index = Call("checked", (i, Const(4, I64)))
    with pytest.raises(RunError, match="index out of range"):
        evaluate(index, points, {})
    guarded = Select(s.lt(i, 4), index, Const(0, I64))
    assert evaluate(guarded, points, {}).tolist() == [0, 1, 2, 3, 0, 0]


def test_construction_folds_indices():
    i = Var("i")
    assert i * 1 + 0 == i and i * 0 == Const(0, I64)
    assert s.const(7) // 2 == Const(3, I64) and s.const(-7) % 4 == Const(1, I64)
    assert s.both() == Const(True, BOOL) and s.both(s.lt(i, 3)) == s.lt(i, 3)
    assert s.select(Const(False, BOOL), i, i + 1) == i + 1
    assert s.substitute(i * 2 + Var("j"), {"i": s.const(4)}) == s.const(8) + Var("j")


def test_mixed_types_are_refused():
    with pytest.raises(InternalError, match="operand types differ"):
        s.binary("add", Const(1.0, F32), Var("i"))
    with pytest.raises(InternalError, match="branch types differ"):
        s.select(s.lt(Var("i"), 1), Const(1.0, F32), Var("i"))
    with pytest.raises(InternalError, match="unknown scalar function"):
        s.call("frobnicate", Var("i"))


def test_constants_are_equal_by_bits():
    assert Const(0.0, F32) != Const(-0.0, F32)
    assert Const(float("nan"), F32) == Const(float("nan"), F32)
    assert Const(1, I32) != Const(1, I64)
    assert len({Const(1, I32), Const(1, I64), Const(1, I32)}) == 2


def test_identities_of_reductions():
    for dtype in DTYPES.values():
        low, high = s.lowest(dtype), s.highest(dtype)
        assert low.type is dtype and high.type is dtype and low.value < high.value
    assert s.lowest(I8).value == -128 and s.highest(U8).value == 255 and s.lowest(F32).value == -np.inf


def test_shared_objects_are_visited_once():
    e = Load("x", (), F32)
    for _ in range(200):
        e = e * e
    assert len(list(s.walk(e))) == 201
    assert value(e, x=np.float32(1.0)) == 1.0
    assert s.transform(e, lambda x: None) is e
