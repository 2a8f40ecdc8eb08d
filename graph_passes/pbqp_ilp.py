"""PBQP with a bound on a resource, such as the bytes of transformed weights, as an integer linear program.

The reductions of `pbqp.py` do not hold under such a bound. The linear form is that of the local polytope: x
is 1 for the chosen alternative of a node, y for the chosen pair of an edge, and y's sums are x. Solved by
HiGHS (Huangfu & Hall, *Parallelizing the dual revised simplex method*, 2018) through scipy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..errors import InfeasibleError, InputError, ToolError
from .pbqp import Problem, Solution, evaluate, solve

COST_RANGE = 1e4  # HiGHS's tolerances are absolute: costs are scaled so that the unbounded optimum is this
INFEASIBLE, STOPPED = 2, 1  # scipy's status


def solve_ilp(
    problem: Problem, weights: Mapping[str, np.ndarray], limit: float, *, max_nodes: int = 200_000
) -> Solution:
    """The cheapest choice whose weights sum to at most `limit`.

    `weights[node]` is one number >= 0 per alternative; nodes without weights use none. `reductions` is empty,
    unless the choice of `solve` stays within the limit and is returned. HiGHS stops after `max_nodes` nodes
    of its search, then `optimal` is False. InfeasibleError where no possible choice stays within the limit
    (or none was found), ToolError where scipy is missing, InputError for weights that do not fit the problem.
    """
    _check(problem, weights, limit)
    free = solve(problem, max_nodes=max_nodes)
    if free.optimal and _use(weights, free.choice) <= limit:
        return free
    least = math.fsum(float(np.min(_possible(problem, name, weights))) for name in weights)
    if least > limit:
        raise InfeasibleError(f"the limit is {limit:g}; every choice of alternatives needs {least:g} or more")
    program = _program(problem, weights, limit, _scale(problem, free))
    searched = 0
    while True:
        result = _milp(program, max_nodes - searched)
        searched += int(result.mip_node_count or 0)
        if result.x is None:
            if result.status == INFEASIBLE:
                raise InfeasibleError(
                    f"no possible choice of alternatives stays within the limit of {limit:g}"
                )
            raise InfeasibleError(f"HiGHS found no choice in {max_nodes} search nodes: {result.message}")
        choice = program.choice(result.x)
        cost = evaluate(problem, choice)
        if _use(weights, choice) <= limit and cost < math.inf:
            return Solution(choice, cost, result.status == 0, searched, {})
        program = program.without(choice)  # within the limit only by HiGHS's tolerance


@dataclass
class _Rows:
    """A sparse matrix under construction with bounds per row."""

    coefficients: list[tuple[np.ndarray, np.ndarray]] = field(
        default_factory=list
    )  # (columns, values) per row
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)

    def add(self, columns: np.ndarray, values: np.ndarray, lower: float, upper: float) -> None:
        self.coefficients.append((columns, values))
        self.lower.append(lower)
        self.upper.append(upper)


@dataclass(frozen=True)
class _Program:
    costs: np.ndarray
    upper: np.ndarray  # 0 for impossible alternatives and pairs, else 1
    integral: np.ndarray
    rows: _Rows
    first: Mapping[str, int]  # of each node: the column of its first alternative
    sizes: Mapping[str, int]

    def choice(self, x: np.ndarray) -> dict[str, int]:
        return {name: int(x[at : at + self.sizes[name]].argmax()) for name, at in self.first.items()}

    def without(self, choice: Mapping[str, int]) -> _Program:
        columns = np.array([at + choice[name] for name, at in self.first.items()])
        rows = _Rows(list(self.rows.coefficients), list(self.rows.lower), list(self.rows.upper))
        rows.add(columns, np.ones(len(columns)), -np.inf, len(columns) - 1)
        return replace(self, rows=rows)


def _program(problem: Problem, weights: Mapping[str, np.ndarray], limit: float, scale: float) -> _Program:
    rows = _Rows()
    sizes = {name: len(costs) for name, costs in problem.nodes.items()}
    first = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
    node_costs = [np.asarray(costs, dtype=np.float64) for costs in problem.nodes.values()]
    for name, at in first.items():
        rows.add(at + np.arange(sizes[name]), np.ones(sizes[name]), 1, 1)
    use = np.concatenate([np.asarray(weights.get(name, np.zeros(size))) for name, size in sizes.items()])
    if limit < math.inf:
        unit = 1e3 / max(limit, float(use.max()), 1e-300)
        rows.add(np.arange(len(use)), use * unit, -np.inf, limit * unit)
    pair_costs: list[np.ndarray] = []
    column = len(use)
    for (u, v), given in problem.edges.items():
        if u == v:
            node_costs[list(sizes).index(u)] = node_costs[list(sizes).index(u)] + np.diagonal(given)
            continue
        matrix, groups = _merge_equal(np.asarray(given, dtype=np.float64))
        pairs = column + np.arange(matrix.size).reshape(matrix.shape)
        for name, group, table in ((u, groups[0], pairs), (v, groups[1], pairs.T)):
            for g, ys in enumerate(table):
                xs = first[name] + np.flatnonzero(group == g)
                values = np.concatenate([np.ones(len(ys)), -np.ones(len(xs))])
                rows.add(np.concatenate([ys, xs]), values, 0, 0)
        pair_costs.append(matrix.ravel())
        column += matrix.size
    costs = np.concatenate([*node_costs, *pair_costs])
    integral = (np.arange(len(costs)) < len(use)).astype(np.int8)
    possible = np.isfinite(costs)
    return _Program(np.where(possible, costs * scale, 0), possible * 1.0, integral, rows, first, sizes)


def _merge_equal(matrix: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """(matrix without equal rows and columns, (group of each row, group of each column)).

    Alternatives with the same layout convert alike, so that few pairs are left.
    """
    matrix, rows = np.unique(matrix, axis=0, return_inverse=True)
    matrix, columns = np.unique(matrix, axis=1, return_inverse=True)
    return matrix, (rows.reshape(-1), columns.reshape(-1))


def _milp(program: _Program, max_nodes: int) -> Any:
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp  # an extra, slow to import
        from scipy.sparse import csr_array
    except ImportError:
        raise ToolError("a memory limit is honoured through scipy; run: pip install burnish[tune]") from None
    rows = program.rows
    columns = np.concatenate([columns for columns, _ in rows.coefficients])
    values = np.concatenate([values for _, values in rows.coefficients])
    starts = np.cumsum([0, *(len(columns) for columns, _ in rows.coefficients)])
    matrix = csr_array((values, columns, starts), shape=(len(rows.lower), len(program.costs)))
    return milp(
        program.costs,
        integrality=program.integral,
        bounds=Bounds(0, program.upper),
        constraints=LinearConstraint(matrix, rows.lower, rows.upper),
        options={"mip_rel_gap": 0.0, "node_limit": max(max_nodes, 1)},
    )


def _scale(problem: Problem, free: Solution) -> float:
    terms = [abs(float(costs[free.choice[name]])) for name, costs in problem.nodes.items()]
    terms += [abs(float(m[free.choice[u], free.choice[v]])) for (u, v), m in problem.edges.items()]
    return COST_RANGE / (math.fsum(terms) or 1.0)


def _use(weights: Mapping[str, np.ndarray], choice: Mapping[str, int]) -> float:
    return math.fsum(float(values[choice[name]]) for name, values in weights.items())


def _possible(problem: Problem, name: str, weights: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.where(np.isfinite(problem.nodes[name]), weights[name], np.inf)


def _check(problem: Problem, weights: Mapping[str, np.ndarray], limit: float) -> None:
    for name, values in weights.items():
        if name not in problem.nodes:
            raise InputError(f"weights are given for an unknown node {name!r}")
        expected = np.shape(problem.nodes[name])
        if np.shape(values) != expected:
            raise InputError(f"weights of {name!r} have shape {np.shape(values)}; expected {expected}")
        if not (np.isfinite(values).all() and np.min(values) >= 0):
            raise InputError(f"a weight of {name!r} is negative or not finite; expected 0 or more")
    if math.isnan(limit):
        raise InputError("the limit is NaN; expected a number, or inf for none")
