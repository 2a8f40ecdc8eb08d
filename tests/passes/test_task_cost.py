"""Costs of a network from what is known of tasks: what is measured, what is scaled, what is doubted."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import product

import numpy as np
import onnx
import pytest
from burnish.compiler.price import Price
from burnish.graph_passes.alternatives import alternatives
from burnish.graph_passes.assign_layouts import apply_plan
from burnish.graph_passes.make_tasks import kernel_tasks
from burnish.graph_passes.plan_layout import PlanOptions, plan_layout
from burnish.graph_passes.predict import MODEL, PredictedCost, _taps_inside
from burnish.graph_passes.task_cost import HOPELESS, cost_by_records, decided_task, plan_choices
from burnish.op_tuner.costs import conversion_task
from onnx import TensorProto, helper, numpy_helper

from .test_plan_layout import BLOCK, TARGET, fused, network

PREDICTED = PredictedCost(TARGET, 1)


@dataclass
class Told:
    """Prices of tasks by a function, for those that it knows."""

    seconds: object
    spread: float = 0.0
    compared: bool = False  # and refused
    asked: list = field(default_factory=list)

    def ensure(self, tasks):
        self.asked = list(tasks)
        return len(self.asked)

    def refuses(self, first, other):
        return True

    def price_of(self, task):
        found = self.seconds(task)
        return None if found is None else Price(found, "record", f"r{task.digest[:6]}", self.spread)


def prices(graph, told):
    copy = partial(conversion_task, target=TARGET, threads=1)
    return cost_by_records(graph, plan_choices(graph, PREDICTED, PlanOptions(), copy), PlanOptions(), told)


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


def test_a_plan_that_the_network_refused_is_the_predicted_one():
    graph = fused(network())
    cost = prices(graph, Told(lambda task: 1e-3, compared=True))
    assert cost.given_up and not prices(graph, Told(lambda task: 1e-3)).given_up
    for node, decision in choices(graph):
        assert cost.price(graph, node, decision) == PREDICTED.price(graph, node, decision)


def test_a_node_of_which_nothing_works_is_predicted():
    graph = fused(network())
    cost = prices(graph, Told(lambda task: float("inf")))
    assert plan_layout(graph, BLOCK, cost).cost < 1


def squeezed(channels: int = 2 * BLOCK) -> onnx.ModelProto:
    """A gate of a convolution's result, by what is left of it: one number a channel, from blocks."""
    rng, weights = np.random.default_rng(0), []

    def conv(source: str, result: str, *shape: int) -> onnx.NodeProto:
        w = rng.standard_normal(shape).astype(np.float32)
        weights.append(numpy_helper.from_array(w, f"{result}.w"))
        return helper.make_node("Conv", [source, f"{result}.w"], [result], result, pads=[shape[-1] // 2] * 4)

    nodes = [
        conv("x", "a", channels, channels, 3, 3),
        helper.make_node("GlobalAveragePool", ["a"], ["b"], "squeeze"),
        conv("b", "c", channels, channels, 1, 1),
        helper.make_node("Sigmoid", ["c"], ["d"], "gate"),
        helper.make_node("Mul", ["a", "d"], ["e"], "excite"),
        conv("e", "y", channels, channels, 3, 3),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, channels, 14, 14]) for n in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_what_is_priced_is_what_runs():
    graph = fused(squeezed())
    copy = partial(conversion_task, target=TARGET, threads=1)
    found = plan_choices(graph, PREDICTED, PlanOptions(), copy)
    run = kernel_tasks(apply_plan(graph, TARGET, found.predicted_plan), TARGET, 1)
    assert {t.digest for t in found.run_by(graph, found.predicted_plan)} == {t.digest for t in run.values()}
    assert any(layout for t in run.values() for _, layout in t.layouts if "mul" in t.name)


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
