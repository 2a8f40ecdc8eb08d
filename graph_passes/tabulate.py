"""Products of gathered rows become rows of a product that is known when compiling.

A language model's tokens choose rows of an embedding, which its first layer multiplies by weights. Each of
these products is that of one of the table's rows, so the table itself is multiplied, once and for all. That
takes more memory, as Winograd's weights do: not where few bytes are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..compiler.ir.graph import Graph, Node
from ..compiler.ir.types import F32, F64
from ..compiler.ops.elementwise import Binary
from ..compiler.ops.evaluate import evaluate
from ..compiler.ops.indexing import Gather
from ..compiler.ops.matmul import MatMul
from ..compiler.ops.movement import Reshape
from .rewrite import Rewriter, rule

GROWTH = 4
"""Times the bytes of what only they are made from, that new tables may take."""
LARGEST = 256 << 20
"""Bytes of a new table."""
LONGEST = 200e9
"""Multiply-adds that one takes: a few seconds."""


def tabulate(graph: Graph) -> Graph:
    """Applied where a table of rows is constant, and nothing else reads the rows that are gathered."""
    return Rewriter(graph).run(RULES)


@dataclass(frozen=True)
class _Rows:
    """Those of a constant (rows, length) that a node gathers."""

    table: str
    indices: str
    length: int


def _rows(r: Rewriter, value: str | None) -> _Rows | None:
    """What `value` is, if only the node at hand reads it."""
    node = r.only_by(value, Gather)
    table = None if node is None else r.const(node.inputs[0])
    if node is None or table is None or table.ndim != 2 or node.op.axis not in (0, -2):
        return None
    return _Rows(str(node.inputs[0]), str(node.inputs[1]), table.shape[1])


def _of_table(r: Rewriter, node: Node, rows: _Rows, *operands: str) -> str | None:
    """Rows of what the node's operator makes of the table and another constant; None if that is too much."""
    (type,) = node.op.infer(*map(r.type_of, operands))
    replaced = sum(r.constants[name].nbytes for name in operands if r.sole(name))
    if type.nbytes > min(GROWTH * replaced, LARGEST):
        return None
    value = node.outputs[0]
    made = evaluate(replace(node, inputs=operands), [r.constants[name] for name in operands], {value: type})
    return None if made is None else r.emit(Gather(0), r.constant(made[0], value), rows.indices)


@rule("reshape(gather(c, i)) => gather(c, reshape(i))", Reshape)
def reshape_indices(r: Rewriter, node: Node) -> str | None:
    rows, shape = _rows(r, node.inputs[0]), r.type_of(node.outputs[0]).dims
    if rows is None or not rows.length or shape[-1:] != (rows.length,):
        return None
    return r.emit(Gather(0), rows.table, r.emit(Reshape(shape[:-1]), rows.indices))


@rule("matmul(gather(c, i), w) => gather(matmul(c, w), i)", MatMul)
def multiply_table(r: Rewriter, node: Node) -> str | None:
    rows, w = _rows(r, node.inputs[0]), r.const(node.inputs[1])
    if rows is None or w is None or w.ndim != 2 or node.op.trans_a:
        return None
    type = r.type_of(rows.table)
    if type.dtype not in (F32, F64) or type.dims[0] * w.size > LONGEST:
        return None
    return _of_table(r, node, rows, rows.table, str(node.inputs[1]))


@rule("gather(c, i) + row => gather(c + row, i)", Binary)
def change_table(r: Rewriter, node: Node) -> str | None:
    for value, other in (node.inputs, node.inputs[::-1]):
        rows, row = _rows(r, value), r.const(other)
        if rows is None or row is None or row.shape[:-1] not in ((), (1,)):
            continue
        if r.type_of(value).dims == r.type_of(node.outputs[0]).dims:
            return _of_table(r, node, rows, *(rows.table if name == value else name for name in node.inputs))
    return None


RULES = (reshape_indices, multiply_table, change_table)
