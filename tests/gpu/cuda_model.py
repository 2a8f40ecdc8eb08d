"""A small model for modules that run on the fake driver."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper


def gather() -> onnx.ModelProto:
    """A kernel that reports errors, one with weights, a copy to an output, and an empty output."""
    infos = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, 2)),
        helper.make_tensor_value_info("i", TensorProto.INT64, (3,)),
    ]
    results = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, (3, 5)),
        helper.make_tensor_value_info("z", TensorProto.FLOAT, (4, 2)),
    ]
    weights = helper.make_tensor("w", TensorProto.FLOAT, (2, 5), np.arange(10, dtype=np.float32))
    nodes = [
        helper.make_node("Gather", ["x", "i"], ["g"], name="pick"),
        helper.make_node("MatMul", ["g", "w"], ["y"], name="product"),
        helper.make_node("Identity", ["x"], ["z"], name="same"),
    ]
    graph = helper.make_graph(nodes, "gather", infos, results, [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


X = np.arange(8, dtype=np.float32).reshape(4, 2)
W = np.arange(10, dtype=np.float32).reshape(2, 5)


def feeds(index: tuple[int, int, int] = (2, -1, 0)) -> dict[str, np.ndarray]:
    return {"x": X, "i": np.array(index)}


def check(outputs: dict[str, np.ndarray], index: tuple[int, int, int] = (2, -1, 0)) -> None:
    np.testing.assert_allclose(outputs["y"], X[list(index)] @ W, rtol=1e-6)
    np.testing.assert_array_equal(outputs["z"], X)
