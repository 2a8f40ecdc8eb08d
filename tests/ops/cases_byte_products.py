"""Cases of compiler/ops/byte_products.py, and of the matrix product of 8-bit integers."""

from __future__ import annotations

import numpy as np
from burnish.compiler.ops.byte_products import DotConv, DotDepthwise, DotMatMul, PackBytes
from burnish.compiler.ops.matmul import MatMulInteger

from .case import Case

BITS = 2**31 - 1
WORDS = {"low": -BITS, "high": BITS}
BYTES = {"low": -128, "high": 255}
MINUS = np.asarray(-100, np.int8)

CASES = [
    Case(PackBytes(1, (0, 0, 0, 0)), ("u8[3,8]",), **BYTES),
    Case(PackBytes(1, (0, 0, 0, 0), True), ("u8[3,8]",), "as i8", **BYTES),
    Case(PackBytes(-1, (0, 0, 0, 0)), ("i8[2,7]",), "last word filled up", high=127, low=-128),
    Case(PackBytes(1, (0,) * 8, True), (np.arange(-60, 60, dtype=np.int8).reshape(1, 5, 4, 6), MINUS)),
    Case(
        PackBytes(1, (0, 0, 1, 2, 0, 0, 3, 0)), ("u8[2,6,5,3]", np.asarray([7], np.uint8)), "padded", **BYTES
    ),
    Case(PackBytes(1, (0, 0, 0, 0, 0, 0, 1, 1), True), ("i8[1,16,9,17]", MINUS), low=-128, high=127),
    Case(PackBytes(0, (0, 0)), ("u8[0]",)),
    Case(DotConv((1, 1), (0, 0, 0, 0), (1, 1)), ("i32[1,2,5,6]", "i32[7,2,3,3]"), **WORDS),
    Case(DotConv((2, 1), (0, 0, 0, 0), (1, 2), 1, True), ("i32[2,3,9,17]", "i32[33,3,3,2]"), **WORDS),
    Case(DotConv((1, 1), (0, 0, 0, 0), (1, 1), 2), ("i32[1,4,6,20]", "i32[32,2,1,1]"), "groups", **WORDS),
    Case(DotConv((1,), (0, 0), (1,), 1, True), ("i32[1,1,40]", "i32[16,1,5]"), **WORDS),
    *(
        Case(DotDepthwise(*fields), inputs, **WORDS)
        for fields, inputs in (
            (((1, 1), (1,) * 4, (1, 1), 5, 3, 99), ("u8[2,5,6,7]", "i32[5,1,1,3]")),
            (((2, 2), (1,) * 4, (1, 1), 33, 3, 7), ("u8[1,33,9,20]", "i32[33,1,1,3]")),
            (((1, 1), (2,) * 4, (1, 1), 16, 5, 0), ("u8[1,16,8,19]", "i32[16,1,2,5]")),
            (((1, 1), (0,) * 4, (1, 1), 3, 8), ("u8[1,3,9,4]", "i32[3,1,2,2]")),
            (((2, 1), (2, 0, 1, 3), (1, 2), 17, 3, -9, True), ("i8[1,17,8,9]", "i32[17,1,1,2]")),
            (((1,), (3, 1), (2,), 4, 4, 200, True, True), ("u8[1,4,33]", "i32[4,1,1]")),
            (((1,) * 3, (1,) * 6, (1,) * 3, 6, 3, -1, False, True), ("i8[1,6,4,5,6]", "i32[6,1,1,3,3]")),
        )
    ),
    Case(DotMatMul(), ("i32[5,3]", "i32[3,37]"), **WORDS),
    Case(DotMatMul(signed=True), ("i32[2,7,4]", "i32[4,16]"), **WORDS),
    Case(DotMatMul(False, True), ("i32[3,17]", "i32[5,17]"), "transposed", **WORDS),
    Case(DotMatMul(True, signed=True), ("i32[6,3]", "i32[6,8]"), **WORDS),
    Case(MatMulInteger(), ("u8[3,5]", "i8[5,4]"), **BYTES),
    Case(MatMulInteger(), ("u8[2,3,5]", "u8[5,19]", "u8[3,1]", "u8[19]"), "zero points", **BYTES),
    Case(MatMulInteger(), ("i8[1,5]", "i8[5,1]", MINUS, None), low=-128, high=127),
]
