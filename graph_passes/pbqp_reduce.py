"""Reductions of a PBQP that keep its optimum, on one shrinking equivalent problem (`Core`).

Sources: Scholz & Eckstein, *Register Allocation for Irregular Architectures* (LCTES 2002): normalised edges,
R0, RI, RII; Goldstein, *Biophysical Journal* 66 (1994): dominated alternatives; Dechter, *Bucket Elimination*
(1999): the same step as RI and RII for any degree; Kolmogorov, *TRW-S* (PAMI 2006): the order of `ascend`.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

Factor = tuple[tuple[int, ...], np.ndarray]  # (nodes, costs of their choices); in `remove`, axis 0 is u's
ROUNDING = 1e-13  # what is left of an edge's entry is rounding, below this part of it and what was subtracted


class DeadEnd(Exception):
    """`node` has no possible alternative left: this (part of the) problem has no solution."""

    def __init__(self, node: int):
        super().__init__(node)
        self.node = node


@dataclass(frozen=True)
class Step:
    """A removed node: `pick[positions of the neighbours' choices]` is its best alternative (a label)."""

    node: int
    neighbours: tuple[tuple[int, np.ndarray], ...]  # (neighbour, its labels when the node was removed)
    pick: np.ndarray
    earlier: Step | None


@dataclass
class Core:
    """The problem that is left: `base` + the cost of the remaining nodes; all matrices are nonnegative.

    `edges[u][v]` has shape (len(costs[u]), len(costs[v])) and `edges[v][u]` is its transpose; `labels[u]` are
    the original indices of u's remaining alternatives, ascending. Arrays are replaced, never written, so that
    `copy` is shallow. As every cost but `base` is at least 0 after `ascend`, `base` is then a lower bound.
    """

    costs: dict[int, np.ndarray] = field(default_factory=dict)
    labels: dict[int, np.ndarray] = field(default_factory=dict)
    edges: dict[int, dict[int, np.ndarray]] = field(default_factory=dict)
    base: float = 0.0
    steps: Step | None = None
    counts: Counter[str] = field(default_factory=Counter)

    def copy(self) -> Core:
        edges = {u: dict(row) for u, row in self.edges.items()}
        return Core(dict(self.costs), dict(self.labels), edges, self.base, self.steps, Counter())

    def part(self, nodes: Iterable[int]) -> Core:
        """These nodes and the edges between them, as a problem of its own with base 0."""
        kept = sorted(nodes)
        return Core(
            {u: self.costs[u] for u in kept},
            {u: self.labels[u] for u in kept},
            {u: {v: self.edges[u][v] for v in kept if v in self.edges[u]} for u in kept},
        )

    def add_node(self, u: int, costs: np.ndarray) -> None:
        self.costs[u], self.labels[u], self.edges[u] = costs, np.arange(len(costs)), {}

    def add_edge(self, u: int, v: int, matrix: np.ndarray) -> None:
        """Adds to a parallel edge, if there is one."""
        self._set_edge(u, v, self.edges[u][v] + matrix if v in self.edges[u] else matrix)

    def normalise(self, u: int, v: int) -> None:
        """matrix => matrix - row minima - column minima, moved to u and v; an edge of zeros is dropped."""
        matrix = self.edges[u][v]
        size = np.abs(_finite(matrix))
        rows = matrix.min(axis=1)
        matrix = matrix - _finite(rows)[:, None]
        columns = matrix.min(axis=0)
        matrix = matrix - _finite(columns)
        size += np.abs(_finite(rows))[:, None] + np.abs(_finite(columns))
        self.costs[u] = self.costs[u] + rows
        self.costs[v] = self.costs[v] + columns
        if (matrix <= ROUNDING * size).all():
            del self.edges[u][v], self.edges[v][u]
            self.counts["independent"] += 1
        else:
            self._set_edge(u, v, matrix)

    def remove(self, u: int, factors: Sequence[Factor]) -> Factor:
        """Remove u, whose costs are the sum of `factors`, each (other nodes, array over u and them).

        Returns the (nodes, array) factor that takes its place: its minimum for each choice of the nodes.
        """
        scope = tuple(sorted({v for nodes, _ in factors for v in nodes}))
        total: np.ndarray = self.costs[u].reshape((-1,) + (1,) * len(scope))
        for nodes, array in factors:
            order = sorted(range(len(nodes)), key=lambda axis: nodes[axis])
            array = array.transpose(0, *(axis + 1 for axis in order))
            present = iter(array.shape[1:])
            total = total + array.reshape(len(array), *(next(present) if v in nodes else 1 for v in scope))
        best = total.argmin(axis=0)
        self.settle(u, scope, self.labels[u][best])
        return scope, total.min(axis=0)

    def settle(self, u: int, scope: Iterable[int], pick: np.ndarray) -> None:
        """Remove u, whose label is `pick[alternatives of the nodes of scope]`."""
        self.steps = Step(u, tuple((v, self.labels[v]) for v in scope), pick, self.steps)
        for v in self.edges.pop(u):
            del self.edges[v][u]
        del self.costs[u], self.labels[u]

    def assign(self, u: int, alternative: int) -> list[int]:
        """Fix u to the alternative at this position; returns its neighbours, whose costs have grown."""
        self.base += float(self.costs[u][alternative])
        neighbours = list(self.edges[u])
        for v in neighbours:
            self.costs[v] = self.costs[v] + self.edges[u][v][alternative]
        self.settle(u, (), self.labels[u][alternative])
        return neighbours

    def keep(self, u: int, alternatives: np.ndarray) -> list[int]:
        """Keep those alternatives of u where the mask is true; returns its neighbours until now."""
        if not alternatives.any():
            raise DeadEnd(u)
        self.counts["alternatives"] += int(np.sum(~alternatives))
        self.costs[u], self.labels[u] = self.costs[u][alternatives], self.labels[u][alternatives]
        neighbours = list(self.edges[u])
        for v in neighbours:
            self._set_edge(u, v, self.edges[u][v][alternatives])
            self.normalise(u, v)
        return neighbours

    def value(self, choice: Mapping[int, int]) -> float:
        """The cost of these labels for the remaining nodes."""
        at = {u: int(np.searchsorted(self.labels[u], choice[u])) for u in self.costs}
        terms = [float(self.costs[u][at[u]]) for u in self.costs]
        pairs = [float(m[at[u], at[v]]) for u, row in self.edges.items() for v, m in row.items() if u < v]
        return math.fsum((self.base, *terms, *pairs))

    def _set_edge(self, u: int, v: int, matrix: np.ndarray) -> None:
        self.edges[u][v], self.edges[v][u] = matrix, matrix.T


def replay(steps: Step | None, choice: dict[int, int]) -> dict[int, int]:
    """Back-propagation: `choice` (labels of the nodes that were left) with the removed nodes' best added."""
    while steps is not None:
        at = tuple(int(np.searchsorted(labels, choice[v])) for v, labels in steps.neighbours)
        choice[steps.node] = int(steps.pick[at])
        steps = steps.earlier
    return choice


def reduce(core: Core, touched: Iterable[int]) -> None:
    """R0, RI, RII, impossible and dominated alternatives until none applies; `touched` have changed."""
    pending = list(touched)
    while pending:
        _reduce_small_degrees(core, pending)
        pending = _drop_dominated(core)


def _reduce_small_degrees(core: Core, touched: Iterable[int]) -> None:
    queue = deque(touched)
    while queue:
        u = queue.popleft()
        if u not in core.costs:
            continue
        possible = np.isfinite(core.costs[u])
        if not possible.all():
            queue.extend(core.keep(u, possible))
        neighbours = sorted(core.edges[u])
        if len(neighbours) > 2:
            continue
        core.counts[("R0", "RI", "RII")[len(neighbours)]] += 1
        factors: list[Factor] = [((v,), core.edges[u][v]) for v in neighbours]
        scope, smallest = core.remove(u, factors)
        if not scope:
            core.base += float(smallest)
        elif len(scope) == 1:
            core.costs[scope[0]] = core.costs[scope[0]] + smallest
        else:
            core.add_edge(scope[0], scope[1], smallest)
            core.normalise(scope[0], scope[1])
        queue.extend(scope)


def _drop_dominated(core: Core) -> list[int]:
    """Drop a where b is at most as expensive whatever the neighbours choose (Goldstein 1994)."""
    touched: list[int] = []
    for u in list(core.costs):
        costs = core.costs[u]
        if len(costs) == 1 or not np.isfinite(costs).all():
            continue
        excess = costs[None, :] - costs[:, None]  # [a, b]: how much dearer b is than a, at most
        with np.errstate(invalid="ignore"):
            for matrix in core.edges[u].values():
                difference = matrix[None, :, :] - matrix[:, None, :]
                # inf - inf: the neighbour's alternative is impossible with either, so it does not count
                excess = excess + np.where(np.isnan(difference), -np.inf, difference).max(axis=2)
        kept = np.ones(len(costs), dtype=bool)
        np.fill_diagonal(excess, np.inf)
        for a in reversed(range(len(costs))):
            kept[a] = not (kept & (excess[a] <= 0)).any()
        if not kept.all():
            touched += [u, *core.keep(u, kept)]
    return touched


def ascend(core: Core, sweeps: int, until: float = math.inf) -> None:
    """Dual ascent: move costs between nodes and edges so that `base` grows; stop where it reaches `until`.

    Each sweep visits the nodes forwards or backwards, gathers the edges' minima, moves the node's own
    minimum to `base` and spreads the rest evenly over the edges ahead (as TRW-S does).
    """
    rank = {u: i for i, u in enumerate(core.costs)}
    for sweep in range(sweeps):
        before = core.base
        forwards = sweep % 2 == 0
        for u in list(core.costs) if forwards else list(reversed(core.costs)):
            _gather(core, u)
            row = core.edges[u]
            ahead = [v for v in row if (rank[v] > rank[u]) == forwards]
            if ahead:
                share = _finite(core.costs[u]) / max(len(ahead), len(row) - len(ahead))
                core.costs[u] = np.maximum(core.costs[u] - len(ahead) * share, 0.0)
                for v in ahead:
                    core._set_edge(u, v, row[v] + share[:, None])
        if core.base >= until or core.base - before <= 1e-3 * min(until - before, abs(core.base)):
            break
    for u in list(core.costs):
        _gather(core, u)


def _gather(core: Core, u: int) -> None:
    costs = core.costs[u]
    for v, matrix in list(core.edges[u].items()):
        rows = matrix.min(axis=1)
        costs = costs + rows
        core._set_edge(u, v, matrix - _finite(rows)[:, None])
    least = float(costs.min())
    if least == math.inf:
        raise DeadEnd(u)
    core.base += least
    core.costs[u] = costs - least


def elimination_order(core: Core, limit: int) -> tuple[list[int], int] | None:
    """(order that removes all nodes, entries of its tables together), the smallest table first each time.

    None where the tables would have more than `limit` entries.
    """
    near = {u: set(row) for u, row in core.edges.items()}
    size = {u: len(core.costs[u]) for u in core.costs}
    table = {u: size[u] * math.prod(size[v] for v in near[u]) for u in near}
    order, total = [], 0
    while table:
        u = min(table, key=lambda node: (table[node], node))
        total += table.pop(u)
        if total > limit:
            return None
        order.append(u)
        around = near.pop(u)
        for v in around:
            near[v] |= around
            near[v] -= {u, v}
        for v in around:
            table[v] = size[v] * math.prod(size[w] for w in near[v])
    return order, total


def eliminate(core: Core, order: Sequence[int]) -> None:
    """Remove all nodes exactly in this order; `base` is then the optimum (bucket elimination)."""
    factors: list[Factor] = []
    for u in order:
        mine: list[Factor] = [((v,), matrix) for v, matrix in core.edges[u].items()]  # v is removed later
        for nodes, array in [f for f in factors if u in f[0]]:
            axis = nodes.index(u)
            mine.append((nodes[:axis] + nodes[axis + 1 :], np.moveaxis(array, axis, 0)))
        factors = [f for f in factors if u not in f[0]]
        scope, smallest = core.remove(u, mine)
        if scope:
            factors.append((scope, smallest))
        else:
            core.base += float(smallest)


def _finite(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, 0.0)
