"""How much other memory a network's run passes through between two runs of one kernel."""

from __future__ import annotations

from collections.abc import Iterable

from ..compiler.ir.graph import Graph
from ..compiler.target import Target

MOST = 256 << 20
"""Bytes: where the last cache is larger, reading more would take most of a measurement's time."""


def evicting_bytes(graph: Graph, target: Target) -> int:
    """What a measurement must read before every run of a kernel, so that caches hold what they do in the
    network of a fused graph: a power of two, at most twice the last cache or MOST.

    It is what other kernels read and write: all weights and the largest activations, but for what the largest
    kernel has itself. A network of one kernel finds what it left.
    """
    operands = [{*node.reads, *node.outputs} for node in graph.nodes]
    live = max((_nbytes(graph, values - graph.constants.keys()) for values in operands), default=0)
    own = max((_nbytes(graph, values) for values in operands), default=0)
    others = graph.constant_bytes + live - own
    if others <= 0:
        return 0
    return min(1 << (others - 1).bit_length(), 2 * max(target.l1, target.l2, target.l3), MOST)


def _nbytes(graph: Graph, values: Iterable[str]) -> int:
    return sum(graph.types[v].nbytes for v in values)
