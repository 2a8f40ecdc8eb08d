"""Networks of 16-bit floats, held in f32 between their operators.

Operators on narrow floats compute in f32 and round what comes out. Where an f32 that is rounded stands for
such a value, results are the same, and products have all the algorithms and layouts that there are for f32.
Values take twice the memory, so only graphs that multiply narrow floats are changed; their interface stays.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ..compiler.ir.graph import Graph, Node, fresh_name
from ..compiler.ir.types import BF16, F16, F32, TensorType
from ..compiler.ops.base import Op
from ..compiler.ops.conv import Conv, ConvTranspose
from ..compiler.ops.elementwise import Binary, Cast, Rounded, Unary, Where
from ..compiler.ops.indexing import Gather, GatherElements, GatherND
from ..compiler.ops.matmul import Einsum, MatMul
from ..compiler.ops.movement import Concat, Expand, Identity, Pad, Reshape, Slice, Tile, Transpose, Trilu
from ..compiler.ops.pool import GlobalMaxPool, MaxPool
from ..compiler.ops.reduction import Reduce
from ..compiler.ops.resize import Pick, Repeat
from ..compiler.ops.sorting import TopK
from ..errors import ModelError

NARROW = (F16, BF16)
PRODUCTS = (Conv, ConvTranspose, MatMul, Einsum)
_GATHERS = (Gather, GatherElements, GatherND)
_MOVES = (
    *(*_GATHERS, Concat, Expand, GlobalMaxPool, Identity, MaxPool, Pad, Pick, Repeat, Reshape, Slice, Tile),
    *(TopK, Transpose, Trilu, Where),
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
    """A narrow value keeps its name where something asks for it as it is; in f32 it has a new one."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.types, self.constants = dict(graph.types), dict(graph.constants)
        self._nodes: list[Node] = []
        self._narrow = {v for v in (*graph.inputs, *graph.constants) if self._is_narrow(v)}  # that are there
        self._wide: dict[str, str] = {}  # also of f32 values that are casts of such
        self._tried: Counter[str] = Counter()

    def run(self) -> Graph:
        for node in self.graph.nodes:
            if isinstance(node.op, Cast) and self.graph.types[node.reads[0]].dtype in (*NARROW, F32):
                self._cast(node)
            elif isinstance(node.op, _GATHERS) and node.reads[0] in self._narrow:
                self._keep(node)  # a table of which little may be read
            else:
                self._visit(node)
        for value in self.graph.outputs:
            if self._is_narrow(value):
                self._as_it_is(value)
            elif value in self._wide:
                self._emit(Identity(), self._wide[value], value, value)
        return self.graph.with_nodes(self._nodes, self.types, self.constants)

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
        made = {v: self._fresh(v) for v in node.outputs if self._is_narrow(v)}
        self._nodes.append(replace(node, inputs=inputs, outputs=tuple(made.get(v, v) for v in node.outputs)))
        self._wide |= made if only_picks(node.op) else {v: self._round(v, made[v], node.name) for v in made}

    def _keep(self, node: Node) -> None:
        """As it is, on values as they are."""
        self._nodes.append(replace(node, inputs=tuple(v and self._as_it_is(v) for v in node.inputs)))
        self._narrow.update(v for v in node.outputs if self._is_narrow(v))

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
                self._emit(Cast(F32.name), value, value, name)
        return self._wide[value]

    def _as_it_is(self, value: str) -> str:
        if not self._is_narrow(value):
            return self._wide.get(value, value)
        if value not in self._narrow:
            self._emit(Cast(self.graph.types[value].dtype.name), self._wide[value], value, value)
            self._narrow.add(value)
        return value

    def _round(self, value: str, exact: str, name: str) -> str:
        return self._emit(Rounded(self.graph.types[value].dtype.name), exact, name, self._fresh(value))

    def _is_narrow(self, value: str) -> bool:
        return self.graph.types[value].dtype in NARROW

    def _fresh(self, value: str) -> str:
        """The name of an f32 for a narrow value."""
        name = fresh_name(value, self.types, self._tried)
        self.types[name] = _widened(self.graph.types[value])
        return name

    def _emit(self, op: Op, value: str, name: str, output: str) -> str:
        self._nodes.append(Node(op, (value,), (output,), name))
        return output


def _widened(type: TensorType) -> TensorType:
    return TensorType(F32, type.shape) if type.dtype in NARROW else type
