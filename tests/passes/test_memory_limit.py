"""Plans under a memory limit: honoured, unreachable, and never dearer with more memory."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from burnish import pipeline
from burnish.compiler.target import get_target
from burnish.errors import InfeasibleError, InputError
from burnish.frontends.onnx.importer import import_onnx
from burnish.graph_passes.assign_layouts import memory_of_plans
from burnish.graph_passes.pack_weights import Packer, packed_sizes
from burnish.graph_passes.plan_layout import Planner, PlanOptions, plan_layout
from burnish.graph_passes.predict import PredictedCost
from burnish.models import zoo
from onnx import TensorProto, helper, numpy_helper

from ..conftest import require_module

require_module("scipy")
TARGET, THREADS = get_target("x86-64-v3"), 2
BLOCK = TARGET.lanes(4)


def network():
    """Convolutions of several sizes, which Winograd's transform makes larger."""
    rng = np.random.default_rng(0)
    sizes = [(16, 16), (32, 16), (64, 32), (128, 64)]
    weights = [
        numpy_helper.from_array(rng.standard_normal((*s, 3, 3), np.float32) / 9, f"w{i}")
        for i, s in enumerate(sizes)
    ]
    names = ["x", "a", "b", "c", "y"]
    nodes = [
        helper.make_node("Conv", [names[i], f"w{i}"], [names[i + 1]], name=f"conv{i}", pads=[1] * 4)
        for i in range(len(sizes))
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 24, 24])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def planning():
    """(bytes of a plan, the plan under a limit)."""
    graph = pipeline.optimise(import_onnx(network()), TARGET, THREADS, stop_after="fuse")
    memory = memory_of_plans(graph, TARGET, THREADS)
    cost = PredictedCost(TARGET, THREADS)
    return memory, lambda limit: plan_layout(graph, BLOCK, cost, PlanOptions(memory_limit=limit), memory)


def smallest(planned) -> int:
    with pytest.raises(InfeasibleError, match="the smallest one found takes") as error:
        planned(1)
    assert "limit of 1 bytes" in str(error.value)
    return int(str(error.value).rsplit(" ", 1)[1])


def test_a_limit_that_does_not_bind(planning):
    memory, planned = planning
    free, loose = planned(None), planned(1 << 40)
    assert loose.cost == free.cost and memory(loose) == memory(free)


def test_limits_bind_and_more_memory_never_costs_more(planning):
    memory, planned = planning
    least, most = smallest(planned), memory(planned(None))
    assert least < most
    limits = np.linspace(least, most, 9).astype(int).tolist()
    plans = [planned(limit) for limit in limits]
    assert all(memory(plan) <= limit for plan, limit in zip(plans, limits))
    assert all(tight.cost >= loose.cost for tight, loose in pairwise(plans))
    assert plans[0].cost > plans[-1].cost == planned(None).cost
    assert planned(limits[3]).decisions == plans[3].decisions
    with pytest.raises(InfeasibleError):
        planned(least - 1)


def test_only_a_plan_that_no_limit_binds_is_proven(planning):
    _, planned = planning
    assert planned(1 << 40).optimal and not planned(smallest(planned)).optimal


@pytest.mark.parametrize("cheap", ["im2row", "im2col"])
def test_costs_do_not_decide_whether_there_is_a_plan(planning, cheap):
    """Of the plans of the least weights another is the cheapest, whose kernels need memory of their own."""
    memory, planned = planning

    class Measured(PredictedCost):
        def node(self, graph, node, decision):
            return super().node(graph, node, decision) * (0.01 if decision.algorithm == cheap else 1)

    graph = pipeline.optimise(import_onnx(network()), TARGET, THREADS, stop_after="fuse")
    least, costs = smallest(planned), Measured(TARGET, THREADS)
    plan = plan_layout(graph, BLOCK, costs, PlanOptions(memory_limit=least), memory)
    assert memory(plan) <= least
    plans = [
        plan_layout(graph, BLOCK, costs, PlanOptions(memory_limit=limit), memory)
        for limit in np.linspace(least, memory(planned(None)), 5).astype(int).tolist()
    ]
    assert all(tight.cost >= loose.cost for tight, loose in pairwise(plans))


def test_the_module_stays_within_the_limit(planning):
    memory, planned = planning
    limit = (smallest(planned) + memory(planned(None))) // 2
    options = {"target": TARGET, "threads": THREADS}
    module = pipeline.compile(network(), memory_limit=limit, **options)
    free = pipeline.compile(network(), **options)
    assert module.plan is not None and free.plan is not None
    assert module.plan.memory(THREADS) == memory(planned(limit)) <= limit < free.plan.memory(THREADS)
    compact = pipeline.compile(network(), memory_limit=limit, weights="compact", **options)
    assert compact.plan is not None and compact.plan.memory(THREADS) <= limit
    x = np.random.default_rng(1).standard_normal((1, 16, 24, 24)).astype(np.float32)
    want = free.run({"x": x})["y"]
    for other in (module, compact):
        np.testing.assert_allclose(other.run({"x": x})["y"], want, rtol=0, atol=2e-5 * np.abs(want).max())


@pytest.mark.parametrize("name", ["network", "lstm"])
def test_sizes_are_those_of_packed_weights(name):
    model = network() if name == "network" else zoo.build("lstm_lm_step")
    graph = pipeline.optimise(import_onnx(model), TARGET, THREADS, stop_after="fuse")
    planner = Planner(graph, BLOCK, PredictedCost(TARGET, THREADS), 1e-4)
    checked = 0
    for n, node in enumerate(graph.nodes):
        for decision in planner.decisions[n]:
            packer = Packer(graph, BLOCK)
            reads = packer.pack(node, decision).reads
            held = {**graph.constants, **packer.constants}
            want = sum(held[v].nbytes for v in reads if v in held)
            assert sum(packed_sizes(graph, node, decision, BLOCK).values()) == want, (node.name, decision)
            checked += want > 0
    assert checked >= 3


@pytest.mark.parametrize(("mode", "limit"), [("local", 1 << 30), ("global", 0), ("global", -5)])
def test_limits_that_make_no_sense(mode, limit):
    with pytest.raises(InputError, match="memory limit"):
        PlanOptions(mode, memory_limit=limit)
