"""One blocked channel layout through the whole network, with conversions only at its edges; weights packed
for it.

x: NCHW  →  conv  →  NCHW16c  →  relu, add, pool, conv …  →  NCHW
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ..compiler.ir.graph import Graph, Node
from ..compiler.ir.types import F32, Layout, TensorType
from ..compiler.ops.base import Op
from ..compiler.ops.conv import Conv
from ..compiler.ops.fused import FusedOp, expression
from ..compiler.ops.matmul import MatMul
from ..compiler.ops.movement import BlockedFlatten, Concat, Identity, Reshape
from ..compiler.ops.packed_recurrence import PACKED, pack_weights
from ..compiler.ops.toom_cook import transform_weights
from ..compiler.target import Target
from ..compiler.templates.winograd import VECTORS
from .choose_algorithm import choose_tile
from .fuse import kind_of


@dataclass
class _State:
    """The graph and what the pass has decided so far."""

    graph: Graph
    target: Target
    threads: int
    types: dict[str, TensorType]
    layouts: dict[str, Layout] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    flattened: dict[str, Layout] = field(
        default_factory=dict
    )  # value → layout in whose order it was flattened

    @property
    def block(self) -> int:
        return self.target.lanes(4)


def assign_layouts(graph: Graph, target: Target, threads: int) -> Graph:
    """Types get layouts, constants are packed into theirs, and copies are inserted where a plain output is
    due.
    """
    state = _State(graph, target, threads, dict(graph.types))
    nodes: list[Node] = []
    consumers = graph.consumers()
    for node in graph.nodes:
        if type(node.op) in PACKED:
            nodes.append(_packed_recurrence(state, node))
        elif isinstance(node.op, Reshape):
            nodes.append(_flatten(state, node, consumers.get(node.outputs[0], [])))
        elif isinstance(node.op, FusedOp):
            nodes += _fused(state, node)
        else:
            nodes.append(node)
    types = state.types
    nodes, types = _plain_outputs(graph, nodes, types, state.layouts)
    for value, layout in state.layouts.items():
        if value in types:
            types[value] = types[value].with_layout(layout)
    return graph.with_nodes(nodes, types, state.constants)


def _fused(state: _State, node: Node) -> list[Node]:
    """The node on its layouts, after the copies that it needs."""
    layout = _output_layout(state.graph, node, state.layouts, state.block)
    if layout is not None:
        for o in node.outputs:
            state.layouts[o] = layout
    tile = choose_tile(state.graph, node, state.layouts, state.target, state.threads)
    if tile:
        return [_winograd(state, node, tile)]
    inputs = list(node.inputs)
    for position, wanted in _weight_layouts(state.graph, node, state.layouts, state.block).items():
        value = inputs[position]
        assert value is not None
        array, name = state.graph.constants[value], value
        order = next((state.flattened[i] for i in node.reads if i in state.flattened), None)
        if order is not None:
            array, name = _permuted_rows(state, node, array, order), f"{value}@flat"
        packed = f"{name}@{wanted}"
        state.constants[packed] = wanted.pack(array)
        state.types[packed] = replace(state.graph.types[value], layout=wanted)
        inputs[position] = packed
    copies = _plain_groups(state, node, inputs) if layout is None else []
    return [*copies, replace(node, inputs=tuple(inputs))]


def _plain_groups(state: _State, node: Node, inputs: list[str | None]) -> list[Node]:
    """Groups of channels that are no whole blocks are read plain; names the copy in `inputs`."""
    conv = _anchor(node)
    if not isinstance(conv, Conv) or conv.group == 1:
        return []
    inside = node.op.graph  # type: ignore[attr-defined]
    data = next(n for n in inside.nodes if isinstance(n.op, Conv)).inputs[0]
    if data not in inside.inputs or data not in state.layouts:
        return []
    plain = f"{data}@plain"
    inputs[inside.inputs.index(data)] = plain
    if plain in state.types:
        return []
    state.types[plain] = state.types[data]
    types = {data: state.types[data], plain: state.types[data]}
    inside = Graph("copy", (data,), (plain,), (Node(Identity(), (data,), (plain,), data),), types)
    return [Node(FusedOp(inside), (data,), (plain,), f"{data} (to plain)")]


def _winograd(state: _State, node: Node, tile: int) -> Node:
    """The convolution's weights transformed for output tiles of tile × tile."""
    op = node.op
    assert isinstance(op, FusedOp)
    weights = op.graph.nodes[0].inputs[1]
    assert weights is not None
    packed = f"{weights}@winograd{tile}"
    state.constants[packed] = transform_weights(state.graph.constants[weights], tile, state.block, VECTORS)
    state.types[packed] = TensorType(F32, state.constants[packed].shape)
    inputs = tuple(packed if i == weights else i for i in node.inputs)
    return replace(node, op=replace(op, winograd=tile), inputs=inputs)


def _flatten(state: _State, node: Node, readers: list[Node]) -> Node:
    """flatten(x: NCHW16c) · w  →  x's memory as it is · w with its rows in that order."""
    graph, value = state.graph, node.outputs[0]
    source, result = graph.types[node.reads[0]], graph.types[value]
    layout = state.layouts.get(node.reads[0])
    if layout is None or result.rank != 2 or result.dims[0] != source.dims[0] or value in graph.outputs:
        return node
    if source.dims[1] % state.block or len(readers) != 1 or not isinstance(readers[0].op, FusedOp):
        return node
    inside = readers[0].op.graph
    uses = [n for n in inside.nodes if value in n.reads]
    if (
        len(uses) != 1
        or not isinstance(uses[0].op, MatMul)
        or uses[0].inputs[0] != value
        or uses[0].op.trans_a
    ):
        return node
    weights = graph.types.get(uses[0].inputs[1] or "")
    if (
        uses[0].inputs[1] not in graph.constants
        or weights is None
        or weights.rank != 2
        or weights.dtype is not F32
    ):
        return node
    state.flattened[value] = layout
    return replace(node, op=BlockedFlatten(str(layout)))


def _permuted_rows(state: _State, node: Node, weights: np.ndarray, layout: Layout) -> np.ndarray:
    """The weights of a matrix product whose left operand was flattened in the order of `layout`."""
    op = _anchor(node)
    assert isinstance(op, MatMul)
    flat = next(i for i in node.reads if i in state.flattened)
    source = state.graph.producers()[flat].reads[0]
    shape = (1, *state.graph.types[source].dims[1:])
    order = layout.pack(np.arange(int(np.prod(shape))).reshape(shape)).ravel()
    return weights[:, order] if op.trans_b else weights[order]


def _packed_recurrence(state: _State, node: Node) -> Node:
    """A time loop with constant weights and sequences of full length streams its weights packed."""
    op, graph = node.op, state.graph
    weights = node.inputs[1]
    *extras, lengths = [*node.inputs, *[None] * 6][2 : len(type(op).roles)]  # type: ignore[attr-defined]
    f32 = graph.types[node.reads[0]].dtype is F32
    if not f32 or weights not in graph.constants or lengths is not None:
        return node
    packed = f"{weights}@packed{state.block}"
    state.constants[packed] = pack_weights(graph.constants[weights], state.block)
    state.types[packed] = TensorType(F32, state.constants[packed].shape)
    inputs = (node.inputs[0], packed, *extras)
    return replace(node, op=PACKED[type(op)](**op.attributes()), inputs=inputs)


def _anchor(node: Node) -> Op:
    """The operator that decides: the first that is no map."""
    assert isinstance(node.op, FusedOp)
    for inner in node.op.graph.nodes:
        if isinstance(inner.op, (Conv, MatMul)):
            return inner.op
    return node.op.graph.nodes[0].op


def _output_layout(graph: Graph, node: Node, layouts: dict[str, Layout], block: int) -> Layout | None:
    result = graph.types[node.outputs[0]]
    if result.rank < 3 or len(node.outputs) != 1 or result.dtype.bytes != 4 or not result.dtype.is_float:
        return None
    channels = result.dims[1]
    blocked = Layout.channel_blocked(result.rank, block)
    anchor = _anchor(node)
    if isinstance(anchor, Conv):
        return blocked if channels * 2 >= block and _conv_fits(graph, node, anchor, block) else None
    same_channels = [
        v
        for v in node.reads
        if v in layouts and graph.types[v].rank == result.rank and graph.types[v].dims[1] == channels
    ]
    if isinstance(anchor, Concat) and len(node.op.graph.nodes) == 1:  # type: ignore[attr-defined]
        whole = all(v in layouts and graph.types[v].dims[1] % block == 0 for v in node.reads)
        return blocked if whole and anchor.axis == 1 else None
    kind = kind_of(expression(node.op, graph.input_types(node)))
    if not same_channels or kind == "map" or kind == "rows":
        return None
    return blocked


def _conv_fits(graph: Graph, node: Node, conv: Conv, block: int) -> bool:
    """Groups must be whole blocks, or one channel each."""
    if conv.group == 1:
        return True
    weights = next(n for n in node.op.graph.nodes if isinstance(n.op, Conv)).inputs[1]  # type: ignore[attr-defined]
    out_channels, per_group = graph.types[weights].dims[:2] if weights in graph.types else (0, 0)
    if per_group == 1 and out_channels == conv.group:
        return True
    return per_group % block == 0 and (out_channels // conv.group) % block == 0


def _weight_layouts(graph: Graph, node: Node, layouts: dict[str, Layout], block: int) -> dict[int, Layout]:
    """Position of each constant operand of the anchor → the layout that the direct template streams best."""
    result: dict[int, Layout] = {}
    assert isinstance(node.op, FusedOp)
    inside = node.op.graph
    for inner in inside.nodes:
        if not isinstance(inner.op, (Conv, MatMul)) or inner.inputs[1] not in inside.inputs:
            continue
        weights = inner.inputs[1]
        position = inside.inputs.index(weights)
        type: TensorType = graph.types[weights]
        if weights not in graph.constants or type.dtype.bytes != 4 or type.layout is not None:
            continue
        if isinstance(inner.op, Conv) and node.outputs[0] in layouts:
            data = inner.inputs[0]
            order = tuple(range(type.rank))
            if data in layouts and type.dims[1] > 1:
                result[position] = Layout(order, ((1, block), (0, block)))
            else:
                result[position] = Layout(order, ((0, block),))
        elif isinstance(inner.op, MatMul) and type.rank == 2:
            column = 0 if inner.op.trans_b else 1
            result[position] = Layout((column, 1 - column), ((column, block),))
    return result


def _plain_outputs(
    graph: Graph, nodes: list[Node], types: dict[str, TensorType], layouts: dict[str, Layout]
) -> tuple[list[Node], dict[str, TensorType]]:
    """A graph output is plain: where its producer writes blocks, a copy follows."""
    renamed: dict[str, str] = {}
    copies: list[Node] = []
    for value in graph.outputs:
        if value not in layouts:
            continue
        inner = f"{value}@{layouts[value]}"
        layouts[inner] = layouts.pop(value)
        types[inner] = types[value]
        renamed[value] = inner
        inside = Graph(
            "copy",
            (inner,),
            (value,),
            (Node(Identity(), (inner,), (value,), value),),
            {inner: types[value], value: types[value]},
        )
        copies.append(Node(FusedOp(inside), (inner,), (value,), f"{value} (to plain)"))
    if not renamed:
        return nodes, types

    def rename(values):
        return tuple(renamed.get(v, v) if v is not None else None for v in values)

    return [replace(n, inputs=rename(n.inputs), outputs=rename(n.outputs)) for n in nodes] + copies, types
