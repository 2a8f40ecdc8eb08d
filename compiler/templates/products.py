"""What a planner knows of matrix products: weights packed in vectors of columns, or dot products along k.

Beside them stands the way without a name of its own: whichever template fits, on operands as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..ir.graph import Node
from ..ir.types import F32, Layout
from ..ops.block_products import BlockMatMul
from ..ops.fused import FusedOp
from ..ops.matmul import MatMul
from .algorithm import Algorithm, Layouts, Pack, Work

PACKED_RATE = 0.88
BLOCKS_RATE = 0.8
UNPACK = 5.0  # multiply-adds that making a weight of its number takes
ROWS = 8  # that share it
DOT_RATE = 0.25  # two loads for each multiply-add, and the lanes are added up at the end
FEW_COLUMNS = 8
"""Of a constant matrix that is turned for dot products: more fill enough of a vector."""
DOT_STREAM = 1.4  # the time of weights from memory, over that of packed ones: sums end after every row


def product(op: FusedOp) -> Node | None:
    """The matrix product that a fused operator is built on."""
    return next((n for n in op.graph.nodes if isinstance(n.op, MatMul)), None)


def sizes(op: FusedOp) -> tuple[int, int, int, int]:
    """(products of matrices, m, n, k)."""
    node = product(op)
    assert node is not None and isinstance(node.op, MatMul)
    *batch, m, n = op.graph.types[node.outputs[0]].dims
    k = op.graph.types[node.inputs[0] or ""].dims[-2 if node.op.trans_a else -1]
    return math.prod(batch), m, n, k


def packed_layout(lanes: int, transposed: bool) -> Layout:
    """Blocks of columns side by side, k after k: what one tile of columns reads is contiguous."""
    column = 0 if transposed else 1
    return Layout((column, 1 - column), ((column, lanes),))


def _packed_fits(op: FusedOp, lanes: int) -> bool:
    node = product(op)
    if node is None or node.inputs[1] not in op.graph.inputs:
        return False
    if op.graph.types[node.outputs[0]].dims[-1] < 2:  # a dot product a row
        return False
    weights = op.graph.types[node.inputs[1] or ""]
    return weights.rank == 2 and weights.dtype.bytes == 4 and weights.layout is None and weights.size > 0


def _packed_layouts(op: FusedOp, lanes: int) -> tuple[Layouts, ...]:
    node = product(op)
    assert node is not None
    rank = op.graph.types[node.inputs[0] or ""].rank
    if rank < 3:
        return ((None, None),)
    last = Layout((0, *range(2, rank), 1))
    return ((None, None), (Layout.channel_blocked(rank, lanes), None), (last, None))


def _packed_weights(op: FusedOp, lanes: int) -> Mapping[int, Pack | Layout]:
    node = product(op)
    assert node is not None and isinstance(node.op, MatMul)
    return {op.graph.inputs.index(node.inputs[1] or ""): packed_layout(lanes, node.op.trans_b)}


def _packed_work(op: FusedOp, lanes: int) -> Work:
    """A vector of columns is multiplied whole, however few there are."""
    batch, m, n, k = sizes(op)
    return Work(products=batch * m * max(n, lanes) * k, rate=PACKED_RATE, streamed=n * k * 4)


def block_product(op: FusedOp) -> Node | None:
    """The product of weights in blocks that a fused operator is built on."""
    return next((n for n in op.graph.nodes if isinstance(n.op, BlockMatMul)), None)


def _blocks_fit(op: FusedOp, lanes: int) -> bool:
    node = block_product(op)
    return node is not None and all(v in op.graph.inputs for v in node.reads[1:])


def _blocks_weights(op: FusedOp, lanes: int) -> Mapping[int, Pack | Layout]:
    """Columns in vectors: bytes of neighbours side by side, and so their scales and shifts."""
    node = block_product(op)
    assert node is not None
    return {
        op.graph.inputs.index(v): Layout(tuple(range(op.graph.types[v].rank)), ((0, lanes),))
        for v in node.reads[1:]
    }


def blocks_work(op: FusedOp, lanes: int) -> Work:
    node = block_product(op)
    assert node is not None
    types = [op.graph.types[v] for v in node.reads]
    rows, weights = types[0].size // types[0].dims[-1], types[1].dims[0] * types[0].dims[-1]
    return Work(
        products=rows * weights,
        rate=BLOCKS_RATE,
        streamed=sum(t.nbytes for t in types[1:]),
        other=UNPACK * weights * -(-rows // ROWS),
    )


def _dot_fits(op: FusedOp, lanes: int) -> bool:
    """Both operands lie along k, for at least a vector; a constant of few columns is turned for it."""
    node = product(op)
    if node is None or not isinstance(node.op, MatMul) or node.op.trans_a:
        return False
    if not node.op.trans_b and not (_packed_fits(op, lanes) and sizes(op)[2] <= FEW_COLUMNS):
        return False
    read = [op.graph.types[v or ""] for v in node.inputs]
    return all(t.dtype is F32 and t.size > 0 for t in read) and sizes(op)[3] >= lanes


def _plain(op: FusedOp, lanes: int) -> tuple[Layouts, ...]:
    return ((None, None),)


def _turned(op: FusedOp, lanes: int) -> Mapping[int, Pack | Layout]:
    node = product(op)
    assert node is not None and isinstance(node.op, MatMul)
    return {} if node.op.trans_b else {op.graph.inputs.index(node.inputs[1] or ""): Layout((1, 0))}


def _dot_work(op: FusedOp, lanes: int) -> Work:
    batch, m, n, k = sizes(op)
    node = product(op)
    assert node is not None
    matrix = op.graph.types[node.inputs[1] or ""]
    return Work(products=batch * m * n * k, rate=DOT_RATE, streamed=DOT_STREAM * matrix.nbytes)


PACKED_BLOCKS = Algorithm("packed_blocks", _blocks_fit, _plain, _blocks_weights, blocks_work, 0.0)
PACKED = Algorithm("packed", _packed_fits, _packed_layouts, _packed_weights, _packed_work, 0.0)
DOT = Algorithm("dot", _dot_fits, _plain, _turned, _dot_work, 0.0)
