"""Kernels for GPUs take few operands."""

from __future__ import annotations

import numpy as np
import pytest
from burnish.compiler.ir.graph import Graph, interpret
from burnish.compiler.ir.types import F32, TensorType
from burnish.compiler.ops.base import Decomposer
from burnish.compiler.ops.movement import Concat
from burnish.compiler.target import get_target
from burnish.graph_passes.limit_operands import MOST, limit_operands
from burnish.pipeline import optimise

RNG = np.random.default_rng(1)


OPENCL, CUDA = get_target("opencl"), get_target("cuda-sm90")
FEW = MOST["opencl"]


@pytest.mark.parametrize("count", [FEW, FEW + 1, 2 * FEW, 3 * FEW, 70 * FEW])
def test_long_concatenations_become_trees(count: int) -> None:
    inputs = {f"x{n}": TensorType(F32, (2, 1 + n % 3)) for n in range(count)}
    g = Decomposer("n", inputs, {})
    y = g.one(Concat(-1), *inputs)
    graph = Graph("test", tuple(inputs), (y,), tuple(g.nodes), g.types, g.constants)
    limited = limit_operands(graph, OPENCL)
    assert max(len(node.inputs) for node in limited.nodes) <= FEW
    feeds = {name: RNG.standard_normal(type.dims).astype(np.float32) for name, type in inputs.items()}
    np.testing.assert_array_equal(interpret(limited, feeds)[y], interpret(graph, feeds)[y])
    assert (limited is graph) == (count == FEW)
    assert count != FEW + 1 or sorted(len(node.inputs) for node in limited.nodes) == [2, FEW], (
        "the rest as it is"
    )
    assert (limit_operands(graph, CUDA) is graph) == (count <= MOST["cuda"])
    fused = optimise(graph, OPENCL, 1, stop_after="fuse")
    assert max(len(node.reads) for node in fused.nodes) <= FEW
