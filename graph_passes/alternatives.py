"""What each fused operator may do: its algorithms, the layouts that it reads and writes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import product

from ..compiler.ir.graph import Graph, Node
from ..compiler.ir.types import F32, I8, I32, U8, Layout, TensorType
from ..compiler.ops.byte_products import BYTES, DotConv, PackBytes
from ..compiler.ops.conv import Conv, ConvInteger
from ..compiler.ops.fused import FusedOp, expression
from ..compiler.ops.matmul import MatMul
from ..compiler.ops.movement import Concat, Reshape
from ..compiler.ops.packed_recurrence import PACKED
from ..compiler.templates.registry import ALGORITHMS
from .fuse import kind_of
from .held import is_held
from .pairs import ANY, KEPT, STRIPS, convolution, depthwise_before, pointwise_after

ACCURACY = 5e-6
"""The largest error of an algorithm, over its largest output, that plans allow unless told otherwise."""
DIRECT = "direct"
POINTWISE = "pointwise"
"""DIRECT for a convolution of 1×1 and stride 1: a matrix product."""
LAYOUT_DTYPES = (F32, I32, U8, I8)
"""Types whose values may have another layout than the plain one: activations, also quantised ones."""


@dataclass(frozen=True)
class Decision:
    """What one operator does. A layout of None is plain."""

    reads: Layout | None = None
    writes: Layout | None = None
    algorithm: str = DIRECT  # what fits, on operands as they are; POINTWISE; one of ALGORITHMS; or STRIPS


def layouts_of(rank: int, block: int) -> tuple[Layout, ...]:
    """Those beside the plain one that values of this rank may have: blocks of channels, channels last."""
    return (
        Layout.channel_blocked(rank, block),
        Layout((0, *range(2, rank), 1)),
    )


def words_layout(type: TensorType, block: int) -> Layout | None:
    """Of words whose bytes are channels in blocks, in the same memory; None where that is plain, or where
    they are too few."""
    words = block // BYTES
    enough = type.rank > 2 and type.size > 0 and type.dims[1] * 2 >= words > 1
    return Layout.channel_blocked(type.rank, words) if enough and type.dtype is I32 else None


def possible_layouts(graph: Graph, value: str, maker: Node | None, block: int) -> tuple[Layout | None, ...]:
    """All that a value of this node may have, the plain one first."""
    found: tuple[Layout | None, ...] = (None,)
    if may_change_layout(graph, value, block):
        found += layouts_of(graph.types[value].rank, block)
    words = words_layout(graph.types[value], block) if maker is not None and _packs_bytes(maker) else None
    return found if words is None else (*found, words)


def alternatives(
    graph: Graph,
    node: Node,
    block: int,
    accuracy: float = ACCURACY,
    kind: str = "cpu",
    precision: str = "f32",
    features: Collection[str] = (),
) -> list[Decision]:
    """At least one; the first is always right. `kind` and `features` are the target's.

    An algorithm that rounds its factors is among them where `precision` asks for that, or where the values
    are exact in it anyway; others where their error is at most `accuracy`.
    """
    if flattens(graph, node, block):
        rank = graph.types[node.reads[0]].rank
        return [Decision(), *(Decision(lay, None) for lay in layouts_of(rank, block))]
    found = _layout_alternatives(graph, node, block)
    if not decides(node):
        return found
    op = fused(graph, node)
    anchor = next((n for n in op.graph.nodes if isinstance(n.op, (Conv, MatMul))), op.graph.nodes[0])
    data = anchor.inputs[0] or ""
    may_read = data in node.reads and may_change_layout(graph, data, block)
    may_write = graph.types[node.outputs[0]].dtype in LAYOUT_DTYPES
    for algorithm in ALGORITHMS.values():
        able = algorithm.kind == kind and algorithm.feature in ("", *features)
        if not able or (algorithm.precision == "f32" and algorithm.error > accuracy):
            continue
        if not algorithm.fits(op, block):
            continue
        rounded = (*anchor.reads[:2], *node.outputs)  # or cut off, as sums are there more than in f32
        asked = algorithm.precision in ("f32", precision)
        if not asked and not all(is_held(graph, v, algorithm.precision) for v in rounded):
            continue
        if all(_may_pack(graph, op, op.graph.inputs[n]) for n in algorithm.weights(op, block)):
            pairs = algorithm.layouts(op, block)
            found += [
                Decision(r, w, algorithm.name)
                for r, w in pairs
                if (r is None or may_read) and (w is None or may_write)
            ]
    return found


def _may_pack(graph: Graph, op: FusedOp, value: str) -> bool:
    """Whether an operand is constant, and nothing in the operator reads it but what it is packed for."""
    return value in graph.constants and sum(n.reads.count(value) for n in op.graph.nodes) == 1


def decides(node: Node) -> bool:
    """Whether there may be a choice, so that costs are asked for."""
    return isinstance(node.op, FusedOp) or type(node.op) in PACKED


def fused(graph: Graph, node: Node) -> FusedOp:
    """The operator, in a fused one of its own if it is none."""
    if isinstance(node.op, FusedOp):
        return node.op
    values = (*node.reads, *node.outputs)
    types = {v: graph.types[v] for v in values}
    return FusedOp(Graph(node.name, node.reads, node.outputs, (node,), types))


def _layout_alternatives(graph: Graph, node: Node, block: int) -> list[Decision]:
    """Those on weights as they are, or in blocks; the plain one first."""
    plain = Decision()
    if not isinstance(node.op, FusedOp) or len(node.outputs) != 1:
        return [plain]
    result = graph.types[node.outputs[0]]
    moving = [graph.types[v] for v in node.reads if may_change_layout(graph, v, block)]
    rank = moving[0].rank if moving else result.rank
    if rank < 3:
        return [plain]
    reading = [Decision(lay, None) for lay in layouts_of(rank, block)] if moving else []
    if result.rank < 3 or result.dtype not in LAYOUT_DTYPES:
        return [plain, *reading]
    layouts = layouts_of(result.rank, block)
    conv = convolution(node)
    if conv is not None:
        found = _convolution_alternatives(graph, node, conv, layouts, block)
        return [_named(node.op, conv, decision) for decision in found]
    if any(
        isinstance(n.op, ConvInteger) for n in node.op.graph.nodes
    ):  # no template has its weights in blocks
        return [plain]
    if _packs_bytes(node):  # words are fewer than channels, and may be too few for a layout
        written = layouts if may_change_layout(graph, node.outputs[0], block) else ()
        found = [Decision(a, b) for a, b in product((None, *(layouts if moving else ())), (None, *written))]
        words = words_layout(result, block)
        return [*found, *([Decision(layouts[0], words)] if moving and words is not None else [])]
    if not _keeps_layout(graph, node, block):
        return [plain, *reading]
    if _is_elementwise(graph, node):  # a conversion on the way costs no pass of its own
        return [Decision(a, b) for a, b in product((None, *layouts), repeat=2)]
    ragged = _concatenates(node) and any(graph.types[v].dims[1] % block for v in node.reads)
    return [plain, *(Decision(lay, lay) for lay in (layouts[1:] if ragged else layouts))]


def may_change_layout(graph: Graph, value: str, block: int) -> bool:
    """Whether a value may have another layout than the plain one."""
    type = graph.types[value]
    if value in graph.constants or type.rank < 3 or type.dtype not in LAYOUT_DTYPES:
        return False
    return type.dims[1] * 2 >= block and type.size > 0


def _named(op: FusedOp, conv: Node, decision: Decision) -> Decision:
    """A convolution whose patches are single pixels is a matrix product, and is called so."""
    assert isinstance(conv.op, Conv)
    kernel = op.graph.types[conv.inputs[1] or ""].dims[2:]
    plain = {*kernel, *conv.op.strides, conv.op.group} == {1} and not any(conv.op.pads)
    return replace(decision, algorithm=POINTWISE) if plain and decision.algorithm == DIRECT else decision


def _convolution_alternatives(
    graph: Graph, node: Node, inner: Node, layouts: tuple[Layout, ...], block: int
) -> list[Decision]:
    data, weights = inner.inputs[0] or "", inner.inputs[1] or ""
    conv = inner.op
    assert isinstance(conv, Conv) and isinstance(node.op, FusedOp)
    blocked, last = layouts
    out_channels, per_group = node.op.graph.types[weights].dims[:2]
    may_read = data in node.reads and may_change_layout(graph, data, block)
    one_group = conv.group == 1
    depthwise = per_group == 1 and out_channels == conv.group
    whole_groups = depthwise or (per_group % block == 0 and (out_channels // conv.group) % block == 0)
    found = [Decision()]
    if out_channels * 2 < block or not (one_group or whole_groups) or weights not in graph.constants:
        return [*found, *([Decision(lay, None) for lay in layouts] if may_read and one_group else [])]
    if one_group:
        found.append(Decision(None, blocked))
        words = words_layout(graph.types[data], block) if data in node.reads else None
        found += [Decision(words, blocked)] * (words is not None and isinstance(conv, DotConv))
    if may_read:
        found.append(Decision(blocked, blocked))
        if one_group or depthwise:
            found.append(Decision(last, last))
    if may_read and may_change_layout(graph, node.outputs[0], block):
        if pointwise_after(graph, node, block) is not None:
            found.append(Decision(blocked, KEPT, STRIPS))
        if depthwise_before(graph, node, block) is not None:
            found.append(Decision(KEPT, blocked, STRIPS))
    return found


def first_half(graph: Graph, node: Node, decision: Decision, block: int) -> tuple[Node, Decision]:
    """The node whose result the second of a pair keeps, and its decision."""
    before = depthwise_before(graph, node, block)
    assert before is not None
    return before, Decision(decision.writes, KEPT, STRIPS)


def _keeps_layout(graph: Graph, node: Node, block: int) -> bool:
    """Elementwise operators, pooling, and concatenation of channels."""
    assert isinstance(node.op, FusedOp)
    inside = node.op.graph.nodes
    if _concatenates(node):
        return all(may_change_layout(graph, v, block) for v in node.reads) and inside[0].op.axis == 1  # type: ignore[attr-defined]
    if any(isinstance(n.op, MatMul) for n in inside):
        return False
    result = graph.types[node.outputs[0]]
    same = [
        v for v in node.reads if _moves_along(graph, v, result.dims) and may_change_layout(graph, v, block)
    ]
    return bool(same) and _kind(graph, node) in ("elementwise", "anchor")


def _packs_bytes(node: Node) -> bool:
    return isinstance(node.op, FusedOp) and isinstance(node.op.graph.nodes[-1].op, PackBytes)


def _is_elementwise(graph: Graph, node: Node) -> bool:
    return _kind(graph, node) == "elementwise"


def _kind(graph: Graph, node: Node) -> str:
    assert isinstance(node.op, FusedOp)
    return kind_of(expression(node.op, graph.input_types(node)))


def _concatenates(node: Node) -> bool:
    assert isinstance(node.op, FusedOp)
    return len(node.op.graph.nodes) == 1 and isinstance(node.op.graph.nodes[0].op, Concat)


def flattens(graph: Graph, node: Node, block: int) -> bool:
    """Whether the node flattens whole blocks of channels for constant weights, which can take any order."""
    value = node.outputs[0]
    if not isinstance(node.op, Reshape) or value in graph.outputs:
        return False
    source, result = graph.types[node.reads[0]], graph.types[value]
    if not may_change_layout(graph, node.reads[0], block) or source.dims[1] % block:
        return False
    if result.rank != 2 or result.dims[0] != source.dims[0]:
        return False
    readers = graph.consumers().get(value, [])
    if len(readers) != 1:
        return False
    if not isinstance(readers[0].op, FusedOp):
        return False
    uses = [n for n in readers[0].op.graph.nodes if value in n.reads]
    product = uses[0] if len(uses) == 1 else None
    if (
        product is None
        or not isinstance(product.op, MatMul)
        or product.inputs[0] != value
        or product.op.trans_a
    ):
        return False
    weights = product.inputs[1] or ""
    if not _may_pack(graph, readers[0].op, weights):
        return False
    return graph.types[weights].rank == 2 and graph.types[weights].dtype is F32


def _moves_along(graph: Graph, value: str, shape: tuple[int, ...]) -> bool:
    type = graph.types[value]
    return type.rank == len(shape) and type.dims[1] == shape[1]


def wanted(graph: Graph, node: Node, decision: Decision, value: str) -> Layout | None:
    """The layout that the node reads a value in under a decision; ANY where it does not matter."""
    type = graph.types[value]
    if value in graph.constants or type.rank < 3 or type.dtype not in LAYOUT_DTYPES:
        return ANY
    if not isinstance(node.op, FusedOp):
        return decision.reads
    conv = convolution(node)
    if conv is not None and value == conv.inputs[0]:
        return decision.reads
    if all(d == 1 for d in type.dims[2:]):  # either way the same few numbers
        return ANY
    layout = decision.reads if conv is None else decision.writes  # of an operand of the epilogue
    if layout is None or layout.rank != type.rank:
        return None
    along = _concatenates(node) or _packs_bytes(node)
    along = along or _moves_along(graph, value, graph.types[node.outputs[0]].dims)
    along = along or (decision.writes is None and may_change_layout(graph, value, layout.block_of(1)))
    return layout if along else None
