"""Operators whose older forms ONNX's node tests no longer have, against onnxruntime."""

import numpy as np
import onnx
import pytest
from burnish import pipeline
from burnish.compiler.ir import graph as graph_ir
from burnish.frontends.onnx.importer import import_onnx
from onnx import helper

from ..conftest import require_module
from .one_node import assert_close

onnxruntime = require_module("onnxruntime")

X = np.random.default_rng(0).uniform(-2, 2, (2, 3, 4)).astype(np.float32)
ROWS = X.reshape(6, 4)


def _node(op: str, inputs: int = 1, outputs: int = 1, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(
        op, [f"x{n}" for n in range(inputs)], [f"y{n}" for n in range(outputs)], op, **attributes
    )


SOFTMAX = ("Softmax", "LogSoftmax", "Hardmax")
REDUCE = ("ReduceMean", "ReduceL2", "ReduceLogSumExp")
CASES = [
    *((opset, _node(op, axis=a), [X]) for opset in (7, 11) for op in SOFTMAX for a in (0, 1, 2)),
    (11, _node("Softmax", axis=-2), [X]),
    (7, _node("Softmax"), [X]),
    (7, _node("Slice", starts=[1, -3], ends=[9, -1], axes=[0, 2]), [X]),
    (9, _node("Slice", starts=[0, 1], ends=[1, 100]), [X]),
    (7, _node("Pad", pads=[0, 1, 2, 0, 0, -1], value=1.5), [X]),
    (10, _node("Pad", pads=[0, 1, 2, 0, 0, 1], mode="reflect"), [X]),
    (7, _node("Split", outputs=3, axis=1), [X]),
    (11, _node("Split", outputs=2, axis=-1, split=[1, 3]), [X]),
    (7, _node("Clip", min=-0.5), [X]),
    *((7, _node("Clip", **b), [np.array([np.inf, -np.inf, 2], np.float32)]) for b in ({}, {"min": 0.0})),
    (7, _node("TopK", outputs=2, k=2), [X]),
    (7, _node("Squeeze", axes=[0]), [X[:1]]),
    (11, _node("Squeeze", axes=[-3]), [X[:1]]),
    (7, _node("Squeeze"), [X[:1]]),
    (7, _node("Unsqueeze", axes=[0, 2]), [X]),
    (11, _node("Unsqueeze", axes=[-1]), [X]),
    *((opset, _node(op, axes=[1], keepdims=0), [X]) for opset in (7, 11, 13) for op in REDUCE),
    (11, _node("ReduceSum", axes=[-1, 0]), [X]),
    (7, _node("ReduceMax"), [X]),
    (7, _node("Dropout"), [X]),
    (7, _node("Gemm", 3, alpha=0.5, beta=2.0, transB=1), [ROWS, ROWS[:5], ROWS[0, :1]]),
    (9, _node("Gemm", 3, transA=1), [ROWS, ROWS, ROWS[:1]]),
    (10, _node("Scatter", 3, axis=1), [ROWS, np.array([[1, 0], [3, 2]], np.int64), ROWS[:2, :2]]),
    (7, _node("PRelu", 2), [X, X[0, :, :1]]),
    (8, _node("Mean", 3), [X, X[:1], X[0, 0]]),
    (12, _node("ArgMax", axis=1, select_last_index=1), [np.round(X)]),
    (9, _node("Flatten", axis=2), [X]),
    (7, _node("Transpose"), [X]),
    (12, _node("GatherND", 2, batch_dims=1), [X, np.array([[[2]], [[0]]], np.int64)]),
    (13, _node("Einsum", 2, equation="...ij,kj"), [X, ROWS]),
    (17, _node("MatMul", 2), [X, X[0, 0]]),
    (17, _node("MatMul", 2), [X[0, :, 0], X[0]]),
    (17, _node("MatMul", 2), [X[0, 0], X[0, 1]]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("opset", "node", "arrays"), CASES, ids=[f"{o}-{n.op_type}-{i}" for i, (o, n, _) in enumerate(CASES)]
)
def test_same_as_onnxruntime(opset: int, node: onnx.NodeProto, arrays: list[np.ndarray]) -> None:
    inputs = [
        helper.make_tensor_value_info(f"x{n}", helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in enumerate(arrays)
    ]
    outputs = [onnx.ValueInfoProto(name=o) for o in node.output]
    graph = helper.make_graph([node], "one", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    given = {f"x{n}": a for n, a in enumerate(arrays)}
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, given)
    imported = import_onnx(onnx.shape_inference.infer_shapes(model))
    graph_ir.verify(imported)
    for actual in (graph_ir.interpret(imported, given), pipeline.compile(model, cache=False).run(given)):
        assert len(actual) == len(expected)
        for name, want in zip(imported.outputs, expected):
            assert_close(actual[name], want, 1e-5, name)
