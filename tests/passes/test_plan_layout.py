"""Layout plans: of least cost, never worse than their ablations, and right whichever is carried out."""

import itertools
import zlib
from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from burnish import pipeline
from burnish.compiler.ir.graph import Graph, Node, interpret
from burnish.compiler.target import TARGETS
from burnish.errors import InputError
from burnish.frontends.onnx.importer import import_onnx
from burnish.graph_passes import plan_layout as planner
from burnish.graph_passes.plan_layout import MODES, Decision, alternatives, conversions, plan_layout
from burnish.graph_passes.predict import PredictedCost
from burnish.models import zoo
from onnx import TensorProto, helper, numpy_helper

TARGET = TARGETS["x86-64-v3"]
BLOCK = TARGET.lanes(4)


def network() -> onnx.ModelProto:
    """Convolutions of both kinds, a residual join, a concatenation, pooling, and an output in the middle."""
    rng = np.random.default_rng(0)
    weights, nodes = [], []

    def conv(source: str, result: str, channels: int, out: int, size: int) -> None:
        w = (rng.standard_normal((out, channels, size, size)) / np.sqrt(channels * size * size)).astype(
            np.float32
        )
        weights.append(numpy_helper.from_array(w, f"{result}.w"))
        pads = [size // 2] * 4
        nodes.append(helper.make_node("Conv", [source, f"{result}.w"], [result], result, pads=pads))

    conv("x", "a", 3, 16, 3)
    conv("a", "b", 16, 16, 3)
    nodes.append(helper.make_node("Add", ["a", "b"], ["c"], "join"))
    nodes.append(helper.make_node("Relu", ["c"], ["d"], "relu"))
    conv("d", "e", 16, 5, 1)
    nodes.append(helper.make_node("Concat", ["d", "b"], ["f"], "concat", axis=1))
    nodes.append(helper.make_node("MaxPool", ["f"], ["g"], "pool", kernel_shape=[2, 2], strides=[2, 2]))
    nodes.append(helper.make_node("Transpose", ["g"], ["h"], "turn", perm=[0, 2, 3, 1]))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 9, 7])
    outs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in
            (("e", [1, 5, 9, 7]), ("b", [1, 16, 9, 7]), ("h", [1, 4, 3, 32]))]  # fmt: skip
    graph = helper.make_graph(nodes, "g", [x], outs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def fused(model: onnx.ModelProto) -> Graph:
    return pipeline.optimise(import_onnx(model), TARGET, 1, stop_after="fuse")


@dataclass(frozen=True)
class RandomCost:
    """Costs without reason, the same for the same question."""

    seed: int

    def _draw(self, *key: object) -> float:
        seed = zlib.crc32(repr((self.seed, *map(str, key))).encode())
        return float(np.random.default_rng(seed).integers(1, 100))

    def node(self, graph: Graph, node: Node, decision: Decision) -> float:
        return self._draw(node.name, decision)

    def conversion(self, graph, value, source, target) -> float:
        return self._draw(value, source, target) / 3


def total(graph: Graph, cost, decisions) -> float:
    alone = sum(cost.node(graph, graph.nodes[n], d) for n, d in decisions.items())
    return alone + sum(cost.conversion(graph, *c) for c in conversions(graph, decisions))


@pytest.mark.parametrize("seed", range(12))
def test_plan_has_least_cost(seed):
    graph = fused(network())
    cost = RandomCost(seed)
    options = [alternatives(graph, node, BLOCK) for node in graph.nodes]
    assert sum(len(o) > 1 for o in options) >= 6
    best = min(total(graph, cost, dict(enumerate(ds))) for ds in itertools.product(*options))
    plan = plan_layout(graph, BLOCK, cost)
    assert plan.optimal
    assert plan.cost == pytest.approx(best)
    assert plan.cost == pytest.approx(total(graph, cost, plan.decisions))


@pytest.mark.parametrize("name", ["digits", "resnet18", "mobilenet_v2", "lstm_lm_step"])
def test_global_is_never_worse(name):
    graph = fused(zoo.build(name))
    plans = {mode: plan_layout(graph, BLOCK, PredictedCost(TARGET, 1), mode) for mode in MODES}
    assert plans["global"].optimal
    assert plans["global"].cost <= min(plans["local"].cost, plans["fixed"].cost) * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_any_plan_is_right(seed, monkeypatch):
    """Plans of random costs mix layouts and algorithms as no sensible plan would."""
    model = network()
    monkeypatch.setattr(PredictedCost, "node", lambda self, *a: RandomCost(seed).node(*a))
    monkeypatch.setattr(PredictedCost, "conversion", lambda self, *a: RandomCost(seed).conversion(*a))
    x = np.random.default_rng(seed).standard_normal((1, 3, 9, 7)).astype(np.float32)
    want = interpret(import_onnx(model), {"x": x})
    for mode in MODES:
        got = pipeline.compile(model, target="x86-64-v3", plan=mode, cache=False).run({"x": x})
        for name, array in want.items():
            np.testing.assert_allclose(got[name], array, rtol=0, atol=2e-5 * np.abs(array).max())


def test_unknown_mode():
    with pytest.raises(InputError, match="expected one of global"):
        plan_layout(fused(network()), BLOCK, RandomCost(0), "best")
    assert planner.MODES == ("global", "local", "fixed")
