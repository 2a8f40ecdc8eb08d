"""Partitioned Boolean quadratic programming: one alternative per node, at the least cost of nodes and edges.

Sources: Anderson & Gregg, *Optimal DNN Primitive Selection with Partitioned Boolean Quadratic Programming*
(CGO 2018, arXiv 1710.01079), for the use; Scholz & Eckstein, *Register Allocation for Irregular
Architectures* (LCTES 2002), for the reductions and the RN heuristic. `pbqp_reduce.py` holds the reductions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import networkx
import numpy as np

from ..errors import InfeasibleError, InputError
from .pbqp_reduce import Core, DeadEnd, ascend, eliminate, elimination_order, reduce, replay

PRECISION = 1e-10  # a choice is optimal if none is better by more than this part of its summed terms
ENTRIES_PER_NODE = 1 << 16  # table entries of an elimination that count as one search node
BRUTE_FORCE_LIMIT = 1 << 22


@dataclass(frozen=True)
class Problem:
    """`nodes`: cost of each alternative; `edges[u, v]`: cost [len(u), len(v)] of each pair; inf = impossible.

    Costs are in any one unit and may be negative. (u, v) and (v, u) may both be given: they add up.
    """

    nodes: Mapping[str, np.ndarray]
    edges: Mapping[tuple[str, str], np.ndarray]


@dataclass(frozen=True)
class Solution:
    """`choice`: index of the alternative of each node. `optimal`: proven, up to rounding (1e-10).

    `searched`: nodes of the search tree. `reductions`: how many nodes "R0", "RI" and "RII" removed, how many
    edges were "independent", how many "alternatives" impossible or dominated, and how many nodes these left
    to be searched (the "core").
    """

    choice: dict[str, int]
    cost: float
    optimal: bool
    searched: int
    reductions: dict[str, int]


def solve(problem: Problem, *, max_nodes: int = 200_000, max_table: int = 1 << 21) -> Solution:
    """The cheapest choice: reductions to a fixed point, then elimination by tables, or branch and bound.

    The result depends on nothing but the arguments: the search ends after `max_nodes` nodes (a node takes
    roughly 0.1 ms per edge that is left), then with `optimal` False and the best choice seen. `max_table`
    bounds the entries of an elimination's tables. InfeasibleError where every choice costs inf, or where the
    search ended before it found one that does not; InputError for shapes that disagree, NaN and -inf.
    """
    names = list(problem.nodes)
    core = _core(problem)
    search = _Search(max_nodes, max_table)
    try:
        for u, row in list(core.edges.items()):
            for v in [v for v in row if u < v]:
                core.normalise(u, v)
        reduce(core, list(core.costs))
        counts = {key: core.counts[key] for key in ("R0", "RI", "RII", "independent", "alternatives")}
        counts["core"] = len(core.costs)
        labels = search.solve(core)
    except DeadEnd as end:
        if search.complete:
            raise InfeasibleError(_none_possible(names[end.node])) from None
        raise InfeasibleError(f"found no possible choice in {max_nodes} search nodes: allow more") from None
    choice = {name: labels[u] for u, name in enumerate(names)}
    return Solution(choice, evaluate(problem, choice), search.complete, search.searched, counts)


def evaluate(problem: Problem, choice: Mapping[str, int]) -> float:
    """The cost of a choice, inf if it is impossible."""
    costs = [float(costs[choice[name]]) for name, costs in problem.nodes.items()]
    pairs = [float(matrix[choice[u], choice[v]]) for (u, v), matrix in problem.edges.items()]
    return math.fsum(costs + pairs)


def brute_force(problem: Problem) -> Solution:
    """The definition: the cheapest of all choices (the first where several are); at most 2**22 of them."""
    check(problem)
    names = list(problem.nodes)
    sizes = [len(problem.nodes[name]) for name in names]
    if math.prod(sizes) > BRUTE_FORCE_LIMIT or len(names) > 32:
        raise InputError(f"brute force over {math.prod(sizes)} choices of {len(names)} nodes: use solve")
    index = np.indices(sizes, sparse=True)
    total = np.zeros(sizes)
    for name, at in zip(names, index, strict=True):
        total = total + np.asarray(problem.nodes[name])[at]
    for (u, v), matrix in problem.edges.items():
        total = total + np.asarray(matrix)[index[names.index(u)], index[names.index(v)]]
    best = np.unravel_index(int(total.argmin()), sizes) if names else ()
    choice = {name: int(at) for name, at in zip(names, best, strict=True)}
    cost = evaluate(problem, choice)
    if cost == math.inf:
        raise InfeasibleError(_none_possible())
    return Solution(choice, cost, True, total.size, {})


def check(problem: Problem) -> None:
    """InputError for an empty node, an edge to an unknown node, a shape that disagrees, NaN or -inf."""
    for name, costs in problem.nodes.items():
        if np.ndim(costs) != 1 or len(costs) == 0:
            raise InputError(f"costs of {name!r} have shape {np.shape(costs)}; expected one per alternative")
    for (u, v), matrix in problem.edges.items():
        if u not in problem.nodes or v not in problem.nodes:
            raise InputError(f"edge ({u!r}, {v!r}) names an unknown node")
        expected = (len(problem.nodes[u]), len(problem.nodes[v]))
        if np.shape(matrix) != expected:
            raise InputError(
                f"costs of edge ({u!r}, {v!r}) have shape {np.shape(matrix)}; expected {expected}"
            )
    for where, values in (*problem.nodes.items(), *problem.edges.items()):
        if not (np.asarray(values, dtype=np.float64) > -np.inf).all():
            raise InputError(f"a cost of {where!r} is NaN or -inf; expected a number, or inf for impossible")


def _core(problem: Problem) -> Core:
    check(problem)
    core = Core()
    number = {name: u for u, name in enumerate(problem.nodes)}
    for name, costs in problem.nodes.items():
        core.add_node(number[name], np.asarray(costs, dtype=np.float64))
    for (a, b), given in problem.edges.items():
        u, v, matrix = number[a], number[b], np.asarray(given, dtype=np.float64)
        if u == v:
            core.costs[u] = core.costs[u] + matrix.diagonal()
        else:
            core.add_edge(u, v, matrix)
    return core


def _graph(core: Core) -> networkx.Graph:
    return networkx.Graph({u: list(row) for u, row in core.edges.items()})


def _none_possible(name: str | None = None) -> str:
    where = f" (seen at {name!r})" if name else ""
    return f"every choice of alternatives meets an impossible node or conversion{where}: allow more of them"


class _Search:
    """Exact solution of a reduced core within an allowance of search nodes."""

    def __init__(self, max_nodes: int, max_table: int):
        self.max_nodes, self.max_table = max_nodes, max_table
        self.searched = 0
        self.complete = True

    def solve(self, core: Core) -> dict[int, int]:
        """The best labels of all nodes, the reduced ones too, by blocks: biconnected components.

        A block that hangs on the rest by one node is solved for each alternative of that node, and folded
        into its costs. DeadEnd where there is no solution.
        """
        while core.costs:
            blocks = sorted(sorted(block) for block in networkx.biconnected_components(_graph(core)))
            uses = Counter(u for block in blocks for u in block)
            block = min(blocks, key=lambda nodes: sum(uses[u] > 1 for u in nodes))
            hinges = [u for u in block if uses[u] > 1]
            if hinges:
                self._fold(core, block, hinges[0])
                continue
            for u, label in self._exact(core.part(block)).items():
                core.settle(u, (), np.array(label))
        return replay(core.steps, {})

    def _fold(self, core: Core, block: list[int], hinge: int) -> None:
        """Remove the nodes of `block` other than `hinge`, whose costs then hold the block's optimum."""
        whole = core.part(block)
        costs = np.full(len(core.costs[hinge]), np.inf)
        picks = {u: np.zeros(len(costs), dtype=np.intp) for u in block if u != hinge}
        for alternative in range(len(costs)):
            part = whole.copy()
            try:
                reduce(part, part.assign(hinge, alternative))
                choice: dict[int, int] = {}
                for nodes in sorted(sorted(nodes) for nodes in networkx.connected_components(_graph(part))):
                    choice |= self._exact(part.part(nodes))
            except DeadEnd:
                continue
            choice = replay(part.steps, choice)
            costs[alternative] = whole.value(choice)
            for u in picks:
                picks[u][alternative] = choice[u]
        for u, pick in picks.items():
            core.settle(u, (hinge,), pick)
        core.costs[hinge] = costs
        reduce(core, [hinge])

    def _exact(self, core: Core) -> dict[int, int]:
        """The best labels of the nodes of a connected core; DeadEnd where there are none."""
        whole = core.copy()
        if self._eliminate(core):
            return replay(core.steps, {})
        ascend(core, sweeps=30)
        best = _improve(whole, _heuristic(core))
        return self._branch_and_bound(whole, core, best)

    def _branch_and_bound(self, whole: Core, core: Core, best: dict[int, int] | None) -> dict[int, int]:
        """Depth first, the cheapest alternative of the node with most edges first; bounds by `ascend`."""
        limit = _limit(whole, best)
        stack: list[tuple[Core, int | None, int]] = [(core, None, 0)]
        while stack:
            parent, u, alternative = stack.pop()
            if parent.base + (0.0 if u is None else parent.costs[u][alternative]) >= limit:
                continue
            if self.searched >= self.max_nodes:
                self.complete = False
                break
            self.searched += 1
            child = parent.copy()
            try:
                if u is not None:
                    reduce(child, child.assign(u, alternative))
                _tighten(child, limit)
                if child.base >= limit:
                    continue
                solved = not child.costs or self._eliminate(child)
            except DeadEnd:
                continue
            if not solved:
                u = max(child.costs, key=lambda node: (len(child.edges[node]), len(child.costs[node]), -node))
                stack += [(child, u, int(i)) for i in np.argsort(child.costs[u], kind="stable")[::-1]]
            elif child.base < limit:
                best = _improve(whole, replay(child.steps, {}))
                limit = _limit(whole, best)
        if best is None and self.complete:
            raise DeadEnd(min(whole.costs))
        if best is None:
            raise InfeasibleError(
                f"no possible choice among the first {self.max_nodes} search nodes: allow more"
            )
        return best

    def _eliminate(self, core: Core) -> bool:
        """Solve the core by tables where they are small enough; True if so."""
        allowance = (self.max_nodes - self.searched) * ENTRIES_PER_NODE
        order = elimination_order(core, min(self.max_table, allowance))
        if order is None:
            return False
        self.searched += -(-order[1] // ENTRIES_PER_NODE)
        eliminate(core, order[0])
        if core.base == math.inf:
            raise DeadEnd(order[0][-1])
        return True


def _tighten(core: Core, limit: float) -> None:
    """Raise the bound, and drop alternatives that cannot be part of a choice below `limit`."""
    while core.costs and core.base < limit:
        ascend(core, 4, limit)
        changed: list[int] = []
        for u in list(core.costs):
            kept = core.base + core.costs[u] < limit
            if not kept.all():
                changed += [u, *core.keep(u, kept)]
        if not changed:
            return
        reduce(core, changed)


def _limit(whole: Core, best: dict[int, int] | None) -> float:
    """What a better choice must stay below: the cost of the best one, less what rounding may hide."""
    if best is None:
        return math.inf
    at = {u: int(np.searchsorted(whole.labels[u], best[u])) for u in whole.costs}
    size = sum(abs(float(whole.costs[u][at[u]])) for u in at)
    size += sum(float(m[at[u], at[v]]) for u, row in whole.edges.items() for v, m in row.items()) / 2
    return whole.value(best) - PRECISION * size


def _heuristic(core: Core) -> dict[int, int] | None:
    """RN: fix the node of the highest degree to its locally cheapest alternative, reduce, repeat."""
    core = core.copy()
    try:
        while core.costs:
            u = max(core.costs, key=lambda node: (len(core.edges[node]), -node))
            estimate = core.costs[u].copy()
            for v, matrix in core.edges[u].items():
                estimate += (matrix + core.costs[v]).min(axis=1)
            reduce(core, core.assign(u, int(estimate.argmin())))
    except DeadEnd:
        return None
    return replay(core.steps, {})


def _improve(core: Core, choice: dict[int, int] | None) -> dict[int, int] | None:
    """Local search: change one node at a time for the better until none can; None stays None."""
    if choice is None:
        return None
    at = {u: int(np.searchsorted(core.labels[u], choice[u])) for u in core.costs}
    changed = True
    while changed:
        changed = False
        for u, costs in core.costs.items():
            total = costs + sum(m[:, at[v]] for v, m in core.edges[u].items())
            best = int(total.argmin())
            if total[best] < total[at[u]] - 1e-12 * abs(total[at[u]]):
                at[u], changed = best, True
    return {u: int(core.labels[u][i]) for u, i in at.items()}
