"""What a plan did not choose: its target is the time at which the plan changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from burnish.compiler.price import Price
from burnish.graph_passes.plan_layout import MODES, PlanOptions, plan_layout
from burnish.graph_passes.rivals import rivals

from .test_plan_layout import BLOCK, fused, network
from .test_task_cost import Told, prices


@pytest.fixture(scope="module")
def planned():
    graph = fused(network())
    cost = prices(graph, Told(lambda task: None))
    return graph, cost, plan_layout(graph, BLOCK, cost)


def test_below_its_target_a_rival_is_chosen(planned):
    graph, cost, plan = planned
    found = rivals(graph, BLOCK, cost, PlanOptions(), plan)
    assert found
    for rival in found:
        node = graph.nodes[rival.node]
        assert plan.decisions[rival.node] != rival.decision
        for factor in (0.98, 1.02):
            key = (node.outputs, rival.decision)
            known = {**cost.prices, key: Price(rival.target * factor, "record", "r")}
            again = plan_layout(graph, BLOCK, replace(cost, prices=known))
            assert (again.decisions[rival.node] == rival.decision) == (factor < 1)


@pytest.mark.parametrize("mode", MODES[1:])
def test_ablations_have_none(planned, mode):
    graph, cost, plan = planned
    assert rivals(graph, BLOCK, cost, PlanOptions(mode), plan) == []
