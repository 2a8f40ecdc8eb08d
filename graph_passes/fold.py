"""Constant folding: operators whose inputs are all constants are replaced by their results."""

from __future__ import annotations

from collections.abc import Mapping

from ..compiler.ir.graph import Graph, Node
from ..compiler.ir.types import TensorType
from ..compiler.ops.evaluate import evaluate
from ..compiler.ops.movement import Identity

MAX_BYTES = 256 << 20
"""A node whose outputs are larger together is left to the run: weights should not grow in the file."""


def fold(graph: Graph, max_bytes: int = MAX_BYTES) -> Graph:
    """f(constants) → a constant. A graph output that becomes constant is copied from one by an Identity.

    A node stays where its outputs exceed `max_bytes`, or its reference reports an error: then the run does.
    """
    constants = {n: a for n, a in graph.constants.items() if _plain(graph, n)}
    types = dict(graph.types)
    kept: list[Node] = []
    for node in graph.nodes:
        foldable = all(i in constants for i in node.reads) and not _copies_to_output(graph, node)
        results = None
        if foldable and sum(types[o].nbytes for o in node.outputs) <= max_bytes:
            results = evaluate(node, [None if i is None else constants[i] for i in node.inputs], types)
        if results is None:
            kept.append(node)
            continue
        for name, array in zip(node.outputs, results):
            held = name
            if name in graph.outputs:
                held = _fresh(f"{name}.value", types)
                types[held] = types[name]
                kept.append(Node(Identity(), (held,), (name,), node.name))
            constants[held] = array
    return graph.with_nodes(kept, types, constants)


def _plain(graph: Graph, name: str) -> bool:
    layout = graph.types[name].layout
    return layout is None or layout.is_plain


def _copies_to_output(graph: Graph, node: Node) -> bool:
    return isinstance(node.op, Identity) and node.outputs[0] in graph.outputs


def _fresh(name: str, taken: Mapping[str, TensorType]) -> str:
    n = 1
    candidate = name
    while candidate in taken:
        candidate, n = f"{name}{n}", n + 1
    return candidate
