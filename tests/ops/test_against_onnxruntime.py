"""Imported neural-network operators against onnxruntime, where ONNX's own node tests leave attributes untried."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from burnish.compiler.ir.graph import interpret
from burnish.frontends.onnx.importer import import_onnx
from onnx import helper

onnxruntime = pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(7)
Array = np.ndarray


def f32(*shape: int) -> Array:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def model_of(
    op: str, inputs: tuple[Array | None, ...], outputs: int, opset: int, attributes: dict[str, Any]
) -> onnx.ModelProto:
    """One node; what is not float is an initializer, so that it may decide shapes."""
    names = ["" if a is None else f"x{n}" for n, a in enumerate(inputs)]
    node = helper.make_node(op, names, [f"y{n}" for n in range(outputs)], "node", **attributes)
    feeds, constants = [], []
    for name, a in zip(names, inputs):
        if a is None:
            continue
        if name == "x0" or a.ndim > 1:
            feeds.append(
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            )
        else:
            constants.append(onnx.numpy_helper.from_array(a, name))
    results = [helper.make_empty_tensor_value_info(f"y{n}") for n in range(outputs)]
    graph = helper.make_graph([node], op, feeds, results, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


LENGTHS = np.array([5, 1, 3], np.int32)


def recurrent(
    op: str, gates: int, directions: int, roles: str, lengths: Array | None, **attributes: Any
) -> tuple:
    """5 steps of 3 rows of 4 inputs, 6 hidden; `roles` names those of bias, h, c, p that are given."""
    first = f32(5, 3, 4), f32(directions, gates * 6, 4), f32(directions, gates * 6, 6)
    rest = [f32(directions, 2 * gates * 6) if "b" in roles else None, lengths]
    rest.append(f32(directions, 3, 6) if "h" in roles else None)
    if op == "LSTM":
        rest += [
            f32(directions, 3, 6) if "c" in roles else None,
            f32(directions, 18) if "p" in roles else None,
        ]
    return op, (*first, *rest), 3 if op == "LSTM" else 2, 14, {"hidden_size": 6, **attributes}


CASES = [
    recurrent("LSTM", 4, 1, "bhcp", LENGTHS),
    recurrent("LSTM", 4, 1, "bhc", LENGTHS, direction="reverse"),
    recurrent("LSTM", 4, 1, "bhcp", None, clip=0.4),
    recurrent("LSTM", 4, 1, "b", None, input_forget=1),
    recurrent("LSTM", 4, 2, "bhcp", LENGTHS, direction="bidirectional"),
    recurrent(
        "LSTM", 4, 2, "bhcp", LENGTHS, direction="bidirectional",
        activations=["HardSigmoid", "Tanh", "Elu", "Sigmoid", "ScaledTanh", "LeakyRelu"],
        activation_alpha=[0.3, 0.7, 0.6, 0.2], activation_beta=[0.4, 1.2],
    ),
    recurrent("GRU", 3, 1, "bh", LENGTHS),
    recurrent("GRU", 3, 1, "bh", LENGTHS, linear_before_reset=1, direction="reverse"),
    recurrent("GRU", 3, 2, "bh", LENGTHS, linear_before_reset=1, direction="bidirectional", clip=0.5),
    recurrent("GRU", 3, 1, "b", None, activations=["Sigmoid", "Softsign"]),
    recurrent("RNN", 1, 2, "bh", LENGTHS, direction="bidirectional", activations=["Relu", "Affine"], activation_alpha=[0.5], activation_beta=[0.1]),
    recurrent("RNN", 1, 1, "bh", None, clip=0.3),
]  # fmt: skip


@pytest.mark.parametrize(
    "op, inputs, outputs, opset, attributes",
    CASES,
    ids=lambda v: str(v)[:60] if isinstance(v, (str, dict)) else "",
)
def test_agrees(
    op: str, inputs: tuple[Array | None, ...], outputs: int, opset: int, attributes: dict[str, Any]
) -> None:
    model = model_of(op, inputs, outputs, opset, attributes)
    feeds = {i.name: inputs[int(i.name[1:])] for i in model.graph.input}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, feeds)
    for info, array in zip(model.graph.output, expected):
        info.CopyFrom(
            helper.make_tensor_value_info(
                info.name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
        )
    graph = import_onnx(model)
    with np.errstate(all="ignore"):
        actual = interpret(graph, feeds)
    for name, want in zip(graph.outputs, expected):
        np.testing.assert_allclose(actual[name], want, rtol=1e-5, atol=1e-5)
