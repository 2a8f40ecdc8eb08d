"""Weights that several operators read in ways of their own, or one operator in two."""

from __future__ import annotations

import numpy as np
import pytest
from burnish.compiler.ir.graph import Graph
from burnish.compiler.ir.types import Layout
from burnish.compiler.ops.conv import Conv
from burnish.compiler.ops.elementwise import Binary, Unary
from burnish.compiler.ops.matmul import MatMul
from burnish.compiler.ops.movement import Reshape
from burnish.compiler.target import get_target
from burnish.compiler.templates.registry import ALGORITHMS
from burnish.graph_passes.alternatives import Decision, alternatives
from burnish.graph_passes.fuse import fuse
from burnish.graph_passes.pack_weights import Packer

from .make import make

TARGET = get_target("x86-64-v3")
BLOCK = TARGET.lanes(4)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def offered(graph: Graph, position: int = 0) -> set[str]:
    return {d.algorithm for d in alternatives(graph, graph.nodes[position], BLOCK, accuracy=1.0)}


def conv(pads: int, dilation: int = 1, group: int = 1) -> Conv:
    return Conv((1, 1), (pads,) * 4, (dilation, dilation), group)


SHARED = {
    "fft": (numbers(16, 16, 7, 7), conv(3), conv(6, dilation=2)),
    "im2row": (numbers(32, 8, 3, 3), conv(1), conv(1, group=2)),
    "im2col": (numbers(32, 8, 3, 3), conv(1), conv(1, group=2)),
    "kn2row": (numbers(16, 16, 3, 3), conv(1), conv(1)),
}


@pytest.mark.parametrize("algorithm", SHARED)
def test_each_reader_finds_its_own_packing(algorithm):
    weights, first, second = SHARED[algorithm]

    def body(g, x, z):
        w = g.const(weights)
        return g.one(first, x, w), g.one(second, z, w)

    inside = weights.shape[1]
    graph = fuse(make({"x": f"f32[1,{inside},20,20]", "z": f"f32[1,{inside * second.group},20,20]"}, body))
    packer = Packer(graph, BLOCK)
    nodes = [packer.pack(n, Decision(None, None, algorithm)) for n in graph.nodes]
    for before, after in zip(graph.nodes, nodes):
        ((position, pack),) = ALGORITHMS[algorithm].weights(before.op, BLOCK).items()
        np.testing.assert_array_equal(packer.constants[after.inputs[position]], pack(weights))
    assert len(packer.constants) == (1 if algorithm == "kn2row" else 2)


def test_flattened_in_two_orders():
    layouts = (Layout.channel_blocked(4, BLOCK), Layout((0, 2, 3, 1)))
    weights = numbers(16 * 9, 8)

    def body(g, x, z):
        w = g.const(weights)
        return tuple(g.one(MatMul(), g.one(Reshape((2, 144)), g.one(Unary("relu"), v)), w) for v in (x, z))

    graph = fuse(make({"x": "f32[2,16,3,3]", "z": "f32[2,16,3,3]"}, body))
    packer = Packer(graph, BLOCK)
    flats = [n for n in graph.nodes if isinstance(n.op, Reshape)]
    packer.flattened = {n.outputs[0]: layout for n, layout in zip(flats, layouts)}
    products = [packer.pack(n, Decision()) for n in graph.nodes if n.outputs[0] in graph.outputs]
    for product, layout in zip(products, layouts):
        order = layout.pack(np.arange(16 * 9).reshape(1, 16, 3, 3)).ravel()
        np.testing.assert_array_equal(packer.constants[product.inputs[1]], weights[order])


def weights_as_residual(kind: str) -> Graph:
    """The weights are added to the result, too."""
    if kind == "convolution":
        inputs = {"x": "f32[16,16,3,3]"}

        def body(g, x):
            w = g.const(numbers(16, 16, 3, 3))
            return g.one(Binary("add"), g.one(conv(1), x, w), w)
    elif kind == "product":
        inputs = {"x": "f32[24,24]"}

        def body(g, x):
            w = g.const(numbers(24, 24))
            return g.one(Binary("add"), g.one(MatMul(trans_b=True), x, w), w)
    else:
        inputs = {"x": "f32[144,16,3,3]"}

        def body(g, x):
            w = g.const(numbers(144, 144))
            flat = g.one(Reshape((144, 144)), g.one(Unary("relu"), x))
            return g.one(Binary("add"), g.one(MatMul(), flat, w), w)

    return fuse(make(inputs, body))


@pytest.mark.parametrize("kind", ["convolution", "product", "flattened"])
def test_weights_that_the_epilogue_reads_are_not_packed(kind):
    graph = weights_as_residual(kind)
    assert not offered(graph, len(graph.nodes) - 1) & {a.name for a in ALGORITHMS.values() if a.name != "dot"}
    if kind == "flattened":
        view = next(n for n in graph.nodes if isinstance(n.op, Reshape))
        assert alternatives(graph, view, BLOCK) == [Decision()]


def test_fused_operators_are_equal_only_to_themselves():
    """What is cached by a task must not be another's."""
    first, second = (weights_as_residual(kind).nodes[-1].op for kind in ("convolution", "product"))
    assert first != second and len({first, second, first}) == 2
