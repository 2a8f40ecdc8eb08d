"""What a plan did not choose, and how fast it would have to be for a plan to choose it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import networkx
import numpy as np

from ..compiler.ir.graph import Graph
from .alternatives import Decision
from .pairs import KEPT
from .pbqp import Problem, solve
from .plan_layout import SEARCH_NODES, LayoutPlan, Planner, PlanOptions, node_key
from .task_cost import TaskCost

CLOSE = 1.5
"""A choice that takes more than this many times its target is no rival."""
REACH = 8
"""Choices further than this many edges from a node stay as they are when the plan around it is made anew."""


@dataclass(frozen=True)
class Rival:
    """What a node might do instead. Below `target` seconds for its kernel, a plan with it costs less."""

    node: int
    decision: Decision
    target: float


def rivals(planner: Planner, cost: TaskCost, options: PlanOptions, plan: LayoutPlan) -> list[Rival]:
    """The rivals of a global plan's choices, each with what is within REACH of it planned anew.

    None under a memory limit, and none of the ablations', whose choices are not by cost alone.
    """
    if options.mode != "global" or options.memory_limit is not None:
        return []
    graph, problem = planner.graph, planner.problem()
    around = _Around(problem, solve(problem, max_nodes=SEARCH_NODES).choice)
    beside = _beside(graph, plan)
    firsts = {second: first for first, second in planner.pairs()}
    found = []
    for n, index, decision in _candidates(planner, plan):
        price = cost.price(graph, graph.nodes[n], decision).seconds
        replaced = [n, firsts[n]] if decision.reads == KEPT else [n]
        chosen = sum(planner.costs[m][planner.decisions[m].index(plan.decisions[m])] for m in replaced)
        if not 0 < price <= CLOSE * (chosen + beside.get(n, 0.0)):
            continue
        other = around.forced(node_key(n), index)
        lost = planner.plan(planner.choice_of(other)).cost - plan.cost
        target = price - lost * price / planner.costs[n][index]  # what is doubted has to be that much faster
        if price <= CLOSE * target:
            found.append(Rival(n, decision, float(target)))
    return found


def _candidates(planner: Planner, plan: LayoutPlan) -> Iterator[tuple[int, int, Decision]]:
    for n, decisions in planner.decisions.items():
        for index, decision in enumerate(decisions):
            paired = decision.writes == KEPT or plan.decisions[n].writes == KEPT  # the second costs both
            if decision != plan.decisions[n] and not paired:
                yield n, index, decision


def _beside(graph: Graph, plan: LayoutPlan) -> dict[int, float]:
    """By node: what the conversions of what it reads and writes cost."""
    costs: dict[str, float] = {}
    for conversion in plan.conversions:
        costs[conversion.value] = costs.get(conversion.value, 0.0) + conversion.cost
    values = {n: {*node.reads, *node.outputs} for n, node in enumerate(graph.nodes)}
    return {n: sum(costs.get(v, 0.0) for v in vs) for n, vs in values.items()}


class _Around:
    """A problem, and choices that solve it."""

    def __init__(self, problem: Problem, choice: Mapping[str, int]):
        self.problem, self.choice = problem, choice
        self.neighbours = networkx.Graph()
        self.neighbours.add_nodes_from(problem.nodes)
        self.neighbours.add_edges_from(problem.edges)

    def forced(self, node: str, index: int) -> dict[str, int]:
        """The best choices where the node's is this one, and those that are out of reach stay."""
        near = networkx.single_source_shortest_path_length(self.neighbours, node, REACH)
        nodes = {name: self.problem.nodes[name] for name in near}
        edges = {}
        for (u, v), between in self.problem.edges.items():
            if u in near and v in near:
                edges[u, v] = between
            elif u in near:
                nodes[u] = nodes[u] + between[:, self.choice[v]]
            elif v in near:
                nodes[v] = nodes[v] + between[self.choice[u]]
        only = np.full_like(nodes[node], np.inf)
        only[index] = nodes[node][index]
        found = solve(Problem({**nodes, node: only}, edges), max_nodes=SEARCH_NODES)
        return {**self.choice, **found.choice}
