"""Values that are parts of others' memory: reshapes, slices and concatenations that are addresses, not
copies.

reshape(x), flatten(x)       x's memory
words of bytes               x's memory, where four that lie side by side are a word
slice(x) of whole outer rows a part of x's memory
concat(a, b) along outer rows  a and b are written straight into their parts of the result
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..compiler.ir.graph import Graph, Node
from ..compiler.ir.plan import ALIGNMENT
from ..compiler.ir.types import Layout, TensorType
from ..compiler.ops.byte_products import BYTES, PackBytes
from ..compiler.ops.fused import FusedOp
from ..compiler.ops.movement import BlockedFlatten, Concat, Identity, Reshape, Slice
from ..compiler.target import Target


@dataclass(frozen=True)
class Views:
    """`skipped`: positions of the nodes that need no kernel; `places`: value → (value that owns memory,
    byte offset).
    """

    skipped: frozenset[int]
    places: Mapping[str, tuple[str, int]]


def find_views(graph: Graph, target: Target) -> Views:
    """Parts begin at multiples of ALIGNMENT, but for those of the graph's inputs on CPUs."""
    parents: dict[str, tuple[str, int]] = {}
    skipped: set[int] = set()
    written = {o for node in graph.nodes for o in node.outputs}
    for n, node in enumerate(graph.nodes):
        inner = _only(node)
        if is_view(graph, node):
            parents[node.outputs[0]] = (node.reads[0], 0)
            skipped.add(n)
        elif isinstance(inner, Slice) and (offset := _slice_offset(graph, node, inner)) is not None:
            owner, base = _resolve(parents, node.reads[0])
            if (owner in graph.inputs and target.gpu is None) or (base + offset) % ALIGNMENT == 0:
                parents[node.outputs[0]] = (node.reads[0], offset)
                skipped.add(n)
        elif isinstance(inner, Concat) and _owns_memory(graph, node, written):
            offsets = _concat_offsets(graph, node, inner)
            if offsets is not None and not any(v in parents for v in node.reads):
                parents.update({v: (node.outputs[0], at) for v, at in zip(node.reads, offsets)})
                skipped.add(n)
    places = {v: _resolve(parents, v) for v in graph.types}
    return Views(frozenset(skipped), places)


def joins_in_place(graph: Graph, node: Node, layout: Layout | None) -> bool:
    """Whether a concatenation of values in this layout is likely to be addresses.

    It is none in the end where a value is a part of two of them.
    """
    inner = _only(node)
    if not isinstance(inner, Concat):
        return False
    values = (*node.reads, *node.outputs)
    types = {**graph.types, **{v: graph.types[v].with_layout(layout) for v in values}}
    moved = replace(graph, types=types)
    written = {o for other in graph.nodes for o in other.outputs}
    return _concat_offsets(moved, node, inner) is not None and _owns_memory(graph, node, written)


def _owns_memory(graph: Graph, node: Node, written: set[str]) -> bool:
    """Whether all that the node reads are different results, whose memory may be chosen."""
    different = len(set(node.reads)) == len(node.reads)
    return different and all(v in written and v not in graph.outputs for v in node.reads)


def is_view(graph: Graph, node: Node) -> bool:
    """The output is the whole input's memory under another shape."""
    inner = _only(node)
    if not isinstance(inner, PackBytes) and not isinstance(node.op, (BlockedFlatten, Identity, Reshape)):
        return False
    source, result = graph.types[node.reads[0]], graph.types[node.outputs[0]]
    if isinstance(inner, PackBytes):
        return _are_words(inner, source, result)
    if isinstance(node.op, BlockedFlatten):
        return str(source.layout) == node.op.layout
    if source.layout is None and result.layout is None:
        return True
    return source.layout == result.layout and source.shape == result.shape


def words_in_place(graph: Graph, node: Node, reads: Layout | None, writes: Layout | None) -> bool:
    """Whether the node's bytes, in one layout, are its words in the other."""
    inner = _only(node)
    if not isinstance(inner, PackBytes):
        return False
    source, result = graph.types[node.reads[0]], graph.types[node.outputs[0]]
    return _are_words(inner, source.with_layout(reads), result.with_layout(writes))


def _are_words(op: PackBytes, source: TensorType, result: TensorType) -> bool:
    """Whole words, of channels in blocks of that size or of the last axis in memory."""
    axis = op.axis % source.rank
    if op.flip or any(op.pads) or source.dims[axis] % BYTES:
        return False
    a, b = (t.layout or Layout.plain(t.rank) for t in (source, result))
    if not a.blocks:
        return a == b and a.order[-1] == axis
    blocks = tuple(x for x in ((axis, a.blocks[0][1] // BYTES),) if x[1] > 1)
    return len(a.blocks) == 1 and a.blocks[0][0] == axis and b == Layout(a.order, blocks)


def _only(node: Node) -> object:
    """The operator of a group of one that reads what the group reads, each once."""
    if isinstance(node.op, FusedOp) and len(node.op.graph.nodes) == 1:
        inner = node.op.graph.nodes[0]
        return inner.op if inner.inputs == node.op.graph.inputs else None
    return None


def _resolve(parents: Mapping[str, tuple[str, int]], value: str) -> tuple[str, int]:
    offset = 0
    while value in parents:
        value, step = parents[value]
        offset += step
    return value, offset


def contiguous_along(type: TensorType, axis: int, sizes: list[int]) -> bool:
    """Whether parts of these sizes along the axis lie one after the other in memory."""
    if any(d != 1 for d in type.dims[:axis]):
        return False
    if type.layout is None:
        return True
    block = type.layout.block_of(axis)
    return (
        type.layout.order == tuple(range(type.rank))
        and all(n % block == 0 for n in sizes)
        and all(a == axis for a, _ in type.layout.blocks)
    )


def _row_bytes(type: TensorType, axis: int) -> int:
    size = type.dtype.bytes
    for d in type.dims[axis + 1 :]:
        size *= d
    return size


def _concat_offsets(graph: Graph, node: Node, op: Concat) -> list[int] | None:
    result = graph.types[node.outputs[0]]
    sources = [graph.types[v] for v in node.reads]
    axis = op.axis % result.rank
    sizes = [t.dims[axis] for t in sources]
    if any(t.layout != result.layout for t in sources) or not contiguous_along(result, axis, sizes):
        return None
    offsets, position = [], 0
    for n in sizes:
        offsets.append(position)
        position += n * _row_bytes(result, axis)
    return offsets if all(o % ALIGNMENT == 0 for o in offsets) and all(sizes) else None


def _slice_offset(graph: Graph, node: Node, op: Slice) -> int | None:
    source, result = graph.types[node.reads[0]], graph.types[node.outputs[0]]
    if source.layout != result.layout or result.size == 0 or any(step != 1 for step in op.steps):
        return None
    cut = [a for a in range(source.rank) if op.sizes[a] != source.dims[a]]
    if len(cut) != 1:
        return 0 if not cut else None
    axis = cut[0]
    if not contiguous_along(source, axis, [op.starts[axis], op.sizes[axis]]):
        return None
    return op.starts[axis] * _row_bytes(source, axis)
