"""ONNX models as .tflite files: LiteRT computes the same from them."""

from __future__ import annotations

import numpy as np
import pytest
from burnish.commands import peers
from burnish.commands.peers.tflite import to_tflite
from burnish.errors import UnsupportedError
from burnish.models import zoo
from onnx import helper

from ..conftest import require_module
from .needed import need
from .networks import make, relu

RNG = np.random.default_rng(3)


def node(op, inputs, output, **attributes):
    return helper.make_node(op, inputs.split(), [output], **attributes)


def normal(*shape):
    return RNG.standard_normal(shape, np.float32)


def strided():
    """A padding that SAME is not, a depthwise one that it is, and a pooled value with negative elements."""
    nodes = [
        node("Conv", "x w b", "c", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Clip", "c low six", "r"),
        node("Conv", "r d", "e", pads=[1, 1, 1, 1], group=8),
        node("MaxPool", "e", "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]),
    ]
    weights = {"w": normal(8, 3, 3, 3), "b": normal(8), "d": normal(8, 1, 3, 3)}
    weights |= {"low": np.array(0, np.float32), "six": np.array(6, np.float32)}
    return make(nodes, {"x": (2, 3, 12, 10)}, {"y": (2, 8, 3, 3)}, weights)


def residual():
    """A value with two readers, dilation, groups, a pool after an activation, a reshape."""
    nodes = [
        node("Conv", "x w", "c", pads=[2, 2, 2, 2], dilations=[2, 2]),
        node("Relu", "c", "r"),
        node("Conv", "r g", "d", pads=[1, 0, 1, 0], group=2),
        node("Add", "d r", "s"),
        node("Relu", "s", "t"),
        node("Concat", "t r", "u", axis=1),
        node("MaxPool", "u", "v", kernel_shape=[2, 3], pads=[0, 1, 0, 0], strides=[2, 2]),
        node("AveragePool", "v", "a", kernel_shape=[2, 2]),
        node("Flatten", "a", "f"),
        node("Gemm", "f m n", "h", transB=1),
        node("Relu", "h", "i"),
        node("MatMul", "i k", "j"),
        node("Softmax", "j", "y", axis=-1),
    ]
    weights = {"w": normal(4, 4, 3, 3), "g": normal(4, 2, 3, 1), "m": normal(5, 48), "n": normal(5)}
    return make(nodes, {"x": (1, 4, 6, 9)}, {"y": (1, 7)}, {**weights, "k": normal(5, 7)})


def averaged():
    nodes = [node("GlobalAveragePool", "x", "a"), node("Relu", "a", "y")]
    return make(nodes, {"x": (1, 3, 4, 5)}, {"y": (1, 3, 1, 1)})


MODELS = {
    "strided": strided,
    "residual": residual,
    "averaged": averaged,
    "mobilenet_v2": lambda: zoo.build("mobilenet_v2", image=32),
    "resnet18": lambda: zoo.build("resnet18", image=32),
    "dqn": lambda: zoo.build("dqn"),
}


@pytest.mark.parametrize("name", MODELS)
def test_litert_computes_the_same(name):
    litert = peers.LiteRT({})
    need(litert)
    network = peers.Network(name, MODELS[name]())
    feeds = zoo.random_inputs(network.model, 0)
    expected = peers.OnnxRuntime().reference(network).run(feeds)
    found = litert.prepare(network, 1).run(feeds)
    for output, array in expected.items():
        assert np.abs(found[output] - array).max() <= 1e-5 * np.abs(array).max()


def test_images_as_high_as_they_have_channels_are_turned_all_the_same():
    need(litert := peers.LiteRT({}))
    shape, weights = (1, 4, 4, 4), {"w": normal(4, 4, 3, 3)}
    model = make([node("Conv", "x w", "y", pads=[1] * 4)], {"x": shape}, {"y": shape}, weights)
    network, x = peers.Network("cube", model), normal(*shape)
    found = litert.prepare(network, 1).run({"x": x})["y"]
    expected = peers.OnnxRuntime().reference(network).run({"x": x})["y"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_what_cannot_be_written_is_named():
    require_module("flatbuffers")
    schema = FakeSchema()
    lrn = make([node("LRN", "x", "y", size=3)], {"x": (1, 3, 4, 4)}, {"y": (1, 3, 4, 4)})
    with pytest.raises(UnsupportedError, match=r"LRN node .*: cannot be written to a \.tflite file"):
        to_tflite(lrn, schema)
    sum_of_rows = make([node("Add", "x z", "y")], {"x": (2, 3), "z": (3,)}, {"y": (2, 3)})
    with pytest.raises(UnsupportedError, match="expected a sum of two values of one shape"):
        to_tflite(sum_of_rows, schema)


class FakeSchema:
    """Tables that take any field, for models that are refused before one is packed."""

    class TensorType:
        FLOAT32 = 0

    class BufferT: ...

    class TensorT: ...


def test_a_relu_alone_is_an_operator():
    litert = peers.LiteRT({})
    need(litert)
    x = normal(1, 3, 4, 5)
    runner = litert.prepare(peers.Network("relu", relu()), 1)
    np.testing.assert_array_equal(runner.run({"x": x})["y"], np.maximum(x, 0))
