"""Strassen's algorithm on pointwise convolutions and matrices: awkward sizes, drawn configs, errors."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from burnish import pipeline
from burnish.compiler.kernel_task import KernelTask
from burnish.compiler.ops.conv import Conv
from burnish.compiler.ops.elementwise import Binary, Unary
from burnish.compiler.ops.matmul import MatMul
from burnish.compiler.target import get_target
from burnish.compiler.templates import strassen
from burnish.compiler.templates.registry import ALGORITHMS
from burnish.graph_passes.alternatives import alternatives
from burnish.graph_passes.fuse import fuse
from burnish.graph_passes.predict import PredictedCost
from burnish.graph_passes.task_cost import decided_task
from onnx import TensorProto, helper, numpy_helper

from ..passes.make import make
from .kernels import build, execute, load, runnable_targets
from .test_drawn_configs import check

FEATURES = (ALGORITHMS[strassen.NAME].feature,)
CONV = Conv((1, 1), (0, 0, 0, 0), (1, 1))
CASES = [  # operator, data, shape of the weights
    (CONV, "f32[1,64,7,7]", (80, 64, 1, 1)),
    (CONV, "f32[2,32,5,9]", (71, 32, 1, 1)),
    (CONV, "f32[3,96,6,8]", (48, 96, 1, 1)),
    (CONV, "f32[1,64,1,41]", (64, 64, 1, 1)),
    (CONV, "f32[1,128,24,14]", (256, 128, 1, 1)),
    (MatMul(), "f32[43,66]", (66, 100)),
    (MatMul(trans_b=True), "f32[2,3,7,650]", (135, 650)),
    (MatMul(), "f32[1,64,34]", (34, 333)),
]


def task_of(op: Conv | MatMul, data: str, shape: tuple[int, ...], target: str) -> KernelTask | None:
    """With a residual, a bias and ReLU behind it."""
    rng = np.random.default_rng(shape[0])
    weights = rng.standard_normal(shape).astype(np.float32)
    columns = shape[-1] if isinstance(op, MatMul) and not op.trans_b else shape[0]
    bias = rng.standard_normal((columns, 1, 1) if op is CONV else (columns,)).astype(np.float32)
    dims = list(map(int, data[4:-1].split(",")))
    dims[1 if op is CONV else -1] = columns

    def body(g, x, r):
        y = g.one(Binary("add"), g.one(op, x, g.const(weights)), g.const(bias))
        return g.one(Unary("relu"), g.one(Binary("add"), y, r))

    graph = fuse(make({"x": data, "r": f"f32[{','.join(map(str, dims))}]"}, body))
    (node,) = graph.nodes
    found = get_target(target)
    options = alternatives(graph, node, found.lanes(4), features=FEATURES)
    decisions = [d for d in options if d.algorithm == strassen.NAME]
    return decided_task(graph, node, decisions[0], found, 2) if decisions else None


@pytest.mark.parametrize("target", runnable_targets())
def test_drawn_configs(target):
    tasks = [task for case in CASES if (task := task_of(*case, target))]
    assert len(tasks) >= 6
    for task in tasks if target == "host" else tasks[::2]:
        check(task, 1)


def test_against_float64():
    """Weights and data of equal signs and of any: sums that are nearly equal cancel in some products."""
    rng = np.random.default_rng(0)
    rows, terms, columns = 49, strassen.MOST_TERMS, 96
    for positive_x, positive_w in product((False, True), repeat=2):
        x, w = rng.standard_normal((rows, terms)), rng.standard_normal((terms, columns))
        x, w = (np.abs(a) if p else a for a, p in ((x, positive_x), (w, positive_w)))
        x, w = x.astype(np.float32), w.astype(np.float32)
        graph = fuse(make({"x": f"f32[{rows},{terms}]"}, lambda g, v, w=w: g.one(MatMul(), v, g.const(w))))
        (node,) = graph.nodes
        target = get_target("host")
        options = alternatives(graph, node, target.lanes(4), features=FEATURES)
        decision = next(d for d in options if d.algorithm == strassen.NAME)
        task = decided_task(graph, node, decision, target, 1)
        built = build(task, "k")
        ((_, pack),) = ALGORITHMS[strassen.NAME].weights(node.op, target.lanes(4)).items()
        (got,) = execute(built, load([built], target), [x, pack(w)], at_end=True)
        want = x.astype(np.float64) @ w.astype(np.float64)
        error = np.abs(got.reshape(want.shape) - want).max() / np.abs(want).max()
        assert 0 < error <= ALGORITHMS[strassen.NAME].error


@pytest.mark.parametrize("weights", ["packed", "compact"])
def test_in_a_network(weights, monkeypatch):
    """A convolution and a product whose weights are summed when the network is compiled, or opened."""
    rng = np.random.default_rng(3)
    shapes = {"w": (96, 64, 1, 1), "v": (96, 128)}
    arrays = {n: rng.standard_normal(s).astype(np.float32) / 10 for n, s in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "conv"),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("Transpose", ["b"], ["c"], "turn", perm=[0, 2, 3, 1]),
        helper.make_node("MatMul", ["c", "v"], ["y"], "product"),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64, 7, 9])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 7, 9, 128])]
    given = [numpy_helper.from_array(a, n) for n, a in arrays.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, given)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    monkeypatch.setattr(PredictedCost, "node", lambda self, graph, node, d: float(d.algorithm != "strassen"))
    module = pipeline.compile(model, target="x86-64-v3", threads=2, cache=False, weights=weights)
    assert module.plan is not None
    assert len({k for k in module.plan.kernels if "strassen" in k and not k.endswith("_s1")}) == 2
    x = rng.standard_normal((1, 64, 7, 9)).astype(np.float32)
    hidden = np.einsum("nchw,oc->nhwo", x.astype(np.float64), arrays["w"][:, :, 0, 0].astype(np.float64))
    want = np.maximum(hidden, 0) @ arrays["v"].astype(np.float64)
    for threads in (1, 2):
        got = module.run({"x": x}, threads)["y"]
        assert np.abs(got - want).max() <= 2 * ALGORITHMS[strassen.NAME].error * np.abs(want).max()
