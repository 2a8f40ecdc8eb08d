"""Short ways to write ONNX models in tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

F32 = TensorProto.FLOAT
I64 = TensorProto.INT64

node = helper.make_node


def value(name: str, shape: Sequence[int | str | None] | None, dtype: int = F32) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def weight(name: str, array: np.ndarray | Sequence | float | int, dtype: object = np.float32) -> TensorProto:
    return numpy_helper.from_array(np.asarray(array, dtype), name)


def graph(nodes, inputs=(), outputs=(), weights=(), infos=(), name="g") -> onnx.GraphProto:
    return helper.make_graph(
        list(nodes), name, list(inputs), list(outputs), list(weights), value_info=list(infos)
    )


def model(
    nodes, inputs=(), outputs=(), weights=(), infos=(), opset=20, functions=(), domains=(), ir=10
) -> onnx.ModelProto:
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    built = graph(nodes, inputs, outputs, weights, infos)
    return helper.make_model(built, opset_imports=imports, functions=list(functions), ir_version=ir)


def untyped(name: str) -> onnx.ValueInfoProto:
    return onnx.ValueInfoProto(name=name)


X = value("x", (2, 3))
Y = value("y", (2, 3))
