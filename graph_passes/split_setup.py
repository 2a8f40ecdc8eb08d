"""Which packed weights a module makes of the originals when it is opened, and which it stores as they are."""

from __future__ import annotations

from dataclasses import replace

from ..compiler.ir.graph import Graph, prune
from ..errors import InputError

WEIGHT_FORMS = ("packed", "compact")
SAVING = 1.125
"""Weights are made at opening where storing them would take more than this times the originals' bytes."""


def split_setup(graph: Graph, weights: str = "packed") -> tuple[Graph, Graph]:
    """(the graph on constants, the graph that makes some of them: no inputs, those constants as outputs).

    Nothing is made with packed weights. With compact ones a layout without padding, which takes no more room
    than the original, is stored as it is; transformed weights are made, and so is all else that comes of the
    same original.
    """
    if weights not in WEIGHT_FORMS:
        raise InputError(f"weights {weights!r}: expected one of {', '.join(WEIGHT_FORMS)}")
    made = _larger(graph) if weights == "compact" else ()
    defined = {o for node in graph.setup for o in node.outputs}
    originals = {v: array for v, array in graph.constants.items() if v not in defined}
    setup = Graph(f"{graph.name} setup", (), made, graph.setup, graph.types, originals)
    return prune(replace(graph, setup=())), prune(setup)


def _larger(graph: Graph) -> tuple[str, ...]:
    used = {value for node in graph.nodes for value in node.reads} | set(graph.outputs)
    by_source: dict[str, list[str]] = {}
    for node in graph.setup:
        by_source.setdefault(node.reads[0], []).extend(o for o in node.outputs if o in used)
    made: list[str] = []
    for source, values in by_source.items():
        stored = 0 if source in used else graph.types[source].nbytes
        if sum(graph.types[v].nbytes for v in values) > SAVING * stored:
            made += values
    return tuple(made)
