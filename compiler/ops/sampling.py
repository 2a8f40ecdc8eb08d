"""Sampling at positions that are computed: GridSample and deformable convolution.

x is (batch, channels, *spatial). A sample is a sum over the elements around its position of their
weights times their values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ..ir import scalar as s
from ..ir.expr import ExprBuilder, Tensor
from ..ir.numpy_scalar import convert
from ..ir.scalar import Expr
from ..ir.types import I64, DType, TensorType, dtype_of
from .base import Op
from .conv import add_bias, check_bias
from .resize import WHOLE, interpolation_type
from .shapes import fail, wide, wide_array
from .window import high, output_sizes

MODES = ("linear", "nearest", "cubic")
PADDINGS = ("zeros", "border", "reflection")
CUBIC_A = -0.75


def cubic_weight(d: Expr) -> Expr:
    """Keys' cubic convolution kernel at distance d >= 0."""
    near = ((CUBIC_A + 2) * d - (CUBIC_A + 3)) * d * d + 1
    far = ((CUBIC_A * d - 5 * CUBIC_A) * d + 8 * CUBIC_A) * d - 4 * CUBIC_A
    return s.select(s.le(d, 1.0), near, s.select(s.lt(d, 2.0), far, s.const(0, d.dtype)))


def linear_weight(d: Expr) -> Expr:
    return 1 - d


def weights_and_places(
    at: Sequence[Expr], taps: Sequence[Expr], first: int, weight: Callable[[Expr], Expr], acc: DType
) -> tuple[Expr, list[Expr]]:
    """The product of the axes' weights, and each axis' element, of tap `first` + taps[axis] around `at`."""
    total: Expr | None = None
    places = []
    for position, tap in zip(at, taps):
        base = s.call("floor", position)
        whole = s.eq(base, position)  # infinities are, too
        beyond = s.select(whole, s.const(0, position.dtype), position - base)
        offset = tap + first
        share = weight(s.call("abs", s.cast(offset, acc) - s.cast(beyond, acc)))
        total = share if total is None else total * share
        places.append(s.cast(base, I64) + offset)
    assert total is not None
    return total, places


@dataclass(frozen=True)
class GridSample(Op):
    """y[n, c, o…] = x[n, c] at grid[n, o…], whose entries run from -1 to 1 and name x's last axis first.

    1 and -1 are the centres of the outermost elements if `align_corners`, else their outer edges. With border
    padding every element that is read is clamped, as in torch and onnxruntime, but not the position.
    """

    mode: str = "linear"
    padding: str = "zeros"
    align_corners: bool = False

    def infer(self, x: TensorType, grid: TensorType) -> tuple[TensorType, ...]:
        rank = x.rank - 2
        if rank < 1 or grid.rank != x.rank or grid.dims[-1] != rank or grid.dims[0] != x.dims[0]:
            fail(f"input {x} and grid {grid} do not fit; the grid's last axis names {rank} positions")
        if self.mode not in MODES or self.padding not in PADDINGS:
            fail(f"mode {self.mode!r}, padding {self.padding!r}: expected one of {MODES} and of {PADDINGS}")
        if not grid.dtype.is_float or (x.dtype.kind == "bool" and self.mode != "nearest"):
            fail(f"input {x} and grid {grid}: expected a grid of floats, and numbers")
        if 0 in x.dims[2:] and 0 not in grid.dims:
            fail(f"input {x} has nothing to sample")
        return (TensorType(x.dtype, (*x.dims[:2], *grid.dims[1:-1])),)

    def _edges(self, size: int) -> tuple[float, float]:
        return (0.0, size - 1.0) if self.align_corners else (-0.5, size - 0.5)

    @property
    def _nowhere(self) -> int:
        """Where NaN lies, to the nearest pixel: outside, if anything is."""
        return -1 if self.padding == "zeros" else 0

    # --- numpy ---

    def _positions(self, grid: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
        """Where each output reads, by axis of x, in elements."""
        result = []
        for axis, size in enumerate(sizes):
            g = wide_array(grid)[..., len(sizes) - 1 - axis]
            v = (g + 1) * ((size - 1) / 2) if self.align_corners else ((g + 1) * size - 1) / 2
            low, top = self._edges(size)
            if self.mode == "nearest":
                v = np.rint(v)
            elif self.padding == "reflection":
                period = 2 * (top - low)
                t = np.mod(v - low, period) if period else v * 0
                v = np.where((v < low) | (v > top), low + np.minimum(t, period - t), v)
            result.append(v.astype(np.float64))
        return result

    def _pixels(self, x: np.ndarray, index: Sequence[np.ndarray]) -> np.ndarray:
        """numpy: (n, c, o…) from one index array (n, o…) per axis."""
        sizes = x.shape[2:]
        valid = np.ones(index[0].shape, bool)
        inner = []
        for i, size in zip(index, sizes):
            if self.padding == "reflection":
                period = max(2 * (size - 1), 1) if self.align_corners else 2 * size
                t = np.mod(i, period)
                i = np.where(t < size, t, (period if self.align_corners else period - 1) - t)
            elif self.padding == "zeros":
                valid &= (i >= 0) & (i < size)
            inner.append(np.clip(i, 0, size - 1))
        taken = np.stack([x[n][(slice(None), *(i[n] for i in inner))] for n in range(x.shape[0])])
        return np.where(valid[:, None], taken, 0)

    @np.errstate(invalid="ignore")  # of places that are infinitely far
    def reference(self, x: np.ndarray, grid: np.ndarray) -> tuple[np.ndarray, ...]:
        shape = (*x.shape[:2], *grid.shape[1:-1])
        if 0 in shape:
            return (np.zeros(shape, x.dtype),)
        at = self._positions(grid, x.shape[2:])
        if self.mode == "nearest":
            whole = [convert(np.where(np.isnan(v), self._nowhere, v), I64) for v in at]
            return (self._pixels(x, whole).astype(x.dtype),)
        base = [convert(np.floor(v), I64) for v in at]
        beyond = [np.where(np.floor(v) == v, 0, v - b) for v, b in zip(at, base)]
        reach = range(2) if self.mode == "linear" else range(-1, 3)
        y = np.zeros(shape)
        for taps in np.ndindex(*(len(reach),) * len(at)):
            weight = np.ones(base[0].shape)
            for tap, d in zip(taps, beyond):
                weight = weight * self._weight(np.abs(reach[tap] - d))
            value = self._pixels(x.astype(np.float64), [b + reach[t] for b, t in zip(base, taps)])
            y += weight[:, None] * value
        return (convert(y * WHOLE, dtype_of(x)) if dtype_of(x).is_integer else y.astype(x.dtype),)

    def _weight(self, d: np.ndarray) -> np.ndarray:
        if self.mode == "linear":
            return 1 - d
        near = np.polyval([CUBIC_A + 2, -(CUBIC_A + 3), 0, 1], d)
        far = np.polyval([CUBIC_A, -5 * CUBIC_A, 8 * CUBIC_A, -4 * CUBIC_A], d)
        return np.where(d <= 1, near, far)

    # --- tensor expression ---

    def compute(self, b: ExprBuilder, x: Tensor, grid: Tensor) -> tuple[Tensor, ...]:
        sizes, outs = x.shape[2:], grid.shape[1:-1]
        rank, real = len(sizes), wide(grid.dtype)
        at = [
            b.compute(real, (x.shape[0], *outs), self._position(grid, axis, sizes), "at")
            for axis in range(rank)
        ]
        if self.mode == "nearest":
            zero = s.const(0, x.dtype)

            def nearest(n: Expr, c: Expr, *o: Expr) -> Expr:
                places = (p[(n, *o)] for p in at)
                whole = [s.select(s.call("isnan", v), s.const(self._nowhere), s.cast(v, I64)) for v in places]
                return self._pixel(x, n, c, whole, zero, x.dtype)

            return (b.compute(x.dtype, (*x.shape[:2], *outs), nearest, "sampled"),)
        acc = interpolation_type(x.dtype)
        first, taps, weight = (0, 2, linear_weight) if self.mode == "linear" else (-1, 4, cubic_weight)

        def body(n: Expr, c: Expr, *rest: Expr) -> Expr:
            o, tap = rest[: len(outs)], rest[len(outs) :]
            share, places = weights_and_places([p[(n, *o)] for p in at], tap, first, weight, acc)
            return share * self._pixel(x, n, c, places, s.const(0, acc), acc)

        total = b.reduce("sum", acc, (*x.shape[:2], *outs), (taps,) * rank, body, "sampled")
        if acc is x.dtype:
            return (total,)

        def narrowed(*i: Expr) -> Expr:
            return s.cast(total[i] * WHOLE if x.dtype.is_integer else total[i], x.dtype)

        return (b.compute(x.dtype, total.shape, narrowed, "rounded"),)

    def _position(self, grid: Tensor, axis: int, sizes: Sequence[int]) -> Callable[..., Expr]:
        size = sizes[axis]
        low, top = self._edges(size)

        def body(n: Expr, *o: Expr) -> Expr:
            g = s.cast(grid[(n, *o, len(sizes) - 1 - axis)], wide(grid.dtype))
            v = (g + 1) * ((size - 1) / 2) if self.align_corners else ((g + 1) * size - 1) / 2
            if self.mode == "nearest":
                return s.call("round", v)
            if self.padding != "reflection":
                return v
            outside = s.binary("or", s.lt(v, low), s.binary("gt", v, top))
            period = 2 * (top - low)
            if not period:
                return s.select(outside, s.const(low, v.dtype), v)
            t = v - low
            t = t - s.call("floor", t / period) * period
            return s.select(outside, s.minimum(t, period - t) + low, v)

        return body

    def _pixel(self, x: Tensor, n: Expr, c: Expr, places: Sequence[Expr], outside: Expr, to: DType) -> Expr:
        """x[n, c, places…] as the padding says."""
        guards, index = [], []
        for place, size in zip(places, x.shape[2:]):
            if self.padding == "zeros":
                guards.append(s.within(place, size))
                index.append(place)
                continue
            if self.padding == "reflection":
                period = max(2 * (size - 1), 1) if self.align_corners else 2 * size
                t = place % period
                place = s.select(s.lt(t, size), t, (period if self.align_corners else period - 1) - t)
            index.append(s.maximum(s.minimum(place, size - 1), 0))
        return s.select(s.both(*guards), s.cast(x[(n, c, *index)], to), outside)


@dataclass(frozen=True)
class DeformConv(Op):
    """A convolution whose every tap is moved by an offset and weighted by a mask; zeros outside of x.

    Inputs x, w (out channels, channels / group, *kernel), offset (batch, offset_group · taps · axes,
    *out), bias, mask (batch, offset_group · taps, *out).
    """

    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    group: int = 1
    offset_group: int = 1

    def _outs(self, sizes: Sequence[int], kernel: Sequence[int]) -> tuple[int, ...]:
        return output_sizes("DeformConv", sizes, kernel, self.strides, self.dilations, self.pads)

    def infer(
        self,
        x: TensorType,
        w: TensorType,
        offset: TensorType,
        bias: TensorType | None = None,
        mask: TensorType | None = None,
    ) -> tuple[TensorType, ...]:
        if x.rank < 3 or w.rank != x.rank or any(t.dtype is not x.dtype for t in (w, offset)):
            fail(f"input {x}, weights {w} and offset {offset} do not fit")
        (n, channels, *sizes), (out_channels, per_group, *kernel) = x.dims, w.dims
        if self.group < 1 or out_channels % self.group or channels != per_group * self.group:
            fail(f"input {x}, weights {w} and group {self.group} do not fit")
        if not x.dtype.is_float or self.offset_group < 1 or channels % self.offset_group:
            fail(
                f"input {x}: expected floats, and channels that divide into {self.offset_group} offset groups"
            )
        outs, taps = self._outs(sizes, kernel), prod(kernel) * self.offset_group
        if offset.dims != (n, taps * len(kernel), *outs):
            fail(f"offset {offset}: expected the shape {[n, taps * len(kernel), *outs]}")
        if mask is not None and (mask.dims != (n, taps, *outs) or mask.dtype is not x.dtype):
            fail(f"mask {mask}: expected the shape {[n, taps, *outs]}")
        check_bias(bias, out_channels)
        return (TensorType(x.dtype, (n, out_channels, *outs)),)

    @np.errstate(invalid="ignore")  # of places that are infinitely far
    def reference(
        self,
        x: np.ndarray,
        w: np.ndarray,
        offset: np.ndarray,
        bias: np.ndarray | None = None,
        mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, ...]:
        n, channels, *sizes = x.shape
        out_channels, per_group, *kernel = w.shape
        outs, rank, taps = self._outs(sizes, kernel), len(kernel), prod(kernel)
        moved = high(offset).reshape(n, self.offset_group, taps, rank, *outs)
        weight = (
            np.ones((n, self.offset_group, taps, *outs))
            if mask is None
            else high(mask).reshape(n, self.offset_group, taps, *outs)
        )
        x64, sampled = high(x), np.zeros((n, channels, taps, *outs))
        base = np.meshgrid(
            *(np.arange(o) * st - p for o, st, p in zip(outs, self.strides, self.pads)), indexing="ij"
        )
        for batch, c, k in np.ndindex(n, channels, taps):
            group = c // (channels // self.offset_group)
            tap = np.unravel_index(k, kernel)
            at = [base[a] + tap[a] * self.dilations[a] + moved[batch, group, k, a] for a in range(rank)]
            floor = [np.floor(v).astype(np.int64) for v in at]
            for corner in np.ndindex(*(2,) * rank):
                index = [f + i for f, i in zip(floor, corner)]
                share = np.prod([1 - np.abs(i - v) for i, v in zip(index, at)], axis=0)
                valid = np.all([(i >= 0) & (i < d) for i, d in zip(index, sizes)], axis=0)
                clipped = tuple(np.clip(i, 0, d - 1) for i, d in zip(index, sizes))
                sampled[batch, c, k] += np.where(valid, share * x64[batch, c][clipped], 0)
            sampled[batch, c, k] *= weight[batch, group, k]
        grouped = sampled.reshape(n, self.group, per_group * taps, prod(outs))
        weights = high(w).reshape(self.group, out_channels // self.group, per_group * taps)
        y = (weights @ grouped).reshape(n, out_channels, *outs)
        if bias is not None:
            y = y + high(bias).reshape(-1, *(1,) * rank)
        return (y.astype(x.dtype),)

    def compute(
        self,
        b: ExprBuilder,
        x: Tensor,
        w: Tensor,
        offset: Tensor,
        bias: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        n, channels, *sizes = x.shape
        out_channels, per_group, *kernel = w.shape
        outs, rank, taps, acc = self._outs(sizes, kernel), len(kernel), prod(kernel), wide(x.dtype)

        def sample(n: Expr, c: Expr, k: Expr, *rest: Expr) -> Expr:
            o, corner = rest[:rank], rest[rank:]
            row = c // (channels // self.offset_group) * taps + k
            at: list[Expr] = []
            tap = k
            for a in reversed(range(rank)):
                start = o[a] * self.strides[a] - self.pads[a] + tap % kernel[a] * self.dilations[a]
                tap = tap // kernel[a]
                at.insert(0, s.cast(start, acc) + s.cast(offset[(n, row * rank + a, *o)], acc))
            share, places = weights_and_places(at, corner, 0, linear_weight, acc)
            guard = s.both(*(s.within(p, d) for p, d in zip(places, sizes)))
            value = share * s.select(guard, s.cast(x[(n, c, *places)], acc), s.const(0, acc))
            return value if mask is None else value * s.cast(mask[(n, row, *o)], acc)

        sampled = b.reduce("sum", acc, (n, channels, taps, *outs), (2,) * rank, sample, "sampled")

        def body(n: Expr, oc: Expr, *rest: Expr) -> Expr:
            o, ic, k = rest[:rank], rest[rank], rest[rank + 1 :]
            flat: Expr = s.const(0)
            for index, extent in zip(k, kernel):
                flat = flat * extent + index
            channel = oc // (out_channels // self.group) * per_group + ic
            return sampled[(n, channel, flat, *o)] * s.cast(w[(oc, ic, *k)], acc)

        total = b.reduce("sum", acc, (n, out_channels, *outs), (per_group, *kernel), body, "acc")
        return (add_bias(b, total, bias, x.dtype),)
