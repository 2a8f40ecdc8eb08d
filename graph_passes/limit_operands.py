"""Concatenations of many parts in several steps, for GPUs: OpenCL guarantees kernels 1,024 bytes of operands,
of which each takes 16, and CUDA 4,096."""

from __future__ import annotations

from ..compiler.ir.graph import Graph, Node
from ..compiler.ops.movement import Concat
from .rewrite import Rewriter, rule

MOST = 32


def limit_operands(graph: Graph) -> Graph:
    if not any(isinstance(node.op, Concat) and len(node.inputs) > MOST for node in graph.nodes):
        return graph
    return Rewriter(graph).run((in_steps,))


@rule("concat(a, …, z) => concat(concat(a, …), …, concat(…, z))", Concat)
def in_steps(r: Rewriter, node: Node) -> str | None:
    parts = node.inputs
    if len(parts) <= MOST:
        return None
    while len(parts) > MOST:
        some = [parts[n : n + MOST] for n in range(0, len(parts), MOST)]
        parts = tuple(r.emit(node.op, *each) if len(each) > 1 else each[0] for each in some)
    return r.emit(node.op, *parts)
