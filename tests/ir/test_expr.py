"""Tensor expressions: building, meaning, verifier."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from burnish.compiler.ir import scalar as s
from burnish.compiler.ir.expr import Axis, ExprBuilder, Reduce, Stage, TensorExpr, interpret, verify
from burnish.compiler.ir.scalar import Const, Load, Var
from burnish.compiler.ir.types import F32, F64, I64, TensorType
from burnish.errors import InternalError


def softmax(rows: int = 3, columns: int = 5) -> TensorExpr:
    b = ExprBuilder()
    x = b.param("x", TensorType(F32, (rows, columns)))
    top = b.reduce("max", F32, [rows], [columns], lambda i, k: x[i, k], "top")
    e = b.compute(F32, [rows, columns], lambda i, j: s.call("exp", x[i, j] - top[i]), "e")
    total = b.reduce("sum", F32, [rows], [columns], lambda i, k: e[i, k], "total")
    return b.finish([b.compute(F32, [rows, columns], lambda i, j: e[i, j] / total[i], "y")])


def padded_window(size: int = 6, window: int = 3) -> TensorExpr:
    b = ExprBuilder()
    x = b.param("x", TensorType(F32, (size,)))

    def body(i, k):
        at = i + k - 1
        return s.select(s.within(at, size), x[at], s.const(0, F32))

    return b.finish([b.reduce("sum", F32, [size], [window], body, "y")])


def test_softmax():
    expression = softmax()
    verify(expression)
    x = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    (y,) = interpret(expression, [x])
    np.testing.assert_allclose(y, np.exp(x) / np.exp(x).sum(1, keepdims=True), rtol=1e-6)
    assert y.dtype == np.float32


def test_padding_by_guarded_reads():
    (y,) = interpret(padded_window(), [np.ones(6, np.float32)])
    assert y.tolist() == [2, 3, 3, 3, 3, 2]


@pytest.mark.parametrize(
    ("op", "expected"),
    [("argmax", 1), ("argmax_last", 3), ("argmin", 0), ("argmin_last", 4), ("max", 5.0), ("prod", 0.0)],
)
def test_reductions(op, expected):
    b = ExprBuilder()
    x = b.param("x", TensorType(F32, (1, 5)))
    dtype = I64 if op.startswith("arg") else F32
    expression = b.finish([b.reduce(op, dtype, [1], [5], lambda i, k: x[i, k])])
    verify(expression)
    (y,) = interpret(expression, [np.array([[0, 5, 2, 5, 0]], np.float32)])
    assert y.tolist() == [expected]


@pytest.mark.parametrize(("op", "identity"), [("sum", 0), ("prod", 1), ("max", -np.inf), ("min", np.inf)])
def test_reductions_over_nothing(op, identity):
    b = ExprBuilder()
    x = b.param("x", TensorType(F32, (2, 0)))
    expression = b.finish([b.reduce(op, F32, [2], [0], lambda i, k: x[i, k])])
    assert interpret(expression, [np.zeros((2, 0), np.float32)])[0].tolist() == [identity, identity]


def test_unused_stages_go_and_bare_params_are_copied():
    b = ExprBuilder()
    x, unused = b.param("x", TensorType(F32, (4,))), b.param("unused", TensorType(F32, (4,)))
    b.compute(F32, [4], lambda i: unused[i] * 2.0)
    expression = b.finish([x, x])
    verify(expression)
    assert [st.name for st in expression.stages] == ["copy", "copy1"] == list(expression.outputs)
    assert [name for name, _ in expression.params] == ["x", "unused"]


def test_broadcasting_reads():
    b = ExprBuilder()
    x, y = b.param("x", TensorType(F32, (3, 1))), b.param("y", TensorType(F32, (4,)))
    total = b.compute(F32, [2, 3, 4], lambda *i: x.broadcast(i) + y.broadcast(i))
    arrays = [np.arange(3, dtype=np.float32)[:, None], np.arange(4, dtype=np.float32)]
    (out,) = interpret(b.finish([total]), arrays)
    np.testing.assert_array_equal(out, np.broadcast_to(arrays[0] + arrays[1], (2, 3, 4)))


def test_building_refuses_nonsense():
    b = ExprBuilder()
    x = b.param("x", TensorType(F32, (4,)))
    with pytest.raises(InternalError, match="x has 1 axes, read with 2"):
        x[0, 0]
    with pytest.raises(InternalError, match="body is f32, expected f64"):
        b.compute(F64, [4], lambda i: x[i])
    with pytest.raises(InternalError, match="unknown reduction"):
        b.reduce("median", F32, [], [4], lambda k: x[k])


X = ("x", TensorType(F32, (4,)))
I = Var("i")
GOOD = Stage("y", F32, (Axis("i", 4),), Load("x", (I,), F32))


@pytest.mark.parametrize(
    ("stages", "outputs", "message"),
    [
        ([GOOD, GOOD], "y", "y is defined twice"),
        ([replace(GOOD, axes=(Axis("i", 4), Axis("i", 2)))], "y", "repeats an axis"),
        ([replace(GOOD, axes=(Axis("j", 4),))], "y", "unbound axis i"),
        ([replace(GOOD, body=Load("z", (I,), F32))], "y", "reads z, which is not defined before"),
        ([replace(GOOD, body=Load("x", (I, I), F32))], "y", "reads"),
        ([replace(GOOD, body=Load("x", (I,), F64))], "y", "reads"),
        ([GOOD], "w", "output w is not defined"),
        ([replace(GOOD, reduce=Reduce("argmax", (Axis("k", 4),)))], "y", "wants one reduction axis and i64"),
    ],
)
def test_verifier_refuses(stages, outputs, message):
    with pytest.raises(InternalError, match=message):
        verify(TensorExpr((X,), tuple(stages), (outputs,)))


def test_stage_lookup():
    expression = softmax()
    assert expression.stage("top").reduce == Reduce("max", (Axis("k0", 5),))
    assert expression.type_of("x") == TensorType(F32, (3, 5)) and str(expression.type_of("top")) == "f32[3]"
    assert expression.stage("total").ranges() == {"i0": (0, 2), "k0": (0, 4)}
    assert Const(1.0, F32) not in {expression.stage("y").body}
