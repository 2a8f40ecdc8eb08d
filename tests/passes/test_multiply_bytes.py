"""Products of 8-bit integers as products of words: equal in every form, or left alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from burnish.compiler.ir.graph import Graph, interpret, verify
from burnish.compiler.ops.base import Decomposer
from burnish.compiler.ops.conv import Conv, ConvInteger
from burnish.compiler.ops.elementwise import Unary
from burnish.compiler.ops.matmul import MatMul, MatMulInteger
from burnish.compiler.ops.movement import Pad, Slice, Transpose
from burnish.compiler.ops.quantize import DequantizeLinear, QuantizeLinear
from burnish.compiler.target import Target, get_target
from burnish.graph_passes.multiply_bytes import multiply_bytes
from burnish.graph_passes.simplify import simplify

from .make import make, op_names, scale_of

RNG = np.random.default_rng(11)
U8, I8, PLAIN = (get_target(name) for name in ("x86-64-v3", "cortex-a76", "cortex-a72"))
TARGETS = pytest.mark.parametrize("target", [U8, I8, PLAIN], ids=lambda t: t.name)
ZEROS = pytest.mark.parametrize("zero", [None, 0, 77, "read"])
KINDS = pytest.mark.parametrize("kind", ["u8", "i8"])


def i8(*shape: int, low: int = -128, high: int = 127) -> np.ndarray:
    return RNG.integers(low, high + 1, shape).astype(np.int8)


def f32(*shape: int) -> np.ndarray:
    return RNG.uniform(0.01, 0.1, shape).astype(np.float32)


def feeds(graph: Graph) -> dict[str, np.ndarray]:
    found = {}
    for name in graph.inputs:
        type = graph.types[name]
        info = np.iinfo(type.dtype.numpy)
        found[name] = RNG.integers(info.min, info.max + 1, type.dims).astype(type.dtype.numpy)
    return found


def check(before: Graph, target: Target, words: bool, rtol: float = 0.0) -> Graph:
    """The graph rewritten for the target: equal, and with products of words or without."""
    after = multiply_bytes(before, target)
    verify(after)
    arrays = feeds(before)
    expected, actual = interpret(before, arrays), interpret(after, arrays)
    for name in before.outputs:
        assert before.types[name] == after.types[name]
        atol = rtol * scale_of(expected[name])
        np.testing.assert_allclose(actual[name], expected[name], rtol=rtol, atol=atol)
    assert any(name.startswith("Dot") for name in op_names(after)) == words
    return after


def zero_point(g: Decomposer, zero: object, kind: str, more: tuple[str, ...]) -> str | None:
    if zero is None:
        return None
    return more[0] if zero == "read" else g.const(np.array(zero, np.uint8).astype(kind_of(kind)))


def kind_of(kind: str) -> type:
    return np.uint8 if kind == "u8" else np.int8


def inputs(x: str, kind: str, zero: object) -> dict[str, str]:
    return {"x": f"{kind}[{x}]", **({"zero": f"{kind}[]"} if zero == "read" else {})}


@TARGETS
@KINDS
@ZEROS
@pytest.mark.parametrize(
    ("op", "x", "w"),
    [
        (ConvInteger((1, 1), (1, 1, 1, 1), (1, 1)), "2,5,6,7", (3, 5, 3, 3)),
        (ConvInteger((2, 1), (0, 2, 1, 0), (1, 2)), "1,3,9,8", (4, 3, 2, 3)),
        (ConvInteger((1,), (2, 0), (1,), 2), "1,8,11", (6, 4, 3)),
        (ConvInteger((1, 1, 1), (0,) * 6, (1, 1, 1)), "1,4,3,3,3", (2, 4, 2, 2, 2)),
    ],
)
def test_convolutions(target, kind, zero, op, x, w):
    def body(g: Decomposer, x: str, *more: str) -> str:
        return g.one(op, x, g.const(i8(*w)), zero_point(g, zero, kind, more), None)

    check(make(inputs(x, kind, zero), body), target, words=bool(target.dot))


@TARGETS
@KINDS
@pytest.mark.parametrize("zero", [None, 0, 77])
@pytest.mark.parametrize(
    ("op", "x", "w"),
    [
        (ConvInteger((1, 1), (1, 1, 1, 1), (1, 1), 6), "2,6,6,7", (6, 1, 3, 3)),
        (ConvInteger((2, 1), (0, 2, 1, 0), (1, 2), 3), "1,3,9,8", (3, 1, 5, 2)),
        (ConvInteger((1,), (2, 0), (1,), 8), "1,8,11", (8, 1, 9)),
    ],
)
def test_convolutions_of_each_channel(target, kind, zero, op, x, w):
    def body(g: Decomposer, x: str) -> str:
        return g.one(op, x, g.const(i8(*w)), zero_point(g, zero, kind, ()), None)

    after = check(make(inputs(x, kind, zero), body), target, words=bool(target.dot))
    assert ("DotDepthwise" in op_names(after)) == bool(target.dot)


@pytest.mark.parametrize("value", [None, 0, 77])
def test_pads_of_another_value_than_lies_outside_stay(value):
    pads = ConvInteger((1, 1), (1, 1, 1, 1), (1, 1), 6)

    def body(g: Decomposer, x: str) -> str:
        outside = () if value is None else (g.const(np.array(value, np.uint8)),)
        padded = g.one(Pad((0, 0, 1, 0), (0, 0, 2, 1)), x, *outside)
        return g.one(pads, padded, g.const(i8(6, 1, 3, 3)), g.const(np.array(77, np.uint8)), None)

    graph = make({"x": "u8[2,6,6,7]"}, body)
    words = check(graph, U8, words=True)
    after = simplify(words)
    verify(after)
    assert ("Pad" in op_names(after)) == (value != 77)
    arrays = feeds(graph)
    np.testing.assert_array_equal(*(interpret(g, arrays)[graph.outputs[0]] for g in (graph, after)))


@TARGETS
@KINDS
@ZEROS
@pytest.mark.parametrize(("x", "w"), [("3,5", (5, 7)), ("2,1,8", (8, 3)), ("1,1", (1, 1))])
def test_matrix_products(target, kind, zero, x, w):
    def body(g: Decomposer, x: str, *more: str) -> str:
        return g.one(MatMulInteger(), x, g.const(i8(*w)), zero_point(g, zero, kind, more), None)

    after = check(make(inputs(x, kind, zero), body), target, words=bool(target.dot))
    assert "MatMulInteger" not in op_names(after)


@TARGETS
def test_zero_points_of_weights_are_taken_off_and_rows_have_their_own(target):
    weights = RNG.integers(100, 200, (6, 5)).astype(np.uint8)
    zeros, rows = np.array([128, 120, 99, 150, 128], np.uint8), np.array([[3], [200]], np.uint8)

    def body(g: Decomposer, x: str) -> str:
        return g.one(MatMulInteger(), x, g.const(weights), g.const(rows), g.const(zeros))

    check(make({"x": "u8[2,6]"}, body), target, words=bool(target.dot))


LEFT: dict[str, Callable[[Decomposer, str], str]] = {
    "weights of nine bits": lambda g, x: g.one(
        ConvInteger((1, 1), (0,) * 4, (1, 1)), x, g.const(np.full((3, 8, 1, 1), 255, np.uint8)), None, None
    ),
    "two filters for each channel": lambda g, x: g.one(
        ConvInteger((1, 1), (0,) * 4, (1, 1), 8), x, g.const(i8(16, 1, 1, 1)), None, None
    ),
    "depthwise with a zero point that is computed": lambda g, x: g.one(
        ConvInteger((1, 1), (0,) * 4, (1, 1), 8),
        *(x, g.const(i8(8, 1, 1, 1)), g.one(Slice((0, 0, 0, 0), (1, 1, 1, 1), (1,) * 4), x), None),
    ),
    "groups of two channels": lambda g, x: g.one(
        ConvInteger((1, 1), (0,) * 4, (1, 1), 4), x, g.const(i8(4, 2, 1, 1)), None, None
    ),
    "zero points that are not along the columns": lambda g, x: g.one(
        MatMulInteger(), x, g.const(i8(3, 5)), None, g.const(i8(3, 1))
    ),
    "zero points along the rows of a square": lambda g, x: g.one(
        MatMulInteger(), x, g.const(i8(3, 3, low=-60, high=60)), None, g.const(i8(3, 1, low=-60, high=60))
    ),
    "zero points along the rows' elements": lambda g, x: g.one(
        MatMulInteger(), x, g.const(i8(3, 5)), g.const(RNG.integers(0, 9, (3,)).astype(np.uint8)), None
    ),
    "weights that are read": lambda g, x: g.one(MatMulInteger(), x, x, None, None),
}


@TARGETS
@pytest.mark.parametrize("name", LEFT)
def test_left_as_they_are(target, name):
    check(make({"x": "u8[1,8,3,3]"}, LEFT[name]), target, words=False)


# --- dequantised operands ---------------------------------------------------------------------------------


def real(g: Decomposer, value: str, scales: np.ndarray, zero: np.ndarray | None, axis: int = 1) -> str:
    more = () if zero is None else (g.const(zero),)
    return g.one(DequantizeLinear(axis), value, g.const(scales), *more)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("scales", [f32(5), f32()])
def test_a_convolution_of_dequantised_operands(scales, bias):
    def body(g: Decomposer, x: str) -> str:
        w = real(g, g.const(i8(5, 6, 3, 3)), scales, np.zeros(scales.shape, np.int8), 0)
        data = real(g, x, np.float32(0.02), np.asarray(13, np.uint8))
        return g.one(Conv((2, 2), (1, 1, 0, 1), (1, 1)), data, w, *([g.const(f32(5))] if bias else []))

    graph = make({"x": "u8[2,6,7,7]"}, body)
    check(graph, I8, words=True, rtol=2e-6)
    check(graph, U8, words=False)  # without one instruction for it, products of f32 are as fast


@pytest.mark.parametrize("transposed", [False, True])
def test_a_matrix_product_of_dequantised_operands(transposed):
    def body(g: Decomposer, x: str) -> str:
        shape, axis = ((7, 9), 0) if transposed else ((9, 7), 1)
        w = real(g, g.const(i8(*shape)), f32(7), None, axis)
        return g.one(MatMul(False, transposed), real(g, x, np.float32(0.02), np.asarray(-3, np.int8)), w)

    check(make({"x": "i8[4,9]"}, body), I8, words=True, rtol=2e-6)


def test_scales_along_a_sum_are_left():
    def body(g: Decomposer, x: str) -> str:
        w = real(g, g.const(i8(9, 7)), f32(9), None, 0)
        return g.one(MatMul(), real(g, x, np.float32(0.02), None), w)

    check(make({"x": "i8[4,9]"}, body), I8, words=False)


def test_sums_that_leave_32_bits_stay_real():
    def body(size: int) -> Callable[[Decomposer, str], str]:
        def made(g: Decomposer, x: str) -> str:
            w = real(g, g.const(np.full((size, 2), 127, np.int8)), np.float32(1e-3), None)
            return g.one(MatMul(), real(g, x, np.float32(1e-3), None), w)

        return made

    assert 255 * 127 * 66_000 < 1 << 31 < 255 * 127 * 67_000
    check(make({"x": "u8[1,66000]"}, body(66_000)), I8, words=True, rtol=1e-5)
    check(make({"x": "u8[1,67000]"}, body(67_000)), I8, words=False)


def test_weights_turned_and_rounded_are_seen_and_shared_ones_are_packed_once():
    """As exporters write them: rounded in the graph, transposed before a product; read by two."""
    scale = np.float32(0.02)

    def body(g: Decomposer, x: str) -> list[str]:
        by = [g.const(f32(5)), g.const(np.zeros(5, np.int8))]
        bytes = g.one(QuantizeLinear(0, to="i8"), g.const(f32(5, 9)), *by)
        w = g.one(DequantizeLinear(0), bytes, *by)
        turned = g.one(Transpose((1, 0)), w)
        return [
            g.one(MatMul(), real(g, x, scale, None), turned),
            g.one(MatMul(False, True), real(g, g.one(Unary("neg"), x), scale, None), w),
        ]

    after = check(make({"x": "i8[4,9]"}, body), I8, words=True, rtol=2e-6)
    products = [n for n in after.nodes if n.op.name == "DotMatMul"]
    assert len(products) == 2 and len({n.inputs[1] for n in products}) == 1
