"""Products of a constant matrix of few columns as dot products along its rows, which it is turned for."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from burnish import pipeline
from burnish.graph_passes.predict import PredictedCost
from onnx import helper, numpy_helper


@pytest.mark.parametrize("weights", ["packed", "compact"])
@pytest.mark.parametrize("columns", [2, 3, 8])
@pytest.mark.parametrize(("rows", "terms"), [(1, 16), (7, 19), (40, 96), (33, 129)])
def test_against_float64(rows, terms, columns, weights, monkeypatch):
    monkeypatch.setattr(
        PredictedCost, "node", lambda self, graph, node, d: float(d.algorithm != "dot") * 1e15
    )
    rng = np.random.default_rng(rows)
    x, w = (rng.standard_normal(shape, np.float32) for shape in ((2, rows, terms), (terms, columns)))
    given, made = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", x.shape), ("y", (2, rows, columns)))
    )
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    graph = helper.make_graph(nodes, "few", [given], [made], [numpy_helper.from_array(w, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    module = pipeline.compile(model, threads=2, cache=False, weights=weights)
    assert set(module.operations) == {"dot"}
    exact = np.maximum(x.astype(np.float64) @ w, 0)
    for threads in (1, 2):
        found = module.run({"x": x}, threads)["y"]
        assert np.abs(found - exact).max() <= 1e-5 * np.abs(exact).max()
