from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from burnish.compiler.ir.graph import interpret
from burnish.compiler.ops.conv import Conv, ConvTranspose
from burnish.compiler.ops.elementwise import Binary, Cast, Unary, Where
from burnish.compiler.ops.matmul import MatMul
from burnish.compiler.ops.movement import Concat, Expand, Identity, Pad, Reshape, Slice, Tile, Transpose
from burnish.compiler.ops.pool import MaxPool
from burnish.compiler.ops.quantize import DequantizeLinear, QuantizeLinear
from burnish.graph_passes.rewrite import Rewriter
from burnish.graph_passes.simplify import RULES, simplify

from .make import assert_same, make, op_names

RNG = np.random.default_rng(7)


def f32(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def num(value: float, *shape: int) -> np.ndarray:
    return np.full(shape, value, np.float32)


CONV = Conv((1, 1), (1, 1, 1, 1), (1, 1))
GROUPED = Conv((2, 1), (0, 1, 1, 0), (1, 2), group=2)
TRANSPOSED = ConvTranspose((2, 2), (0, 0), (1, 1), (9, 9), group=2)
X = {"x": "f32[2,4,5,5]"}


def unary(g, fn, x, *params):
    return g.one(Unary(fn, params), x)


def binary(g, fn, x, c):
    return g.one(Binary(fn), x, g.const(c) if isinstance(c, np.ndarray) else c)


def conv(g, x, bias=True, op=CONV, w=(6, 4, 3, 3)):
    channels = w[0] if isinstance(op, Conv) else w[1] * op.group
    inputs = [x, g.const(f32(*w)), *([g.const(f32(channels))] if bias else [])]
    return g.one(op, *inputs)


def halves(g, x):
    a = g.one(Slice((0, 0, 0, 0), (2, 1, 5, 5), (1, 1, 1, 1)), x)
    b = g.one(Slice((0, 1, 0, 0), (2, 2, 5, 5), (1, 1, 1, 1)), x)
    return g.one(Concat(1), a, b)


def quantised_sum(g, x):
    real = binary(g, "mul", g.one(Cast("f32"), x), f32(4, 1) / 50)
    bounded = unary(g, "clip", binary(g, "add", real, f32(4, 1)), -1.0, 2.0)
    return g.one(QuantizeLinear(to="i8"), bounded, g.const(num(0.013)), g.const(np.array(-9, np.int8)))


def quantised_for_a_moment(g, x):
    steps = unary(g, "round", binary(g, "mul", x, num(90)))
    bytes = g.one(Cast("u8"), binary(g, "add", steps, num(120)))
    by = g.const(num(0.02)), g.const(np.array(120, np.uint8))
    return binary(g, "mul", g.one(DequantizeLinear(), bytes, *by), f32(4, 1, 1))


def requantised(g, x, scale=0.013):
    """Bytes that are numbers on the way through a window and a part of it."""
    by = g.const(num(0.013)), g.const(np.array(-9, np.int8))
    pooled = g.one(MaxPool((3, 3), (2, 2), (1, 1, 1, 1), (1, 1)), g.one(DequantizeLinear(), x, *by))
    part = g.one(Slice((0, 1, 0, 0), (2, 2, 3, 3), (1,) * 4), pooled)
    return g.one(QuantizeLinear(to="i8"), part, g.const(num(scale)), by[1])


# equation → (inputs, builder, operators that are left when every rule has run)
CASES = {
    "quantize(dequantize(x, s, z), s, z) => x": (
        {"x": "i8[2,4,5,5]"},
        lambda g, x: unary(
            g,
            "neg",
            g.one(
                QuantizeLinear(to="i8"),
                g.one(DequantizeLinear(), x, g.const(num(0.7)), g.const(np.array(3, np.int8))),
                *(g.const(num(0.7)), g.const(np.array(3, np.int8))),
            ),
        ),
        ["Unary"],
    ),
    "move(dequantize(x, s, z)) => dequantize(move(x), s, z)": (
        {"x": "i8[2,4,5,5]"},
        lambda g, x: g.one(
            Concat(1),
            *(g.one(DequantizeLinear(), v, g.const(num(0.7))) for v in (x, g.one(Unary("neg"), x))),
        ),
        ["Unary", "Concat", "DequantizeLinear"],
    ),
    "f(dequantize(int(round(x) + z), s, z), a) => f(clip(round(x), low - z, high - z) · s, a)": (
        X,
        quantised_for_a_moment,
        ["Binary", "Unary", "Unary", "Binary"],
    ),
    "quantize(x·a + b, s, z) => int(round(x·(a/s) + b/s) + z), x whole": (
        {"x": "i32[3,4,9]"},
        quantised_sum,
        ["Cast", "Binary", "Binary", "Unary", "Unary", "Binary", "Cast"],
    ),
    "identity(x) => x": (X, lambda g, x: unary(g, "exp", g.one(Identity(), x)), ["Unary"]),
    "reshape(x) => x, of the same shape": (
        X,
        lambda g, x: unary(g, "exp", g.one(Reshape((2, 4, 5, 5)), x)),
        ["Unary"],
    ),
    "reshape(reshape(x)) => reshape(x)": (
        X,
        lambda g, x: g.one(Reshape((10, 20)), g.one(Reshape((200,)), x)),
        ["Reshape"],
    ),
    "transpose(x) => x, in the same order": (
        X,
        lambda g, x: unary(g, "exp", g.one(Transpose((0, 1, 2, 3)), x)),
        ["Unary"],
    ),
    "transpose(transpose(x)) => transpose(x)": (
        X,
        lambda g, x: g.one(Transpose((3, 1, 0, 2)), g.one(Transpose((1, 2, 3, 0)), x)),
        ["Transpose"],
    ),
    "transpose(x) => reshape(x), where only axes of size 1 move": (
        {"x": "f32[2,1,3,1]"},
        lambda g, x: g.one(Transpose((1, 0, 3, 2)), x),
        ["Reshape"],
    ),
    "expand(x) => x, to the same shape": (
        X,
        lambda g, x: unary(g, "exp", g.one(Expand((1, 5, 1)), x)),
        ["Unary"],
    ),
    "tile(x) => x, once": (X, lambda g, x: unary(g, "exp", g.one(Tile((1, 1, 1, 1)), x)), ["Unary"]),
    "slice(x) => x, all of it": (
        X,
        lambda g, x: unary(g, "exp", g.one(Slice((0, 0, 0, 0), (2, 4, 5, 5), (1, 1, 1, 1)), x)),
        ["Unary"],
    ),
    "slice(slice(x)) => slice(x)": (
        X,
        lambda g, x: g.one(
            Slice((0, 1, 1, 0), (1, 2, 1, 2), (1, -1, 1, 2)),
            g.one(Slice((1, 1, 4, 0), (1, 3, 2, 5), (1, 1, -2, 1)), x),
        ),
        ["Slice"],
    ),
    "pad(x) => x, by nothing": (
        X,
        lambda g, x: unary(g, "exp", g.one(Pad((0,) * 4, (0,) * 4), x)),
        ["Unary"],
    ),
    "pad(pad(x)) => pad(x), with one value": (
        X,
        lambda g, x: g.one(
            Pad((0, 0, 1, 2), (0, 1, 0, 0)), g.one(Pad((0, 0, 1, 0), (0, 0, 0, 3)), x, g.const(num(0)))
        ),
        ["Pad"],
    ),
    "concat(x) => x": (X, lambda g, x: unary(g, "exp", g.one(Concat(1), x)), ["Unary"]),
    "concat(x, empty) => concat(x)": (
        {**X, "e": "f32[2,0,5,5]", "y": "f32[2,1,5,5]"},
        lambda g, x, e, y: g.one(Concat(1), x, e, y),
        ["Concat"],
    ),
    "concat(concat(a, b), c) => concat(a, b, c)": (
        {**X, "y": "f32[2,1,5,5]"},
        lambda g, x, y: g.one(Concat(-3), y, g.one(Concat(1), x, y), x),
        ["Concat"],
    ),
    "concat(slice(x), slice(x)) => slice(x), of neighbours": (X, halves, ["Slice"]),
    "cast(x) => x, to its own type": (X, lambda g, x: unary(g, "exp", g.one(Cast("f32"), x)), ["Unary"]),
    "cast(cast(x)) => cast(x), where the inner one loses nothing": (
        X,
        lambda g, x: g.one(Cast("i32"), g.one(Cast("f64"), x)),
        ["Cast"],
    ),
    "where(true, x, y) => x": (
        {**X, "y": "f32[4,5,5]"},
        lambda g, x, y: unary(g, "exp", g.one(Where(), g.const(np.zeros((1, 1), np.bool_)), x, y)),
        ["Expand", "Unary"],
    ),
    "c + x => x + c": (X, lambda g, x: g.one(Binary("add"), g.const(f32(4, 1, 1)), x), ["Binary"]),
    "x + 0 => x": (
        X,
        lambda g, x: unary(g, "exp", binary(g, "pow", binary(g, "add", x, num(0, 5)), num(1))),
        ["Unary"],
    ),
    "x - c => x + (-c)": (X, lambda g, x: binary(g, "sub", x, f32(5)), ["Binary"]),
    "x + (-y) => x - y, x + y * (-z) => x - y * z": (
        {**X, "y": "f32[4,5,5]"},
        lambda g, x, y: binary(
            g, "add", binary(g, "add", binary(g, "mul", unary(g, "neg", x), y), x), unary(g, "neg", y)
        ),
        ["Binary", "Binary", "Binary"],
    ),
    "x / c => x * (1 / c), c a power of two": (X, lambda g, x: binary(g, "div", x, num(-8)), ["Binary"]),
    "(x + a) + b => x + (a + b)": (
        X,
        lambda g, x: binary(g, "add", binary(g, "add", x, np.abs(f32(5))), num(2)),
        ["Binary"],
    ),
    "x ** 2 => x * x": (
        X,
        lambda g, x: (binary(g, "pow", x, num(2)), binary(g, "pow", x, num(3, 1))),
        ["Binary", "Binary"],
    ),
    "max(x, 0) => relu(x)": (X, lambda g, x: binary(g, "max", x, num(0)), ["Unary"]),
    "min(max(x, a), b) => clip(x, a, b)": (
        X,
        lambda g, x: binary(g, "min", binary(g, "max", x, num(-1, 1, 1)), num(2)),
        ["Unary"],
    ),
    "clip(x, -inf, inf) => x": (
        X,
        lambda g, x: unary(g, "exp", unary(g, "clip", x, -np.inf, np.inf)),
        ["Unary"],
    ),
    "clip(x, 0, inf) => relu(x)": (X, lambda g, x: unary(g, "clip", x, 0.0, np.inf), ["Unary"]),
    "abs(abs(x)) => abs(x)": (X, lambda g, x: unary(g, "floor", unary(g, "floor", x)), ["Unary"]),
    "clip(clip(x)) => clip(x)": (X, lambda g, x: unary(g, "clip", unary(g, "relu", x), -1.0, 2.0), ["Unary"]),
    "neg(neg(x)) => x": (X, lambda g, x: unary(g, "exp", unary(g, "neg", unary(g, "neg", x))), ["Unary"]),
    "conv(x, w, b) * s => conv(x, w * s, b * s)": (
        X,
        lambda g, x: (
            binary(g, "mul", conv(g, x), f32(6, 1, 1)),
            binary(g, "div", conv(g, x, False, GROUPED, (6, 2, 2, 2)), num(3)),
            binary(g, "mul", conv(g, x, True, TRANSPOSED, (4, 3, 2, 2)), f32(1, 6, 1, 1)),
        ),
        ["Conv", "Conv", "ConvTranspose"],
    ),
    "conv(x, w, b) + c => conv(x, w, b + c)": (
        X,
        lambda g, x: (
            binary(g, "add", conv(g, x), f32(6, 1, 1)),
            binary(g, "add", conv(g, x, False), num(3, 1)),
        ),
        ["Conv", "Conv"],
    ),
    "conv(x * s, w) => conv(x, w * s)": (
        X,
        lambda g, x: (
            conv(g, binary(g, "mul", x, f32(4, 1, 1))),
            conv(g, binary(g, "mul", x, f32(4, 1, 1)), True, GROUPED, (6, 2, 2, 2)),
        ),
        ["Conv", "Conv"],
    ),
    "conv(pad(x), w) => conv(x, w) with pads": (
        X,
        lambda g, x: conv(g, g.one(Pad((0, 0, 1, 2), (0, 0, 0, 3)), x)),
        ["Conv"],
    ),
    "matmul(x, w) * s => matmul(x, w * s)": (
        {"x": "f32[3,5,4]"},
        lambda g, x: (
            binary(g, "mul", g.one(MatMul(), x, g.const(f32(4, 6))), f32(1, 6)),
            binary(g, "div", g.one(MatMul(trans_b=True), x, g.const(f32(6, 4))), num(3)),
        ),
        ["MatMul", "MatMul"],
    ),
    "matmul(a, transpose(b)) => matmul(a, b) with trans_b": (
        {"x": "f32[3,5,4]", "y": "f32[3,5,4]"},
        lambda g, x, y: (
            g.one(MatMul(), x, g.one(Transpose((0, 2, 1)), y)),
            g.one(MatMul(trans_a=True, trans_b=True), g.one(Transpose((0, 2, 1)), x), y),
        ),
        ["MatMul", "MatMul"],
    ),
}


def test_constants_that_would_be_a_large_one_together_stay_apart():
    large = 1 << 20

    def body(g, x):
        return binary(g, "add", binary(g, "add", x, f32(large, 1)), f32(1, large))

    before = make({"x": "f32[1,1]"}, body)
    assert op_names(simplify(before, Counter())) == ["Binary", "Binary"]


def test_what_is_subtracted_from_a_product_is_not_added():
    """A product and a sum are one multiply-add, which rounds once."""
    before = make(X, lambda g, x: binary(g, "sub", binary(g, "mul", x, f32(4, 5, 5)), num(2)))
    assert [node.op.fn for node in simplify(before, Counter()).nodes] == ["mul", "sub"]


def test_every_rule_has_a_case():
    equations = [rule.equation for rule in RULES]
    assert len(set(equations)) == len(equations)
    assert set(CASES) == set(equations)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.equation)
def test_rule_alone_applies_and_keeps_the_meaning(rule):
    inputs, body, _ = CASES[rule.equation]
    before = make(inputs, body)
    rewriter = Rewriter(before)
    after = rewriter.run([rule])
    assert rewriter.fired[rule.equation]
    assert_same(before, after)


@pytest.mark.parametrize("equation", CASES)
def test_all_rules_together_reach_the_expected_operators(equation):
    inputs, body, expected = CASES[equation]
    before = make(inputs, body)
    fired: Counter[str] = Counter()
    after = simplify(before, fired)
    assert fired[equation]
    assert_same(before, after)
    assert op_names(after) == expected
    again: Counter[str] = Counter()
    assert op_names(simplify(after, again)) == expected and not again


def test_batch_norm_and_padding_vanish_into_the_convolution():
    def body(g, x):
        y = conv(g, g.one(Pad((0, 0, 1, 1), (0, 0, 1, 1)), x), bias=False)
        y = binary(g, "add", binary(g, "mul", binary(g, "sub", y, f32(6, 1, 1)), f32(6, 1, 1)), f32(6, 1, 1))
        return unary(g, "relu", y)

    before = make(X, body)
    after = simplify(before)
    assert op_names(after) == ["Conv", "Unary"]
    assert_same(before, after, rtol=1e-5)


@pytest.mark.parametrize(
    "body",
    [
        lambda g, x: (y := conv(g, x), binary(g, "mul", y, num(2))),  # the product is an output itself
        lambda g, x: (
            binary(g, "mul", y := conv(g, x), num(2)),
            unary(g, "exp", y),
        ),
    ],
)
def test_a_convolution_read_twice_is_not_duplicated(body):
    before = make(X, body)
    after = simplify(before)
    assert op_names(after).count("Conv") == 1
    assert_same(before, after)


@pytest.mark.parametrize(
    "body",
    [
        lambda g, x: binary(g, "add", conv(g, x), f32(5)),  # along the width
        lambda g, x: binary(g, "mul", conv(g, x), num(np.inf)),
        lambda g, x: conv(g, g.one(Pad((0, 0, 1, 1), (0, 0, 1, 1)), x, g.const(num(1)))),
        lambda g, x: conv(g, g.one(Pad((0, 0, 1, 1), (0, 0, 1, 1), "edge"), x)),
        lambda g, x: binary(g, "add", unary(g, "exp", x), num(0, 3, 2, 4, 5, 5)),
        lambda g, x: g.one(Cast("f64"), g.one(Cast("i32"), x)),
        lambda g, x: g.one(Cast("u8"), g.one(Cast("i32"), g.one(Cast("i64"), x))),
        lambda g, x: binary(g, "mul", binary(g, "mul", x, num(1e30)), num(1e30)),
        lambda g, x: binary(g, "mul", binary(g, "mul", x, num(1e-23)), num(-1e-23)),
        lambda g, x: binary(g, "mul", binary(g, "mul", x, num(1e38)), num(1e-38)),
        lambda g, x: binary(g, "mul", binary(g, "mul", x, num(1e-38)), num(1e38)),
        lambda g, x: binary(g, "div", x, num(3)),
        lambda g, x: binary(g, "min", binary(g, "max", x, num(2)), num(-2)),
    ],
)
def test_what_would_change_the_result_stays(body):
    before = make(X, body)
    after = simplify(before)
    assert len(after.nodes) == len(before.nodes)
    with np.errstate(all="ignore"):
        assert_same(before, after)


def test_outputs_keep_their_names():
    def body(g, x):
        y = unary(g, "exp", x)
        return (g.one(Identity(), y), g.one(Identity(), y), g.one(Identity(), x), y)

    before = make(X, body)
    after = simplify(before)
    assert op_names(after) == ["Unary", "Identity", "Identity", "Identity"]
    assert_same(before, after)


def test_an_output_that_is_copied_once_takes_its_name_from_the_copy():
    before = make(X, lambda g, x: g.one(Identity(), g.one(Identity(), unary(g, "exp", x))))
    after = simplify(before)
    assert op_names(after) == ["Unary"]
    assert_same(before, after)


def test_equal_operators_are_computed_once():
    def body(g, x):
        a = binary(g, "mul", unary(g, "exp", x), f := num(3))
        b = binary(g, "mul", unary(g, "exp", x), f.copy())
        return g.one(Binary("sub"), a, b)

    before = make(X, body)
    after = simplify(before)
    assert op_names(after) == ["Unary", "Binary", "Binary"]
    assert_same(before, after)


def test_equal_constants_of_other_bits_are_not_shared():
    def body(g, x):
        return [binary(g, "div", x, num(0.0)), binary(g, "div", x, num(-0.0))]

    before = make(X, body)
    with np.errstate(all="ignore"):
        assert_same(before, simplify(before))


def test_bytes_do_not_pass_windows_that_are_all_padding():
    """There the least float is not the least byte."""
    window = MaxPool((2, 2), (1, 1), (1, 0, 1, 0), (2, 1))
    body = lambda g, x: g.one(window, g.one(DequantizeLinear(), x, g.const(num(0.013))))  # noqa: E731
    before = make({"x": "i8[2,4,1,5]"}, body)
    after = simplify(before)
    assert op_names(after) == ["DequantizeLinear", "MaxPool"]


def test_bytes_pass_windows_as_long_as_the_input():
    window = MaxPool((1, 300000), (1, 1), (0, 299999, 0, 0), (1, 1))
    body = lambda g, x: g.one(window, g.one(DequantizeLinear(), x, g.const(num(0.013))))  # noqa: E731
    assert op_names(simplify(make({"x": "i8[1,1,1,300000]"}, body))) == ["MaxPool", "DequantizeLinear"]


@pytest.mark.parametrize(
    ("scale", "left"), [(0.013, []), (0.014, ["Cast", "Binary", "Binary", "Unary", "Binary", "Cast"])]
)
def test_bytes_stay_bytes_through_pooling(scale, left):
    before = make({"x": "i8[2,4,5,5]"}, lambda g, x: requantised(g, x, scale))
    after = simplify(before)
    assert op_names(after) == ["MaxPool", "Slice", *left]
    assert_same(before, after)


def test_bytes_between_two_steps_are_quantised_by_a_division():
    """13 · 0.1 / 0.2 is a little more than 6.5 in float32, 13 · (0.1 / 0.2) is not."""

    def body(g, x):
        zero = g.const(np.array(0, np.uint8))
        real = g.one(DequantizeLinear(), x, g.const(num(0.1)), zero)
        return g.one(QuantizeLinear(to="u8"), real, g.const(num(0.2)), zero)

    before = make({"x": "u8[256]"}, body)
    every = {"x": np.arange(256, dtype=np.uint8)}
    (found,), (expected,) = (interpret(g, every).values() for g in (simplify(before), before))
    np.testing.assert_array_equal(found, expected)
    assert expected[13] == 7


def test_sums_of_bytes_are_quantised_without_a_division():
    """As residual networks do; one of the two was quantised for nobody else."""

    def body(g, x, y):
        first = g.one(DequantizeLinear(), x, g.const(num(0.02)), g.const(np.array(-5, np.int8)))
        return g.one(
            QuantizeLinear(to="u8"),
            unary(g, "relu", g.one(Binary("add"), first, quantised_for_a_moment(g, y))),
            *(g.const(num(0.031)), g.const(np.array(7, np.uint8))),
        )

    before = make({"x": "i8[2,4,5,5]", "y": "f32[2,4,5,5]"}, body)
    after = simplify(before)
    kinds = op_names(after)
    assert "QuantizeLinear" not in kinds and "DequantizeLinear" not in kinds
    assert not any(node.op == Binary("div") for node in after.nodes)
    assert_same(before, after)


def test_long_sums_are_quantised_as_they_are():
    def body(g, x):
        real = g.one(DequantizeLinear(), x, g.const(num(0.02)), g.const(np.array(-5, np.int8)))
        total = real
        for _ in range(5000):
            total = g.one(Binary("add"), total, real)
        return g.one(QuantizeLinear(to="u8"), total, g.const(num(31)), g.const(np.array(7, np.uint8)))

    before = make({"x": "i8[5]"}, body)
    assert_same(before, simplify(before))


def test_integers_that_others_read_stay():
    def body(g, x):
        bytes = g.one(Cast("u8"), unary(g, "round", x))
        real = g.one(DequantizeLinear(), bytes, g.const(num(0.02)), g.const(np.array(0, np.uint8)))
        return binary(g, "mul", real, f32(4, 1, 1)), bytes

    before = make(X, body)
    after = simplify(before)
    assert "DequantizeLinear" in op_names(after)
    assert_same(before, after)


def test_what_is_divided_by_rounded_bytes_keeps_its_sign():
    """A rounded zero may be negative; the byte that stands for it is not."""

    def body(g, x):
        bytes = g.one(Cast("u8"), binary(g, "add", unary(g, "round", x), num(120)))
        real = g.one(DequantizeLinear(), bytes, g.const(num(0.02)), g.const(np.array(120, np.uint8)))
        return g.one(Binary("div"), g.const(num(1)), real)

    graph = make({"x": "f32[2]"}, body)
    with np.errstate(divide="ignore"):
        (found,) = interpret(simplify(graph), {"x": np.array([-0.2, 0.2], np.float32)}).values()
    np.testing.assert_array_equal(found, [np.inf, np.inf])
