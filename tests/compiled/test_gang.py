"""Recurrences whose steps all workers share, as machine code on real threads with the runtime's barrier."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from burnish import pipeline
from burnish.compiler.ir.graph import interpret
from burnish.frontends.onnx.importer import import_onnx
from burnish.graph_passes.predict import PredictedCost
from onnx import helper, numpy_helper

STEPS, INPUTS, RUNS = 5, 3, 20
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrent(kind: str, hidden: int, batch: int, direction: str) -> onnx.ModelProto:
    rng, count = np.random.default_rng(hidden), 2 if direction == "bidirectional" else 1
    shapes = {"w": (count, GATES[kind] * hidden, INPUTS), "r": (count, GATES[kind] * hidden, hidden)}
    weights = [numpy_helper.from_array(rng.normal(0, 0.3, s).astype("f"), n) for n, s in shapes.items()]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (STEPS, batch, INPUTS))
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (STEPS, count, batch, hidden))
    node = helper.make_node(kind, ["x", "w", "r"], ["y"], hidden_size=hidden, direction=direction)
    graph = helper.make_graph([node], "cell", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("hidden", "batch"), [(1, 1), (3, 5), (17, 1), (33, 5), (64, 1)])
@pytest.mark.parametrize("kind", GATES)
def test_workers_share_a_recurrence(kind, hidden, batch, direction, monkeypatch):
    """Also more workers than there are blocks of units, or cores; the same bits in each of many runs."""
    monkeypatch.setattr(
        PredictedCost, "node", lambda self, graph, node, d: float(d.algorithm != "gang") * 1e15
    )
    model = recurrent(kind, hidden, batch, direction)
    feed = {"x": np.random.default_rng(1).standard_normal((STEPS, batch, INPUTS), np.float32)}
    (expected,) = interpret(import_onnx(model), feed).values()
    module = pipeline.compile(model, threads=2, cache=False)
    assert "gang" in module.operations
    for threads in (1, 2, 3, 5, 8):
        context = module.context(threads)
        context.bind_input("x", feed["x"])
        first: np.ndarray | None = None
        for _ in range(RUNS):
            context.run()
            found = context.output("y").copy()
            first = found if first is None else first
            assert np.array_equal(found, first), threads
        np.testing.assert_allclose(first, expected, rtol=0, atol=1e-5)
