"""What ONNX's text says of cases that its node tests leave out: compiled, and by operators' definitions."""

from __future__ import annotations

import burnish
import numpy as np
import onnx
import pytest
from burnish.compiler.ir.graph import interpret
from burnish.frontends.onnx.importer import import_onnx
from ml_dtypes import bfloat16

from .one_node import Array, Node, f32, floats, ints

X = f32(1, 16, 1)
HEADS = floats(*range(6)).reshape(1, 2, 3, 1)
CASES: dict[str, tuple[Node, Array]] = {
    "a power of an integer that f16 does not have": (
        Node("Pow", (np.full((1, 2), -1, np.float16), np.array([[2049, 2048]], np.int32)), opset=15),
        np.array([[-1, 1]], np.float16),
    ),
    "of a constant one": (
        Node("Pow", (np.full((1, 2), -1, np.float16), np.array([2049, 2048], np.int32)), opset=15),
        np.array([[-1, 1]], np.float16),
    ),
    "a power of f32 that f16 does not have": (
        Node("Pow", (np.array([[10]], np.float16), np.array([[4.8]], np.float32)), opset=15),
        np.array([[63104]], np.float16),
    ),
    "a power of an integer that f32 does not have": (
        Node("Pow", (np.full((1, 1), -1, np.float32), np.array([[16777217]])), opset=15),
        np.array([[-1]], np.float32),
    ),
    "a cube of f16": (
        Node("Pow", (np.array([[1.02734375]], np.float16), np.array(3, np.float16)), opset=15),
        np.array([[1.083984375]], np.float16),
    ),
    "a power of a larger integer": (
        Node("Pow", (np.array([[0, 2]], np.int32), np.array([[1 << 32]])), opset=15),
        np.array([[0, 0]], np.int32),
    ),
    "a shift of many bits": (
        Node("BitShift", (np.array([[(1 << 64) - 1]], np.uint64), np.array([[1]], np.uint64)),
             {"direction": "RIGHT"}, constant=True),
        np.array([[(1 << 63) - 1]], np.uint64),
    ),
    **{
        f"attention of four axes that says that it has {heads} heads, opset {opset}": (
            Node("Attention", (HEADS * 0, HEADS * 0, HEADS),
                 {"q_num_heads": heads, "kv_num_heads": heads}, opset=opset),
            floats(1, 1, 1, 4, 4, 4).reshape(1, 2, 3, 1),
        )
        for heads, opset in ((2, 23), (2, 24), (0, 24))
    },
    "whole numbers between others": (
        Node("Upsample", (np.array([[0, 0, 3, 3]], np.int32), floats(1, 3)), {"mode": "linear"}, opset=9),
        np.array([[0, 0, 0, 0, 1, 2, 3, 3, 3, 3, 3, 3]], np.int32),
    ),
    "an image of one value, cubic": (
        Node("Resize", (np.ones((1, 2), np.uint8), None, None, ints(1, 3)), {"mode": "cubic"}),
        np.ones((1, 3), np.uint8),
    ),
    "samples of one value, cubic": (
        Node("GridSample", (np.ones((1, 1, 6, 6), np.int32), floats(-0.4, -0.1).reshape(1, 1, 1, 2)),
             {"mode": "cubic"}, opset=20),
        np.ones((1, 1, 1, 1), np.int32),
    ),
    **{
        f"a {mode} sample {where:g} away": (
            Node("GridSample", (floats(1, 2, 3).reshape(1, 1, 1, 3), floats(where, 0).reshape(1, 1, 1, 2)),
                 {"mode": mode, "padding_mode": "border"}, opset=20, constant=True),
            floats(1 if where < 0 else 3).reshape(1, 1, 1, 1),
        )
        for mode in ("linear", "nearest")
        for where in (np.inf, -np.inf, 1e30)
    },
    "a region whose size is whole in f32 alone": (
        Node("RoiAlign",
             (np.tile(floats(0, 1, 4, 9), (1, 1, 4, 1)), floats(0, 0, 30, 30).reshape(1, 4), ints(0)),
             {"spatial_scale": 0.1, "coordinate_transformation_mode": "output_half_pixel"}),
        floats(9.5 / 3).reshape(1, 1, 1, 1),
    ),
    "a range of bf16": (
        Node("Range", tuple(np.array(n, bfloat16) for n in (1, 512, 1)), opset=27, constant=True),
        np.arange(1, 512).astype(bfloat16),
    ),
    "pooling whose auto_pad is empty": (
        Node("MaxPool", (floats(1, 2, 3, 4, 5).reshape(1, 1, 5),),
             {"kernel_shape": [2], "strides": [2], "ceil_mode": 1, "auto_pad": ""}),
        floats(2, 4, 5).reshape(1, 1, 3),
    ),
    "what is cut off is not repeated": (
        Node("Pad", (floats(1, 2, 3, 4, 5)[None], ints(0, -1, 0, 2)), {"mode": "wrap"}, opset=19),
        floats(2, 3, 4, 5, 2, 3)[None],
    ),
    "a number that is mirrored": (
        Node("Pad", (np.array(3, np.float32), np.zeros(0, np.int64)), {"mode": "reflect"}),
        np.array(3, np.float32),
    ),
    "nor mirrored": (
        Node("Pad", (floats(1, 2, 3, 4, 5)[None], ints(0, 2, 0, -2)), {"mode": "reflect"}),
        floats(3, 2, 1, 2, 3)[None],
    ),
    "a transposed convolution of one more than it reaches": (
        Node("ConvTranspose", (floats(1, 2, 3).reshape(1, 1, 3), floats(1, 1).reshape(1, 1, 2)),
             {"output_shape": [5]}),
        floats(1, 3, 5, 3, 0).reshape(1, 1, 5),
    ),
    "no place of a number": (Node("NonZero", (np.array(5),), constant=True), np.empty((0, 1), np.int64)),
    "no place of zero": (Node("NonZero", (np.array(0),), constant=True), np.empty((0, 0), np.int64)),
    "the sign of no remainder": (
        Node("Mod", (floats(-4, 4, 4, -4)[None], floats(2, -2, 2, -2)[None]), opset=28),
        floats(0.0, -0.0, 0.0, -0.0)[None],
    ),
    "nothing is left of equal numbers without their mean": (
        Node("MeanVarianceNormalization", (np.full((1, 1, 2, 3), 255, np.float32),)),
        np.zeros((1, 1, 2, 3), np.float32),
    ),
    "nor in a row": (
        Node("LayerNormalization", (np.full((2, 63), 1.75, np.float32), np.ones(63, np.float32)),
             {"epsilon": 1e-12}),
        np.zeros((2, 63), np.float32),
    ),
    "a sample from nowhere": (
        Node("GridSample", (np.array([[[[7.0]]]], np.float32), np.full((1, 1, 1, 2), np.nan, np.float32)),
             {"mode": "nearest"}, opset=20),
        np.zeros((1, 1, 1, 1), np.float32),
    ),
    "samples from infinitely far": (
        Node("GridSample", (np.ones((1, 1, 2, 2), np.float32),
                            floats(np.inf, 0, 0, -np.inf, 0, 0).reshape(1, 1, 3, 2)), opset=20),
        floats(0, 0, 1).reshape(1, 1, 1, 3),
    ),
    "a convolution's samples from infinitely far": (
        Node("DeformConv", (np.ones((1, 1, 1, 2), np.float32), np.ones((1, 1, 1, 1), np.float32),
                            floats(0, 0, np.inf, 0).reshape(1, 2, 1, 2)), opset=19),
        floats(0, 1).reshape(1, 1, 1, 2),
    ),
    "integers between integers, all of which count": (
        Node("Resize", (np.array([[[[0, 3, 255, 255, 7, 8]]]], np.uint8), None, floats(1, 1, 1, 0.5)),
             {"mode": "linear", "antialias": 1}),
        np.array([[[[33, 193, 39]]]], np.uint8),
    ),
    "beyond an image of integers": (
        Node("Resize", (np.array([[5, 6]], np.uint8), floats(0, -0.5, 1, 1.5), None, ints(1, 4)),
             {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": np.inf}),
        np.array([[255, 5, 6, 255]], np.uint8),
    ),
    "no class": (
        Node("OneHot", (floats(np.nan, 1), np.array(3), floats(0, 1))),
        np.array([[0, 0, 0], [0, 1, 0]], np.float32),
    ),
    "the last of several NaN": (
        Node("ArgMax", (floats(np.nan, 1, np.nan)[None],), {"axis": 1, "select_last_index": 1}),
        np.array([[2]]),
    ),
    "quantising in f16": (
        Node("QuantizeLinear", (floats(2055), np.array(3, np.float32), np.array(0, np.uint16)),
             {"precision": 10}, opset=23),
        np.array([686], np.uint16),
    ),
    "quantising in f16 as the scale is": (
        Node("QuantizeLinear", (floats(2055), np.array(3, np.float16), np.array(0, np.uint16)), opset=23),
        np.array([686], np.uint16),
    ),
    "a spectrum of all samples": (
        Node("STFT", (X, np.array(4)), opset=17),
        np.stack([(f := np.fft.rfft(X[:, None, :, 0])).real, f.imag], -1).astype(np.float32),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rare_cases(name: str) -> None:
    node, want = CASES[name]
    model, feeds = node.model(), node.feeds()
    for found in (interpret(import_onnx(model), feeds), burnish.compile(model, cache=False).run(feeds)):
        got = np.asarray(found["y0"])
        assert got.shape == want.shape and got.dtype == want.dtype
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=1e-5, atol=1e-5)
        if node.op == "Mod":
            np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


def test_attention_of_four_axes_has_the_heads_that_it_says() -> None:
    node = Node("Attention", (HEADS, HEADS, HEADS), {"q_num_heads": 3, "kv_num_heads": 2}, opset=23)
    with pytest.raises(burnish.ModelError, match="q_num_heads is 3, but the input of four axes has 2 heads"):
        burnish.compile(node.model())


def test_a_variance_that_is_zero_is_not_less() -> None:
    """E[x²] - E[x]² of equal numbers whose square is rounded: an fma would not round one of both."""
    make = onnx.helper.make_node
    nodes = [make("ReduceMean", ["x"], ["mu"], axes=[1]), make("Mul", ["x", "x"], ["q"]),
             make("ReduceMean", ["q"], ["mu2"], axes=[1]), make("Mul", ["mu", "mu"], ["m"]),
             make("Sub", ["mu2", "m"], ["v"]), make("Sub", ["x", "mu"], ["y"])]  # fmt: skip
    infos = [
        onnx.helper.make_tensor_value_info(n, 1, s)
        for n, s in (("x", (2, 64)), ("v", (2, 1)), ("y", (2, 64)))
    ]
    graph = onnx.helper.make_graph(nodes, "g", infos[:1], infos[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    x = np.full((2, 64), 16.00390625, np.float32)
    assert burnish.compile(model, cache=False).run({"x": x})["v"].tolist() == [[0], [0]]


def test_a_remainder_that_is_zero_is_not_less() -> None:
    """x - floor(x / y) · y, as exporters write x % y, of a product that is rounded to x; and a·b - c·d."""
    make = onnx.helper.make_node
    nodes = [make("Div", ["x", "y"], ["q"]), make("Floor", ["q"], ["n"]), make("Mul", ["n", "y"], ["m"]),
             make("Sub", ["x", "m"], ["r"]), make("Sqrt", ["r"], ["s"]), make("Mul", ["x", "y"], ["a"]),
             make("Mul", ["z", "y"], ["b"]), make("Sub", ["a", "b"], ["d"])]  # fmt: skip
    infos = [onnx.helper.make_tensor_value_info(n, 1, (17,)) for n in "xyzrsd"]
    graph = onnx.helper.make_graph(nodes, "g", infos[:3], infos[3:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    x, y = (np.full(17, value, np.float32) for value in (2.1, 0.7))
    found = burnish.compile(model, cache=False).run({"x": x, "y": y, "z": x})
    for value in found.values():
        np.testing.assert_array_equal(value, 0)


@pytest.mark.parametrize("size", [1e7, 16e3])
def test_regions_that_are_too_large_are_left_to_the_run(size: float) -> None:
    arrays = f32(1, 1, 4, 4), np.array([[0, 0, 16e3, size]], np.float32), np.array([0])
    constants = [onnx.numpy_helper.from_array(a, n) for a, n in zip(arrays, ("image", "rois", "batch"))]
    nodes = [onnx.helper.make_node("RoiAlign", ["image", "rois", "batch"], ["a"]),
             onnx.helper.make_node("Add", ["a", "x"], ["y"])]  # fmt: skip
    infos = [onnx.helper.make_tensor_value_info(n, 1, (1, 1, 1, 1)) for n in "xy"]
    graph = onnx.helper.make_graph(nodes, "g", infos[:1], infos[1:], constants)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    module = burnish.compile(model, cache=False)
    if size > 1e6:
        with pytest.raises(burnish.RunError, match="index is out of range"):
            module.run({"x": f32(1, 1, 1, 1)})
        return
    x = f32(1, 1, 1, 1)
    np.testing.assert_allclose(module.run({"x": x})["y"], x, rtol=0, atol=1e-5)  # 16 pixels of 256 million


def test_places_of_windows_in_the_padding() -> None:
    """Of a window that is all padding they are in its own plane."""
    x = np.arange(4, dtype=np.float32).reshape(1, 2, 2)
    attributes = {"kernel_shape": [2], "dilations": [3], "pads": [1, 1]}
    node = Node("MaxPool", (x,), attributes, 2)
    for found in (interpret(import_onnx(node.model()), node.feeds()),
                  burnish.compile(node.model(), cache=False).run(node.feeds())):  # fmt: skip
        assert found["y1"].tolist() == [[[1], [3]]]


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (Node("ReverseSequence", (f32(4, 1), np.array([9]))), "out of range"),
        (Node("ReverseSequence", (f32(4, 1), np.array([-1]))), "out of range"),
        (Node("TensorScatter", (f32(1, 4, 2), f32(1, 2, 2), np.array([-1])), {"axis": 1}, opset=24),
         "out of range"),
    ],
)  # fmt: skip
def test_what_a_run_refuses_is_not_folded(node: Node, message: str) -> None:
    for constant in (False, True):
        node = Node(node.op, node.inputs, node.attributes, opset=node.opset, constant=constant)
        module = burnish.compile(node.model(), cache=False)
        with pytest.raises(burnish.RunError, match=message):
            module.run(node.feeds())


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (Node("DequantizeLinear", (np.zeros((6, 4), np.int8), f32(6, 2), np.zeros((2, 6), np.int8)),
              {"axis": 1, "block_size": 2}, opset=21), "expected the same shape"),
        (Node("DequantizeLinear", (np.zeros((3, 4), np.uint8), f32(4), np.zeros((2, 2), np.uint8)),
              opset=21), "expected the same shape"),
        (Node("QLinearMatMul", (np.zeros((1, 4), np.uint8), np.ones((), np.float32),
              np.zeros((), np.uint8), np.zeros((4, 3), np.uint8), np.ones((), np.float32),
              np.zeros((), np.uint8), np.ones(3, np.float32), np.zeros((), np.uint8)), stored=(3,)),
         "one for each row or column"),
    ],
)  # fmt: skip
def test_scales_that_do_not_fit(node: Node, message: str) -> None:
    with pytest.raises(burnish.BurnishError, match=message):
        import_onnx(node.model())


def test_one_direction_may_name_the_activations_of_two() -> None:
    inputs = f32(5, 3, 4), f32(1, 6, 4), f32(1, 6, 6)
    plain = Node("RNN", inputs, {"hidden_size": 6}, 2, 14, stored=(1, 2))
    named = Node("RNN", inputs, {"hidden_size": 6, "activations": ["Tanh"] * 2}, 2, 14, stored=(1, 2))
    want, got = (interpret(import_onnx(n.model()), n.feeds()) for n in (plain, named))
    np.testing.assert_array_equal(got["y0"], want["y0"])
