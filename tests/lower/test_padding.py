"""What kernels write behind the last channel of a layout in blocks: readers multiply it by zero."""

from __future__ import annotations

import numpy as np
import pytest
from burnish.compiler.ir import graph as graph_ir
from burnish.compiler.ir.graph import Graph
from burnish.compiler.ir.loops_interpreter import interpret
from burnish.compiler.ir.types import F32, Layout, TensorType
from burnish.compiler.kernel_task import DefaultConfig
from burnish.compiler.lower.lower import scheduled
from burnish.compiler.ops.base import Decomposer
from burnish.compiler.ops.conv import Conv
from burnish.compiler.ops.elementwise import Binary, Unary, Where
from burnish.compiler.target import get_target
from burnish.graph_passes.alternatives import Decision
from burnish.graph_passes.fuse import fuse
from burnish.graph_passes.pack_weights import Packer
from burnish.graph_passes.task_cost import decided_task

TARGET = get_target("x86-64")
BLOCKED = Layout.channel_blocked(4, TARGET.lanes(4))
CHANNELS = 6
RNG = np.random.default_rng(2)


def divided(g: Decomposer, x: str) -> str:
    return g.one(Binary("div"), x, g.const(RNG.uniform(1, 2, (CHANNELS, 1, 1)).astype(np.float32)))


def above(g: Decomposer, x: str) -> str:
    condition = g.one(Binary("gt"), x, g.const(np.array(0, np.float32)))
    return g.one(Where(), condition, x, g.const(np.array(-np.inf, np.float32)))


ENDS = {
    "log": lambda g, x: g.one(Unary("log"), x),
    "quotient": lambda g, x: g.one(Binary("div"), x, x),
    "channels": divided,
    "power": lambda g, x: g.one(Binary("pow"), x, g.const(np.array(-0.5, np.float32))),
    "nothing": above,
    "root": lambda g, x: g.one(Unary("sqrt"), g.one(Binary("sub"), x, g.const(np.array(0.25, np.float32)))),
}


def begun(g: Decomposer, x: str, kernel: int) -> str:
    w = RNG.uniform(0.1, 1, (CHANNELS, CHANNELS, kernel, kernel)).astype(np.float32)
    return g.one(Conv((1, 1), (kernel // 2,) * 4, (1, 1)), x, g.const(w))


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    ("kernel", "algorithm"), [(0, ""), (1, "pointwise"), (3, "direct"), (3, "winograd2")]
)
def test_padding_is_finite(kernel: int, algorithm: str, end: str) -> None:
    g = Decomposer("n", {"x": TensorType(F32, (1, CHANNELS, 4, 5))}, {})
    y = ENDS[end](g, begun(g, "x", kernel) if kernel else "x")
    graph = fuse(Graph("test", ("x",), (y,), tuple(g.nodes), g.types, g.constants))
    (node,) = graph.nodes
    decision = Decision(BLOCKED, BLOCKED, algorithm)
    x = RNG.uniform(0.5, 1, (1, CHANNELS, 4, 5)).astype(np.float32)
    packer = Packer(graph, TARGET.lanes(4))
    reads = packer.pack(node, decision).reads
    arrays = [BLOCKED.pack(x) if v == "x" else packer.constants.get(v, graph.constants.get(v)) for v in reads]
    program = scheduled(decided_task(graph, node, decision, TARGET, 1), DefaultConfig())
    arrays.append(np.zeros(BLOCKED.physical_shape(x.shape), np.float32))
    got = interpret(program, [a.reshape(p.shape) for a, p in zip(arrays, program.params)])[-1]
    got = got.reshape(arrays[-1].shape)
    assert np.isfinite(got).all()
    want = graph_ir.interpret(graph, {"x": x})[y]
    np.testing.assert_allclose(BLOCKED.unpack(got, x.shape), want, rtol=1e-4)
