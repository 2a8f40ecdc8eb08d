"""Resampling along axes at positions that are known when compiling.

`Resize` becomes one table per axis, of the elements that an output position reads and their weights, and then
`Repeat` (nearest neighbour by an integer factor), `Pick` (nearest neighbour) or `Interpolate` axis by axis.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..ir import scalar as s
from ..ir.expr import ExprBuilder, Tensor
from ..ir.numpy_scalar import convert
from ..ir.scalar import Expr
from ..ir.types import F64, I64, DType, TensorType, dtype_of
from .base import Decomposer, Op
from .elementwise import Binary, Cast, Unary
from .movement import Identity
from .shapes import fail, wide
from .window import check_windows, high

UNROLLED = 8
"""Up to so many weighted elements are written out; more become a reduction."""


@dataclass(frozen=True)
class Repeat(Op):
    """y[i, …] = x[i // factor, …], one factor per axis."""

    factors: tuple[int, ...]

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        if len(self.factors) != x.rank or min(self.factors, default=1) < 1:
            fail(f"factors {self.factors} do not fit the input {x}")
        return (TensorType(x.dtype, tuple(d * f for d, f in zip(x.dims, self.factors))),)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        for axis, factor in enumerate(self.factors):
            x = np.repeat(x, factor, axis)
        return (x,)

    def compute(self, b: ExprBuilder, x: Tensor) -> tuple[Tensor, ...]:
        shape = [d * f for d, f in zip(x.shape, self.factors)]
        body = lambda *i: x[tuple(a // f for a, f in zip(i, self.factors))]  # noqa: E731
        return (b.compute(x.dtype, shape, body, "repeated"),)


@dataclass(frozen=True)
class Pick(Op):
    """y[…, i, …] = x[…, table[i], …] for each of `axes`; inputs x, then one sound table per axis.

    An entry of -1 in a table gives `outside`; without `outside` there is none.
    """

    axes: tuple[int, ...]
    outside: float | None = None

    def infer(self, x: TensorType, *tables: TensorType) -> tuple[TensorType, ...]:
        shape = list(x.dims)
        for axis, table in zip(self.axes, tables, strict=True):
            if table.dtype is not I64 or table.rank != 1:
                fail(f"table {table}: expected i64 with one axis")
            shape[axis] = table.dims[0]
        return (TensorType(x.dtype, tuple(shape)),)

    def reference(self, x: np.ndarray, *tables: np.ndarray) -> tuple[np.ndarray, ...]:
        for axis, table in zip(self.axes, tables):
            x = np.take(x, np.maximum(table, 0), axis)
            if self.outside is not None:
                column = (-1, *(1,) * (x.ndim - 1 - axis))
                x = np.where(table.reshape(column) >= 0, x, np.asarray(self.outside).astype(x.dtype))
        return (x,)

    def compute(self, b: ExprBuilder, x: Tensor, *tables: Tensor) -> tuple[Tensor, ...]:
        shape = list(x.shape)
        for axis, table in zip(self.axes, tables):
            shape[axis] = table.shape[0]

        def body(*i: Expr) -> Expr:
            index = list(i)
            for axis, table in zip(self.axes, tables):
                index[axis] = table[i[axis]]
            if self.outside is None:
                return x[tuple(index)]
            found = s.both(*(s.ge(index[axis], 0) for axis in self.axes))
            return s.select(found, x[tuple(index)], s.const(self.outside, x.dtype))

        return (b.compute(x.dtype, shape, body, "picked"),)


@dataclass(frozen=True)
class Interpolate(Op):
    """y[…, i, …] = Σt weights[i, t] · x[…, table[i, t], …] along `axis`; inputs x, table, weights.

    An entry of -1 in the table stands for `outside`; without `outside` there is none.
    """

    axis: int
    outside: float | None = None

    def infer(self, x: TensorType, table: TensorType, weights: TensorType) -> tuple[TensorType, ...]:
        if table.dtype is not I64 or table.rank != 2 or weights.dims != table.dims:
            fail(f"table {table} and weights {weights}: expected i64 and equal sizes with two axes")
        if weights.dtype is not x.dtype or wide(x.dtype) is not x.dtype or not x.dtype.is_float:
            fail(f"input {x} and weights {weights}: expected f32 or f64")
        shape = (*x.dims[: self.axis], table.dims[0], *x.dims[self.axis + 1 :])
        return (TensorType(x.dtype, shape),)

    def reference(self, x: np.ndarray, table: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, ...]:
        check_windows(2 * (x.size // max(1, x.shape[self.axis])) * table.size)
        taken = np.moveaxis(high(x), self.axis, -1)[..., np.maximum(table, 0)]
        if self.outside is not None:
            taken = np.where(table >= 0, taken, self.outside)
        y = (taken * high(weights)).sum(axis=-1)
        return (np.moveaxis(y, -1, self.axis).astype(x.dtype),)

    def compute(self, b: ExprBuilder, x: Tensor, table: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        axis, (outs, taps) = self.axis, table.shape
        shape = (*x.shape[:axis], outs, *x.shape[axis + 1 :])

        def term(i: tuple[Expr, ...], tap: Expr) -> Expr:
            place = table[i[axis], tap]
            value = x[(*i[:axis], place, *i[axis + 1 :])]
            if self.outside is not None:
                value = s.select(s.ge(place, 0), value, s.const(self.outside, x.dtype))
            return value * weights[i[axis], tap]

        if taps > UNROLLED:
            y = b.reduce("sum", x.dtype, shape, (taps,), lambda *i: term(i[:-1], i[-1]), "interpolated")
            return (y,)

        def body(*i: Expr) -> Expr:
            total = term(i, s.const(0))
            for tap in range(1, taps):
                total = total + term(i, s.const(tap))
            return total

        return (b.compute(x.dtype, shape, body, "interpolated"),)


@dataclass(frozen=True)
class Resize(Op):
    """ONNX's Resize with everything known: output `sizes` and `scales` of all axes.

    `roi` (starts, then ends) matters for tf_crop_and_resize only; nearest "simple" is that of opset 10.
    """

    sizes: tuple[int, ...]
    scales: tuple[float, ...]
    mode: str = "nearest"
    coordinates: str = "half_pixel"
    nearest: str = "round_prefer_floor"
    cubic_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation: float = 0.0
    roi: tuple[float, ...] = ()

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        if not len(self.sizes) == len(self.scales) == x.rank or (self.roi and len(self.roi) != 2 * x.rank):
            fail(f"input {x}, sizes {self.sizes}, scales {self.scales} and roi {self.roi} do not fit")
        for choice, known in (
            (self.mode, MODES),
            (self.coordinates, COORDINATES),
            (self.nearest, NEAREST),
        ):
            if choice not in known:
                fail(f"{choice!r} is unknown; expected one of {', '.join(known)}")
        if any(scale <= 0 for scale in self.scales) or any(n and not d for n, d in zip(self.sizes, x.dims)):
            fail(f"input {x} cannot be resized to {self.sizes} with scales {self.scales}")
        if self._crops and len(self.roi) != 2 * x.rank:
            fail(f"tf_crop_and_resize needs a roi of {2 * x.rank} entries, got {self.roi}")
        return (TensorType(x.dtype, self.sizes),)

    @property
    def _crops(self) -> bool:
        return self.coordinates == "tf_crop_and_resize"

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        y = x if self.mode == "nearest" else x.astype(np.float64)
        for axis in self._axes(x.shape):
            table, weights = self.table(axis, x.shape[axis])
            moved = np.moveaxis(y, axis, -1)
            if self.mode == "nearest":
                taken = moved[..., np.maximum(table[:, 0], 0)]
            else:
                taken = np.einsum("...ot,ot->...o", moved[..., np.maximum(table, 0)], weights)
            y = np.moveaxis(np.where(table[:, 0] >= 0, taken, self._outside(dtype_of(y))), -1, axis)
        if self._rounds(dtype_of(x)):
            y = np.floor(y + 0.5)
        elif self.mode != "nearest" and dtype_of(x).is_integer:
            y = y * WHOLE
        return (convert(y, dtype_of(x)),)

    def _outside(self, dtype: DType) -> float:
        """As a number of that type, where all are of it."""
        if not dtype.is_integer:
            return self.extrapolation
        return convert(np.asarray(self.extrapolation, np.float64), dtype).item()

    def _rounds(self, dtype: DType) -> bool:
        """Whether results are rounded, as in onnxruntime; other integers lose what is behind the point
        (`WHOLE`)."""
        return self.antialias and dtype.is_integer and self.mode != "nearest"

    def decompose(self, g: Decomposer, x: str) -> tuple[str, ...]:
        type = g.type(x)
        axes = self._axes(type.dims)
        outside = self._outside(type.dtype) if self._crops else None
        if not axes:
            return (g.one(Identity(), x),)
        if self.mode == "nearest":
            tables = [self.table(axis, type.dims[axis])[0][:, 0] for axis in axes]
            factors = [1] * type.rank
            for axis, table in zip(axes, tables):
                size, length = type.dims[axis], self.sizes[axis]
                factors[axis] = max(1, length // max(size, 1))
                repeats = size * factors[axis] == length
                if not (repeats and np.array_equal(table, np.arange(length) // factors[axis])):
                    names = (g.const(t.astype(np.int64), "table") for t in tables)
                    return (g.one(Pick(tuple(axes), outside), x, *names),)
            return (g.one(Repeat(tuple(factors)), x),)
        acc = interpolation_type(type.dtype)
        y = x if acc is type.dtype else g.one(Cast(acc.name), x)
        for axis in axes:
            table, weights = self.table(axis, type.dims[axis])
            shares = g.const(weights.astype(acc.numpy), "weights")
            y = g.one(Interpolate(axis, outside), y, g.const(table, "table"), shares)
        if self._rounds(type.dtype):
            y = g.one(Unary("floor"), g.one(Binary("add"), y, g.const(np.array(0.5, acc.numpy), "half")))
        elif type.dtype.is_integer:
            y = g.one(Binary("mul"), y, g.const(np.array(WHOLE, acc.numpy), "whole"))
        return (y if acc is type.dtype else g.one(Cast(type.dtype.name), y),)

    def _axes(self, shape: tuple[int, ...]) -> list[int]:
        """Those that change, shrinking ones first."""
        rank = len(shape)

        def changes(axis: int) -> bool:
            whole = not self._crops or (self.roi[axis], self.roi[rank + axis]) == (0.0, 1.0)
            return shape[axis] != self.sizes[axis] or abs(self.scales[axis] - 1) > 1e-9 or not whole

        return sorted(filter(changes, range(rank)), key=lambda a: self.sizes[a] / max(shape[a], 1))

    def table(self, axis: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        """(elements, weights), each (outputs, taps), for an axis of `size` elements; -1 is outside."""
        if not self.sizes[axis]:
            return np.zeros((0, 1), np.int64), np.zeros((0, 1))
        at = self._positions(axis, size)
        if self.mode == "nearest":
            place = np.clip(self._nearest(at, self.scales[axis]), 0, max(size - 1, 0))[:, None]
            weights = np.ones(place.shape)
        else:
            first = np.floor(at).astype(np.int64)
            offsets, weights = self._weights((at - first)[:, None], self.scales[axis])
            place = first[:, None] + offsets
            if self.exclude_outside:
                weights = np.where((place >= 0) & (place < size), weights, 0.0)
                total = weights.sum(axis=1, keepdims=True)
                weights = weights / np.where(total == 0, 1.0, total)
            place = np.clip(place, 0, max(size - 1, 0))
        if self._crops:
            outside = (at < 0) | (at > size - 1)
            place = np.where(outside[:, None], -1, place)
            weights = np.where(outside[:, None], np.eye(1, weights.shape[1]), weights)
        return place, weights

    def _positions(self, axis: int, size: int) -> np.ndarray:
        """Where each output position lies in the input, in elements.

        For nearest neighbours and in regions in f32, as onnxruntime does: ties and borders must fall the same
        way.
        """
        real = np.float32 if self.mode == "nearest" or self._crops else np.float64
        scale, outs = real(self.scales[axis]), self.sizes[axis]
        i: np.ndarray = np.arange(outs, dtype=real)
        length = scale * size  # the output's length before it was rounded down …
        if abs(float(length) - outs) < 1e-6 * outs:  # … but for what f32 made of a length that was given
            length = real(outs)
        match self.coordinates:
            case "align_corners":
                return i * 0 if length == 1 else i * (size - 1) / (length - 1)
            case "asymmetric":
                return i / scale
            case "tf_half_pixel_for_nn":
                return (i + 0.5) / scale
            case "pytorch_half_pixel" if outs == 1:
                return i * 0
            case "half_pixel_symmetric":
                middle = size / 2 * (1 - outs / length)
                return (middle + (i.astype(np.float64) + 0.5) / scale - 0.5).astype(real)
            case "tf_crop_and_resize":
                begin, end = real(self.roi[axis]), real(self.roi[len(self.sizes) + axis])
                if outs == 1:
                    return i * 0 + (begin + end) * (size - 1) / 2
                return begin * (size - 1) + i * (end - begin) * (size - 1) / (outs - 1)
        return (i + 0.5) / scale - 0.5

    def _nearest(self, at: np.ndarray, scale: float) -> np.ndarray:
        match self.nearest:
            case "round_prefer_floor":
                place = np.ceil(at - 0.5)
            case "round_prefer_ceil":
                place = np.floor(at + 0.5)
            case "ceil":
                place = np.ceil(at)
            case "simple" if scale < 1:
                place = np.ceil(at)
            case _:
                place = np.floor(at)
        return place.astype(np.int64)

    def _weights(self, ratio: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
        """Offsets (taps) from the element before the position, and weights for each `ratio` beyond it."""
        reach = 1 if self.mode == "linear" else 2
        stretch = min(scale, 1.0) if self.antialias else 1.0
        start = int(np.floor(-reach / stretch)) + 1
        offsets = np.arange(start, 2 - start)
        distance = np.abs(offsets - ratio) * stretch
        weights = np.clip(1 - distance, 0, 1) if self.mode == "linear" else self._cubic(distance)
        return offsets, weights / weights.sum(axis=1, keepdims=True) if stretch < 1 else weights

    def _cubic(self, d: np.ndarray) -> np.ndarray:
        """Keys' cubic convolution kernel at distance d."""
        a = self.cubic_a
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


WHOLE = 1 + 2.0**-40
"""Sums of shares in f64 that should be an integer may be less by some bits: times this, the integer is left
when they are cut off."""
MODES = ("nearest", "linear", "cubic")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple")
COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
    "tf_half_pixel_for_nn",
)


def interpolation_type(dtype: DType) -> DType:
    """f32 for narrow floats; f64 for integers, which are cut off at the end (`WHOLE`)."""
    return F64 if dtype.is_integer else wide(dtype)
