"""What a plan did not choose: its target is the time at which the plan changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from burnish.compiler.price import Price
from burnish.graph_passes import rivals as module
from burnish.graph_passes.alternatives import ACCURACY
from burnish.graph_passes.plan_layout import MODES, Planner, PlanOptions, plan_layout
from burnish.graph_passes.rivals import rivals
from burnish.models import zoo

from .test_plan_layout import BLOCK, fused, network
from .test_task_cost import Told, prices


@pytest.fixture(scope="module")
def planned():
    graph = fused(network())
    cost = prices(graph, Told(lambda task: None))
    return graph, cost, plan_layout(graph, BLOCK, cost)


def test_below_its_target_a_rival_is_chosen(planned):
    graph, cost, plan = planned
    found = rivals(Planner(graph, BLOCK, cost, ACCURACY), cost, PlanOptions(), plan)
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
    assert rivals(Planner(graph, BLOCK, cost, ACCURACY), cost, PlanOptions(mode), plan) == []


def test_what_is_out_of_reach_does_not_matter(monkeypatch):
    graph = fused(zoo.build("resnet18", image=32))
    cost = prices(graph, Told(lambda task: None))
    plan = plan_layout(graph, BLOCK, cost)
    found = []
    for reach in (module.REACH, len(graph.nodes)):
        monkeypatch.setattr(module, "REACH", reach)
        found.append(rivals(Planner(graph, BLOCK, cost, ACCURACY), cost, PlanOptions(), plan))
    assert [(r.node, r.decision) for r in found[0]] == [(r.node, r.decision) for r in found[1]]
    assert [r.target for r in found[0]] == pytest.approx([r.target for r in found[1]], rel=1e-3)
