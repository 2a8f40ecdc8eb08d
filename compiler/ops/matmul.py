"""Matrix products and Einstein summation: sums of products over affine indices."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np

from ..ir import scalar as s
from ..ir.expr import ExprBuilder, Tensor
from ..ir.scalar import Expr, const
from ..ir.types import I32, DType, TensorType
from .base import Op
from .shapes import broadcast_shape, fail, given, same_dtype, wide, wide_array, widen


def _rounded(b: ExprBuilder, sum: Tensor, dtype: DType) -> Tensor:
    """A sum in the wide type as the operator's own type."""
    return (
        sum
        if sum.dtype is dtype
        else b.compute(dtype, sum.shape, lambda *i: s.cast(sum[i], dtype), "rounded")
    )


@dataclass(frozen=True)
class MatMul(Op):
    """y[…, m, n] = Σk a[…, m, k] · b[…, k, n], batch axes broadcasting; `trans_a`,
    `trans_b`: that matrix is stored transposed. Narrow floats are summed in f32, which `in_wide` is the
    result's type, too; integers in their own type, wrapping around.
    """

    trans_a: bool = False
    trans_b: bool = False
    in_wide: bool = False

    def infer(self, a: TensorType | None, b: TensorType | None) -> tuple[TensorType, ...]:
        a, b = given(a), given(b)
        if a.rank < 2 or b.rank < 2:
            fail(f"matrices are needed, but the inputs are {a} and {b}")
        m, k = a.dims[-2:][:: -1 if self.trans_a else 1]
        k2, n = b.dims[-2:][:: -1 if self.trans_b else 1]
        if k != k2:
            fail(f"{a} and {b} cannot be multiplied: the inner sizes {k} and {k2} differ")
        dtype = same_dtype(a, b)
        dims = (*broadcast_shape(a.dims[:-2], b.dims[:-2]), m, n)
        return (TensorType(wide(dtype) if self.in_wide else dtype, dims),)

    def reference(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, ...]:
        x, y = wide_array(a), wide_array(b)
        x = np.swapaxes(x, -1, -2) if self.trans_a else x
        y = np.swapaxes(y, -1, -2) if self.trans_b else y
        return (np.matmul(x, y).astype(x.dtype if self.in_wide else a.dtype),)

    def compute(self, b: ExprBuilder, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        product = self._products(b, x, y)
        return (product if self.in_wide else _rounded(b, product, x.dtype),)

    def _products(
        self, b: ExprBuilder, x: Tensor, y: Tensor, product: Callable[[Expr, Expr], Expr] = operator.mul
    ) -> Tensor:
        """The sum of products as one stage."""
        m, k = x.shape[-2:][:: -1 if self.trans_a else 1]
        n = y.shape[-2 if self.trans_b else -1]
        batch = broadcast_shape(x.shape[:-2], y.shape[:-2])

        def body(*i: Expr) -> Expr:
            *outer, row, column, inner = i
            left = (*outer, inner, row) if self.trans_a else (*outer, row, inner)
            right = (*outer, column, inner) if self.trans_b else (*outer, inner, column)
            return product(widen(_matrix_read(x, left)), widen(_matrix_read(y, right)))

        axes = (*(f"b{n}" for n in range(len(batch))), "m", "n")
        return b.reduce("sum", wide(x.dtype), (*batch, m, n), (k,), body, "product", axes, ("k",))


def _matrix_read(x: Tensor, index: tuple[Expr, ...]) -> Expr:
    """Broadcasts the batch axes, but not the matrix's: a size of 1 there is read with its own index."""
    batch = index[len(index) - x.rank : -2]
    return x[(*(const(0) if d == 1 else i for i, d in zip(batch, x.shape)), *index[-2:])]


@dataclass(frozen=True)
class MatMulInteger(Op):
    """y[…, m, n] = Σk (a[…, m, k] - a_zero) · (b[…, k, n] - b_zero) in i32, of 8-bit integers.

    Zero points broadcast to their matrix and may be absent.
    """

    def infer(
        self,
        a: TensorType,
        b: TensorType,
        a_zero: TensorType | None = None,
        b_zero: TensorType | None = None,
    ) -> tuple[TensorType, ...]:
        for t, zero in ((a, a_zero), (b, b_zero)):
            if t.dtype.bits != 8 or not t.dtype.is_integer:
                fail(f"input {t}: expected 8-bit integers")
            if zero is not None and (
                zero.dtype is not t.dtype or broadcast_shape(t.dims, zero.dims) != t.dims
            ):
                fail(f"zero point {zero} of {t}: expected {t.dtype} of a shape that broadcasts to it")
        return MatMul().infer(*(TensorType(I32, t.shape) for t in (a, b)))

    def reference(
        self, a: np.ndarray, b: np.ndarray, a_zero: np.ndarray | None = None, b_zero: np.ndarray | None = None
    ) -> tuple[np.ndarray, ...]:
        x, y = (
            v.astype(np.int64) - (0 if zero is None else zero.astype(np.int64))
            for v, zero in ((a, a_zero), (b, b_zero))
        )
        return (np.matmul(x, y).astype(np.int32),)

    def compute(
        self, b: ExprBuilder, x: Tensor, y: Tensor, x_zero: Tensor | None = None, y_zero: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        def centred(t: Tensor, zero: Tensor | None) -> Tensor:
            def body(*i: Expr) -> Expr:
                value = s.cast(t[i], I32)
                if zero is None:
                    return value
                place = i[len(i) - zero.rank :]
                return value - s.cast(_read(zero, list(place)), I32)

            return b.compute(I32, t.shape, body, "centred")

        return MatMul().compute(b, centred(x, x_zero), centred(y, y_zero))


@dataclass(frozen=True)
class Einsum(Op):
    """Einstein summation: "bij,bjk->bik" (no ellipsis, result spelt out, a repeated letter is a diagonal)."""

    equation: str

    @cached_property
    def terms(self) -> tuple[tuple[str, ...], str]:
        """The letters of every operand, and those of the result."""
        left, _, right = self.equation.partition("->")
        return tuple(left.split(",")), right

    def extents(self, shapes: list[tuple[int, ...]]) -> dict[str, int]:
        sizes: dict[str, int] = {}
        operands, result = self.terms
        if len(operands) != len(shapes):
            fail(f"equation {self.equation!r} names {len(operands)} operands, but {len(shapes)} are given")
        for letters, shape in zip(operands, shapes):
            if len(letters) != len(shape):
                fail(
                    f"equation {self.equation!r}: {letters!r} does not fit an operand of shape {list(shape)}"
                )
            for letter, size in zip(letters, shape):
                if sizes.get(letter, 1) not in (1, size) and size != 1:
                    fail(f"equation {self.equation!r}: {letter!r} is {sizes[letter]} and {size}")
                sizes[letter] = size if sizes.get(letter, 1) == 1 else sizes[letter]
        if len(set(result)) != len(result) or not set(result) <= set(sizes):
            fail(f"equation {self.equation!r}: the letters of the result must stand in an operand, once each")
        return sizes

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        types = [given(t) for t in inputs]
        sizes = self.extents([t.dims for t in types])
        return (TensorType(same_dtype(*types), tuple(sizes[letter] for letter in self.terms[1])),)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        y = np.einsum(self.equation, *(wide_array(x) for x in inputs), optimize=len(inputs) > 2)
        return (np.asarray(y).astype(inputs[0].dtype),)

    def compute(self, b: ExprBuilder, *inputs: Tensor) -> tuple[Tensor, ...]:
        operands, result = self.terms
        sizes = self.extents([t.shape for t in inputs])
        summed = "".join(letter for letter in sizes if letter not in result)

        def body(*i: Expr) -> Expr:
            at = dict(zip(result + summed, i))
            reads = [
                widen(_read(x, [at[letter] for letter in letters])) for x, letters in zip(inputs, operands)
            ]
            return reduce(lambda x, y: x * y, reads)

        dtype = wide(inputs[0].dtype)
        shape = [sizes[letter] for letter in result]
        if not summed:
            product = b.compute(dtype, shape, body, "product", tuple(result))
        else:
            over = [sizes[letter] for letter in summed]
            product = b.reduce("sum", dtype, shape, over, body, "product", tuple(result), tuple(summed))
        return (_rounded(b, product, inputs[0].dtype),)


def _read(x: Tensor, index: list[Expr]) -> Expr:
    return x[tuple(const(0) if d == 1 else i for i, d in zip(index, x.shape))]
