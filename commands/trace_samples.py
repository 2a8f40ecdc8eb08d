"""Models of one operator, for `burnish trace --op`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..errors import InputError


@dataclass(frozen=True)
class _Sample:
    op: str
    input: Sequence[int] = (1, 16, 14, 14)
    weights: Sequence[Sequence[int]] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)


SAMPLES = {
    "softmax": _Sample("Softmax", (8, 100), attributes={"axis": -1}),
    "conv": _Sample("Conv", weights=((32, 16, 3, 3), (32,)), attributes={"pads": [1, 1, 1, 1]}),
    "depthwise": _Sample("Conv", weights=((16, 1, 3, 3),), attributes={"pads": [1] * 4, "group": 16}),
    "matmul": _Sample("MatMul", (64, 128), ((128, 96),)),
    "gemm": _Sample("Gemm", (8, 128), ((96, 128), (96,)), {"transB": 1}),
    "maxpool": _Sample("MaxPool", attributes={"kernel_shape": [2, 2], "strides": [2, 2]}),
    "layernorm": _Sample("LayerNormalization", (8, 100), ((100,), (100,))),
    "relu": _Sample("Relu"),
    "tanh": _Sample("Tanh"),
    "transpose": _Sample("Transpose", attributes={"perm": [0, 2, 3, 1]}),
}
"""Name → operator with small, typical sizes."""


def sample(name: str) -> onnx.ModelProto:
    """A model x → y of one node with seeded random weights; InputError for an unknown name."""
    known = SAMPLES.get(name.lower())
    if known is None:
        raise InputError(
            f"--op {name!r}: expected one of {', '.join(SAMPLES)}; or give a model and --node NAME"
        )
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape, np.float32), f"w{n}")
        for n, shape in enumerate(known.weights)
    ]
    names = ["x", *(tensor.name for tensor in weights)]
    node = helper.make_node(known.op, names, ["y"], name=name.lower(), **known.attributes)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, known.input)
    graph = helper.make_graph([node], name.lower(), [x], [onnx.ValueInfoProto(name="y")], weights)
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)
