"""Models damaged at random: each imports, or is refused by a typed error of one line."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from burnish.compiler.ir.graph import verify
from burnish.errors import BurnishError, InternalError
from burnish.frontends.onnx.importer import import_onnx

from .build import I64, X, model, node, untyped, value, weight
from .must_fail.models import RELU, exponential_functions, nested_ifs

pytestmark = pytest.mark.filterwarnings("ignore::burnish.errors.ModelWarning")


def network() -> onnx.ModelProto:
    nodes = [
        node("Conv", ["i", "w", "b"], ["c"], name="conv", pads=[1, 1, 1, 1], strides=[2, 2], group=1),
        node("BatchNormalization", ["c", "b", "b", "b", "v"], ["n"], name="norm", epsilon=1e-3),
        node("Clip", ["n", "low", "high"], ["k"], name="clip"),
        node("MaxPool", ["k"], ["p"], name="pool", kernel_shape=[2, 2], ceil_mode=1),
        node("Shape", ["p"], ["s"], start=0, end=1),
        node("Concat", ["s", "minus"], ["t"], axis=0),
        node("Reshape", ["p", "t"], ["f"], name="flat"),
        node("Gemm", ["f", "g"], ["y"], name="dense", transB=1, alpha=0.5),
        node("TopK", ["y", "two"], ["top", "at"], name="top"),
    ]
    weights = [
        weight("w", np.ones((4, 3, 3, 3))), weight("b", np.ones(4)), weight("v", np.ones(4)),
        weight("low", 0.0), weight("high", 6.0), weight("minus", [-1], np.int64),
        weight("g", np.ones((5, 36))), weight("two", [2], np.int64),
    ]  # fmt: skip
    return model(
        nodes, [value("i", (1, 3, 8, 8))], [untyped("y"), untyped("top"), value("at", (1, 2), I64)], weights
    )


def recurrent() -> onnx.ModelProto:
    nodes = [
        node("LSTM", ["x", "w", "r"], ["o", "", "c"], name="lstm", hidden_size=2),
        node("Squeeze", ["o", "axes"], ["q"], name="squeeze"),
        node("Einsum", ["q", "c"], ["y"], name="einsum", equation="abc,dbc->ad"),
    ]
    weights = [
        weight("w", np.ones((1, 8, 3))),
        weight("r", np.ones((1, 8, 2))),
        weight("axes", [1], np.int64),
    ]
    return model(nodes, [value("x", (4, 1, 3))], [untyped("y")], weights)


def resized() -> onnx.ModelProto:
    nodes = [
        node("Resize", ["i", "", "scales"], ["r"], name="resize", mode="linear"),
        node("Pad", ["r", "pads"], ["p"], name="pad", mode="reflect"),
        node("Slice", ["p", "from", "to"], ["y"], name="slice"),
    ]
    weights = [
        weight("scales", [1, 1, 2, 1.5]), weight("pads", [0, 0, 1, 1, 0, 0, 0, 2], np.int64),
        weight("from", [0, 0, 1, 0], np.int64), weight("to", [1, 1, 99, -1], np.int64),
    ]  # fmt: skip
    return model(nodes, [value("i", (1, 1, 4, 4))], [untyped("y")], weights)


MODELS = {
    "network": network(),
    "recurrent": recurrent(),
    "resized": resized(),
    "function": exponential_functions(4),
    "control flow": nested_ifs(3),
    "relu": RELU,
}


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """`data` with a few bytes flipped, overwritten, cut out or repeated."""
    array = bytearray(data)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(len(array)))
        kind = rng.integers(4)
        if kind == 0:
            array[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            array[at] = int(rng.choice([0, 1, 0x7F, 0x80, 0xFF]))
        elif kind == 2:
            del array[at : at + int(rng.integers(1, 9))]
        else:
            array[at:at] = array[max(0, at - 8) : at]
    return bytes(array)


def reads(source: onnx.ModelProto | bytes) -> bool:
    """Whether the importer came to a model's nodes: all are valid, or it names one in its refusal, a line."""
    try:
        verify(import_onnx(source))
    except InternalError:
        raise
    except BurnishError as error:
        assert "\n" not in str(error)
        return "node " in str(error)
    return True


@pytest.mark.parametrize("name", MODELS)
def test_damaged_models_are_refused_or_valid(name):
    data, rng = MODELS[name].SerializeToString(), np.random.default_rng(len(name))
    import_onnx(data) if name != "control flow" else None
    read = sum(reads(damaged(data, rng)) for _ in range(400))
    assert read >= 20


@pytest.mark.parametrize("name", MODELS)
def test_models_with_a_changed_number_are_refused_or_valid(name):
    """Attributes, shapes and integer constants take awkward values."""
    rng = np.random.default_rng(len(name))
    read = 0
    awkward = [-(2**63), -(2**31), -7, -1, 0, 1, 2, 5, 1000, 2**31 - 1, 2**31, 2**62, 2**63 - 1]
    for _ in range(200):
        m = onnx.ModelProto()
        m.CopyFrom(MODELS[name])
        places = [(a, "i") for n in m.graph.node for a in n.attribute if a.type == onnx.AttributeProto.INT]
        places += [(a.ints, k) for n in m.graph.node for a in n.attribute for k in range(len(a.ints))]
        places += [(d, "dim_value") for i in m.graph.input for d in i.type.tensor_type.shape.dim]
        tensors = [t for t in m.graph.initializer if t.data_type == I64]
        pick = int(rng.integers(len(places) + len(tensors)))
        new = int(rng.choice(np.array(awkward, object)))
        if pick >= len(places):
            t = tensors[pick - len(places)]
            array = onnx.numpy_helper.to_array(t).copy()
            array.flat[int(rng.integers(array.size))] = new
            t.raw_data = array.tobytes()
        elif isinstance(places[pick][1], str):
            setattr(*places[pick], new)
        else:
            places[pick][0][places[pick][1]] = new
        read += reads(m)
    assert read >= 20


def test_inputs_of_size_zero_import_or_are_refused():
    for shape in ((0, 3), (2, 0), (0, 0)):
        m = model([node("Relu", ["x"], ["y"]), node("Softmax", ["y"], ["z"])], [X], [untyped("z")])
        for dim, size in zip(m.graph.input[0].type.tensor_type.shape.dim, shape):
            dim.dim_value = size
        verify(import_onnx(m))
