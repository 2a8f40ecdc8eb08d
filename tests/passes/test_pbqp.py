"""The PBQP solver against brute force, and on graphs like those of networks."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import numpy as np
import pytest
from burnish.errors import InfeasibleError, InputError
from burnish.graph_passes.pbqp import Problem, brute_force, evaluate, solve

from . import pbqp_graphs as graphs

NO_TABLES: dict[str, int] = {"max_table": 0}  # branch and bound alone


def agrees_with_brute_force(problem: Problem, **options: int) -> bool:
    """Asserts equal costs; False where both say that no choice is possible."""
    try:
        expected = brute_force(problem)
    except InfeasibleError:
        with pytest.raises(InfeasibleError):
            solve(problem, **options)
        return False
    solution = solve(problem, **options)
    assert solution.optimal
    assert solution.cost == evaluate(problem, solution.choice)
    assert solution.cost == pytest.approx(expected.cost, rel=1e-9, abs=1e-12)
    return True


@pytest.mark.parametrize("options", [{}, NO_TABLES], ids=["tables", "branch_and_bound"])
def test_random_small_graphs_equal_brute_force(options: dict[str, int]) -> None:
    possible = sum(agrees_with_brute_force(graphs.small(seed), **options) for seed in range(1000))
    assert 700 < possible < 1000  # both answers occur


@pytest.mark.parametrize("options", [{}, NO_TABLES], ids=["tables", "branch_and_bound"])
def test_blocks_that_share_one_node_equal_brute_force(options: dict[str, int]) -> None:
    """Two complete graphs of four nodes with a common node: the one is folded into the other."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        pairs = [*itertools.combinations("abcd", 2), *itertools.combinations("defg", 2)]
        sizes = {name: int(rng.integers(2, 5)) for name in "abcdefg"}
        forbidden = 0.2 if seed % 2 else 0.0
        nodes = {name: graphs.costs(rng, (size,)) for name, size in sizes.items()}
        edges = {(u, v): graphs.costs(rng, (sizes[u], sizes[v]), forbidden) for u, v in pairs}
        agrees_with_brute_force(Problem(nodes, edges), **options)


@pytest.mark.parametrize("build", [graphs.residual_chain, graphs.inception, graphs.dense_net])
def test_network_like_graphs_of_300_nodes_are_proven_optimal_in_a_second(
    build: Callable[[int, int], Problem],
) -> None:
    for seed in range(3):
        problem = build(300, seed)
        start = time.process_time()
        solution = solve(problem)
        assert time.process_time() - start < 1
        assert solution.optimal and solution.reductions["core"] == 0
        # no single change may improve an optimum
        changes = [{name: i} for name, costs in problem.nodes.items() for i in range(len(costs))]
        for change in changes[seed :: len(problem.nodes) // 50]:
            assert evaluate(problem, solution.choice | change) >= solution.cost * (1 - 1e-12)


@pytest.mark.parametrize("problem", [graphs.flat_dense_net(4, 6, 4), graphs.random_regular(30, 4, 8, 1)])
def test_irreducible_graphs_agree_between_tables_and_branch_and_bound(problem: Problem) -> None:
    by_tables = solve(problem, max_table=1 << 26)
    by_search = solve(problem, **NO_TABLES)
    assert by_tables.optimal and by_search.optimal and by_search.searched > 0
    assert by_search.reductions["core"] >= 30
    assert by_search.cost == pytest.approx(by_tables.cost, rel=1e-9)


def test_reductions_account_for_every_node_and_repeat() -> None:
    problem = graphs.flat_dense_net(2, 4, 1)
    first, second = solve(problem), solve(problem)
    assert first == second
    counts = first.reductions
    assert counts["R0"] + counts["RI"] + counts["RII"] + counts["core"] == len(problem.nodes)
    assert counts["RII"] > 0 and counts["core"] > 0 and counts["alternatives"] > 0


def test_search_stops_after_its_nodes_and_says_so() -> None:
    problem = graphs.random_regular(24, 4, 6, 3)
    best = solve(problem)
    for allowed in (0, 1):
        stopped = solve(problem, max_nodes=allowed, **NO_TABLES)
        assert not stopped.optimal and stopped.searched == allowed
        assert best.optimal and best.cost <= stopped.cost < 1.2 * best.cost
        assert stopped == solve(problem, max_nodes=allowed, **NO_TABLES)


def test_parallel_reversed_and_self_edges_add_up() -> None:
    nodes = {"a": np.zeros(2), "b": np.zeros(3)}
    forth, back = np.array([[0.0, 5, 1], [4, 2, 2]]), np.array([[3.0, 0], [0, 1], [2, 2]])
    own = np.array([[1.0, 9], [9, 0.5]])
    problem = Problem(nodes, {("a", "b"): forth, ("b", "a"): back, ("a", "a"): own})
    total = forth + back.T + own.diagonal()[:, None]
    assert solve(problem).cost == brute_force(problem).cost == total.min()


def test_separable_edge_is_independent() -> None:
    nodes = {name: np.array([0.3, 0.1, 0.2]) for name in "abcd"}
    edges = {
        (u, v): np.add.outer([0.1, 0.7, 0.2], [0.3, 0.1, 0.9]) for u, v in itertools.combinations("abcd", 2)
    }
    solution = solve(Problem(nodes, edges))
    assert solution.reductions["independent"] == 6 and solution.reductions["R0"] == 4
    assert solution.cost == pytest.approx(brute_force(Problem(nodes, edges)).cost)


def test_large_costs_of_some_choices_do_not_hide_small_ones_of_others() -> None:
    nodes = {"u": np.zeros(2), "v": np.array([3.0, 0.0])}
    assert agrees_with_brute_force(Problem(nodes, {("u", "v"): np.array([[1e15, 1e15], [0.0, 5.0]])}))


def test_empty_and_single_problems() -> None:
    assert solve(Problem({}, {})).choice == brute_force(Problem({}, {})).choice == {}
    alone = solve(Problem({"a": np.array([2.0, np.inf, -1.0])}, {}))
    assert alone.choice == {"a": 2} and alone.cost == -1.0 and alone.optimal


def test_infeasible_problems_are_named() -> None:
    with pytest.raises(InfeasibleError, match="'conv7'"):
        solve(Problem({"a": np.zeros(2), "conv7": np.full(2, np.inf)}, {}))
    two_colours = np.array([[np.inf, 0], [0, np.inf]])
    triangle = {pair: two_colours for pair in (("a", "b"), ("b", "c"), ("c", "a"))}
    with pytest.raises(InfeasibleError, match="every choice"):
        solve(Problem({name: np.zeros(2) for name in "abc"}, triangle))


def test_search_cut_short_without_a_choice_does_not_claim_infeasibility() -> None:
    """Six nodes, all different, of five alternatives: none is possible, and that takes search."""
    differ = np.where(np.eye(5, dtype=bool), np.inf, 0.0)
    problem = Problem(
        {n: np.zeros(5) for n in "abcdef"}, dict.fromkeys(itertools.combinations("abcdef", 2), differ)
    )
    with pytest.raises(InfeasibleError, match="0 search nodes"):
        solve(problem, max_nodes=0, **NO_TABLES)
    with pytest.raises(InfeasibleError, match="every choice"):
        solve(problem, **NO_TABLES)


@pytest.mark.parametrize(
    ("nodes", "edges", "message"),
    [
        ({"a": np.zeros(0)}, {}, "shape"),
        ({"a": np.array([np.nan])}, {}, "NaN"),
        ({"a": np.array([-np.inf])}, {}, "-inf"),
        ({"a": np.zeros(2)}, {("a", "b"): np.zeros((2, 2))}, "unknown node"),
        ({"a": np.zeros(2), "b": np.zeros(3)}, {("a", "b"): np.zeros((3, 2))}, r"expected \(2, 3\)"),
    ],
)
def test_wrong_input_is_refused(nodes: dict, edges: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        solve(Problem(nodes, edges))
    with pytest.raises(InputError, match=message):
        brute_force(Problem(nodes, edges))
