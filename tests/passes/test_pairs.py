"""Depthwise and pointwise convolutions as one kernel: a plan chooses both halves of a pair or neither."""

import itertools

import numpy as np
import onnx
import pytest
from burnish import pipeline
from burnish.compiler.ir.graph import Graph, interpret
from burnish.frontends.onnx.importer import import_onnx
from burnish.graph_passes.alternatives import Decision, alternatives
from burnish.graph_passes.assign_layouts import apply_plan
from burnish.graph_passes.make_tasks import task_of
from burnish.graph_passes.pairs import KEPT, STRIPS, pointwise_after
from burnish.graph_passes.pbqp import solve
from burnish.graph_passes.plan_layout import MODES, LayoutPlan, Planner, PlanOptions, plan_layout
from burnish.graph_passes.predict import PredictedCost
from burnish.graph_passes.task_cost import decided_task
from onnx import TensorProto, helper, numpy_helper

from .test_plan_layout import BLOCK, TARGET, RandomCost, fused
from .test_task_cost import PREDICTED, Told, prices

CHANNELS = 16


def network(change: str = "") -> onnx.ModelProto:
    """Convolution, pair with a residual, pair of stride 2; `change` makes the first pair impossible."""
    rng = np.random.default_rng(0)
    weights, nodes = {}, []

    def conv(source: str, result: str, shape: tuple[int, ...], **attributes) -> None:
        weights[f"{result}.w"] = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        nodes.append(helper.make_node("Conv", [source, f"{result}.w"], [result], result, **attributes))

    depthwise = {"group": CHANNELS, "pads": [1, 1, 1, 1]}
    conv("x", "a", (CHANNELS, 3, 1, 1))
    conv("a", "b", (CHANNELS, 2, 3, 3) if change == "grouped" else (CHANNELS, 1, 3, 3), pads=[1] * 4,
         group=CHANNELS // 2 if change == "grouped" else CHANNELS)  # fmt: skip
    conv("b", "c", (CHANNELS, CHANNELS, 1, 1), pads=[1 if change == "padded" else 0] * 4)
    if change != "padded":
        nodes.append(helper.make_node("Add", ["c", "a"], ["d"], "join"))
    if change == "own residual":
        nodes[-1].input[1] = "b"
    if change == "constant residual":
        weights["k"] = rng.standard_normal((1, CHANNELS, 6, 5))
        nodes[-1].input[1] = "k"
    if change == "bias along the width":
        weights["k"] = rng.standard_normal(CHANNELS)
        nodes[-2].input.append("k")
        nodes[-1].input[1] = "k"
    conv("c" if change == "padded" else "d", "e", (CHANNELS, 1, 3, 3), strides=[2, 2], **depthwise)
    conv("e", "f", (2 * CHANNELS, CHANNELS, 1, 1))
    if change == "two readers":
        nodes.append(helper.make_node("Relu", ["b"], ["g"], "other"))
    outputs = {"two readers": ["f", "g"], "output": ["f", "b"]}.get(change, ["f"])
    width = CHANNELS if change == "bias along the width" else 5
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 6, width])
    outs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    tensors = [numpy_helper.from_array(w.astype(np.float32), n) for n, w in weights.items()]
    graph = helper.make_graph(nodes, "g", [x], outs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def pairs(graph: Graph) -> list[tuple[str, str]]:
    found = [(n, pointwise_after(graph, n, BLOCK)) for n in graph.nodes]
    return [(a.outputs[0], b.outputs[0]) for a, b in found if b is not None]


def kept(plan: LayoutPlan) -> list[tuple[bool, bool]]:
    return [(d.writes == KEPT, d.reads == KEPT) for _, d in sorted(plan.decisions.items())]


def test_pairs_are_found():
    assert pairs(fused(network())) == [("b", "d"), ("e", "f")]


@pytest.mark.parametrize(
    "change",
    [
        "grouped",
        "padded",
        "constant residual",
        "bias along the width",
        "own residual",
        "two readers",
        "output",
    ],
)
def test_what_is_no_pair(change):
    """Each change leaves the second pair alone."""
    assert pairs(fused(network(change))) == [("e", "f")]


@pytest.mark.parametrize("seed", range(8))
def test_plan_has_least_cost(seed):
    """Over every combination of the alternatives, halves of pairs without the other half included."""
    planner = Planner(fused(network()), BLOCK, RandomCost(seed), 1e-5)
    choices = itertools.product(*(range(len(o)) for o in planner.decisions.values()))
    best = min(planner.plan(dict(enumerate(choice))).cost for choice in choices)
    solution = solve(planner.problem(), max_nodes=2000)
    plan = planner.plan(planner.choice_of(solution.choice))
    assert solution.optimal
    assert plan.cost == pytest.approx(best) == pytest.approx(solution.cost)


class Priced(RandomCost):
    """Pairs cost `pair`, other nodes 10, conversions 1."""

    def __init__(self, pair: float):
        object.__setattr__(self, "pair", pair)

    def node(self, graph, node, decision):
        if decision.algorithm == STRIPS:
            return 0.0 if decision.writes == KEPT else self.pair
        return 10.0

    def conversion(self, graph, value, source, target):
        return 1.0


@pytest.mark.parametrize("mode", MODES)
def test_both_halves_or_neither(mode):
    graph = fused(network())
    cheap, dear = (plan_layout(graph, BLOCK, Priced(cost), PlanOptions(mode)) for cost in (19.0, 23.0))
    neither = [(False, False)] * len(graph.nodes)
    both = [(False, False), *[(True, False), (False, True)] * 2]
    assert kept(dear) == neither
    assert kept(cheap) == (neither if mode == "fixed" else both)
    assert np.isfinite([cheap.cost, dear.cost]).all()


def test_half_of_a_pair_is_not_taken_for_want_of_anything_else_in_blocks():
    """A depthwise convolution that failed in blocks: its other alternatives are plain and a pair's half."""

    class Failing(PredictedCost):
        def node(self, graph, node, decision):
            failed = node.outputs[0] == "b" and decision.reads is not None and decision.writes is not KEPT
            return np.inf if failed else super().node(graph, node, decision)

    graph = fused(network())
    fixed = plan_layout(graph, BLOCK, Failing(TARGET, 1), PlanOptions("fixed"))
    assert np.isfinite(fixed.cost)


def test_the_merged_node_is_priced():
    """The task whose cost a plan counts is the one that its graph holds."""
    graph = fused(network())
    plan = plan_layout(graph, BLOCK, Priced(1.0))
    done = apply_plan(graph, TARGET, plan)
    held = [task_of(done, n, TARGET, 1).key for n in done.nodes if getattr(n.op, "algorithm", "") == STRIPS]
    priced = [
        decided_task(graph, n, plan.decisions[i], TARGET, 1).key
        for i, n in enumerate(graph.nodes)
        if plan.decisions[i].reads == KEPT
    ]
    assert held == priced and len(held) == 2
    cost = prices(graph, Told(lambda task: 7.0))
    found = [cost.price(graph, n, plan.decisions[i]).seconds for i, n in enumerate(graph.nodes)]
    assert found == [7.0, 0, 7.0, 0, 7.0]


@pytest.mark.parametrize("paired", [True, False])
def test_a_slow_machine_makes_both_ways_slow(paired):
    """Pairs alone are measured, or what their nodes are alone: the other way is predicted in proportion."""
    graph = fused(network())
    choices = [
        (node, decision)
        for node in graph.nodes[1:]
        for decision in alternatives(graph, node, BLOCK)
        if decision.writes != KEPT
    ]
    measured = {
        decided_task(graph, node, decision, TARGET, 1).digest: 50 * PREDICTED.node(graph, node, decision)
        for node, decision in choices
        if (decision.reads == KEPT) == paired
    }
    cost = prices(graph, Told(lambda task: measured.get(task.digest)))
    for node, decision in choices:
        found = cost.price(graph, node, decision).seconds
        assert found == pytest.approx(50 * PREDICTED.node(graph, node, decision)), (node.name, decision)


def test_pairs_that_fail_say_nothing_of_their_halves():
    """Of the pointwise halves something is known, of the depthwise ones nothing."""
    graph = fused(network())
    known = {
        decided_task(graph, node, decision, TARGET, 1).digest: np.inf if decision.reads == KEPT else 1e-3
        for node in graph.nodes
        for decision in alternatives(graph, node, BLOCK)
        if node.outputs[0] in ("d", "f") and decision.writes != KEPT
    }
    cost = prices(graph, Told(lambda task: known.get(task.digest)))
    plan = plan_layout(graph, BLOCK, cost)
    assert 2e-3 <= plan.cost < 1 and KEPT not in {d.reads for d in plan.decisions.values()}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", MODES)
def test_any_plan_is_right(mode, seed, monkeypatch):
    """Plans of random costs, in which pairs are cheap, mix layouts as no sensible plan would."""
    model = network()

    def cost(self, graph, node, decision: Decision) -> float:
        scale = 0.5 if decision.algorithm == STRIPS else 1.0
        return RandomCost(seed).node(graph, node, decision) * scale

    monkeypatch.setattr(PredictedCost, "node", cost)
    monkeypatch.setattr(PredictedCost, "conversion", lambda self, *a: RandomCost(seed).conversion(*a))
    x = np.random.default_rng(seed).standard_normal((1, 3, 6, 5)).astype(np.float32)
    want = interpret(import_onnx(model), {"x": x})["f"]
    got = pipeline.compile(model, target="x86-64-v3", plan=mode, cache=False).run({"x": x})["f"]
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())
