"""Transposed convolutions become convolutions of the same values."""

from __future__ import annotations

import numpy as np
import pytest
from burnish.compiler.ops.conv import ConvTranspose
from burnish.compiler.ops.elementwise import Unary
from burnish.graph_passes.convolve_transposed import convolve_transposed

from .make import assert_same, make, op_names

RNG = np.random.default_rng(11)
TURNS = ["Reshape", "Transpose", "Reshape"]


def transposed(x: str, w: tuple[int, ...], op: ConvTranspose, bias: bool = True, *functions: str):
    """A graph of a transposed convolution, and functions after it."""

    def body(g, x):
        constants = [g.const(RNG.normal(size=w).astype(np.float32))]
        if bias:
            constants.append(g.const(RNG.normal(size=w[1] * op.group).astype(np.float32)))
        y = g.one(op, x, *constants)
        for fn in functions:
            y = g.one(Unary(fn), y)
        return y

    return make({"x": x}, body)


def op(
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    sizes: tuple[int, ...],
    dilations: tuple[int, ...] = (1, 1),
    group: int = 1,
) -> ConvTranspose:
    return ConvTranspose(strides, pads, dilations, sizes, group)


# what it is → (x, weights, operator, operators that it becomes)
CASES = {
    "doubled": ("f32[2,3,4,5]", (3, 2, 2, 2), op((2, 2), (0, 0), (8, 10)), ["Conv", *TURNS]),
    "padded, four taps": (
        "f32[1,3,4,5]",
        (3, 2, 4, 4),
        op((2, 2), (1, 1), (8, 10)),
        ["Conv", *TURNS, "Slice"],
    ),
    "odd": ("f32[1,2,4,4]", (2, 3, 3, 3), op((2, 2), (1, 1), (7, 7)), ["Conv", *TURNS, "Slice"]),
    "output padding": ("f32[1,2,4,4]", (2, 3, 3, 3), op((2, 2), (1, 1), (8, 8)), ["Conv", *TURNS, "Slice"]),
    "no stride": ("f32[1,2,4,6]", (2, 3, 3, 5), op((1, 1), (1, 2), (4, 6)), ["Conv"]),
    "dilated": ("f32[1,2,4,6]", (2, 3, 3, 2), op((1, 1), (2, 0), (4, 8), (2, 2)), ["Conv"]),
    "strides that differ": (
        "f32[1,2,4,4]",
        (2, 1, 5, 3),
        op((3, 1), (2, 1), (10, 4)),
        ["Conv", *TURNS, "Slice"],
    ),
    "groups": ("f32[1,4,3,3]", (4, 3, 4, 2), op((2, 2), (1, 0), (6, 6), group=2), ["Conv", *TURNS, "Slice"]),
    "depthwise": ("f32[1,4,3,3]", (4, 1, 2, 2), op((2, 2), (0, 0), (6, 6), group=4), ["Conv", *TURNS]),
    "gaps": ("f32[1,2,2,2]", (2, 1, 2, 2), op((4, 4), (0, 0), (9, 9)), ["Conv", *TURNS, "Slice"]),
    "one axis": ("f32[1,2,5]", (2, 3, 4), op((2,), (1,), (10,), (1,)), ["Conv", *TURNS, "Slice"]),
    "three axes": (
        "f32[1,2,3,2,3]",
        (2, 2, 2, 3, 3),
        op((1, 2, 2), (0, 1, 0), (4, 4, 7), (1, 1, 1)),
        ["Conv", *TURNS, "Slice"],
    ),
    "stride and dilation": (
        *("f32[1,2,4,4]", (2, 3, 2, 2)),
        *(op((2, 2), (0, 0), (9, 9), (2, 2)), ["ConvTranspose"]),
    ),
    "more cut off than taps reach": (
        *("f32[1,2,6,6]", (2, 3, 2, 2)),
        *(op((2, 2), (4, 4), (4, 4)), ["ConvTranspose"]),
    ),
    "much wider gaps": (
        *("f32[1,2,2,2]", (2, 1, 1, 1)),
        *(op((5, 5), (0, 0), (6, 6)), ["ConvTranspose"]),
    ),
    "nothing": ("f32[0,2,4,4]", (2, 3, 2, 2), op((2, 2), (0, 0), (8, 8)), ["Conv", *TURNS]),
}


@pytest.mark.parametrize("name", CASES)
def test_values_stay(name):
    x, w, operator, left = CASES[name]
    graph = transposed(x, w, operator, name != "odd")
    after = convolve_transposed(graph)
    assert op_names(after) == left
    assert_same(graph, after)


def test_functions_come_before_the_turns():
    x, w, operator, _ = CASES["padded, four taps"]
    graph = transposed(x, w, operator, True, "relu", "sigmoid")
    after = convolve_transposed(graph)
    assert op_names(after) == ["Conv", "Unary", "Unary", *TURNS, "Slice"]
    assert_same(graph, after)


def test_weights_that_are_computed_stay():
    def body(g, x, w):
        return g.one(op((2, 2), (0, 0), (8, 8)), x, w)

    graph = make({"x": "f32[1,2,4,4]", "w": "f32[2,3,2,2]"}, body)
    assert op_names(convolve_transposed(graph)) == ["ConvTranspose"]
