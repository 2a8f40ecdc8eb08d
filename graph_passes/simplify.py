"""Algebraic simplification: local rules, common subexpressions, copies of outputs, until nothing changes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ..compiler.ir.graph import Graph, Node, prune
from ..compiler.ops.movement import Identity
from .rewrite import Rewriter, Rule, renamed
from .simplify_arithmetic import ARITHMETIC
from .simplify_linear import LINEAR
from .simplify_movement import MOVEMENT
from .simplify_quantised import QUANTISED

RULES: tuple[Rule, ...] = (*QUANTISED, *MOVEMENT, *ARITHMETIC, *LINEAR)
MAX_ROUNDS = 100
"""Every rule shrinks or canonicalises, so that a network settles within a few."""
_SHARED_BYTES = 4096
"""Constants up to this size are compared with each other; of larger ones, whether they are one array."""


def simplify(graph: Graph, fired: Counter[str] | None = None) -> Graph:
    """An equal graph, with the same inputs and outputs by name. `fired` counts the rules that applied."""
    for _ in range(MAX_ROUNDS):
        rewriter = Rewriter(graph)
        shared = share(rename_outputs(rewriter.run(RULES)))
        if fired is not None:
            fired.update(rewriter.fired)
        changed = rewriter.fired or len(shared.nodes) != len(graph.nodes)
        graph = shared
        if not changed:
            break
    return graph


def rename_outputs(graph: Graph) -> Graph:
    """y = f(x); z = identity(y), z an output => z = f(x), unless y is an output itself."""
    names: dict[str, str] = {}
    producers = graph.producers()
    for node in graph.nodes:
        if isinstance(node.op, Identity):
            (source,), (output,) = node.inputs, node.outputs
            if output in graph.outputs and source in producers and source not in (*graph.outputs, *names):
                names[str(source)] = output
    if not names:
        return graph
    nodes = []
    for node in graph.nodes:
        if not (isinstance(node.op, Identity) and names.get(str(node.inputs[0])) == node.outputs[0]):
            nodes.append(renamed(node, names))
    types = {names.get(v, v): t for v, t in graph.types.items()}
    return prune(replace(graph, nodes=tuple(nodes), types=types))


def share(graph: Graph) -> Graph:
    """Equal operators on equal inputs are computed once; small constants of equal bits become one, and large
    ones that are the same array."""
    first: dict[tuple, tuple[str, ...]] = {}
    names: dict[str, str] = {}
    for name, array in graph.constants.items():
        bits = array.tobytes() if array.nbytes <= _SHARED_BYTES else id(array)
        key = ("constant", array.dtype.str, array.shape, str(graph.types[name]), bits)
        names[name] = first.setdefault(key, (name,))[0]
    nodes: list[Node] = []
    for node in graph.nodes:
        node = renamed(node, names)
        computed = (repr(node.op), node.inputs, tuple(str(graph.types[o]) for o in node.outputs))
        known = first.get(computed)
        if known is None or any(o in graph.outputs for o in node.outputs):
            first.setdefault(computed, node.outputs)
            nodes.append(node)
        else:
            names.update(zip(node.outputs, known))
    return graph.with_nodes(nodes)
