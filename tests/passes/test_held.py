"""Which f32 values lose nothing where tensor cores round them."""

from __future__ import annotations

import numpy as np
import pytest
from burnish import pipeline
from burnish.compiler.ops.elementwise import Binary, Cast, Rounded, Unary
from burnish.compiler.ops.indexing import Gather
from burnish.compiler.ops.matmul import MatMul
from burnish.compiler.ops.movement import Concat, Transpose
from burnish.compiler.target import TARGETS
from burnish.graph_passes.alternatives import alternatives
from burnish.graph_passes.fuse import fuse
from burnish.graph_passes.held import HOLD, is_held
from burnish.graph_passes.plan_layout import PRECISIONS

from .make import make

HALVES = np.array([[0.5, 1 + 2**-10, 60000], [-0.0, np.inf, 2**-24]], np.float32)
WIDE = np.array([[1e5, 1.5, 1e-30], [0, 3, 1.0078125]], np.float32).astype("bfloat16").astype(np.float32)


def held(body) -> list[set[str]]:
    """By which precisions each output is, before and after operators are fused."""
    graph = make({"x": "f32[2,3]", "h": "f16[2,3]", "b": "bf16[2,3]"}, body)
    found = [[{p for p in PRECISIONS if is_held(g, v, p)} for v in g.outputs] for g in (graph, fuse(graph))]
    assert found[0] == found[1]
    return found[0]


def test_what_is_rounded_is_held():
    def body(g, x, h, b):
        half, other = g.one(Rounded("f16"), x), g.one(Cast("f32"), h)
        moved = g.one(Transpose((1, 0)), g.one(Unary("relu"), g.one(Binary("max"), half, other)))
        return (
            half,
            moved,
            g.one(Cast("f32"), b),
            g.one(Rounded("bf16"), half),
            g.const(HALVES),
            g.const(WIDE),
        )

    f16, bf16 = {"f16", "tf32"}, {"bf16", "tf32"}
    assert held(body) == [f16, f16, bf16, bf16, f16, bf16]


def test_everything_else_is_not():
    def body(g, x, h, b):
        half, third = g.one(Cast("f32"), h), g.const(np.full((2, 3), 1 / 3, np.float32))
        mixed = g.one(Concat(0), half, g.one(Cast("f32"), b))
        return (
            x,
            third,
            g.one(Binary("add"), half, half),
            g.one(Concat(0), half, x),
            mixed,
            g.one(Unary("exp"), half),
        )

    assert held(body) == [set()] * 6


def test_indices_need_not_be():
    def body(g, x, h, b):
        return g.one(Gather(0), g.one(Cast("f32"), h), g.const(np.array([1, 0])))

    assert held(body) == [{"f16", "tf32"}]


@pytest.mark.parametrize(
    "dtype, expected", [("f16", {"f16", "tf32"}), ("bf16", {"bf16", "tf32"}), ("f32", set())]
)
def test_networks_of_16_bits_get_tensor_cores(dtype, expected):
    """By the algorithms that round nothing, without being asked for a precision; others by none."""

    def body(g, x):
        weights = np.random.default_rng(0).normal(size=(256, 192))
        return g.one(MatMul(), x, g.const(weights.astype(g.type(x).dtype.numpy)))

    machine = TARGETS["cuda-sm90"]
    graph = pipeline.optimise(make({"x": f"{dtype}[128,256]"}, body), machine, 1, stop_after="fuse")
    product = next(n for n in graph.nodes if any(isinstance(m.op, MatMul) for m in n.op.graph.nodes))
    offered = {d.algorithm for d in alternatives(graph, product, 4, kind="gpu")}
    assert {a for a in offered if a.startswith("tensor_")} == {f"tensor_{p}" for p in expected}
    assert set(HOLD) == set(PRECISIONS) - {"f32"}
