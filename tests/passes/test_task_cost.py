"""Costs of a network from what is known of tasks: what is measured, what is scaled, what is doubted."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import product

import numpy as np
import pytest
from burnish.compiler.price import Price
from burnish.graph_passes.alternatives import alternatives
from burnish.graph_passes.plan_layout import PlanOptions, plan_layout
from burnish.graph_passes.predict import MODEL, PredictedCost, _taps_inside
from burnish.graph_passes.task_cost import HOPELESS, decided_task, plan_choices, price_graph
from burnish.op_tuner.costs import conversion_task

from .test_plan_layout import BLOCK, TARGET, fused, network

PREDICTED = PredictedCost(TARGET, 1)


@dataclass
class Told:
    """Prices of tasks by a function, for those that it knows."""

    seconds: object
    spread: float = 0.0
    compared = False
    asked: list = field(default_factory=list)

    def ensure(self, tasks):
        self.asked = list(tasks)
        return len(self.asked)

    def known(self, task):
        found = self.seconds(task)
        return None if found is None else Price(found, "record", f"r{task.digest[:6]}", self.spread)


def prices(graph, told):
    copy = partial(conversion_task, target=TARGET, threads=1)
    return price_graph(graph, plan_choices(graph, PREDICTED, PlanOptions(), copy), PlanOptions(), told)


def choices(graph):
    return [(node, d) for node in graph.nodes for d in alternatives(graph, node, BLOCK)]


def test_what_is_hopeless_is_not_measured_but_scaled():
    graph = fused(network())
    told = Told(lambda task: 1e-3)
    cost = prices(graph, told)
    scaled = 0
    for node, decision in choices(graph):
        times = [PREDICTED.node(graph, node, d) for d in alternatives(graph, node, BLOCK)]
        mine = PREDICTED.node(graph, node, decision)
        asked = decided_task(graph, node, decision, TARGET, 1).digest in {t.digest for t in told.asked}
        price = cost.price(graph, node, decision)
        assert asked == (mine <= HOPELESS * min(times))
        assert price.is_measured == asked
        if not asked:
            scaled += 1
            assert price.source == "scaled" and price.name.startswith(f"{MODEL} × r")
            assert price.seconds > 1e-3
    assert scaled


def test_nothing_known_is_the_prediction():
    graph = fused(network())
    cost = prices(graph, Told(lambda task: None))
    for node, decision in choices(graph):
        assert cost.price(graph, node, decision) == PREDICTED.price(graph, node, decision)
    plan, same = plan_layout(graph, BLOCK, cost), plan_layout(graph, BLOCK, PREDICTED)
    assert plan.decisions == same.decisions


def test_a_node_of_which_nothing_works_is_predicted():
    graph = fused(network())
    cost = prices(graph, Told(lambda task: float("inf")))
    assert plan_layout(graph, BLOCK, cost).cost < 1


@pytest.mark.parametrize(("gain", "moves"), [(0.95, False), (0.5, True)])
def test_a_gain_within_the_spread_moves_no_choice(gain, moves):
    """Everything costs the same but what the model would not choose, which is measured a little faster."""
    graph = fused(network())
    predicted = plan_layout(graph, BLOCK, PREDICTED)
    chosen = {decided_task(graph, node, predicted.decisions[n], TARGET, 1).digest
              for n, node in enumerate(graph.nodes)}  # fmt: skip

    def seconds(task):
        if task.name.startswith("identity"):
            return 0.0
        return 1e-3 * (1.0 if task.digest in chosen else gain)

    plan = plan_layout(graph, BLOCK, prices(graph, Told(seconds, spread=0.08)))
    assert (plan.decisions != predicted.decisions) == moves


def test_taps_inside_are_counted_without_all_of_them() -> None:
    for case in product((1, 2, 7), (0, 1, 5), (1, 3, 9), (1, 2), (1, 4), (-2, 0, 3)):
        size, outputs, kernel, stride, dilation, pad = case
        at = np.arange(outputs)[:, None] * stride + np.arange(kernel) * dilation - pad
        inside = ((at >= 0) & (at < size)).mean() if outputs else 1.0
        assert _taps_inside(*case) == inside, case
    assert _taps_inside(1 << 40, 1 << 40, 4096, 1, 1, 2048) == pytest.approx(1.0)
