"""Networks of 16-bit floats, held in f32 between their operators.

Operators on narrow floats compute in f32 and round what comes out. Where an f32 that is rounded stands for
such a value, results are the same, and products have all the algorithms and layouts that there are for f32.
Values take twice the memory, so only graphs that multiply narrow floats are changed; their interface stays.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ..compiler.ir.graph import Graph, Node, fresh_name
from ..compiler.ir.types import F32, NARROW, TensorType
from ..compiler.ops.base import Op
from ..compiler.ops.conv import Conv, ConvTranspose
from ..compiler.ops.elementwise import Binary, Cast, Rounded, Unary, Where
from ..compiler.ops.indexing import Gather, GatherElements, GatherND
from ..compiler.ops.matmul import Einsum, MatMul
from ..compiler.ops.movement import Concat, Expand, Identity, Pad, Reshape, Slice, Tile, Transpose, Trilu
from ..compiler.ops.pool import GlobalMaxPool, MaxPool
from ..compiler.ops.reduction import Reduce
from ..compiler.ops.resize import Repeat
from ..compiler.ops.shapes import wide
from ..errors import ModelError

PRODUCTS = (Conv, ConvTranspose, MatMul, Einsum)
_PARTS = (Gather, GatherElements, GatherND, Slice)
_MOVES = (
    *(*_PARTS, Concat, Expand, GlobalMaxPool, Identity, MaxPool, Pad, Repeat, Reshape, Tile, Transpose),
    *(Trilu, Where),
)
_FUNCTIONS = ("abs", "max", "min", "neg", "relu")


def widen(graph: Graph) -> Graph:
    """An equal graph that multiplies no narrow floats."""
    products = (node for node in graph.nodes if isinstance(node.op, PRODUCTS))
    if not any(graph.types[v].dtype in NARROW for node in products for v in node.reads):
        return graph
    return _Widening(graph).run()


def only_picks(op: Op) -> bool:
    """Whether all that comes out went in, but for its sign and zeros."""
    return isinstance(op, _MOVES) or (isinstance(op, (Binary, Reduce, Unary)) and op.fn in _FUNCTIONS)


class _Widening:
    """Values by their names in the graph: what they are called now, as they are and in f32."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.types, self.constants = dict(graph.types), dict(graph.constants)
        self._nodes: list[Node] = []
        self._narrow = {v: v for v in (*graph.inputs, *graph.constants) if self._is_narrow(v)}
        self._wide: dict[str, str] = {}  # also of f32 values that are casts of narrow ones
        self._tried: Counter[str] = Counter()

    def run(self) -> Graph:
        for node in self.graph.nodes:
            if isinstance(node.op, Cast) and self.graph.types[node.reads[0]].dtype in (*NARROW, F32):
                self._cast(node)
            elif self._stays(node):
                self._keep(node)
            else:
                self._visit(node)
            for value in node.outputs:
                if value in self.graph.outputs:
                    self._as_it_is(value)
        return self.graph.with_nodes(self._nodes, self.types, self.constants)

    def _stays(self, node: Node) -> bool:
        """Loop programs may round on the way; of a large narrow value little may be picked."""
        return not node.op.has("compute") or (isinstance(node.op, _PARTS) and node.reads[0] in self._narrow)

    def _visit(self, node: Node) -> None:
        inputs = tuple(v and self._in_f32(v) for v in node.inputs)
        expected = tuple(_widened(t) for t in self.graph.output_types(node))
        try:
            fits = node.op.infer(*(None if v is None else self.types[v] for v in inputs)) == expected
        except ModelError:
            fits = False
        if not fits:  # its attributes say a type
            self._keep(node)
            return
        exact = only_picks(node.op)
        made = {v: self._called(v) if exact else self._fresh(v) for v in node.outputs if self._is_narrow(v)}
        self._nodes.append(replace(node, inputs=inputs, outputs=tuple(made.get(v, v) for v in node.outputs)))
        self._wide |= made if exact else {v: self._round(v, made[v], node.name) for v in made}

    def _keep(self, node: Node) -> None:
        """As it is, on values as they are."""
        self._nodes.append(replace(node, inputs=tuple(v and self._as_it_is(v) for v in node.inputs)))
        self._narrow.update((v, v) for v in node.outputs if self._is_narrow(v))

    def _cast(self, node: Node) -> None:
        """Of a narrow float, or of an f32."""
        source, value = node.reads[0], node.outputs[0]
        of, to, wide = self.graph.types[source].dtype, self.graph.types[value].dtype, self._in_f32(source)
        if to in (F32, of):
            self._wide[value] = wide
        elif to in NARROW:
            self._wide[value] = self._round(value, wide, node.name)
        else:
            self._emit(node.op, wide, node.name, value)

    def _in_f32(self, value: str) -> str:
        if value not in self._wide:
            if not self._is_narrow(value):
                return value
            self._wide[value] = name = self._fresh(value)
            if value in self.constants:
                self.constants[name] = self.constants[value].astype(F32.numpy)
            else:
                self._emit(Cast(F32.name), self._narrow[value], value, name)
        return self._wide[value]

    def _as_it_is(self, value: str) -> str:
        """What leaves the graph has its own name."""
        leaves, type = value in self.graph.outputs, self.graph.types[value]
        if not self._is_narrow(value):
            if leaves and value in self._wide:
                self._emit(Identity(), self._wide.pop(value), value, value)
            return self._wide.get(value, value)
        if value not in self._narrow:
            self._narrow[value] = name = value if leaves else self._fresh(value)
            self.types[name] = type
            self._emit(Cast(type.dtype.name), self._wide[value], value, name)
        return self._narrow[value]

    def _round(self, value: str, exact: str, name: str) -> str:
        return self._emit(Rounded(self.graph.types[value].dtype.name), exact, name, self._called(value))

    def _is_narrow(self, value: str) -> bool:
        return self.graph.types[value].dtype in NARROW

    def _called(self, value: str) -> str:
        """An f32 in the place of a narrow value has its name, but where that one leaves the graph."""
        if value in self.graph.outputs:
            return self._fresh(value)
        self.types[value] = _widened(self.graph.types[value])
        return value

    def _fresh(self, value: str) -> str:
        name = fresh_name(f"{value}.f32", self.types, self._tried)
        self.types[name] = _widened(self.graph.types[value])
        return name

    def _emit(self, op: Op, value: str, name: str, output: str) -> str:
        self._nodes.append(Node(op, (value,), (output,), name))
        return output


def _widened(type: TensorType) -> TensorType:
    return TensorType(wide(type.dtype), type.shape)
