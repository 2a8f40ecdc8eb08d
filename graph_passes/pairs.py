"""A depthwise convolution and the pointwise one that alone reads it: two nodes that one kernel may compute.

Both have an alternative that keeps the value between them in a layout of its own, KEPT, which nothing
converts to or from: a plan chooses both or neither.
"""

from __future__ import annotations

from dataclasses import replace

from ..compiler.ir.graph import Graph, Node
from ..compiler.ir.types import F32, Layout
from ..compiler.ops.conv import Conv
from ..compiler.ops.fused import FusedOp
from .rewrite import renamed

STRIPS = "strips"


class _Kept(Layout):
    """Of a value that is never whole in memory."""

    def __str__(self) -> str:
        return "kept"

    __repr__ = __str__


class _Any(Layout):
    """Of a read that takes whatever layout there is."""

    def __str__(self) -> str:
        return "any"

    __repr__ = __str__


KEPT, ANY = _Kept(()), _Any(())


def convolution(node: Node) -> Node | None:
    """The convolution that a fused operator is built on."""
    if not isinstance(node.op, FusedOp):
        return None
    return next((n for n in node.op.graph.nodes if isinstance(n.op, Conv)), None)


def pointwise_after(graph: Graph, node: Node, block: int) -> Node | None:
    """The only reader of a depthwise convolution, if the two may be one kernel."""
    if not _is_depthwise(graph, node) or node.outputs[0] in graph.outputs:
        return None
    readers = graph.consumers().get(node.outputs[0], [])
    fits = len(readers) == 1 and _is_pointwise(graph, readers[0], node.outputs[0], block)
    return readers[0] if fits else None


def depthwise_before(graph: Graph, node: Node, block: int) -> Node | None:
    """The other way round: what makes the data of a pointwise convolution, if the two may be one kernel."""
    conv = convolution(node)
    before = graph.producers().get(conv.inputs[0] or "") if conv is not None else None
    return before if before is not None and pointwise_after(graph, before, block) is node else None


def merged(first: Node, second: Node) -> Node:
    """One node of both. What they both read it reads twice, since each half reads it in its own way."""
    assert isinstance(first.op, FusedOp) and isinstance(second.op, FusedOp)
    a, b = first.op.graph, second.op.graph
    (mid,) = a.outputs
    names = {v: f"{v}@second" for v in b.inputs if v in a.inputs}
    nodes = (*a.nodes, *(renamed(n, names) for n in b.nodes))
    kept = [n for n, v in enumerate(b.inputs) if v != mid]
    inputs = (*a.inputs, *(names.get(b.inputs[n], b.inputs[n]) for n in kept))
    types = {**a.types, **{names.get(v, v): t for v, t in b.types.items()}}
    name = f"{first.name}+{second.name}"
    inside = replace(
        a,
        name=name,
        inputs=inputs,
        outputs=b.outputs,
        nodes=nodes,
        types=types,
        constants={**a.constants, **b.constants},
    )
    outer = (*first.inputs, *(second.inputs[n] for n in kept))
    return Node(FusedOp(inside, STRIPS), outer, second.outputs, name)


def _is_depthwise(graph: Graph, node: Node) -> bool:
    """Two-dimensional, one filter a channel, its other operands constant."""
    conv = convolution(node)
    if conv is None or not isinstance(node.op, FusedOp) or conv is not node.op.graph.nodes[0]:
        return False
    assert isinstance(conv.op, Conv)
    data, weights = conv.inputs[0] or "", conv.inputs[1] or ""
    held = node.op.graph.types[weights]
    channels = held.dims[0]
    others = [v for v in node.reads if v not in (data, weights)]
    return (
        held.rank == 4
        and held.dtype is F32
        and held.dims[1] == 1
        and channels == conv.op.group > 1
        and held.dims[2] > 1  # else the template could not tell rows from images
        and data not in graph.constants
        and weights in graph.constants
        and _is_read_once(node, weights)
        and all(v in graph.constants and _per_channel(node, conv, v, channels) for v in others)
    )


def _is_pointwise(graph: Graph, node: Node, data: str, block: int) -> bool:
    """1×1 of stride 1 over `data`; what its epilogue reads has the result's shape, or one value a channel."""
    conv = convolution(node)
    if conv is None or not isinstance(node.op, FusedOp) or conv is not node.op.graph.nodes[0]:
        return False
    assert isinstance(conv.op, Conv)
    weights = conv.inputs[1] or ""
    held, result = node.op.graph.types[weights], graph.types[node.outputs[0]]
    batch, channels, *spatial = result.dims
    plain = conv.inputs[0] == data and set(conv.op.strides) == {1} and set(conv.op.pads) == {0}
    others = [v for v in node.reads if v not in (data, weights)]
    return (
        plain
        and conv.op.group == 1
        and held.dims[2:] == (1, 1)
        and weights in graph.constants
        and _is_read_once(node, data)
        and _is_read_once(node, weights)
        and spatial != [1, 1]
        and (batch == 1 or max(held.dims[:2]) > block)
        and all(
            _per_channel(node, conv, v, channels)
            or (v not in graph.constants and graph.types[v].dims == result.dims)
            for v in others
        )
    )


def _per_channel(node: Node, conv: Node, value: str, channels: int) -> bool:
    """Whether the value is the convolution's bias alone, or broadcast along all axes but that of channels."""
    assert isinstance(node.op, FusedOp)
    alone = conv.input(2) == value and _is_read_once(node, value)
    return alone or node.op.graph.types[value].dims in ((channels, 1, 1), (1, channels, 1, 1))


def _is_read_once(node: Node, value: str) -> bool:
    """Constants that are equal are one value: a bias may be added along the width, too."""
    assert isinstance(node.op, FusedOp)
    return sum(n.reads.count(value) for n in node.op.graph.nodes) == 1
