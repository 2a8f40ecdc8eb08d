"""Columns of a square of registers by shuffles."""

from __future__ import annotations

from ..ir.types import DType
from .llvm_values import FunctionText, Value, memory_type


def transposed(fn: FunctionText, rows: list[Value], dtype: DType) -> list[Value]:
    """columns[j][i] = rows[i][j], n·log2(n) shuffles of two vectors for n rows of n lanes, n a power of two.

    Each step interleaves blocks of `half` lanes of two rows within groups of 2·half lanes:
    a0 a1 a2 a3, b0 b1 b2 b3   →   a0 b0 a2 b2, a1 b1 a3 b3     for half = 1
    """
    n = len(rows)
    vector = memory_type(dtype, n)
    half = n // 2
    while half:
        following = list(rows)
        for i in range(n):
            if i & half:
                continue
            a, b = rows[i], rows[i + half]
            low = [j if not j & half else n + j - half for j in range(n)]
            high = [j + half if not j & half else n + j for j in range(n)]
            for at, lanes in ((i, low), (i + half, high)):
                mask = ", ".join(f"i32 {lane}" for lane in lanes)
                code = f"shufflevector {vector} {a.text}, {vector} {b.text}, <{n} x i32> <{mask}>"
                following[at] = fn.assign(code, dtype, n)
        rows = following
        half //= 2
    return rows
