"""Linear quantisation: real = (quantised - zero point) · scale, rounded to even, saturating.

Scales and zero points belong to the whole tensor (one value), to each position of `axis` (1-D), or to each
block of `block` positions of `axis` (as many axes as the tensor).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ..ir import scalar as s
from ..ir.expr import ExprBuilder, Tensor
from ..ir.numpy_scalar import convert
from ..ir.scalar import Expr
from ..ir.types import DTYPES, F32, I32, I64, U8, DType, TensorType, dtype_of
from .base import Decomposer, Op
from .conv import ConvInteger
from .elementwise import Binary, Cast, Unary
from .matmul import MatMul, MatMulInteger
from .movement import Reshape
from .shapes import axis_of, broadcast_shape, fail, wide


@dataclass(frozen=True)
class _Linear(Op, abstract=True):
    axis: int = 1
    block: int = 0

    def _check(self, x: TensorType, scale: TensorType, zero: TensorType | None) -> None:
        shape, size = scale.dims, scale.size
        if self.block:
            axis = axis_of(self.axis, x.rank)
            blocks = tuple(-(-d // self.block) if a == axis else d for a, d in enumerate(x.dims))
            fits = shape == blocks
        else:
            fits = size == 1 and scale.rank <= 1
            fits = fits or (scale.rank == 1 and size == x.dims[axis_of(self.axis, x.rank)])
        if not fits or self.block < 0 or not scale.dtype.is_float:
            fail(
                f"scale {scale} does not fit the input {x} with axis {self.axis} and block size {self.block}"
            )
        if zero is not None and zero.dims != scale.dims and not size == zero.size == 1:
            fail(f"zero point {zero} and scale {scale}: expected the same shape")

    def _place(self, t: Tensor, i: Sequence[Expr]) -> Expr:
        """The scale or zero point of element i."""
        if self.block:
            axis = self.axis % len(i)
            return t[(*i[:axis], i[axis] // self.block, *i[axis + 1 :])]
        if prod(t.shape) == 1:
            return t[(s.const(0),) * t.rank]
        return t[i[self.axis]]

    def _spread(self, t: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """numpy: a scale or zero point as an array that broadcasts to `shape`."""
        if self.block:
            axis = self.axis % len(shape)
            return np.take(t, np.arange(shape[axis]) // self.block, axis)
        column = [1] * len(shape)
        if t.size > 1:
            column[self.axis] = t.size
        return t.reshape(column)


@dataclass(frozen=True)
class QuantizeLinear(_Linear):
    """saturate(round(x / scale) + zero point) as the integer type `to`; x / scale is a `precision`."""

    to: str = "u8"
    precision: str = "f32"

    def infer(
        self, x: TensorType, scale: TensorType, zero: TensorType | None = None
    ) -> tuple[TensorType, ...]:
        self._check(x, scale, zero)
        if not DTYPES[self.to].is_integer or (zero is not None and zero.dtype is not DTYPES[self.to]):
            fail(f"zero point {zero}: expected the integer type {self.to}")
        return (TensorType(DTYPES[self.to], x.shape),)

    def reference(
        self, x: np.ndarray, scale: np.ndarray, zero: np.ndarray | None = None
    ) -> tuple[np.ndarray, ...]:
        kind = DTYPES[self.precision].numpy
        quotient = x.astype(np.float32, copy=False) / self._spread(scale.astype(np.float32), x.shape)
        whole = np.array(quotient.astype(kind, copy=False), np.float64)
        del quotient  # weights may be large
        np.rint(whole, out=whole)
        if zero is not None:
            whole += self._spread(zero, x.shape)
        return (convert(whole, DTYPES[self.to]),)

    def compute(
        self, b: ExprBuilder, x: Tensor, scale: Tensor, zero: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        to, precision = DTYPES[self.to], DTYPES[self.precision]

        def body(*i: Expr) -> Expr:
            quotient = s.cast(x[i], F32) / s.cast(self._place(scale, i), F32)
            shift = None if zero is None else self._place(zero, i)
            return rounded(s.cast(s.cast(quotient, precision), F32), shift, to)

        return (b.compute(to, x.shape, body, "quantized"),)


def rounded(value: Expr, zero: Expr | None, to: DType) -> Expr:
    """saturate(round(value) + zero) for an f32 value."""
    whole = s.call("round", value)
    return s.cast(whole if zero is None else whole + s.cast(zero, F32), to)


@dataclass(frozen=True)
class DequantizeLinear(_Linear):
    """(x - zero point) · scale as the float type `to`. x: integers, or f32 that floats of 8 bits became."""

    to: str = "f32"

    def infer(
        self, x: TensorType, scale: TensorType, zero: TensorType | None = None
    ) -> tuple[TensorType, ...]:
        self._check(x, scale, zero)
        if not (x.dtype.is_integer or x.dtype is F32) or (zero is not None and zero.dtype is not x.dtype):
            fail(f"input {x} and zero point {zero}: expected integers of one type")
        return (TensorType(DTYPES[self.to], x.shape),)

    def reference(
        self, x: np.ndarray, scale: np.ndarray, zero: np.ndarray | None = None
    ) -> tuple[np.ndarray, ...]:
        exact = np.float64 if x.dtype.kind == "f" else np.int64 if x.dtype.itemsize > 2 else np.int32
        value = np.array(x, exact)
        if zero is not None:
            np.subtract(value, self._spread(zero.astype(exact), x.shape), out=value)
        real = value.astype(np.float64, copy=False)
        del value  # weights may be large
        real *= self._spread(scale.astype(np.float64), x.shape)
        return (real.astype(DTYPES[self.to].numpy),)

    def compute(
        self, b: ExprBuilder, x: Tensor, scale: Tensor, zero: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        to = DTYPES[self.to]

        def body(*i: Expr) -> Expr:
            exact = F32 if not x.dtype.is_integer else I32 if zero is None or x.dtype.bytes < 4 else I64
            value = s.cast(x[i], exact)
            if zero is not None:
                value = value - s.cast(self._place(zero, i), exact)
            return s.cast(s.cast(value, wide(to)) * s.cast(self._place(scale, i), wide(to)), to)

        return (b.compute(to, x.shape, body, "real"),)


def of_weights(op: Op, result: TensorType) -> bool:
    """Whether it dequantises what may be weights, which may be multiplied as the integers that they are."""
    return isinstance(op, DequantizeLinear) and result.rank > 1


@dataclass(frozen=True)
class DynamicQuantizeLinear(Op):
    """y, scale, zero point: x quantised to u8 over the range of its values and 0; scale 1 if that is 0."""

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        if x.dtype is not F32:
            fail(f"input {x}: expected f32")
        return TensorType(U8, x.shape), TensorType(F32, ()), TensorType(U8, ())

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        low, high = (np.float32(f(x, initial=0)) for f in (np.min, np.max))
        scale = np.float32(1) if low == high else (high - low) / np.float32(255)
        zero = np.rint(np.clip(-low / scale, 0, 255))
        y = np.clip(np.rint(x / scale) + zero, 0, 255)
        return y.astype(np.uint8), np.asarray(scale), np.asarray(zero.astype(np.uint8))

    def compute(self, b: ExprBuilder, x: Tensor) -> tuple[Tensor, ...]:
        zero = s.const(0, F32)
        least, most = (b.reduce(op, F32, (), x.shape, lambda *i: x[i], op) for op in ("min", "max"))
        low = b.compute(F32, (), lambda: s.minimum(least[()], zero), "low")
        high = b.compute(F32, (), lambda: s.maximum(most[()], zero), "high")
        same = s.eq(low[()], high[()])
        scale = b.compute(
            F32, (), lambda: s.select(same, s.const(1, F32), (high[()] - low[()]) / 255.0), "scale"
        )
        shift = b.compute(U8, (), lambda: rounded(-low[()] / scale[()], None, U8), "zero")
        y = b.compute(U8, x.shape, lambda *i: rounded(x[i] / scale[()], shift[()], U8), "quantized")
        return y, scale, shift


def requantize(g: Decomposer, total: str, factor: str, zero: str) -> str:
    """saturate(round(total · factor) + zero), total an i32 sum, in the zero point's type."""
    scaled = g.one(Binary("mul"), g.one(Cast("f32"), total), factor)
    shifted = g.one(Binary("add"), g.one(Unary("round"), scaled), g.one(Cast("f32"), zero))
    return g.one(Cast(g.type(zero).dtype.name), shifted)


def quotient_of_scales(g: Decomposer, a: str, b: str, y: str) -> str:
    """a · b / y in f32."""
    wide_a, wide_b, wide_y = (v if g.type(v).dtype is F32 else g.one(Cast("f32"), v) for v in (a, b, y))
    return g.one(Binary("div"), g.one(Binary("mul"), wide_a, wide_b), wide_y)


def _column(g: Decomposer, value: str, after: int) -> str:
    """A vector as a column with `after` axes of size 1 behind it; one value as a scalar."""
    size = g.type(value).size
    return g.one(Reshape((size, *(1,) * after) if size > 1 else ()), value)


def _saturated(real: np.ndarray, zero: np.ndarray) -> np.ndarray:
    return convert(np.rint(real) + zero.astype(np.float64), dtype_of(zero))


@dataclass(frozen=True)
class QLinearConv(Op):
    """A convolution of quantised tensors: x, w and the output have a scale and a zero point each.

    Those of w may be one per output channel. The bias is i32, of the scale of x times that of w.
    """

    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    group: int = 1

    @property
    def _conv(self) -> ConvInteger:
        return ConvInteger(self.strides, self.pads, self.dilations, self.group)

    def infer(
        self,
        x: TensorType,
        x_scale: TensorType,
        x_zero: TensorType,
        w: TensorType,
        w_scale: TensorType,
        w_zero: TensorType,
        y_scale: TensorType,
        y_zero: TensorType,
        bias: TensorType | None = None,
    ) -> tuple[TensorType, ...]:
        (total,) = self._conv.infer(x, w, x_zero, w_zero)
        channels = total.dims[1]
        if x_scale.size != 1 or y_scale.size != 1 or y_zero.size != 1 or w_scale.size not in (1, channels):
            fail(f"scales {x_scale}, {w_scale}, {y_scale}: expected one value, or {channels} for the weights")
        if bias is not None and (bias.dims != (channels,) or bias.dtype is not I32):
            fail(f"bias {bias}: expected i32[{channels}]")
        return (TensorType(y_zero.dtype, total.shape),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, *rest = inputs
        assert x is not None and w is not None and y_zero is not None
        (total,) = self._conv.reference(x, w, x_zero, w_zero)
        column = (-1, *(1,) * (x.ndim - 2))
        if rest and rest[0] is not None:
            total = total + rest[0].reshape(column)
        factor = np.asarray(x_scale).reshape(()) * np.asarray(w_scale) / np.asarray(y_scale).reshape(())
        real = total.astype(np.float32) * factor.reshape(column if factor.size > 1 else ())
        return (_saturated(real, y_zero.reshape(())),)

    def decompose(self, g: Decomposer, *inputs: str | None) -> tuple[str, ...]:
        x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, *rest = inputs
        assert x_scale is not None and w_scale is not None and y_scale is not None and y_zero is not None
        total = g.one(self._conv, x, w, x_zero, w_zero)
        spatial = g.type(total).rank - 2
        if rest and rest[0] is not None:
            total = g.one(Binary("add"), total, _column(g, rest[0], spatial))
        scales = (_column(g, x_scale, 0), _column(g, w_scale, spatial), _column(g, y_scale, 0))
        return (requantize(g, total, quotient_of_scales(g, *scales), _column(g, y_zero, 0)),)


@dataclass(frozen=True)
class QLinearMatMul(Op):
    """A product of quantised matrices: a, b and the output have a scale and a zero point each.

    Those of a and the output may be one per row, those of b one per column.
    """

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        a, a_scale, _, b, b_scale, _, y_scale, y_zero = inputs
        if any(t.dtype.bits != 8 or not t.dtype.is_integer for t in (a, b, y_zero)):
            fail(f"inputs {a}, {b} and the output's zero point {y_zero}: expected 8-bit integers")
        if any(not t.dtype.is_float for t in (a_scale, b_scale, y_scale)):
            fail(f"scales {a_scale}, {b_scale}, {y_scale}: expected floats")
        (product,) = MatMul().infer(*(TensorType(I32, t.shape) for t in (a, b)))
        for t in (a_scale, y_scale, y_zero, b_scale):
            dims = (t.size, 1) if t.rank == 1 and t is not b_scale else t.dims
            if broadcast_shape(dims, product.dims) != product.dims:
                fail(f"scale or zero point {t}: expected one, or one for each row or column of {product}")
        return (TensorType(y_zero.dtype, product.shape),)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = inputs

        def rows(v: np.ndarray) -> np.ndarray:
            return v.reshape(-1, 1) if v.ndim == 1 else v

        left = a.astype(np.int64) - rows(a_zero).astype(np.int64)
        total = (left @ (b.astype(np.int64) - b_zero)).astype(np.int32)
        a32, b32, y32 = (v.astype(np.float32) for v in (rows(a_scale), b_scale, rows(y_scale)))
        return (_saturated(total.astype(np.float32) * (a32 * b32 / y32), rows(y_zero)),)

    def decompose(self, g: Decomposer, *inputs: str) -> tuple[str, ...]:
        a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = inputs

        def rows(v: str) -> str:
            return g.one(Reshape((g.type(v).size, 1)), v) if g.type(v).rank == 1 else v

        total = g.one(MatMulInteger(), a, b, rows(a_zero), b_zero)
        factor = quotient_of_scales(g, rows(a_scale), b_scale, rows(y_scale))
        return (requantize(g, total, factor, rows(y_zero)),)
