"""One blocked channel layout through the whole network, with conversions only at its edges; weights packed for it.

    x: NCHW  →  conv  →  NCHW16c  →  relu, add, pool, conv …  →  NCHW
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..compiler.ir.graph import Graph, Node
from ..compiler.ir.types import F32, Layout, TensorType
from ..compiler.ops.base import Op
from ..compiler.ops.conv import Conv
from ..compiler.ops.fused import FusedOp
from ..compiler.ops.matmul import MatMul
from ..compiler.ops.movement import Identity
from ..compiler.ops.packed_lstm import PackedLstm, pack_weights
from ..compiler.ops.recurrence import LstmRecurrence
from ..compiler.target import Target
from .fuse import kind_of
from ..compiler.ops.fused import expression


def assign_layouts(graph: Graph, target: Target) -> Graph:
    """Types get layouts, constants are packed into theirs, and copies are inserted where a plain output is due."""
    block = target.lanes(4)
    layouts: dict[str, Layout] = {}
    nodes: list[Node] = []
    types = dict(graph.types)
    constants: dict[str, np.ndarray] = {}
    for node in graph.nodes:
        if not isinstance(node.op, FusedOp):
            nodes.append(_packed_recurrence(graph, node, block, types, constants))
            continue
        layout = _output_layout(graph, node, layouts, block)
        if layout is not None:
            for o in node.outputs:
                layouts[o] = layout
        inputs = list(node.inputs)
        for position, wanted in _weight_layouts(graph, node, layouts, block).items():
            value = inputs[position]
            assert value is not None
            packed = f"{value}@{wanted}"
            constants[packed] = wanted.pack(graph.constants[value])
            types[packed] = replace(graph.types[value], layout=wanted)
            inputs[position] = packed
        nodes.append(replace(node, inputs=tuple(inputs)))
    nodes, types = _plain_outputs(graph, nodes, types, layouts)
    for value, layout in layouts.items():
        if value in types:
            types[value] = types[value].with_layout(layout)
    return graph.with_nodes(nodes, types, constants)


def _packed_recurrence(
    graph: Graph, node: Node, block: int, types: dict[str, TensorType], constants: dict[str, np.ndarray]
) -> Node:
    """An LSTM's time loop with constant weights streams them packed."""
    op = node.op
    if not isinstance(op, LstmRecurrence) or graph.types[node.reads[0]].dtype is not F32:
        return node
    weights = node.inputs[1]
    extras = node.inputs[4:]
    if weights not in graph.constants or any(e is not None for e in extras):
        return node
    packed = f"{weights}@lstm{block}"
    constants[packed] = pack_weights(graph.constants[weights], block)
    types[packed] = TensorType(F32, constants[packed].shape)
    return replace(node, op=PackedLstm(op), inputs=(node.inputs[0], packed, *node.inputs[2:4]))


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
        v for v in node.reads if v in layouts and graph.types[v].rank == result.rank and graph.types[v].dims[1] == channels
    ]
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
        inside = Graph("copy", (inner,), (value,), (Node(Identity(), (inner,), (value,), value),), {inner: types[value], value: types[value]})
        copies.append(Node(FusedOp(inside), (inner,), (value,), f"{value} (to plain)"))
    if not renamed:
        return nodes, types

    def rename(values):
        return tuple(renamed.get(v, v) if v is not None else None for v in values)

    return [replace(n, inputs=rename(n.inputs), outputs=rename(n.outputs)) for n in nodes] + copies, types
