"""Weights in the order in which kernels stream them: blocked, transformed, permuted. Runs when compiling."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from ..compiler.ir.graph import Graph, Node
from ..compiler.ir.types import Layout, TensorType, dtype_of
from ..compiler.ops.base import Op
from ..compiler.ops.conv import Conv
from ..compiler.ops.fused import FusedOp
from ..compiler.ops.matmul import MatMul
from ..compiler.ops.movement import Identity
from ..compiler.ops.packed_recurrence import PACKED
from ..compiler.templates.algorithm import Pack, Rounding
from ..compiler.templates.registry import ALGORITHMS
from .alternatives import Decision, fused
from .pairs import KEPT


@dataclass(frozen=True)
class _Packing:
    """What a Pack or Layout makes of a constant: its numbers, its type where that is known beforehand, and
    the operator that does it where a compact module may pack when it is opened."""

    apply: Callable[[np.ndarray], np.ndarray]
    known_type: Callable[[TensorType], TensorType] | None = None
    made_by: Op | None = None

    def type_of(self, type: TensorType) -> TensorType:
        if self.known_type is not None:
            return self.known_type(type)
        return _array_type(self.apply(np.zeros(type.dims, type.dtype.numpy)))

    def packed(self, array: np.ndarray, type: TensorType) -> tuple[np.ndarray, TensorType]:
        array = self.apply(array)
        return array, self.known_type(type) if self.known_type else _array_type(array)


def _array_type(array: np.ndarray) -> TensorType:
    return TensorType(dtype_of(array), array.shape)


def _packing(pack: Pack | Layout) -> _Packing:
    if isinstance(pack, Layout):
        return _Packing(pack.pack, lambda type: replace(type, layout=pack), Identity())
    if isinstance(pack, Rounding):
        return _Packing(pack, lambda type: replace(type, layout=pack.layout))
    if isinstance(pack, Op):
        return _Packing(pack, lambda type: pack.infer(type)[0], pack)
    return _Packing(pack)


@dataclass
class Packer:
    """`constants` and `types` collect packed weights, `setup` the operators that make them of other
    constants, where there are such; `flattened` names values flat in a layout's order. Without `values` the
    packed weights are zeros of the right shape: for who asks for types alone.
    """

    graph: Graph
    block: int
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    types: dict[str, TensorType] = field(default_factory=dict)
    setup: dict[str, Node] = field(default_factory=dict)  # by what it makes
    flattened: dict[str, Layout] = field(default_factory=dict)
    values: bool = True

    def pack(self, node: Node, decision: Decision) -> Node:
        """The node with its constant weights packed for the decision."""
        node = self._follow_flattened(node)
        if decision.algorithm in ALGORITHMS:
            return self._pack_for_algorithm(node, decision.algorithm)
        if not isinstance(node.op, FusedOp):
            return node
        inputs = list(node.inputs)
        for position, layout in self.layouts(node, decision).items():
            inputs[position] = self._packed(inputs[position] or "", layout, "")
        return replace(node, inputs=tuple(inputs))

    def _packed(self, value: str, pack: Pack | Layout, algorithm: str) -> str:
        """The name of the constant as it is packed, for an algorithm or in a layout."""
        name = f"{value}@{pack}" if isinstance(pack, Layout) else f"{value}@{algorithm}"
        packing = _packing(pack)
        type = self._type(value)
        if self.values:
            array, type = packing.packed(self._constant(value), type)
        else:
            type = packing.type_of(type)
            array = np.broadcast_to(type.dtype.numpy.type(0), type.physical_shape)
        if packing.made_by is not None:
            return self._add_made(name, array, type, packing.made_by, value)
        return self._add(name, array, type)

    def _constant(self, value: str) -> np.ndarray:
        return self.constants[value] if value in self.constants else self.graph.constants[value]

    def _type(self, value: str) -> TensorType:
        return self.types[value] if value in self.types else self.graph.types[value]

    def _add(self, name: str, array: np.ndarray, type: TensorType) -> str:
        """By another name where this one is taken by other numbers: readers may differ in how they pack."""
        name = unused(name, self.graph.types)
        while name in self.constants and not np.array_equal(self.constants[name], array):
            name += "'"
        self.constants[name], self.types[name] = array, type
        return name

    def _add_made(self, name: str, array: np.ndarray, type: TensorType, by: Op, source: str) -> str:
        """A constant that an operator makes of another; by another name where this one is made otherwise."""
        name = unused(name, self.graph.types)
        while name in self.setup and self.setup[name].op != by:
            name += "'"
        self.setup[name] = Node(by, (source,), (name,), source)
        self.constants[name], self.types[name] = array, type
        return name

    def layouts(self, node: Node, decision: Decision) -> dict[int, Layout]:
        """Position of each constant operand of the anchor → the layout that direct templates stream best."""
        result: dict[int, Layout] = {}
        assert isinstance(node.op, FusedOp)
        inside = node.op.graph
        for inner in inside.nodes:
            weights = inner.inputs[1] if isinstance(inner.op, Conv) else None
            if weights is None or weights not in inside.inputs or weights not in self.graph.constants:
                continue
            held = self.graph.types[weights]
            if held.dtype.bytes != 4 or held.layout is not None:
                continue
            position = inside.inputs.index(weights)
            if decision.writes is not None:
                reads = Layout.channel_blocked(4, self.block) if decision.reads == KEPT else decision.reads
                blocks = ((1, reads.block_of(1) if reads else 1), (0, self.block))
                both = blocks[0][1] > 1 and held.dims[1] > 1
                result[position] = Layout(tuple(range(held.rank)), blocks if both else blocks[1:])
        return result

    def _pack_for_algorithm(self, node: Node, algorithm: str) -> Node:
        """The operator with its algorithm, and its weights as that wants them."""
        inputs = list(node.inputs)
        for position, pack in ALGORITHMS[algorithm].weights(fused(self.graph, node), self.block).items():
            inputs[position] = self._packed(inputs[position] or "", pack, algorithm)
        if isinstance(node.op, FusedOp):
            return replace(node, op=replace(node.op, algorithm=algorithm), inputs=tuple(inputs))
        kept = inputs[: type(node.op).roles.index("lengths")]  # type: ignore[attr-defined]
        op = PACKED[type(node.op)](**node.op.attributes(), algorithm=algorithm)
        return replace(node, op=op, inputs=tuple(kept))

    def _follow_flattened(self, node: Node) -> Node:
        """Weights of a matrix product whose left operand was flattened in the order of a layout follow it."""
        flat = next((i for i in node.reads if i in self.flattened), None)
        if flat is None:
            return node
        assert isinstance(node.op, FusedOp)
        product = next(n for n in node.op.graph.nodes if flat in n.reads)
        weights = product.inputs[1] or ""
        assert isinstance(product.op, MatMul)
        source = self.graph.producers()[flat].reads[0]
        shape = (1, *self.graph.types[source].dims[1:])
        order = self.flattened[flat].pack(np.arange(prod(shape)).reshape(shape)).ravel()
        position = node.op.graph.inputs.index(weights)
        value = node.inputs[position] or ""
        array = self.graph.constants[value]
        array = array[:, order] if product.op.trans_b else array[order]
        inputs = list(node.inputs)
        inputs[position] = self._add(f"{value}@flat", array, self.graph.types[value])
        return replace(node, inputs=tuple(inputs))


def unused(name: str, taken: Container[str]) -> str:
    """The name, or a longer one where a model has it."""
    while name in taken:
        name += "'"
    return name


def packed_sizes(graph: Graph, node: Node, decision: Decision, block: int) -> dict[str, int]:
    """Bytes of each constant that the node reads under a decision."""
    sizes = {v: graph.types[v].nbytes for v in node.reads if v in graph.constants}
    packs: Mapping[int, Pack | Layout] = {}
    if decision.algorithm in ALGORITHMS:
        packs = ALGORITHMS[decision.algorithm].weights(fused(graph, node), block)
    elif isinstance(node.op, FusedOp):
        packs = Packer(graph, block).layouts(node, decision)
    for position, pack in packs.items():
        value = node.inputs[position] or ""
        sizes[value] = _packing(pack).type_of(graph.types[value]).nbytes
    return sizes
