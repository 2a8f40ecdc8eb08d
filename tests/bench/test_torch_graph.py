"""Networks written in torch agree with onnxruntime, on the CPU."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from burnish.commands.outputs import reference_outputs, relative_error
from burnish.commands.peers import Network
from burnish.commands.peers.torch_graph import torch_module
from burnish.errors import UnsupportedError
from burnish.models import zoo
from onnx import TensorProto, helper, numpy_helper

from ..conftest import require_module

torch = pytest.importorskip("torch")
require_module("onnxruntime")


def outputs_of(model: onnx.ModelProto, seed: int = 0, half: bool = False):
    """(torch's, onnxruntime's)"""
    network = Network("network", model)
    inputs = zoo.random_inputs(model, seed)
    given = [torch.from_numpy(np.ascontiguousarray(inputs[name])) for name in network.input_names]
    given = [x.half() if half and x.dtype == torch.float32 else x for x in given]
    with torch.inference_mode():
        found = torch_module(model, half)(*given)
    expected = reference_outputs(network, inputs)
    assert expected is not None
    return dict(zip(network.output_names, (value.numpy() for value in found))), expected


def agrees(model: onnx.ModelProto) -> None:
    found, expected = outputs_of(model)
    assert relative_error(found, expected) < 1e-4


HEAVY = ("bert_base", "inception_v1", "inception_v2", "densenet121", "vgg19")
NETWORKS = [("digits", {}), ("dqn", {"batch": 3}), ("lstm_lm_step", {"batch": 2}), ("lstm_lm", {})]
NETWORKS += [(name, {"image": 64}) for name in ("resnet18", "mobilenet_v1", "mobilenet_v2", "c2")]


@pytest.mark.parametrize(("name", "size"), NETWORKS, ids=lambda value: str(value))
def test_networks(name, size):
    agrees(zoo.build(name, **size))


@pytest.mark.heavy
@pytest.mark.parametrize("name", HEAVY)
def test_large_networks(name):
    agrees(zoo.build(name))


def test_half():
    found, expected = outputs_of(zoo.build("dqn"), half=True)
    assert all(array.dtype == np.float16 for array in found.values())
    assert 0 < relative_error(found, expected) < 1e-2


def test_layers_of_lstm_are_one_call_and_products_take_their_bias():
    code = torch_module(zoo.build("lstm_lm_step")).code
    assert code.count("self.lstm0(") == 1 and "self.lstm1" not in code and "sigmoid" not in code
    assert code.count("linear(") == 1 and "matmul" not in code


@pytest.mark.parametrize("name", ["digits", "resnet18"])
def test_a_compiler_sees_all_of_it(name):
    model = zoo.build(name, image=32) if name == "resnet18" else zoo.build(name)
    x = torch.from_numpy(next(iter(zoo.random_inputs(model, 0).values())))
    seen = torch._dynamo.explain(torch_module(model))(x)
    torch._dynamo.reset()
    assert seen.graph_count == 1 and seen.graph_break_count == 0


def one(
    op: str, shape: tuple[int, ...], weights: tuple[np.ndarray, ...] = (), **attributes
) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    constants = [numpy_helper.from_array(array, f"w{n}") for n, array in enumerate(weights)]
    node = helper.make_node(op, ["x", *(c.name for c in constants)], ["y"], "node", **attributes)
    graph = helper.make_graph([node], "one", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 1, 1, 1), (0, 1, 1, 0), (0, 0, 1, 1)])
@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("MaxPool", {}),
        ("MaxPool", {"ceil_mode": 1}),
        ("MaxPool", {"dilations": [2, 1]}),
        ("AveragePool", {}),
        ("AveragePool", {"count_include_pad": 1}),
    ],
)
def test_pools(op, attributes, pads):
    agrees(one(op, (2, 3, 8, 9), kernel_shape=[3, 3], strides=[2, 2], pads=pads, **attributes))


@pytest.mark.parametrize(
    ("shape", "weights", "attributes"),
    [
        ((2, 4, 9, 7), (values(6, 2, 3, 3), values(6)), {"group": 2, "strides": [2, 1]}),
        ((1, 3, 8, 8), (values(5, 3, 3, 2),), {"pads": [0, 1, 2, 0]}),
        ((1, 3, 9, 9), (values(5, 3, 3, 3),), {"pads": [2, 2, 2, 2], "dilations": [2, 2]}),
        ((2, 3, 11), (values(4, 3, 5), values(4)), {"pads": [2, 2]}),
        ((1, 2, 5, 6, 7), (values(3, 2, 3, 3, 3),), {}),
    ],
)
def test_convolutions(shape, weights, attributes):
    agrees(one("Conv", shape, weights, **attributes))


@pytest.mark.parametrize(
    ("op", "shape", "weights", "attributes"),
    [
        ("MatMul", (3, 5, 7), (values(7, 4),), {}),
        ("Gemm", (5, 3), (values(4, 5), values(4)), {"transA": 1, "transB": 1}),
        ("Add", (3, 1, 5), (values(4, 1),), {}),
        ("Div", (3, 5), (1 + np.abs(values(5)),), {}),
        ("Transpose", (2, 3, 4), (), {"perm": [2, 0, 1]}),
        ("Slice", (7, 6), (np.array([1, 0]), np.array([6, 5]), np.array([0, 1]), np.array([2, 3])), {}),
        ("Gather", (4, 5, 3), (np.array([[0, 4], [2, 2]]),), {"axis": 1}),
        ("Softmax", (2, 3, 4), (), {"axis": 1}),
        ("LogSoftmax", (2, 9), (), {}),
        ("LRN", (2, 7, 3, 3), (), {"size": 3}),
        ("LayerNormalization", (2, 3, 5), (values(3, 5), values(3, 5)), {"axis": 1}),
        ("GlobalAveragePool", (2, 3, 4, 5), (), {}),
        ("LeakyRelu", (2, 9), (), {"alpha": 0.3}),
        ("Elu", (2, 9), (), {"alpha": 1.5}),
        ("HardSwish", (2, 9), (), {}),
    ],
)
def test_operators(op, shape, weights, attributes):
    agrees(one(op, shape, weights, **attributes))


def test_what_torch_does_not_get_is_named():
    with pytest.raises(UnsupportedError, match="node 'node': Cumulative is not written in torch here"):
        torch_module(one("CumSum", (3, 4), (np.array(0),)))
    with pytest.raises(UnsupportedError, match="node 'node': Unary with asinh is not written in torch here"):
        torch_module(one("Asinh", (3, 4)))
