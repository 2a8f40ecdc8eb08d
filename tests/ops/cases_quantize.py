"""Cases of compiler/ops/quantize.py."""

from __future__ import annotations

import numpy as np
from burnish.compiler.ops.quantize import (
    DequantizeLinear,
    DynamicQuantizeLinear,
    QLinearConv,
    QLinearMatMul,
    QuantizeLinear,
)

from .case import Case

SCALE = np.asarray(0.1, np.float32)
SCALES = np.array([0.1, 0.25, 0.013], np.float32)
HALVES = np.array([[-2.5, -1.5, -0.5], [0.5, 1.5, 1e9], [np.inf, -np.inf, np.nan]], np.float32)
BLOCKS = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]], np.float32)


def u8(*values: int) -> np.ndarray:
    return np.array(values, np.uint8) if len(values) > 1 else np.asarray(values[0], np.uint8)


def i8(*values: int) -> np.ndarray:
    return np.array(values, np.int8) if len(values) > 1 else np.asarray(values[0], np.int8)


CASES = [
    Case(QuantizeLinear(), (HALVES, np.float32(1) + SCALE * 0, u8(3)), "ties and extremes"),
    Case(QuantizeLinear(), ("f32[2,3,5]", SCALES, u8(3, 0, 255)), "by channel", low=-20, high=40),
    Case(QuantizeLinear(0, 0, "i8"), ("f32[3,7]", SCALES, i8(3, 0, -100)), low=-20, high=40),
    Case(QuantizeLinear(to="i16"), ("f32[17]", SCALE), low=-9000, high=9000),
    Case(QuantizeLinear(to="u16"), ("i32[17]", SCALE), low=-9000, high=9000),
    Case(QuantizeLinear(1, 2, "i8"), ("f32[3,4]", BLOCKS), low=-60, high=60),
    Case(QuantizeLinear(-1, 3, "i8"), ("f32[3,4]", BLOCKS, "i8[3,2]"), "last block cut", low=-60, high=60),
    Case(QuantizeLinear(precision="f16"), ("f16[33]", SCALE.astype(np.float16), u8(128)), low=-20, high=20),
    Case(QuantizeLinear(), ("f32[0,3]", SCALE)),
    Case(DequantizeLinear(), ("u8[2,3,5]", SCALES, u8(3, 0, 255)), high=255),
    Case(DequantizeLinear(0), ("i8[3,7]", SCALES, i8(3, 0, -100)), low=-128, high=127),
    Case(DequantizeLinear(), ("i32[11]", SCALE), low=-100000, high=100000),
    Case(
        DequantizeLinear(),
        (np.array([-(1 << 31), 5, (1 << 31) - 1], np.int32), SCALE, np.array(7, np.int32)),
        "beyond 32 bits",
    ),
    Case(DequantizeLinear(1, 2), ("i16[3,4]", BLOCKS), low=-3000, high=3000),
    Case(DequantizeLinear(to="f16"), ("u8[9]", SCALE.astype(np.float16), u8(128)), high=255),
    Case(DequantizeLinear(to="bf16"), ("u8[9]", SCALE), high=255),
    Case(DynamicQuantizeLinear(), ("f32[3,7]",)),
    Case(DynamicQuantizeLinear(), ("f32[1]",), "positive", low=1),
    Case(DynamicQuantizeLinear(), (np.zeros((2, 3), np.float32),), "zeros"),
    Case(
        QLinearConv((1, 1), (1, 1, 1, 1), (1, 1)),
        ("u8[1,3,5,5]", SCALE, u8(100), "i8[4,3,3,3]", "f32[4]", "i8[4]", SCALE * 40, u8(7), "i32[4]"),
        low=0.01,
        high=100,
    ),
    Case(
        QLinearConv((2,), (0, 1), (1,), 2),
        ("i8[2,4,9]", SCALE, i8(1), "i8[2,2,3]", SCALE, i8(0), SCALE * 9, i8(-7)),
        low=-128,
        high=127,
    ),
    Case(
        QLinearMatMul(),
        ("u8[5,7]", SCALE, u8(99), "i8[7,3]", SCALE, i8(2), SCALE * 50, u8(128)),
        low=-128,
        high=127,
    ),
    Case(
        QLinearMatMul(),
        ("u8[2,3,7]", SCALES, u8(9, 8, 7), "u8[7,3]", SCALES, u8(1, 2, 3), SCALE * 50, u8(128)),
        "by row and column",
        high=255,
    ),
]
