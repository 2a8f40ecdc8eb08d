"""Bytes of the sign that the machine multiplies: quantised values of the other one are moved by 128.

A value changes where all can take it either way: what makes it and what reads it, by another zero point; and
what only moves or compares bytes, if all that it reads and writes changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from ..compiler.ir.graph import Graph, Node, fresh_name
from ..compiler.ir.types import I8, U8, DType, TensorType
from ..compiler.ops.conv import ConvInteger
from ..compiler.ops.elementwise import Binary, Cast, Unary
from ..compiler.ops.matmul import MatMulInteger
from ..compiler.ops.movement import Concat, Identity, Reshape, Slice, Transpose
from ..compiler.ops.pool import MaxPool
from ..compiler.ops.quantize import DequantizeLinear, QuantizeLinear
from ..compiler.target import Target

SHIFT = 128  # from i8 to u8
ZERO_POINT = 2
"""Position of the zero point of the first input, or of the result, of those operators that have one."""
BY_ZERO_POINT = (QuantizeLinear, DequantizeLinear, ConvInteger, MatMulInteger)
MOVING = (Concat, Identity, MaxPool, Reshape, Slice, Transpose)


def match_signs(graph: Graph, target: Target) -> Graph:
    """An equal graph whose quantised activations are, where they can be, what `target.dot` multiplies.

    NaN, which no integer stands for, is quantised to 0 in either sign.
    """
    if not target.dot:
        return graph
    wanted, other = (I8, U8) if target.dot == "dot4_i8" else (U8, I8)
    changing = _changing(graph, other)
    return _Change(graph, wanted, changing).run() if changing else graph


def _changing(graph: Graph, dtype: DType) -> set[str]:
    """The values of this type that may change."""
    producers, consumers = graph.producers(), graph.consumers()
    found = {
        v
        for v, node in producers.items()
        if graph.types[v].dtype is dtype
        and v not in graph.outputs
        and _makes(graph, node, producers)
        and all(_takes(graph, reader, v) for reader in consumers.get(v, ()))
    }
    moving = [node for node in graph.nodes if isinstance(node.op, MOVING)]
    while True:
        torn = {v for node in moving for v in _torn(node, found)}
        if not torn:
            return found
        found -= torn


def _torn(node: Node, changing: set[str]) -> Iterable[str]:
    """What must stay since something else that the node moves does."""
    values = {*node.reads, *node.outputs}
    return () if values <= changing else values & changing


def _makes(graph: Graph, node: Node, producers: dict[str, Node]) -> bool:
    if isinstance(node.op, Cast):
        return _whole(graph, producers, node.reads[0]) is not None
    return _is_moving(node) or (isinstance(node.op, QuantizeLinear) and _known_zero(graph, node))


def _takes(graph: Graph, node: Node, value: str) -> bool:
    if _is_moving(node):
        return True
    reads = isinstance(node.op, (DequantizeLinear, ConvInteger, MatMulInteger))
    return reads and node.inputs[0] == value and value not in node.inputs[1:] and _known_zero(graph, node)


def _is_moving(node: Node) -> bool:
    return isinstance(node.op, MOVING) and len(node.outputs) == 1


def _known_zero(graph: Graph, node: Node) -> bool:
    zero = node.input(ZERO_POINT)
    return zero is None or zero in graph.constants


def _whole(graph: Graph, producers: dict[str, Node], value: str) -> tuple[str, np.ndarray | int] | None:
    """(a rounded value, what is added to it) of a float that is whole; None of others."""
    node = producers.get(value)
    if node is None or not graph.types[value].dtype.is_float:
        return None
    if node.op == Unary("round"):
        return value, 0
    if node.op != Binary("add") or node.reads != node.inputs:
        return None
    for base, added in (node.inputs, node.inputs[::-1]):
        maker, constant = producers.get(base or ""), graph.constants.get(added or "")
        if maker is None or maker.op != Unary("round") or constant is None:
            continue
        same = graph.types[base or ""].shape == graph.types[value].shape
        return (base or "", constant) if same and np.all(constant == np.rint(constant)) else None
    return None


class _Change:
    def __init__(self, graph: Graph, wanted: DType, changing: set[str]):
        self.graph, self.wanted, self.changing = graph, wanted, changing
        self.shift = SHIFT if wanted is U8 else -SHIFT
        self.types, self.constants = dict(graph.types), dict(graph.constants)
        self.producers = graph.producers()
        for value in changing:
            self.types[value] = replace(graph.types[value], dtype=wanted)

    def run(self) -> Graph:
        nodes = [new for node in self.graph.nodes for new in self.node(node)]
        return self.graph.with_nodes(nodes, self.types, self.constants)

    def node(self, node: Node) -> list[Node]:
        made = node.outputs[0] in self.changing
        if isinstance(node.op, Cast) and made:
            return self.cast(node)
        if isinstance(node.op, QuantizeLinear) and made:
            return [self.moved(replace(node, op=replace(node.op, to=self.wanted.name)))]
        read = node.inputs[:1] and node.inputs[0] in self.changing
        return [self.moved(node) if read and isinstance(node.op, BY_ZERO_POINT) else node]

    def cast(self, node: Node) -> list[Node]:
        """The whole number is moved before it is cast."""
        found = _whole(self.graph, self.producers, node.reads[0])
        assert found is not None
        base, added = found
        type = self.graph.types[node.reads[0]]
        moved = fresh_name(node.outputs[0], self.types)
        self.types[moved] = type
        shift = self.constant(moved, (np.asarray(added) + self.shift).astype(type.dtype.numpy), type.dtype)
        add = Node(Binary("add"), (base, shift), (moved,), node.name)
        return [add, replace(node, op=Cast(self.wanted.name), inputs=(moved,))]

    def moved(self, node: Node) -> Node:
        """The node with its zero point moved."""
        zero = node.input(ZERO_POINT)
        by_scale = isinstance(node.op, (QuantizeLinear, DequantizeLinear))
        shape = self.graph.types[node.inputs[1] or ""].dims if by_scale else ()
        known = np.zeros(shape, np.int64) if zero is None else self.graph.constants[zero].astype(np.int64)
        moved = (known + self.shift).astype(self.wanted.numpy)
        inputs = [*node.inputs, *[None] * (ZERO_POINT + 1 - len(node.inputs))]
        inputs[ZERO_POINT] = self.constant(node.outputs[0], moved, self.wanted)
        return replace(node, inputs=tuple(inputs))

    def constant(self, like: str, array: np.ndarray, dtype: DType) -> str:
        name = fresh_name(like, self.types)
        self.constants[name], self.types[name] = array, TensorType(dtype, array.shape)
        return name
