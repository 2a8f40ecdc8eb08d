"""Plans for GPUs: what the model of costs prefers, and that whatever is carried out is right."""

from __future__ import annotations

import numpy as np
import pytest
from burnish import pipeline
from burnish.compiler.ir.graph import Graph, interpret
from burnish.compiler.ir.loops import Buffer, Program, Store
from burnish.compiler.ir.scalar import Load, Var
from burnish.compiler.ir.types import F32
from burnish.compiler.target import TARGETS
from burnish.compiler.templates.gpu.common import spread
from burnish.compiler.templates.registry import ALGORITHMS
from burnish.errors import UnsupportedError
from burnish.frontends.onnx.importer import import_onnx
from burnish.graph_passes.alternatives import Decision, alternatives
from burnish.graph_passes.gpu_time import program_time
from burnish.graph_passes.pairs import KEPT
from burnish.graph_passes.plan_layout import MODES, PlanOptions, plan_layout
from burnish.graph_passes.predict_gpu import PredictedGpuCost, predicted_cost
from burnish.models import zoo
from onnx import TensorProto, helper, numpy_helper

from ..passes import test_pairs, test_plan_layout

GPUS = [name for name, target in TARGETS.items() if target.gpu]


def fused(model) -> Graph:
    return pipeline.optimise(import_onnx(model), TARGETS["opencl"], 1, stop_after="fuse")


def copy(rows: int, columns: int, transposed: bool = False) -> Program:
    x = Buffer("x", F32, (columns, rows) if transposed else (rows, columns))
    y = Buffer("y", F32, (rows, columns))
    i, j = Var("i"), Var("j")
    value = Load("x", (j, i) if transposed else (i, j), F32)
    body = spread([("i", rows), ("j", columns)], 256, [Store("y", (i, j), value)])
    return Program("copy", (x, y), (body,))


@pytest.mark.parametrize("target", GPUS)
def test_strides_and_sizes_cost(target):
    gpu = TARGETS[target].gpu
    once, twice = (program_time(copy(n, 4096), gpu) for n in (4096, 8192))
    assert 1.8 * once < twice + gpu.launch < 2.2 * once
    assert once >= 2 * 4 * 4096**2 / gpu.bandwidth
    strided = program_time(copy(4096, 4096, transposed=True), gpu)
    assert strided > 1.05 * once
    assert program_time(copy(1, 1), gpu) < gpu.launch + 1e-6


@pytest.mark.parametrize("target", ["mali-g76", "cuda-sm90"])
@pytest.mark.parametrize("network", [test_plan_layout.network, test_pairs.network])
def test_the_global_plan_is_the_best_and_only_of_what_gpus_can(network, target):
    graph, cost = fused(network()), predicted_cost(TARGETS[target], 1)
    plans = {mode: plan_layout(graph, 4, cost, PlanOptions(mode)) for mode in MODES}
    assert plans["global"].optimal and np.isfinite(plans["fixed"].cost)
    assert plans["global"].cost <= min(plans["local"].cost, plans["fixed"].cost) * (1 + 1e-9)
    for plan in plans.values():
        for decision in plan.decisions.values():
            assert KEPT not in (decision.reads, decision.writes)
            assert ALGORITHMS[decision.algorithm].kind == "gpu" if decision.algorithm in ALGORITHMS else True


@pytest.mark.parametrize("target", ["opencl", "cuda-sm90"])
def test_indices_that_data_decide_are_priced(target):
    """They are guessed to be in range: without the data nobody knows."""
    table = numpy_helper.from_array(np.arange(30, dtype=np.float32), "table")
    less = numpy_helper.from_array(np.array([2000], np.int64), "less")
    nodes = [
        helper.make_node("Sub", ["years", "less"], ["at"]),
        helper.make_node("Gather", ["table", "at"], ["y"]),
    ]
    years = helper.make_tensor_value_info("years", TensorProto.INT64, [8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [years], [y], [table, less])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    machine = TARGETS[target]
    fused = pipeline.optimise(import_onnx(model), machine, 1, stop_after="fuse")
    assert len(fused.nodes) == 1
    assert 0 < predicted_cost(machine, 1).node(fused, fused.nodes[0], Decision()) < 1


def test_layouts_are_alternatives_of_a_convolution():
    graph, cost = fused(zoo.build("c2")), predicted_cost(TARGETS["mali-g76"], 1)
    times = {
        str(d): cost.node(graph, graph.nodes[0], d)
        for d in alternatives(graph, graph.nodes[0], 4, kind="gpu")
    }
    assert sum(map(np.isfinite, times.values())) >= 4 and len(set(times.values())) >= 4


@pytest.mark.parametrize(
    ("network", "seed", "mode"),
    [
        (test_plan_layout.network, 0, "global"),
        (test_plan_layout.network, 1, "local"),
        (test_pairs.network, 2, "global"),
        (test_pairs.network, 3, "fixed"),
        (test_plan_layout.sequences, 4, "global"),
    ],
)
def test_any_plan_is_right(device, network, seed, mode, monkeypatch):
    """Random costs for what is possible: layouts are mixed as no sensible plan would."""
    model, possible, random = network(), PredictedGpuCost.node, test_plan_layout.RandomCost(seed)

    def node(self, graph, node, decision):
        return (
            random.node(graph, node, decision)
            if np.isfinite(possible(self, graph, node, decision))
            else np.inf
        )

    monkeypatch.setattr(PredictedGpuCost, "node", node)
    monkeypatch.setattr(PredictedGpuCost, "conversion", lambda self, *a: random.conversion(*a))
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    got = pipeline.compile(model, target=device.name, plan=mode).run({"x": x})
    for name, array in interpret(import_onnx(model), {"x": x}).items():
        np.testing.assert_allclose(got[name], array, rtol=0, atol=2e-5 * np.abs(array).max())


def test_compact_weights_are_refused():
    with pytest.raises(UnsupportedError, match="target mali-g76: weights are packed when compiling"):
        pipeline.compile(zoo.build("digits"), target="mali-g76", weights="compact")
