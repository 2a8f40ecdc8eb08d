"""Weights of a product as Strassen's algorithm multiplies them, in Winograd's form of seven products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..ir import scalar as s
from ..ir.expr import Tensor
from ..ir.loops import Buffer, Program, Store, loop
from ..ir.scalar import Expr, Var
from ..ir.types import F32, F64, TensorType
from .base import Op
from .shapes import fail, given

FACTORS = (
    (1, 0, 0, 0),
    (0, 0, 1, 0),
    (1, -1, 0, 1),
    (0, -1, 0, 1),
    (-1, 1, 1, -1),
    (-1, 1, 0, 0),
    (0, 0, 0, 1),
)
"""Of B11, B12, B21 and B22 in the right factor of each product: terms in halves, then columns."""
PANEL, K, LANE = Var("panel"), Var("k"), Var("lane")


@dataclass(frozen=True)
class QuarterSums(Op):
    """(terms, columns), or (columns, terms, …) if `transposed` → [panel, product, half of the terms, width].

    The second half of the columns begins at a whole panel; zeros stand behind the last column. Sums are taken
    in f64 and rounded once.
    """

    width: int
    transposed: bool = False

    def __call__(self, w: np.ndarray) -> np.ndarray:
        return self.reference(w)[0]

    def infer(self, w: TensorType | None) -> tuple[TensorType, ...]:
        terms, columns = self._sizes(given(w))
        return (TensorType(F32, (self._panels(columns), len(FACTORS), terms // 2, self.width)),)

    def _sizes(self, w: TensorType) -> tuple[int, int]:
        axes = w.dims[:2][:: -1 if self.transposed else 1]
        if w.dtype is not F32 or len(axes) < 2 or w.size != axes[0] * axes[1] or axes[0] % 2:
            fail(f"weights {w}: expected a matrix of f32 with an even number of terms")
        return axes[0], axes[1]

    def _panels(self, columns: int) -> int:
        """Of each half."""
        return -(-columns // (2 * self.width))

    def reference(self, w: np.ndarray) -> tuple[np.ndarray, ...]:
        stored = w.reshape(w.shape[0], w.shape[1]).astype(np.float64)
        matrix = stored.T if self.transposed else stored
        terms, columns = matrix.shape[0], matrix.shape[1]
        half = self._panels(columns) * self.width
        matrix = np.pad(matrix, ((0, 0), (0, 2 * half - columns)))
        quarters = [b for rows in np.split(matrix, 2) for b in np.split(rows, 2, 1)]
        sums = np.stack([sum(f * b for f, b in zip(factors, quarters) if f) for factors in FACTORS])
        panels = sums.reshape(len(FACTORS), terms // 2, half // self.width, self.width)
        return (np.ascontiguousarray(panels.transpose(2, 0, 1, 3), dtype=np.float32),)

    def loops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> Program:
        type = given(inputs[0])
        terms, columns = self._sizes(type)
        w = Tensor("w", F32, type.dims)
        half = self._panels(columns) * self.width

        def quarter(n: int) -> Expr:
            row, column = K + n // 2 * (terms // 2), PANEL * self.width + LANE + n % 2 * half
            place = (column, row) if self.transposed else (row, column)
            value = s.cast(w[(*place, *(s.const(0) for _ in type.dims[2:]))], F64)
            return s.select(s.lt(column, columns), value, s.const(0.0, F64))

        stores = []
        for n, factors in enumerate(FACTORS):
            total: Expr = s.const(0.0, F64)
            for q, factor in enumerate(factors):
                if factor:
                    total = total + quarter(q) if factor > 0 else total - quarter(q)
            stores.append(Store("sums", (PANEL, s.const(n), K, LANE), s.cast(total, F32)))
        body = loop("k", terms // 2, loop("lane", self.width, *stores))
        params = (Buffer("w", F32, type.dims), Buffer("sums", F32, outputs[0].dims))
        return Program("quarter_sums", params, (loop("panel", self._panels(columns), body, kind="parallel"),))
