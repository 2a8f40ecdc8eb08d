"""Elementwise operators that read a product several times become part of its kernel, or none of them does."""

from __future__ import annotations

import numpy as np
import pytest
from burnish.compiler.ops.conv import Conv
from burnish.compiler.ops.elementwise import Binary, Unary
from burnish.compiler.ops.fused import FusedOp
from burnish.compiler.ops.movement import Slice, Trilu
from burnish.compiler.ops.reduction import Softmax
from burnish.graph_passes.fuse import fuse

from .make import assert_same, make

RNG = np.random.default_rng(5)
CONV = Conv((1, 1), (1, 1, 1, 1), (1, 1))
X = {"x": "f32[1,4,6,6]", "r": "f32[1,4,6,6]"}


def num(value: float) -> np.ndarray:
    return np.full((), value, np.float32)


def conv(g, x):
    return g.one(CONV, x, g.const(RNG.normal(size=(4, 4, 3, 3)).astype(np.float32)))


def silu(g, x):
    return g.one(Binary("mul"), x, g.one(Unary("sigmoid"), x))


def hard_swish(g, x):
    gate = g.one(Unary("clip", (0.0, 6.0)), g.one(Binary("add"), x, g.const(num(3))))
    return g.one(Binary("div"), g.one(Binary("mul"), x, gate), g.const(num(6)))


def gelu(g, x):
    half = g.one(Unary("erf"), g.one(Binary("div"), x, g.const(num(2**0.5))))
    return g.one(Binary("mul"), x, g.one(Binary("add"), half, g.const(num(1))))


def squared(g, x):
    """What is costly would be computed twice."""
    s = g.one(Unary("sigmoid"), x)
    return g.one(Binary("add"), x, g.one(Binary("mul"), s, s))


def normalised(g, x):
    return g.one(Binary("mul"), x, g.one(Softmax(1), x))


def gated_by_another(g, x, r):
    gate = g.one(Unary("tanh"), r)
    return g.one(Binary("add"), g.one(Binary("mul"), x, gate), g.one(Binary("mul"), silu(g, x), r))


def added(g, x, operand):
    return g.one(Binary("add"), conv(g, x), operand)


def combined(g, a, b):
    return g.one(Binary("mul"), g.one(Binary("sub"), a, b), g.one(Binary("add"), a, b))


def nested(g, a, b):
    return g.one(Binary("sub"), a, g.one(Binary("mul"), g.one(Binary("add"), a, b), b))


def corner(g, r):
    return g.one(Unary("neg"), g.one(Slice((0, 0, 0, 0), (1, 4, 1, 1), (1, 1, 1, 1)), r))


# what follows a convolution → how many nodes each kernel has
CASES = {
    "silu": (lambda g, x, r: silu(g, conv(g, x)), [3]),
    "hard swish": (lambda g, x, r: hard_swish(g, conv(g, x)), [5]),
    "gelu, then more": (lambda g, x, r: g.one(Binary("add"), gelu(g, conv(g, x)), r), [6]),
    "two in a row": (lambda g, x, r: silu(g, hard_swish(g, conv(g, x))), [7]),
    "an operand of its own": (lambda g, x, r: added(g, x, g.one(Unary("relu"), r)), [3]),
    "an operand that is costly": (lambda g, x, r: added(g, x, g.one(Unary("tanh"), r)), [1, 2]),
    "an operand with something costly squared": (
        lambda g, x, r: added(g, x, g.one(Binary("mul"), *[g.one(Unary("softplus"), r)] * 2)),
        [2, 2],
    ),
    "an operand that is an output": (
        lambda g, x, r: (lambda y: (y, added(g, x, y)))(g.one(Unary("relu"), r)),
        [1, 2],
    ),
    "an operand that broadcasts": (lambda g, x, r: added(g, x, corner(g, r)), [2, 2]),
    "others that are computed before": (lambda g, x, r: gated_by_another(g, conv(g, x), r), [1, 6]),
    "something costly twice": (lambda g, x, r: squared(g, conv(g, x)), [1, 3]),
    "something costly squared": (
        lambda g, x, r: g.one(Binary("mul"), *[g.one(Unary("tanh"), conv(g, x))] * 2),
        [1, 2],
    ),
    "something costly read once by what uses it twice": (
        lambda g, x, r: g.one(Unary("mish"), g.one(Unary("gelu"), conv(g, x))),
        [3],
    ),
    "two products": (lambda g, x, r: combined(g, conv(g, x), conv(g, r)), [1, 4]),
    "two products, one of which is read earlier": (lambda g, x, r: nested(g, conv(g, x), conv(g, r)), [1, 4]),
    "a sum": (lambda g, x, r: normalised(g, conv(g, x)), [1, 2]),
    "two results": (lambda g, x, r: (lambda y: (silu(g, y), g.one(Unary("relu"), y)))(conv(g, x)), [1, 2, 1]),
    "what asks for its place": (lambda g, x, r: g.one(Trilu(True), conv(g, x)), [1, 1]),
    "an output between": (lambda g, x, r: (lambda y: (y, silu(g, y)))(conv(g, x)), [1, 2]),
}


@pytest.mark.parametrize("name", CASES)
def test_regions(name: str) -> None:
    body, sizes = CASES[name]
    graph = make(X, body)
    after = fuse(graph)
    found = [len(node.op.graph.nodes) for node in after.nodes if isinstance(node.op, FusedOp)]
    assert sorted(found) == sorted(sizes)
    assert_same(graph, after)
