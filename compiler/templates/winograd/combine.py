"""Products of a small constant matrix and a column of expressions, with few operations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...ir import scalar as s
from ...ir.scalar import Expr
from ...ir.types import F32


def combine(matrix: np.ndarray, values: Sequence[Expr]) -> list[Expr]:
    """matrix · values, rows that differ only in signs of every other term sharing their halves."""
    rows = [[float(np.float32(c)) for c in row] for row in matrix]
    result: list[Expr | None] = [None] * len(rows)
    for i, row in enumerate(rows):
        if result[i] is not None:
            continue
        twin = next((k for k in range(i + 1, len(rows)) if _mirrored(row, rows[k])), None)
        if twin is None:
            result[i] = _sum(row, values)
            continue
        same = [c if c == d else 0.0 for c, d in zip(row, rows[twin])]
        other = [c if c != d else 0.0 for c, d in zip(row, rows[twin])]
        even, odd = _sum(same, values), _sum(other, values)
        result[i], result[twin] = even + odd, even - odd
    return [r for r in result if r is not None]


def _mirrored(a: list[float], b: list[float]) -> bool:
    if any(abs(x) != abs(y) for x, y in zip(a, b)):
        return False
    same = [x for x, y in zip(a, b) if x == y and x]
    return bool(same) and any(x != y for x, y in zip(a, b))


def _sum(coefficients: Sequence[float], values: Sequence[Expr]) -> Expr:
    """Σ c · v without products by 0, 1 and -1."""
    total: Expr | None = None
    for c, v in sorted(zip(coefficients, values), key=lambda pair: pair[0] not in (1.0,)):
        if c == 0.0:
            continue
        if total is None:
            total = v if c == 1.0 else v * s.const(c, F32)
        elif c == 1.0:
            total = total + v
        elif c == -1.0:
            total = total - v
        else:
            total = total + v * s.const(c, F32)
    return total if total is not None else s.const(0.0, F32)
