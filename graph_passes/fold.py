"""Constant folding: operators whose inputs are all constants are replaced by their results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from ..compiler.ir.graph import Graph, Node, fresh_name
from ..compiler.ir.types import TensorType
from ..compiler.ops.base import Op
from ..compiler.ops.evaluate import MAX_WORK, evaluate, work
from ..compiler.ops.movement import Identity

MAX_BYTES = 512 << 20
"""Results that exceed this, and what they are made from, stay computed: files should not grow."""
MAX_TOTAL_BYTES = 1 << 30
"""What results held at one time may exceed the graph's own constants by."""


def _none(op: Op, result: TensorType) -> bool:
    return False


def fold(graph: Graph, max_bytes: int = MAX_BYTES, keep: Callable[[Op, TensorType], bool] = _none) -> Graph:
    """f(constants) → a constant. A graph output that becomes constant is copied from one by an Identity.

    A node stays where `keep` says so of its operator and result, where its results take more than
    `max_bytes` and more than its inputs, where that is too much work, or where its reference reports an
    error: then the run does.
    """
    constants = {n: a for n, a in graph.constants.items() if _plain(graph, n)}
    made = _Made(graph)
    types = dict(graph.types)
    kept: list[Node] = []
    for node in graph.nodes:
        foldable = all(i in constants for i in node.reads) and not _copies_to_output(graph, node)
        foldable = foldable and not keep(node.op, types[node.outputs[0]])
        results = None
        if foldable and made.affords(node, max_bytes):
            results = evaluate(node, [None if i is None else constants[i] for i in node.inputs], types)
        if results is None:
            kept.append(node)
            continue
        for name, array in zip(node.outputs, results):
            held = name
            if name in graph.outputs:
                held = fresh_name(name, types)
                types[held] = types[name]
                kept.append(Node(Identity(), (held,), (name,), node.name))
            constants[held] = array
        made.update(node, constants)
    return graph.with_nodes(kept, types, constants)


class _Made:
    """The results that are held, freed when nothing reads them any more, and the work that was spent."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.readers = Counter(i for node in graph.nodes for i in node.reads)
        self.limit = MAX_TOTAL_BYTES + sum(a.nbytes for a in graph.constants.values())
        self.total = 0
        self.work = 0
        self.sizes: dict[str, int] = {}

    def affords(self, node: Node, max_bytes: int) -> bool:
        size = self._bytes(node.outputs)
        if size > max(max_bytes, self._bytes(node.reads)) or self.total + size > self.limit:
            return False
        needed = work(node, self.graph.types)
        if self.work + needed > MAX_WORK:
            return False
        self.work += needed
        return True

    def _bytes(self, values: tuple[str, ...]) -> int:
        return sum(self.graph.types[v].nbytes for v in values)

    def update(self, node: Node, constants: dict[str, np.ndarray]) -> None:
        for name in node.outputs:
            self.sizes[name] = self.graph.types[name].nbytes
            self.total += self.sizes[name]
        for name in node.reads:
            self.readers[name] -= 1
            if not self.readers[name] and name in self.sizes:
                self.total -= self.sizes.pop(name)
                del constants[name]


def _plain(graph: Graph, name: str) -> bool:
    layout = graph.types[name].layout
    return layout is None or layout.is_plain


def _copies_to_output(graph: Graph, node: Node) -> bool:
    return isinstance(node.op, Identity) and node.outputs[0] in graph.outputs
