"""Where parts of values may begin."""

import numpy as np
import pytest
from burnish.compiler.ir.types import Layout
from burnish.compiler.ops.byte_products import PackBytes
from burnish.compiler.ops.movement import Slice
from burnish.compiler.target import TARGETS
from burnish.graph_passes.fuse import fuse
from burnish.graph_passes.views import find_views, words_in_place

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


@pytest.mark.parametrize(
    ("bytes", "axis", "reads", "writes", "are_words"),
    [
        ("u8[2,24,5,7]", 1, "aBcd16b", "aBcd4b", True),
        ("u8[2,24,5,7]", 1, "aBcd4b", "abcd", True),
        ("u8[2,24,5,7]", 1, "acdb", "acdb", True),
        ("u8[2,24,5,7]", 1, "aBcd16b", "aBcd16b", False),
        ("u8[2,24,5,7]", 1, "abcd", "abcd", False),
        ("u8[2,22,5,7]", 1, "aBcd16b", "aBcd4b", False),
        ("i8[3,8]", -1, "ab", "ab", True),
    ],
)
def test_bytes_that_are_words(bytes, axis, reads, writes, are_words):
    """Packed as they lie in memory, they would be the same bytes."""
    graph = fuse(make({"x": bytes}, lambda g, x: g.one(PackBytes(axis, (0,) * 2 * g.type(x).rank), x)))
    (node,) = graph.nodes
    layouts = Layout.parse(reads), Layout.parse(writes)
    assert words_in_place(graph, node, *layouts) == are_words
    type = graph.types["x"]
    data = np.arange(type.size).reshape(type.dims).astype(type.dtype.numpy)
    (words,) = PackBytes(axis, (0,) * 2 * data.ndim).reference(data)
    packed = layouts[0].pack(data), layouts[1].pack(words)
    assert not are_words or packed[0].tobytes() == packed[1].astype("<i4").tobytes()


@pytest.mark.parametrize(("flip", "pad"), [(True, 0), (False, 1)])
def test_bytes_that_change_are_no_view(flip, pad):
    op = PackBytes(1, (0, 0, pad, 0) + (0,) * 4, flip)
    graph = fuse(make({"x": "u8[1,16,5,7]"}, lambda g, x: g.one(op, x)))
    assert not words_in_place(graph, graph.nodes[0], Layout.parse("aBcd16b"), Layout.parse("aBcd4b"))
