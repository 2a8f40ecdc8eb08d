"""Where parts of values may begin."""

import pytest
from burnish.compiler.ops.movement import Slice
from burnish.compiler.target import TARGETS
from burnish.graph_passes.fuse import fuse
from burnish.graph_passes.views import find_views

from .make import make


@pytest.mark.parametrize(
    ("row", "target", "is_view"),
    [(1, "x86-64-v3", True), (1, "opencl", False), (1, "cuda-sm80", False), (16, "opencl", True)],
)
def test_a_part_of_an_input(row, target, is_view):
    """GPUs read whole vectors of every operand; CPUs take the application's memory as it is."""
    graph = fuse(make({"x": "f32[17,1]"}, lambda g, x: g.one(Slice((row, 0), (1, 1), (1, 1)), x)))
    found = find_views(graph, TARGETS[target])
    assert bool(found.skipped) == is_view
    assert found.places[graph.outputs[0]] == (("x", 4 * row) if is_view else (graph.outputs[0], 0))
