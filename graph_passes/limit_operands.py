"""Concatenations of many parts in several steps, for GPUs, whose kernels take so many operands.

OpenCL guarantees 1,024 bytes of them, of which each takes 16; CUDA 4,096, 8 each.
"""

from __future__ import annotations

from functools import partial

from ..compiler.ir.graph import Graph, Node
from ..compiler.ops.movement import Concat
from ..compiler.target import Target
from .rewrite import Rewriter, rule

MOST = {"opencl": 60, "cuda": 500}


def limit_operands(graph: Graph, target: Target) -> Graph:
    if target.gpu is None:
        return graph
    most = MOST[target.gpu.language]
    if not any(isinstance(node.op, Concat) and len(node.inputs) > most for node in graph.nodes):
        return graph
    in_steps = rule("concat(a, …, y, z) => concat(concat(a, …), …, y, z)", Concat)(partial(_in_steps, most))
    return Rewriter(graph).run((in_steps,))


def _in_steps(most: int, r: Rewriter, node: Node) -> str | None:
    """Only what is too much becomes one part with others, since it is copied twice."""
    parts = list(node.inputs)
    if len(parts) <= most:
        return None
    while len(parts) > most:
        made: list[str | None] = []
        while parts and len(made) + len(parts) > most:
            size = min(most, len(made) + len(parts) - most + 1)
            made.append(r.emit(node.op, *parts[:size]))
            parts = parts[size:]
        parts = made + parts
    return r.emit(node.op, *parts)
