"""Small ONNX models for the tests of bench."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def make(nodes, inputs, outputs, weights=None) -> onnx.ModelProto:
    """Values are name → shape (of float32); weights are name → array."""
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def relu(shape=(1, 3, 4, 5)) -> onnx.ModelProto:
    return make([helper.make_node("Relu", ["x"], ["y"])], {"x": shape}, {"y": shape})


def convolution() -> onnx.ModelProto:
    """x (1, 3, 6, 7) → conv 3×3 to 4 channels, padded, then ReLU."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((4, 3, 3, 3), np.float32),
        "b": rng.standard_normal(4, np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    return make(nodes, {"x": (1, 3, 6, 7)}, {"y": (1, 4, 6, 7)}, weights)


def convolution_reference(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    w, b = (numpy_helper.to_array(tensor).astype(np.float64) for tensor in model.graph.initializer)
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), axis=(2, 3)
    )
    return np.maximum(np.einsum("ncyxij,ocij->noyx", windows, w) + b[:, None, None], 0)
