"""Algorithms and layouts for the whole network at once, as a partitioned Boolean quadratic problem.

A node is a fused operator, its alternatives are (algorithm, layout that it reads, layout that it writes) with
a cost. A value with readers is a node of its own, whose alternatives are the sets of layouts that it is kept
in, so that one conversion serves all its readers:

    producer ──(conversions into the set)── value ──(0 if the set holds what is wanted, else ∞)── reader

Anderson and Gregg, Optimal DNN primitive selection with partitioned Boolean quadratic programming (2018),
section 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from ..compiler.ir.graph import Graph, Node
from ..compiler.ir.types import F32, Layout
from ..compiler.ops.conv import Conv
from ..compiler.ops.fused import FusedOp, expression
from ..compiler.ops.matmul import MatMul
from ..compiler.ops.movement import Concat, Reshape
from ..compiler.templates import winograd
from ..errors import InputError
from .fuse import kind_of
from .pbqp import Problem, solve

SEARCH_NODES = 2000  # networks reduce without search; this bounds the time of one that does not
MODES = ("global", "local", "fixed")
TILES = (2, 4)
"""Output tiles of Winograd's transform that a plan may choose."""


@dataclass(frozen=True)
class Decision:
    """What one fused operator does. A layout of None is plain."""

    reads: Layout | None = None
    writes: Layout | None = None
    tile: int = 0  # Winograd's output tile; 0 for the direct algorithm

    @property
    def algorithm(self) -> str:
        return f"winograd{self.tile}" if self.tile else "direct"


class Cost(Protocol):
    """Costs in one unit, whichever it is."""

    def node(self, graph: Graph, node: Node, decision: Decision) -> float: ...

    def conversion(self, graph: Graph, value: str, source: Layout | None, target: Layout | None) -> float: ...


@dataclass(frozen=True)
class LayoutPlan:
    """A decision for each node by position; the cost with conversions, and of conversions alone."""

    decisions: Mapping[int, Decision]
    cost: float
    conversions: float
    optimal: bool = False  # proven
    searched: int = 0  # nodes of the search


def plan_layout(graph: Graph, block: int, cost: Cost, mode: str = "global") -> LayoutPlan:
    """The plan of least cost. `local`: each operator's fastest alone; `fixed`: one layout where it fits."""
    if mode not in MODES:
        raise InputError(f"plan {mode!r}: expected one of {', '.join(MODES)}")
    options = {n: alternatives(graph, node, block) for n, node in enumerate(graph.nodes)}
    costs = {n: np.array([cost.node(graph, graph.nodes[n], d) for d in ds]) for n, ds in options.items()}
    alone = {n: ds[int(costs[n].argmin())] for n, ds in options.items()}
    blocked = {n: _most_blocked(ds, costs[n]) for n, ds in options.items()}
    local = _plan(graph, alone, options, costs, cost)
    fixed = _plan(graph, blocked, options, costs, cost)
    if mode != "global":
        return local if mode == "local" else fixed
    solution = solve(_problem(graph, options, costs, cost, block), max_nodes=SEARCH_NODES)
    decisions = {n: ds[solution.choice[f"n{n}"]] for n, ds in options.items()}
    plan = _plan(graph, decisions, options, costs, cost)
    if solution.optimal:
        return replace(plan, optimal=True, searched=solution.searched)
    return replace(min(plan, local, fixed, key=lambda p: p.cost), searched=solution.searched)


def _most_blocked(options: Sequence[Decision], costs: np.ndarray) -> Decision:
    """The cheapest of those that read and write blocks, as far as there are any."""
    order = sorted(
        range(len(options)),
        key=lambda i: (options[i].writes is None, options[i].reads is None, costs[i]),
    )
    return options[order[0]]


def _plan(graph, decisions, options, costs, cost) -> LayoutPlan:
    alone = sum(float(costs[n][options[n].index(d)]) for n, d in decisions.items())
    moved = sum(cost.conversion(graph, *c) for c in conversions(graph, decisions))
    return LayoutPlan(decisions, alone + moved, moved)


def conversions(
    graph: Graph, decisions: Mapping[int, Decision]
) -> list[tuple[str, Layout | None, Layout | None]]:
    """(value, from, to) of every conversion that the decisions need, each once."""
    written: dict[str, Layout | None] = dict.fromkeys(graph.inputs)
    found: dict[tuple[str, Layout | None], Layout | None] = {}
    for n, node in enumerate(graph.nodes):
        for value in dict.fromkeys(node.reads):
            wants = wanted(graph, node, decisions[n], value)
            if value in written and wants is not ANY and wants != written[value]:
                found[value, wants] = written[value]  # type: ignore[index]
        written.update(dict.fromkeys(node.outputs, decisions[n].writes))
    for value in graph.outputs:
        if written.get(value) is not None:
            found[value, None] = written[value]
    return [(value, source, target) for (value, target), source in found.items()]


# --- what an operator can do ------------------------------------------------------------------------------

ANY = "any"
"""A read that takes whatever layout there is."""


def alternatives(graph: Graph, node: Node, block: int) -> list[Decision]:
    """At least one; the first is always right."""
    plain = Decision()
    if flattens_blocks(graph, node, block):
        return [plain, Decision(Layout.channel_blocked(graph.types[node.reads[0]].rank, block), None)]
    if not isinstance(node.op, FusedOp) or len(node.outputs) != 1:
        return [plain]
    result = graph.types[node.outputs[0]]
    rank = next((graph.types[v].rank for v in node.reads if _may_be_blocked(graph, v, block)), result.rank)
    blocked = Layout.channel_blocked(rank, block) if rank >= 3 else None
    reads_blocked = (
        [Decision(blocked, None)] if any(_may_be_blocked(graph, v, block) for v in node.reads) else []
    )
    if result.rank < 3 or result.dtype is not F32 or blocked is None:
        return [plain, *reads_blocked]
    conv = _convolution(node)
    if conv is not None:
        return _convolution_alternatives(graph, node, conv, blocked, block)
    if _keeps_layout(graph, node, block):
        return [plain, Decision(blocked, blocked)]
    return [plain, *reads_blocked]


def _may_be_blocked(graph: Graph, value: str, block: int) -> bool:
    type = graph.types[value]
    if value in graph.constants or type.rank < 3 or type.dtype is not F32:
        return False
    return type.dims[1] * 2 >= block and type.size > 0


def _convolution(node: Node) -> Node | None:
    """The convolution that a fused operator is built on."""
    assert isinstance(node.op, FusedOp)
    return next((n for n in node.op.graph.nodes if isinstance(n.op, Conv)), None)


def _convolution_alternatives(
    graph: Graph, node: Node, inner: Node, blocked: Layout, block: int
) -> list[Decision]:
    data, weights = inner.inputs[0] or "", inner.inputs[1] or ""
    conv = inner.op
    assert isinstance(conv, Conv) and isinstance(node.op, FusedOp)
    known = weights in graph.constants
    out_channels, per_group = node.op.graph.types[weights].dims[:2]
    may_read = data in node.reads and _may_be_blocked(graph, data, block)
    one_group = conv.group == 1
    whole_groups = (per_group == 1 and out_channels == conv.group) or (
        per_group % block == 0 and (out_channels // conv.group) % block == 0
    )
    found = [Decision()]
    if out_channels * 2 < block or not (one_group or whole_groups) or not known:
        return [*found, *([Decision(blocked, None)] if may_read and one_group else [])]
    if one_group:
        found.append(Decision(None, blocked))
    if may_read:
        found.append(Decision(blocked, blocked))
        if winograd.fits(node.op, block) and data == node.op.graph.nodes[0].inputs[0]:
            found += [Decision(blocked, blocked, tile) for tile in TILES]
    return found


def _keeps_layout(graph: Graph, node: Node, block: int) -> bool:
    """Elementwise operators, pooling, and channel concatenation in whole blocks."""
    assert isinstance(node.op, FusedOp)
    inside = node.op.graph.nodes
    if _concatenates(node):
        whole = all(
            _may_be_blocked(graph, v, block) and graph.types[v].dims[1] % block == 0 for v in node.reads
        )
        return whole and inside[0].op.axis == 1  # type: ignore[attr-defined]
    if any(isinstance(n.op, MatMul) for n in inside):
        return False
    result = graph.types[node.outputs[0]]
    same = [v for v in node.reads if _moves_along(graph, v, result.dims) and _may_be_blocked(graph, v, block)]
    kind = kind_of(expression(node.op, graph.input_types(node)))
    return bool(same) and kind in ("elementwise", "anchor")


def _concatenates(node: Node) -> bool:
    assert isinstance(node.op, FusedOp)
    return len(node.op.graph.nodes) == 1 and isinstance(node.op.graph.nodes[0].op, Concat)


def flattens_blocks(graph: Graph, node: Node, block: int) -> bool:
    """Whether the node flattens whole blocks of channels for constant weights, which can take any order."""
    value = node.outputs[0]
    if not isinstance(node.op, Reshape) or value in graph.outputs:
        return False
    source, result = graph.types[node.reads[0]], graph.types[value]
    if not _may_be_blocked(graph, node.reads[0], block) or source.dims[1] % block:
        return False
    readers = graph.consumers().get(value, [])
    if result.rank != 2 or result.dims[0] != source.dims[0] or len(readers) != 1:
        return False
    if not isinstance(readers[0].op, FusedOp):
        return False
    uses = [n for n in readers[0].op.graph.nodes if value in n.reads]
    product = uses[0] if len(uses) == 1 else None
    if (
        product is None
        or not isinstance(product.op, MatMul)
        or product.inputs[0] != value
        or product.op.trans_a
    ):
        return False
    weights = product.inputs[1] or ""
    return weights in graph.constants and graph.types[weights].rank == 2 and graph.types[weights].dtype is F32


def _moves_along(graph: Graph, value: str, shape: tuple[int, ...]) -> bool:
    type = graph.types[value]
    return type.rank == len(shape) and type.dims[1] == shape[1]


def wanted(graph: Graph, node: Node, decision: Decision, value: str) -> Layout | str | None:
    """The layout that the node reads a value in under a decision; ANY where it does not matter."""
    type = graph.types[value]
    if value in graph.constants or type.rank < 3 or type.dtype is not F32:
        return ANY
    if not isinstance(node.op, FusedOp):
        return decision.reads
    conv = _convolution(node)
    if conv is not None and value == conv.inputs[0]:
        return decision.reads
    if all(d == 1 for d in type.dims[2:]):  # either way the same few numbers
        return ANY
    if decision.writes is not None:  # an operand of the epilogue, or a part of a concatenation
        along = _concatenates(node) or _moves_along(graph, value, graph.types[node.outputs[0]].dims)
        return decision.writes if along else None
    return decision.reads if decision.reads is not None and decision.reads.rank == type.rank else None


# --- the problem ------------------------------------------------------------------------------------------


def _problem(graph: Graph, options, costs, cost: Cost, block: int) -> Problem:
    nodes: dict[str, np.ndarray] = {f"n{n}": vector for n, vector in costs.items()}
    edges: dict[tuple[str, str], np.ndarray] = {}
    producer = {o: n for n, node in enumerate(graph.nodes) for o in node.outputs}
    readers: dict[str, list[int]] = {}
    for n, node in enumerate(graph.nodes):
        for value in dict.fromkeys(node.reads):
            readers.setdefault(value, []).append(n)
    for value in (*graph.inputs, *producer):
        if not _may_be_blocked(graph, value, block):
            continue
        blocked = Layout.channel_blocked(graph.types[value].rank, block)
        kept: list[tuple[Layout | None, ...]] = [(None,), (blocked,), (None, blocked)]
        needs_plain = value in graph.outputs
        written = [d.writes for d in options[producer[value]]] if value in producer else [None]
        into = np.array(
            [
                [sum(cost.conversion(graph, value, w, k) for k in keep if k != w) for keep in kept]
                for w in written
            ]
        )
        nodes[f"v{value}"] = np.array([np.inf if needs_plain and None not in keep else 0.0 for keep in kept])
        if value in producer:
            edges[f"n{producer[value]}", f"v{value}"] = into
        else:
            nodes[f"v{value}"] = nodes[f"v{value}"] + into[0]
        for n in readers.get(value, ()):
            wants = [wanted(graph, graph.nodes[n], d, value) for d in options[n]]
            edges[f"v{value}", f"n{n}"] = np.array(
                [[0.0 if w == ANY or w in keep else np.inf for w in wants] for keep in kept]
            )
    return Problem(nodes, edges)
