import numpy as np
import onnx
import pytest
from burnish import compile
from burnish.commands.flops import count_flops
from burnish.errors import UnsupportedError
from burnish.models import zoo
from onnx import helper

from .networks import convolution, make


def zeros(*shape):
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    "name, gflop",
    [
        ("resnet18", 3.628),  # 1.814 G multiply-adds
        ("mobilenet_v1", 1.137),
        ("lstm_lm", 0.928),
        ("lstm_lm_step", 0.0265),
        ("dqn", 0.0187),
    ],
)
def test_published_figures(name, gflop):
    assert count_flops(zoo.build(name)) / 1e9 == pytest.approx(gflop, rel=0.003)


def test_convolution():
    assert count_flops(convolution()) == 2 * (4 * 6 * 7) * (3 * 3 * 3)


def test_grouped_convolution_counts_its_own_channels():
    node = helper.make_node("Conv", ["x", "w"], ["y"], group=4, kernel_shape=[3, 3])
    model = make([node], {"x": (2, 8, 5, 5)}, {"y": (2, 12, 3, 3)}, {"w": zeros(12, 2, 3, 3)})
    assert count_flops(model) == 2 * (2 * 12 * 3 * 3) * (2 * 3 * 3)


def test_transposed_convolution_counts_its_inputs():
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], kernel_shape=[2, 2], strides=[2, 2])
    model = make([node], {"x": (1, 6, 4, 4)}, {"y": (1, 5, 8, 8)}, {"w": zeros(6, 5, 2, 2)})
    assert count_flops(model) == 2 * (6 * 4 * 4) * (5 * 2 * 2)


def test_products():
    nodes = [
        helper.make_node("Gemm", ["a", "b"], ["g"], transA=1),
        helper.make_node("MatMul", ["g", "c"], ["y"]),
    ]
    model = make(nodes, {"a": (7, 3)}, {"y": (2, 3, 4)}, {"b": zeros(7, 5), "c": zeros(2, 5, 4)})
    assert count_flops(model) == 2 * 3 * 5 * 7 + 2 * (2 * 3 * 4) * 5


def test_einsum():
    node = helper.make_node("Einsum", ["a", "b"], ["y"], equation="bij,bjk->bik")
    model = make([node], {"a": (2, 3, 4), "b": (2, 4, 5)}, {"y": (2, 3, 5)})
    assert count_flops(model) == 2 * 2 * 3 * 4 * 5


@pytest.mark.parametrize("kind, gates", [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_cells_in_both_directions(kind, gates):
    steps, batch, size, hidden = 5, 2, 6, 7
    node = helper.make_node(kind, ["x", "w", "r"], ["y"], hidden_size=hidden, direction="bidirectional")
    weights = {"w": zeros(2, gates * hidden, size), "r": zeros(2, gates * hidden, hidden)}
    model = make([node], {"x": (steps, batch, size)}, {"y": (steps, 2, batch, hidden)}, weights)
    assert count_flops(model) == 2 * steps * batch * 2 * gates * hidden * (size + hidden)


@pytest.mark.parametrize("kind, gates", [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_kernels_count_what_a_model_does(kind, gates):
    """Sums of products, recurrences' too; no maxima of windows, whose stages sum up nothing."""
    hidden = 8
    nodes = [
        helper.make_node("Conv", ["image", "f"], ["a"]),
        helper.make_node("MaxPool", ["a"], ["b"], kernel_shape=[2, 2]),
        helper.make_node("AveragePool", ["b"], ["c"], kernel_shape=[2, 2]),
        helper.make_node("Reshape", ["c", "steps"], ["x"]),
        helper.make_node(kind, ["x", "w", "r"], ["y"], hidden_size=hidden),
    ]
    rng = np.random.default_rng(0)
    shapes = {"f": (6, 3, 3, 3), "w": (1, gates * hidden, 6), "r": (1, gates * hidden, hidden)}
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    weights["steps"] = np.array([-1, 1, 6])
    model = make(nodes, {"image": (1, 3, 9, 9)}, {"y": (25, 1, 1, hidden)}, weights)
    found = compile(model, threads=1).operations
    assert sum(found.values()) == count_flops(model)
    assert sum(n for name, n in found.items() if name in ("gang", "single")) == 2 * 25 * gates * hidden**2


def test_operators_without_products_count_nothing():
    assert count_flops(make([helper.make_node("Relu", ["x"], ["y"])], {"x": (4,)}, {"y": (4,)})) == 0


def test_open_dimensions_are_filled_in_or_named():
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="project")
    model = make([node], {"x": ("batch", 3)}, {"y": ("batch", 5)}, {"w": zeros(3, 5)})
    assert count_flops(model, {"x": (4, 3)}) == 2 * 4 * 5 * 3
    with pytest.raises(UnsupportedError, match=r"MatMul 'project': the shape of 'x'"):
        count_flops(model)


def test_the_model_stays_as_it_was():
    model = make([helper.make_node("Relu", ["x"], ["y"])], {"x": ("n",)}, {"y": ("n",)})
    before = onnx.ModelProto()
    before.CopyFrom(model)
    count_flops(model, {"x": (3,)})
    assert model == before


def test_operators_of_onnxruntime():
    """ONNX infers no shapes through them."""
    own = {"domain": "com.microsoft"}
    nodes = [
        helper.make_node("FusedConv", ["x", "w"], ["c"], activation="Relu", **own),
        helper.make_node("Reshape", ["c", "shape"], ["r"]),
        helper.make_node("FusedMatMul", ["r", "m"], ["y"], transA=1, **own),
        helper.make_node("Attention", ["y", "qkv"], ["z"], num_heads=2, **own),
    ]
    weights = {"w": zeros(6, 3, 2, 2), "m": zeros(1, 6, 4), "qkv": zeros(4, 12)}
    graph = helper.make_graph(
        nodes,
        "own",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (1, 3, 5, 5))],
        [helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, (1, 16, 4))],
        [
            *(onnx.numpy_helper.from_array(array, name) for name, array in weights.items()),
            helper.make_tensor("shape", onnx.TensorProto.INT64, [3], [1, 6, 16]),
        ],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    convolved, multiplied = 2 * (6 * 4 * 4) * (3 * 2 * 2), 2 * (16 * 4) * 6
    assert count_flops(model) == convolved + multiplied + 2 * 16 * (4 * 12) + 2 * 2 * 16 * 16 * 4
