"""Weights in the order in which kernels stream them: blocked, transformed, permuted. Runs when compiling."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ..compiler.ir.graph import Graph, Node
from ..compiler.ir.types import F32, Layout, TensorType
from ..compiler.ops.conv import Conv
from ..compiler.ops.fused import FusedOp
from ..compiler.ops.matmul import MatMul
from ..compiler.ops.packed_recurrence import PACKED
from ..compiler.ops.packed_recurrence import pack_weights as pack_recurrence
from ..compiler.templates.registry import ALGORITHMS
from .alternatives import Decision


@dataclass
class Packer:
    """`constants` and `types` collect packed weights; `flattened` names values flat in a layout's order."""

    graph: Graph
    block: int
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    types: dict[str, TensorType] = field(default_factory=dict)
    flattened: dict[str, Layout] = field(default_factory=dict)

    def pack(self, node: Node, decision: Decision) -> Node:
        """The node with its constant weights packed for the decision."""
        if type(node.op) in PACKED:
            return self._recurrence(node)
        if not isinstance(node.op, FusedOp):
            return node
        if decision.algorithm in ALGORITHMS:
            return self._transformed(node, decision.algorithm)
        inputs = list(node.inputs)
        for position, wanted in self._layouts(node, decision).items():
            value = inputs[position]
            assert value is not None
            array, name = self.graph.constants[value], value
            order = next((self.flattened[i] for i in node.reads if i in self.flattened), None)
            if order is not None:
                array, name = self._permuted_rows(node, array, order), f"{value}@flat"
            inputs[position] = self._keep(
                f"{name}@{wanted}", wanted.pack(array), replace(self.graph.types[value], layout=wanted)
            )
        return replace(node, inputs=tuple(inputs))

    def _keep(self, name: str, array: np.ndarray, type: TensorType) -> str:
        self.constants[name], self.types[name] = array, type
        return name

    def _layouts(self, node: Node, decision: Decision) -> dict[int, Layout]:
        """Position of each constant operand of the anchor → the layout that direct templates stream best."""
        result: dict[int, Layout] = {}
        assert isinstance(node.op, FusedOp)
        inside = node.op.graph
        for inner in inside.nodes:
            weights = inner.inputs[1] if isinstance(inner.op, (Conv, MatMul)) else None
            if weights is None or weights not in inside.inputs or weights not in self.graph.constants:
                continue
            held = self.graph.types[weights]
            if held.dtype.bytes != 4 or held.layout is not None:
                continue
            position = inside.inputs.index(weights)
            if isinstance(inner.op, Conv) and decision.writes is not None:
                blocks = ((1, self.block), (0, self.block))
                both = bool(decision.reads and decision.reads.blocks) and held.dims[1] > 1
                result[position] = Layout(tuple(range(held.rank)), blocks if both else blocks[1:])
            elif isinstance(inner.op, MatMul) and held.rank == 2:
                column = 0 if inner.op.trans_b else 1
                result[position] = Layout((column, 1 - column), ((column, self.block),))
        return result

    def _transformed(self, node: Node, algorithm: str) -> Node:
        """The operator's weights as the algorithm wants them."""
        assert isinstance(node.op, FusedOp)
        inputs = list(node.inputs)
        for position, pack in ALGORITHMS[algorithm].weights(node.op, self.block).items():
            value = inputs[position]
            assert value is not None
            array = pack(self.graph.constants[value])
            inputs[position] = self._keep(f"{value}@{algorithm}", array, TensorType(F32, array.shape))
        return replace(node, op=replace(node.op, algorithm=algorithm), inputs=tuple(inputs))

    def _permuted_rows(self, node: Node, weights: np.ndarray, layout: Layout) -> np.ndarray:
        """The weights of a matrix product whose left operand was flattened in the order of `layout`."""
        assert isinstance(node.op, FusedOp)
        flat = next(i for i in node.reads if i in self.flattened)
        product = next(n for n in node.op.graph.nodes if flat in n.reads)
        assert isinstance(product.op, MatMul)
        source = self.graph.producers()[flat].reads[0]
        shape = (1, *self.graph.types[source].dims[1:])
        order = layout.pack(np.arange(int(np.prod(shape))).reshape(shape)).ravel()
        return weights[:, order] if product.op.trans_b else weights[order]

    def _recurrence(self, node: Node) -> Node:
        """A time loop with constant weights and sequences of full length streams its weights packed."""
        op, graph = node.op, self.graph
        weights = node.inputs[1]
        *extras, lengths = [*node.inputs, *[None] * 6][2 : len(type(op).roles)]  # type: ignore[attr-defined]
        f32 = graph.types[node.reads[0]].dtype is F32
        if not f32 or weights is None or weights not in graph.constants or lengths is not None:
            return node
        array = pack_recurrence(graph.constants[weights], self.block)
        packed = self._keep(f"{weights}@packed{self.block}", array, TensorType(F32, array.shape))
        return replace(node, op=PACKED[type(op)](**op.attributes()), inputs=(node.inputs[0], packed, *extras))
