"""The PBQP with a bound on a resource against enumeration."""

from __future__ import annotations

import itertools
import math
import sys

import numpy as np
import pytest
from burnish.errors import InfeasibleError, InputError, ToolError
from burnish.graph_passes.pbqp import Problem, evaluate, solve
from burnish.graph_passes.pbqp_ilp import solve_ilp

from ..conftest import require_module
from . import pbqp_graphs as graphs

Weights = dict[str, np.ndarray]


def used(weights: Weights, choice: dict[str, int]) -> float:
    return math.fsum(values[choice[name]] for name, values in weights.items())


def enumerated(problem: Problem, weights: Weights, limit: float) -> float:
    choices = itertools.product(*(range(len(costs)) for costs in problem.nodes.values()))
    named = (dict(zip(problem.nodes, choice, strict=True)) for choice in choices)
    return min((evaluate(problem, c) for c in named if used(weights, c) <= limit), default=math.inf)


def test_random_small_graphs_equal_enumeration() -> None:
    require_module("scipy")
    bounded = refused = 0
    for seed in range(100):
        problem = graphs.small(seed)
        if math.prod(len(costs) for costs in problem.nodes.values()) > 2000:
            continue
        rng = np.random.default_rng(seed)
        weights = {name: rng.integers(0, 100, len(costs)) * 1e6 for name, costs in problem.nodes.items()}
        limit = rng.uniform(0.2, 0.7) * sum(float(values.max()) for values in weights.values())
        expected = enumerated(problem, weights, limit)
        if expected == math.inf:
            refused += 1
            with pytest.raises(InfeasibleError):
                solve_ilp(problem, weights, limit)
            continue
        solution = solve_ilp(problem, weights, limit)
        bounded += solution.cost > solve(problem).cost
        assert solution.optimal and used(weights, solution.choice) <= limit
        assert solution.cost == evaluate(problem, solution.choice)
        assert solution.cost == pytest.approx(expected, rel=1e-8, abs=1e-9)
    assert bounded > 10 and refused > 10


def test_network_within_half_of_its_memory() -> None:
    require_module("scipy")
    problem = graphs.residual_chain(60, 1)
    weights = {name: np.arange(len(costs))[::-1] * 1e6 for name, costs in problem.nodes.items()}
    free = solve(problem)
    limit = used(weights, free.choice) / 2
    solution = solve_ilp(problem, weights, limit)
    assert solution.optimal and used(weights, solution.choice) <= limit and solution.cost > free.cost
    assert solve_ilp(problem, weights, 2 * limit) == free


def test_a_limit_is_kept_exactly() -> None:
    """One byte too much in a gigabyte is within the tolerance of HiGHS, but not within the limit."""
    require_module("scipy")
    nodes = {name: np.array([1.0, 2.0]) for name in "ab"}
    weights = {name: np.array([5e8, 4e8]) for name in "ab"}
    solution = solve_ilp(Problem(nodes, {}), weights, 1e9 - 1)
    assert sorted(solution.choice.values()) == [0, 1] and solution.cost == 3.0 and solution.optimal


def test_too_low_a_limit_says_what_is_needed() -> None:
    problem = Problem({"a": np.array([1.0, 2.0, np.inf])}, {})
    with pytest.raises(InfeasibleError, match=r"limit is 9; .* needs 10 or more"):
        solve_ilp(problem, {"a": np.array([20.0, 10.0, 0.0])}, 9)


@pytest.mark.parametrize(
    ("weights", "limit", "message"),
    [
        ({"b": np.zeros(2)}, 1, "unknown node"),
        ({"a": np.zeros(3)}, 1, "expected \\(2,\\)"),
        ({"a": np.array([1, -1])}, 1, "negative"),
        ({"a": np.array([1, np.inf])}, 1, "not finite"),
        ({"a": np.zeros(2)}, math.nan, "NaN"),
    ],
)
def test_wrong_weights_are_refused(weights: Weights, limit: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        solve_ilp(Problem({"a": np.zeros(2)}, {}), weights, limit)


def test_missing_scipy_is_a_tool_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(ToolError, match="pip install"):
        solve_ilp(Problem({"a": np.array([1.0, 2.0])}, {}), {"a": np.array([2.0, 1.0])}, 1)
