"""Cases of compiler/ops/conv.py."""

from __future__ import annotations

import numpy as np
from burnish.compiler.ops.conv import Conv, ConvInteger, ConvTranspose
from burnish.compiler.ops.tap_transform import TapTransform
from burnish.compiler.ops.toom_cook import transform

from .case import Case


def conv(
    strides: tuple[int, ...], pads: tuple[int, ...], dilations: tuple[int, ...] | None = None, group: int = 1
) -> Conv:
    return Conv(strides, pads, dilations or (1,) * len(strides), group)


def transposed(
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    sizes: tuple[int, ...],
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
) -> ConvTranspose:
    return ConvTranspose(strides, pads, dilations or (1,) * len(strides), sizes, group)


G = transform(2).g
WINOGRAD = tuple((tuple(np.outer(row, column).ravel().tolist()),) for row in G for column in G)

CASES = [
    Case(conv((1,), (0, 0)), ("f32[2,3,11]", "f32[4,3,3]", "f32[4]"), widen=20),
    Case(conv((2,), (1, 2), (3,)), ("f32[1,5,17]", "f32[7,5,3]", None), widen=20),
    Case(conv((1, 1), (0, 0, 0, 0)), ("f32[1,1,1,1]", "f32[1,1,1,1]", "f32[1]")),
    Case(conv((1, 1), (1, 1, 1, 1)), ("f32[1,17,7,5]", "f32[13,17,3,3]", "f32[13]"), widen=40),
    Case(conv((2, 2), (3, 3, 3, 3)), ("f32[2,3,13,15]", "f32[16,3,7,7]"), widen=40),
    Case(
        conv((2, 1), (0, 2, 3, 1), (1, 2)),
        ("f32[1,4,9,8]", "f32[5,4,3,3]", "f32[5]"),
        "asymmetric pads",
        widen=40,
    ),
    Case(conv((3, 2), (0, 0, 0, 0)), ("f32[3,2,10,11]", "f32[3,2,1,1]", "f32[3]"), "strided 1x1"),
    Case(
        conv((1, 1), (1, 1, 1, 1), group=7), ("f32[1,7,6,5]", "f32[7,1,3,3]", "f32[7]"), "depthwise", widen=10
    ),
    Case(
        conv((2, 2), (1, 1, 1, 1), group=3),
        ("f32[2,3,9,9]", "f32[6,1,3,3]"),
        "depthwise, multiplier 2",
        widen=10,
    ),
    Case(conv((1, 1), (0, 1, 1, 0), group=2), ("f32[1,6,5,7]", "f32[4,3,2,3]", "f32[4]"), "groups", widen=20),
    Case(
        conv((1, 2, 1), (1, 0, 1, 0, 1, 1), (1, 1, 2)),
        ("f32[1,3,4,6,7]", "f32[2,3,2,3,3]", "f32[2]"),
        widen=40,
    ),
    Case(conv((1, 1), (1, 1, 1, 1)), ("f32[0,3,5,5]", "f32[4,3,3,3]", "f32[4]"), "no batch"),
    Case(conv((1, 1), (1, 1, 1, 1)), ("f64[1,3,5,5]", "f64[4,3,3,3]", "f64[4]"), widen=20),
    Case(conv((1, 1), (1, 1, 1, 1)), ("f16[1,3,5,5]", "f16[4,3,3,3]", "f16[4]")),
    Case(conv((2, 1), (1, 0, 1, 0)), ("bf16[1,3,5,5]", "bf16[4,3,3,3]", None)),
    Case(
        ConvInteger((1, 1), (1, 1, 1, 1), (1, 1)),
        ("u8[1,3,5,5]", "i8[4,3,3,3]", "u8[]", "i8[]"),
        low=-128,
        high=127,
    ),
    Case(
        ConvInteger((2, 1), (1, 0, 1, 2), (1, 2), 2),
        ("u8[2,4,7,9]", "u8[4,2,3,3]", "u8[1]", "u8[4]"),
        high=255,
    ),
    Case(ConvInteger((1,), (0, 0), (1,)), ("i8[1,3,5]", "i8[2,3,2]", None, "i8[1]"), low=-128, high=127),
    Case(transposed((1,), (0,), (7,)), ("f32[2,3,5]", "f32[3,4,3]", "f32[4]"), widen=20),
    Case(transposed((2, 2), (1, 1), (9, 11)), ("f32[1,5,5,6]", "f32[5,3,3,3]", "f32[3]"), widen=20),
    Case(
        transposed((3, 2), (0, 2), (11, 6), (2, 1)),
        ("f32[2,4,3,4]", "f32[4,2,3,2]"),
        "dilated and cut",
        widen=20,
    ),
    Case(
        transposed((2, 1), (1, 0), (8, 6), group=2),
        ("f32[1,4,4,4]", "f32[4,3,4,3]", "f32[6]"),
        "groups",
        widen=20,
    ),
    Case(transposed((4, 4), (0, 0), (9, 9)), ("f32[1,2,2,2]", "f32[2,1,2,2]"), "gaps", widen=10),
    Case(
        transposed((1, 2, 2), (0, 1, 0), (4, 5, 7)), ("f32[1,2,3,3,3]", "f32[2,2,2,3,3]", "f32[2]"), widen=20
    ),
    Case(transposed((2, 2), (0, 0), (7, 7)), ("f16[1,2,3,3]", "f16[2,2,3,3]", "f16[2]")),
    Case(TapTransform((((1.0,),), ((0.5,),)), 3), ("f32[6,2,1,1]",)),
    Case(TapTransform(WINOGRAD, 16), ("f32[32,3,3,3]",)),
    Case(TapTransform(WINOGRAD, 16), ("f32[20,3,3,3]",), "a group that is not full"),
    Case(TapTransform(WINOGRAD, 8, 4), ("f32[10,6,3,3]",), "channels that fill no vector"),
    Case(TapTransform((WINOGRAD[0] + WINOGRAD[8], WINOGRAD[2]), 8), ("f32[16,5,3,3]",), "phases"),
]
