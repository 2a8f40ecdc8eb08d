"""Weights of two, four or eight bits in blocks, each of which has a scale, and perhaps a shift, of its own.

A weight is number · scale + shift, or (number - middle) · scale where there are no shifts. Numbers lie in
bytes, those of a block side by side, low bits first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..ir import scalar as s
from ..ir.expr import ExprBuilder, Tensor
from ..ir.scalar import Expr
from ..ir.types import F32, I32, U8, TensorType
from .base import Op
from .shapes import fail

WIDTHS = (2, 4, 8)


@dataclass(frozen=True)
class _Blocks:
    """Inputs are, perhaps behind others, u8[…, blocks, bytes of one] and f32[…, blocks] once or twice."""

    bits: int
    middle: int = 0

    def _size(self, numbers: TensorType, scale: TensorType, shift: TensorType | None) -> int:
        """Of a block; ModelError if these are no weights."""
        if self.bits not in WIDTHS:
            fail(f"numbers of {self.bits} bits: expected one of {', '.join(map(str, WIDTHS))}")
        if numbers.dtype is not U8 or numbers.rank < 2:
            fail(f"numbers {numbers}: expected u8[…, blocks, bytes of one]")
        for t in (scale, scale if shift is None else shift):
            if t.dtype is not F32 or t.dims != numbers.dims[:-1]:
                fail(f"{t}: expected f32{list(numbers.dims[:-1])}, one for each block of numbers {numbers}")
        return numbers.dims[-1] * 8 // self.bits

    def _unpacked(self, numbers: np.ndarray, scale: np.ndarray, shift: np.ndarray | None) -> np.ndarray:
        """numpy: [..., terms] weights."""
        every = numbers[..., None] >> np.arange(0, 8, self.bits, dtype=np.uint8) & (1 << self.bits) - 1
        every = every.reshape(*numbers.shape[:-1], numbers.shape[-1] * 8 // self.bits).astype(np.float32)
        begin = -self.middle * scale if shift is None else shift
        weights = every * scale[..., None] + begin[..., None]
        return weights.reshape(*weights.shape[:-2], weights.shape[-2] * weights.shape[-1])

    def _weight(self, byte: Expr, n: Expr, scale: Expr, shift: Expr | None) -> Expr:
        """The n-th of a byte."""
        number = s.cast(byte, I32)
        if self.bits < 8:
            number = s.binary("shr", number, s.cast(n * self.bits, I32))
            number = s.binary("and", number, s.const((1 << self.bits) - 1, I32))
        return s.cast(number, F32) * scale + (scale * float(-self.middle) if shift is None else shift)


@dataclass(frozen=True)
class BlockMatMul(_Blocks, Op):
    """y[…, m, n] = Σ a[…, m, k] · weight[n, k], in f32; numbers are u8[n, blocks, bytes of one]."""

    def infer(
        self, a: TensorType, numbers: TensorType, scale: TensorType, shift: TensorType | None = None
    ) -> tuple[TensorType, ...]:
        size = self._size(numbers, scale, shift)
        if numbers.rank != 3 or a.dtype is not F32 or a.rank < 2 or a.dims[-1] != numbers.dims[1] * size:
            fail(f"{a} by {numbers}: expected f32 rows as long as the blocks of {size}")
        return (TensorType(F32, (*a.dims[:-1], numbers.dims[0])),)

    def reference(
        self, a: np.ndarray, numbers: np.ndarray, scale: np.ndarray, shift: np.ndarray | None = None
    ) -> tuple[np.ndarray, ...]:
        return (np.matmul(a, self._unpacked(numbers, scale, shift).T),)

    def compute(
        self, b: ExprBuilder, a: Tensor, numbers: Tensor, scale: Tensor, shift: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        columns, blocks, bytes = numbers.shape
        each = 8 // self.bits

        def body(*i: Expr) -> Expr:
            *row, n, block, byte, part = i
            begin = None if shift is None else shift[n, block]
            weight = self._weight(numbers[n, block, byte], part, scale[n, block], begin)
            return a[(*row, (block * bytes + byte) * each + part)] * weight

        axes = (*(f"b{n}" for n in range(a.rank - 2)), "m", "n")
        over, names = (blocks, bytes, each), ("block", "byte", "part")
        return (b.reduce("sum", F32, (*a.shape[:-1], columns), over, body, "product", axes, names),)


@dataclass(frozen=True)
class UnpackBlocks(_Blocks, Op):
    """The weights in f32, those of all blocks side by side."""

    def infer(
        self, numbers: TensorType, scale: TensorType, shift: TensorType | None = None
    ) -> tuple[TensorType, ...]:
        size = self._size(numbers, scale, shift)
        return (TensorType(F32, (*numbers.dims[:-2], numbers.dims[-2] * size)),)

    def reference(
        self, numbers: np.ndarray, scale: np.ndarray, shift: np.ndarray | None = None
    ) -> tuple[np.ndarray, ...]:
        return (self._unpacked(numbers, scale, shift),)

    def compute(
        self, b: ExprBuilder, numbers: Tensor, scale: Tensor, shift: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        each = 8 // self.bits
        size = numbers.shape[-1] * each

        def body(*i: Expr) -> Expr:
            *row, k = i
            block, inside = (*row, k // size), k % size
            begin = None if shift is None else shift[block]
            return self._weight(numbers[(*block, inside // each)], inside % each, scale[block], begin)

        shape = (*numbers.shape[:-2], numbers.shape[-2] * size)
        return (b.compute(F32, shape, body, "weights"),)
