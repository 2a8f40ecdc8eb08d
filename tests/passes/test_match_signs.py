"""Quantised activations of the other sign: the same numbers, 128 further, wherever nothing else sees them."""

from __future__ import annotations

import numpy as np
import pytest
from burnish.compiler.ir.graph import Graph, interpret, verify
from burnish.compiler.ops.base import Decomposer
from burnish.compiler.ops.conv import ConvInteger
from burnish.compiler.ops.elementwise import Binary, Cast, Unary
from burnish.compiler.ops.matmul import MatMulInteger
from burnish.compiler.ops.movement import Concat, Reshape, Slice, Transpose
from burnish.compiler.ops.pool import MaxPool
from burnish.compiler.ops.quantize import DequantizeLinear, QuantizeLinear, requantize
from burnish.compiler.target import get_target
from burnish.graph_passes.fold import fold
from burnish.graph_passes.match_signs import match_signs

from .make import feed, make

RNG = np.random.default_rng(4)
U8, I8 = get_target("x86-64-v3"), get_target("cortex-a76")  # what they multiply
TARGETS = pytest.mark.parametrize(("target", "other"), [(U8, "i8"), (I8, "u8")], ids=["u8", "i8"])
SCALE = np.float32(0.05)


def constant(g: Decomposer, value: float, kind: str) -> str:
    return g.const(np.array(value, np.int8 if kind == "i8" else np.uint8))


def quantised(g: Decomposer, x: str, kind: str, zero: int | None = 7, axis: int = 1) -> str:
    more = () if zero is None else (constant(g, zero, kind),)
    return g.one(QuantizeLinear(axis, to=kind), x, g.const(SCALE), *more)


def convolved(g: Decomposer, x: str, kind: str, zero: int | None = 7) -> str:
    w = g.const(RNG.integers(-99, 99, (6, g.type(x).dims[1], 3, 3)).astype(np.int8))
    more = () if zero is None else (constant(g, zero, kind),)
    return g.one(ConvInteger((1, 1), (1,) * 4, (1, 1)), x, w, *more)


def pooled(g: Decomposer, x: str) -> str:
    return g.one(MaxPool((2, 2), (1, 1), (1, 0, 1, 0), (1, 1), False, 0, False), x)


def plain(g: Decomposer, x: str, kind: str) -> str:
    return convolved(g, quantised(g, x, kind), kind)


def without_zero_points(g: Decomposer, x: str, kind: str) -> str:
    q = g.one(QuantizeLinear(to=kind), x, g.const(SCALE), constant(g, 0, kind))
    return convolved(g, q, kind, None)


def requantised(g: Decomposer, x: str, kind: str) -> str:
    factor, zero = g.const(np.float32(0.003)), constant(g, 20, kind)
    return convolved(g, requantize(g, plain(g, x, kind), factor, zero), kind, 20)


def rounded_only(g: Decomposer, x: str, kind: str) -> str:
    q = g.one(Cast(kind), g.one(Unary("round"), g.one(Binary("mul"), x, g.const(np.float32(40)))))
    return convolved(g, q, kind)


def moved_about(g: Decomposer, x: str, kind: str) -> str:
    q = quantised(g, x, kind)
    part = g.one(Slice((0, 1, 0, 0), (2, 2, 5, 6), (1,) * 4), q)
    turned = g.one(Transpose((0, 1, 3, 2)), g.one(Reshape((2, 2, 6, 5)), part))
    return convolved(g, g.one(Concat(1), pooled(g, turned), pooled(g, part)), kind)


def read_as_numbers(g: Decomposer, x: str, kind: str) -> tuple[str, ...]:
    q = quantised(g, x, kind, None) if kind == "u8" else quantised(g, x, kind)
    scales, zeros = np.array([0.1, 0.2, 0.3], np.float32), np.array([1, 2, 3])
    of_kind = zeros.astype(np.int8 if kind == "i8" else np.uint8)
    by_channel = g.one(DequantizeLinear(1), q, g.const(scales), g.const(of_kind))
    return convolved(g, q, kind), by_channel, g.one(DequantizeLinear(1), q, g.const(scales))


def multiplied(g: Decomposer, x: str, kind: str) -> str:
    w = g.const(RNG.integers(-99, 99, (6, 4)).astype(np.int8))
    return g.one(MatMulInteger(), quantised(g, x, kind, axis=-1), w, constant(g, 7, kind))


CHANGED = [
    plain,
    without_zero_points,
    requantised,
    rounded_only,
    moved_about,
    read_as_numbers,
    multiplied,
]  # fmt: skip


def bytes_of(graph: Graph, kind: str) -> list[str]:
    return [o for n in graph.nodes for o in n.outputs if graph.types[o].dtype.name == kind]


def both(body, kind: str, target) -> tuple[Graph, Graph]:
    before = fold(make({"x": "f32[2,3,5,6]"}, lambda g, x: body(g, x, kind)))
    after = match_signs(before, target)
    verify(after)
    arrays = feed(before)
    expected, actual = interpret(before, arrays), interpret(after, arrays)
    for name in before.outputs:
        np.testing.assert_array_equal(actual[name], expected[name])
    return before, after


@TARGETS
@pytest.mark.parametrize("body", CHANGED, ids=lambda body: body.__name__)
def test_changed(body, target, other):
    before, after = both(body, other, target)
    assert bytes_of(before, other) and not bytes_of(after, other)


@TARGETS
@pytest.mark.parametrize("body", CHANGED, ids=lambda body: body.__name__)
def test_what_has_the_wanted_sign_stays(body, target, other):
    before, after = both(body, "u8" if other == "i8" else "i8", target)
    assert after is before


@TARGETS
def test_names_that_are_taken(target, other):
    """Whatever the values of a model are called, a new one is another."""

    def body(g: Decomposer, x: str, *more: str) -> tuple[str, ...]:
        (q,) = g.emit(QuantizeLinear(to=other), x, g.const(SCALE), constant(g, 7, other), outputs=("q",))
        rounded = g.one(Unary("round"), g.one(Binary("mul"), x, g.const(np.float32(40))))
        (cast,) = g.emit(Cast(other), rounded, outputs=("c",))
        return convolved(g, q, other), convolved(g, cast, other), *(g.one(Unary("neg"), m) for m in more)

    taken = {f"{of}.{n}": "f32[2]" for of in "qc" for n in (1, 2, 3, "zero", "moved", "shift")}
    before = fold(make({"x": "f32[2,3,5,6]", **taken}, body))
    after = match_signs(before, target)
    verify(after)
    assert not bytes_of(after, other)
    arrays = feed(before)
    expected, actual = interpret(before, arrays), interpret(after, arrays)
    for name in before.outputs:
        np.testing.assert_array_equal(actual[name], expected[name])


def seen_from_outside(g: Decomposer, x: str, kind: str) -> tuple[str, ...]:
    q = quantised(g, x, kind)
    return convolved(g, q, kind), q


def used_as_integers(g: Decomposer, x: str, kind: str) -> tuple[str, ...]:
    q = quantised(g, x, kind)
    return convolved(g, q, kind), g.one(Cast("i32"), q)


def of_no_whole_numbers(g: Decomposer, x: str, kind: str) -> str:
    return convolved(g, g.one(Cast(kind), g.one(Binary("mul"), x, g.const(np.float32(40)))), kind)


def by_a_computed_zero_point(g: Decomposer, x: str, kind: str) -> str:
    zero = g.one(Cast(kind), g.one(Reshape(()), g.one(Slice((0,) * 4, (1,) * 4, (1,) * 4), x)))
    q = g.one(QuantizeLinear(to=kind), x, g.const(SCALE), zero)
    w = g.const(RNG.integers(-99, 99, (6, 3, 3, 3)).astype(np.int8))
    return g.one(ConvInteger((1, 1), (1,) * 4, (1, 1)), q, w, zero)


def joined_with_what_stays(g: Decomposer, x: str, kind: str) -> tuple[str, ...]:
    q, seen = quantised(g, x, kind), quantised(g, g.one(Unary("neg"), x), kind)
    return convolved(g, g.one(Concat(1), q, seen), kind), seen


STAYS = [
    seen_from_outside,
    used_as_integers,
    of_no_whole_numbers,
    by_a_computed_zero_point,
    joined_with_what_stays,
]  # fmt: skip


@TARGETS
@pytest.mark.parametrize("body", STAYS, ids=lambda body: body.__name__)
def test_stays(body, target, other):
    before, after = both(body, other, target)
    assert bytes_of(after, other) == bytes_of(before, other)
