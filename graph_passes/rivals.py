"""What a plan did not choose, and how fast it would have to be for a plan to choose it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..compiler.ir.graph import Graph
from .alternatives import Decision
from .pairs import KEPT
from .pbqp import Problem, solve
from .plan_layout import SEARCH_NODES, LayoutPlan, Planner, PlanOptions
from .task_cost import TaskCost

CLOSE = 1.5
"""A choice that takes this many times what would pay is no rival."""


@dataclass(frozen=True)
class Rival:
    """What a node might do instead. Below `target` seconds for its kernel, a plan with it costs less."""

    node: int
    decision: Decision
    target: float


def rivals(graph: Graph, block: int, cost: TaskCost, options: PlanOptions, plan: LayoutPlan) -> list[Rival]:
    """The rivals of a global plan's choices, each with the rest of the network planned anew around it.

    None under a memory limit, and none of the ablations', whose choices are not by cost alone.
    """
    if options.mode != "global" or options.memory_limit is not None:
        return []
    planner = Planner(graph, block, cost, options.accuracy)
    problem = planner.problem()
    beside = _beside(graph, plan)
    found = []
    for n, index, decision in _candidates(planner, plan):
        price = cost.price(graph, graph.nodes[n], decision).seconds
        chosen = planner.options[n].index(plan.decisions[n])
        if not 0 < price <= CLOSE * (planner.costs[n][chosen] + beside.get(n, 0.0)):
            continue
        other = solve(_forced(problem, n, index), max_nodes=SEARCH_NODES)
        lost = planner.plan({m: other.choice[f"n{m}"] for m in planner.options}).cost - plan.cost
        target = price - lost * price / planner.costs[n][index]  # what is doubted has to be that much faster
        if price <= CLOSE * target:
            found.append(Rival(n, decision, float(target)))
    return found


def _candidates(planner: Planner, plan: LayoutPlan) -> Iterator[tuple[int, int, Decision]]:
    for n, decisions in planner.options.items():
        for index, decision in enumerate(decisions):
            paired = decision.writes == KEPT or plan.decisions[n].writes == KEPT  # the second costs both
            if decision != plan.decisions[n] and not paired:
                yield n, index, decision


def _beside(graph: Graph, plan: LayoutPlan) -> dict[int, float]:
    """By node: what the conversions of what it reads and writes cost, and the first half of a pair."""
    costs: dict[str, float] = {}
    for conversion in plan.conversions:
        costs[conversion.value] = costs.get(conversion.value, 0.0) + conversion.cost
    values = {n: {*node.reads, *node.outputs} for n, node in enumerate(graph.nodes)}
    return {n: sum(costs.get(v, 0.0) for v in vs) for n, vs in values.items()}


def _forced(problem: Problem, node: int, index: int) -> Problem:
    """The problem in which a node has one alternative."""
    only = np.full_like(problem.nodes[f"n{node}"], np.inf)
    only[index] = problem.nodes[f"n{node}"][index]
    return Problem({**problem.nodes, f"n{node}": only}, problem.edges)
