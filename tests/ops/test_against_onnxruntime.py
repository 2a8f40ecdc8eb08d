"""Imported operators against onnxruntime, where ONNX's own node tests leave attributes untried."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ..conftest import require_module
from .one_node import Array, Node, assert_agrees, f32, floats, ints

require_module("onnxruntime")
RNG = np.random.default_rng(7)


LENGTHS = np.array([5, 1, 3], np.int32)


def recurrent(op: str, directions: int, roles: str, lengths: Array | None = None, **attributes: Any) -> Node:
    """5 steps of 3 rows of 4 inputs, 6 hidden; `roles` names those of bias, h, c, p that are given."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    inputs = [f32(5, 3, 4), f32(directions, gates * 6, 4), f32(directions, gates * 6, 6)]
    inputs.append(f32(directions, 2 * gates * 6) if "b" in roles else None)
    inputs.append(lengths)
    inputs.append(f32(directions, 3, 6) if "h" in roles else None)
    if op == "LSTM":
        inputs.append(f32(directions, 3, 6) if "c" in roles else None)
        inputs.append(f32(directions, 18) if "p" in roles else None)
    return Node(op, tuple(inputs), {"hidden_size": 6, **attributes}, 3 if op == "LSTM" else 2, 14)


RECURRENT = [
    recurrent("LSTM", 1, "bhcp", LENGTHS),
    recurrent("LSTM", 1, "bhc", LENGTHS, direction="reverse"),
    recurrent("LSTM", 1, "bhcp", clip=0.4),
    recurrent("LSTM", 1, "b", input_forget=1),
    recurrent("LSTM", 2, "bhcp", LENGTHS, direction="bidirectional"),
    recurrent(
        "LSTM",
        2,
        "bhcp",
        LENGTHS,
        direction="bidirectional",
        activations=["HardSigmoid", "Tanh", "Elu", "Sigmoid", "ScaledTanh", "LeakyRelu"],
        activation_alpha=[0.3, 0.7, 0.6, 0.2],
        activation_beta=[0.4, 1.2],
    ),
    recurrent("GRU", 1, "bh", LENGTHS),
    recurrent("GRU", 1, "bh", LENGTHS, linear_before_reset=1, direction="reverse"),
    recurrent("GRU", 2, "bh", LENGTHS, linear_before_reset=1, direction="bidirectional", clip=0.5),
    recurrent("GRU", 1, "b", activations=["Sigmoid", "Softsign"]),
    recurrent(
        "RNN",
        2,
        "bh",
        LENGTHS,
        direction="bidirectional",
        activations=["Relu", "Affine"],
        activation_alpha=[0.5],
        activation_beta=[0.1],
    ),
    recurrent("RNN", 1, "bh", clip=0.3),
]

X4, W4 = f32(2, 4, 9, 8), f32(6, 4, 3, 2)
SAME = ("SAME_UPPER", "SAME_LOWER", "VALID")
CONVOLUTIONS = [
    *(Node("Conv", (X4, W4), {"auto_pad": p, "strides": [2, 3]}) for p in SAME),
    *(Node("Conv", (f32(1, 3, 9), f32(2, 3, 4)), {"auto_pad": p}) for p in SAME),
    Node("Conv", (f32(1, 4, 5, 6, 7), f32(6, 2, 3, 2, 3), f32(6)), {"group": 2, "pads": [1, 0, 1, 0, 1, 2]}),
    Node("Conv", (X4, f32(8, 1, 3, 3)), {"group": 4, "dilations": [2, 1], "pads": [2, 1, 0, 1]}),
    *(Node("ConvTranspose", (X4, f32(4, 3, 3, 2)), {"auto_pad": p, "strides": [2, 3]}) for p in SAME),
    *(
        Node("ConvTranspose", (X4, f32(4, 3, 3, 2)), {"output_shape": [20, 25], "strides": [2, 3], **extra})
        for extra in ({}, {"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"}, {"output_padding": [1, 1]})
    ),
    Node(
        "ConvTranspose",
        (X4, f32(4, 3, 3, 2), f32(6)),
        {"group": 2, "dilations": [2, 2], "strides": [3, 2], "pads": [1, 0, 2, 1], "output_padding": [2, 1]},
    ),
    Node("ConvTranspose", (f32(1, 2, 3, 4, 5), f32(2, 3, 2, 3, 2)), {"strides": [2, 1, 2]}),
]
POOLS = [
    *(
        Node(op, (x,), {"kernel_shape": kernel, **window}, outputs)
        for op, outputs in (("MaxPool", 1), ("MaxPool", 2), ("AveragePool", 1), ("LpPool", 1))
        for x, kernel, window in (
            (X4, [3, 2], {"strides": [2, 3], "pads": [1, 0, 2, 1]}),
            (X4, [2, 3], {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
            (X4, [2, 3], {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
            (X4, [2, 3], {"auto_pad": "VALID", "strides": [2, 2]}),
            (f32(1, 2, 11), [3], {"strides": [2]}),
            (f32(1, 2, 5, 6, 7), [2, 2, 3], {"strides": [1, 2, 2], "pads": [1, 0, 1, 0, 1, 1]}),
        )
    ),
    *(
        Node(
            op,
            (X4,),
            {"kernel_shape": [3, 3], "strides": [2, 3], "pads": [1, 1, 1, 0], "ceil_mode": 1, **extra},
        )
        for op, extra in (("MaxPool", {}), ("AveragePool", {}), ("AveragePool", {"count_include_pad": 1}))
    ),
    Node("MaxPool", (X4,), {"kernel_shape": [3, 2], "dilations": [2, 3], "storage_order": 1}, 2),
    *(
        Node("MaxPool", (np.full((1, 2, 5, 4), least, dtype),), {"kernel_shape": [3, 2], **window}, 2)
        for least, dtype in ((0, np.uint8), (-128, np.int8), (-np.inf, np.float32), (np.nan, np.float32))
        for window in (
            {"pads": [2, 1, 0, 0]},
            {"pads": [2, 1, 2, 1], "dilations": [2, 2], "storage_order": 1},
        )
    ),
    Node("AveragePool", (X4,), {"kernel_shape": [3, 2], "dilations": [2, 3], "pads": [1, 1, 2, 1]}, opset=19),
    Node(
        "MaxUnpool",
        (f32(1, 1, 2, 2), ints(1, 7, 12, 24).reshape(1, 1, 2, 2)),
        {"kernel_shape": [3, 3], "strides": [2, 2]},
    ),
    Node(
        "MaxRoiPool",
        (f32(2, 3, 9, 8), floats(0, 1, 1, 6, 7, 1, 0, 2.6, 3, 5.5, 1, 7, 7, 30, 30).reshape(3, 5)),
        {"pooled_shape": [3, 2], "spatial_scale": 0.7},
    ),
    *(
        Node(
            "RoiAlign",
            (f32(2, 3, 9, 8), floats(1, 1, 6, 7, 0, 2.6, 3, 5.5, 5, 6, 30, 30).reshape(3, 4), ints(0, 1, 1)),
            {"output_height": 3, "output_width": 2, "sampling_ratio": ratio, "spatial_scale": 0.7, **extra},
            opset=16,
        )
        for ratio in (0, 2)
        for extra in ({}, {"mode": "max"}, {"coordinate_transformation_mode": "output_half_pixel"})
    ),
]
NORMALISATIONS = [
    Node("LRN", (X4,), {"size": 5, "alpha": 0.3, "beta": 0.6, "bias": 1.5}),
    Node("BatchNormalization", (X4, f32(4), f32(4), f32(4), f32(4) ** 2), {"epsilon": 0.01}),
    Node("InstanceNormalization", (X4, f32(4), f32(4)), {"epsilon": 0.01}),
    Node("LayerNormalization", (X4, f32(9, 8), f32(9, 8)), {"axis": 2, "epsilon": 0.01}, 3),
    Node("MeanVarianceNormalization", (X4,), {"axes": [1, 3]}),
    Node("LpNormalization", (X4,), {"axis": 1, "p": 1}),
    Node("GroupNormalization", (X4, f32(4), f32(4)), {"num_groups": 2}, opset=21),
]
NONE = np.array([], np.float32)
BYTES = np.arange(16, dtype=np.uint8).reshape(4, 4)
HALF, ONE = np.array(0.5, np.float32), np.array(1, np.uint8)
CROP = floats(0, 0, 0.1, -0.2, 1, 1, 0.8, 1.3)
RESIZES = [
    *(
        Node(
            "Resize", (X4, NONE, floats(1, 1, *scales)), {"mode": mode, "coordinate_transformation_mode": how}
        )
        for scales in ((1.7, 2.6), (0.6, 0.43), (2, 3))
        for mode in ("nearest", "linear", "cubic")
        for how in ("half_pixel", "pytorch_half_pixel", "asymmetric")
    ),
    *(
        Node("Resize", (X4, NONE, None, ints(2, 4, *sizes)), {"mode": mode, **extra})
        for sizes in ((5, 13), (14, 3))
        for mode, extra in (
            ("linear", {"coordinate_transformation_mode": "align_corners"}),
            ("cubic", {"coordinate_transformation_mode": "align_corners", "cubic_coeff_a": -0.5}),
            ("cubic", {"exclude_outside": 1}),
            ("linear", {"antialias": 1}),
            ("cubic", {"antialias": 1, "exclude_outside": 1}),
        )
    ),
    *(
        Node(
            "Resize",
            (f32(1, 1, 1, n), NONE, None, ints(1, 1, 1, size)),
            {"nearest_mode": mode, "coordinate_transformation_mode": "align_corners"},
        )
        for n, size in ((27, 29), (13, 14), (29, 27), (100, 999), (7, 1))
        for mode in ("round_prefer_floor", "floor", "ceil")
    ),
    *(
        Node("Resize", (X4, NONE, floats(1, 1, 1.5, 0.7)), {"nearest_mode": mode})
        for mode in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    ),
    Node(
        "Resize",
        (X4, CROP, None, ints(2, 4, 5, 6)),
        {
            "mode": "linear",
            "coordinate_transformation_mode": "tf_crop_and_resize",
            "extrapolation_value": 5.0,
        },
    ),
    *(
        Node(
            "Resize",
            (f32(3, n), floats(0, 0.1, 1, 0.7), *size),
            {"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize"},
        )
        for n, size in (
            (49, (None, ints(3, 1))),
            (3, (floats(1, 1 / 3),)),
            (3, (floats(1, 0.5),)),
            (5, (floats(1, 1.5),)),
        )
        for mode in ("nearest", "linear")
    ),
    *(
        Node(
            "Resize",
            (f32(1, 1, 5, 6), floats(0, 0, 0.2, -0.3, 1, 1, 1, 0.9), None, ints(1, 1, 4, 5)),
            {
                "mode": mode,
                "coordinate_transformation_mode": "tf_crop_and_resize",
                "extrapolation_value": -9.0,
            },
        )
        for mode in ("nearest", "linear", "cubic")  # the second column lies on the border
    ),
    *(
        Node(
            "Resize",
            (f32(1, n), NONE, floats(1, scale)),
            {"coordinate_transformation_mode": "half_pixel_symmetric", "nearest_mode": nearest},
            opset=19,
        )
        for n, scale, nearest in ((33, 0.9, "floor"), (5, 2.5, "ceil"))
    ),
    Node("Resize", (f32(0, 3, 4, 4), NONE, None, ints(0, 3, 8, 8)), {"mode": "linear"}),
    *(
        Node("Resize", (X4, None, None, ints(7, 20)), {"axes": [2, 3], "keep_aspect_ratio_policy": policy})
        for policy in ("not_larger", "not_smaller")
    ),
    *(
        Node("Resize", (X4, floats(1, 1, *s)), {"mode": m}, opset=10)
        for s in ((2, 3), (2.5, 1.5))
        for m in ("nearest", "linear")
    ),
    *(Node("Upsample", (X4, floats(1, 1, 2, 3)), {"mode": mode}, opset=9) for mode in ("nearest", "linear")),
    *(Node("GlobalLpPool", (X4,), {"p": p}) for p in (1, 2, 3)),
    Node("Upsample", (X4,), {"mode": "nearest", "scales": [1.0, 1.0, 2.0, 1.5]}, opset=7),
    *(
        Node(
            "GridSample",
            (f32(2, 3, 5, 4), f32(2, 6, 7, 2) * 1.6),
            {"mode": mode, "padding_mode": padding, "align_corners": align},
            opset=16,
        )
        for mode in ("bilinear", "nearest", "bicubic")
        for padding in ("zeros", "border", "reflection")
        for align in (0, 1)
    ),
]
U8 = RNG.integers(0, 256, (1, 4, 7, 7)).astype(np.uint8)
I8 = RNG.integers(-128, 128, (5, 4, 3, 3)).astype(np.int8)
SCALE, ZERO = np.float32(0.03), np.uint8(120)
QUANTISED = [
    Node(
        "QuantizeLinear",
        (X4, floats(0.1, 0.01, 0.2, 0.03), np.array([0, 9, 128, 255], np.uint8)),
        {"axis": 1},
    ),
    Node(
        "DequantizeLinear",
        (I8, floats(0.1, 0.01, 0.2, 0.03), np.array([0, 9, -128, 127], np.int8)),
        {"axis": 1},
    ),
    Node("DynamicQuantizeLinear", (X4 * 7 + 2,), {}, 3),
    Node(
        "ConvInteger",
        (U8, I8, np.array(ZERO), np.array(-3, np.int8)),
        {"pads": [1, 1, 1, 1], "strides": [2, 2]},
    ),
    *(
        Node(
            "OneHot", (np.array([[-1, 1], [3, 0]]), np.array(3), floats(0.5, 2)), {"axis": axis}, opset=opset
        )
        for opset in (9, 11)
        for axis in (-1, 0)
    ),
    *(
        Node("QLinearMatMul", (a, HALF, ONE, b, HALF, ONE, HALF, ONE), stored=(3,))
        for a, b in ((BYTES[0], BYTES), (BYTES, BYTES[0]), (BYTES[1], BYTES[0]))
    ),
    Node(
        "QLinearConv",
        (
            U8,
            np.array(SCALE),
            np.array(ZERO),
            I8 // 2,  # onnxruntime adds pairs of products in 16 bits, saturating, on CPUs without VNNI
            np.abs(f32(5)) / 50,
            np.zeros(5, np.int8),
            np.array(np.float32(0.3)),
            np.array(ZERO),
            RNG.integers(-500, 500, 5).astype(np.int32),
        ),
        {"pads": [1, 0, 1, 0]},
    ),
]
LOSSES = [
    Node("SoftmaxCrossEntropyLoss", (X4, RNG.integers(0, 4, (2, 9, 8)), f32(4) ** 2), {"ignore_index": 1}, 2),
    Node(
        "NegativeLogLikelihoodLoss", (X4, RNG.integers(0, 4, (2, 9, 8)), f32(4) ** 2), {"reduction": "none"}
    ),
]
OTHERS = [
    *(Node("Slice", (f32(5), ints(start), ints(-(1 << 31)), ints(0), ints(-2))) for start in (-10, -5, 9)),
    Node("Slice", (f32(0), ints(-10), ints(-(1 << 31)), ints(0), ints(-1))),
    *(
        Node("Shrink", (np.array([3, 2, 1, 0, -2, -7]).astype(t),), {"bias": 1.5, "lambd": lambd}, opset=9)
        for t in (np.int32, np.int8, np.uint8, np.int64, np.float32)
        for lambd in (1.5, -0.5)
    ),
]
NODES = [*RECURRENT, *CONVOLUTIONS, *POOLS, *NORMALISATIONS, *RESIZES, *QUANTISED, *LOSSES, *OTHERS]


@pytest.mark.parametrize("node", NODES, ids=str)
def test_agrees(node: Node) -> None:
    assert_agrees(node)
