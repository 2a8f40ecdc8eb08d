"""Pooling over windows: x is (batch, channels, *spatial)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...errors import ModelError
from ..ir import scalar as s
from ..ir.expr import ExprBuilder, Tensor
from ..ir.scalar import Expr
from ..ir.types import I64, DType, TensorType, dtype_of
from .base import Op
from .shapes import wide
from .window import high, inside, output_sizes, positions, read, spatial_names, windows

Value = Callable[[Expr], Expr]


def same(value: Expr) -> Expr:
    return value


@dataclass(frozen=True)
class _Pool(Op, abstract=True):
    """`pads` are all begins, then all ends; `ceil_mode` keeps a last window that is not filled."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    ceil_mode: bool = False

    def _type(self, x: TensorType, dtype: DType | None = None) -> TensorType:
        if x.rank < 3:
            raise ModelError(f"input {x}: expected batch, channels and at least one spatial axis")
        return TensorType(dtype or x.dtype, (*x.dims[:2], *self._outs(x.dims[2:])))

    def _outs(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        return output_sizes(
            self.name, sizes, self.kernel, self.strides, self.dilations, self.pads, self.ceil_mode
        )

    def _at(self, position: tuple[Expr, ...], taps: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return positions(position, taps, self.strides, self.dilations, self.pads)

    def _inside(self, at: tuple[Expr, ...], sizes: tuple[int, ...]) -> Expr:
        return inside(at, sizes, self.kernel, self._outs(sizes), self.strides, self.dilations, self.pads)

    def _reduce(
        self, b: ExprBuilder, x: Tensor, op: str, acc: DType, outside: Expr, value: Value = same
    ) -> Tensor:
        """One stage: `op` over `value` of the elements of each window, `outside` standing in the padding."""
        rank, sizes = len(self.kernel), x.shape[2:]

        def body(n: Expr, c: Expr, *rest: Expr) -> Expr:
            at = self._at(rest[:rank], rest[rank:])
            return value(read(x, (n, c, *at), self._inside(at, sizes), outside, acc))

        return b.reduce(
            op,
            acc,
            (*x.shape[:2], *self._outs(sizes)),
            self.kernel,
            body,
            axes=("n", "c", *spatial_names(rank)),
            reduce_axes=spatial_names(rank, "k"),
        )

    def _windows(self, x: np.ndarray, fill: float | int) -> np.ndarray:
        """numpy: (n, c, *outs, all taps)."""
        outs = self._outs(x.shape[2:])
        view = windows(x, self.kernel, outs, self.strides, self.dilations, self.pads, fill)
        return view.reshape(*view.shape[: 2 + len(outs)], int(np.prod(self.kernel)))


def power(p: int) -> Value:
    """value → |value|^p."""
    if p == 1:
        return lambda value: s.call("abs", value)
    if p == 2:
        return lambda value: value * value
    return lambda value: s.binary("pow", s.call("abs", value), float(p))


def root(p: int) -> Value:
    """value → value^(1/p) for value >= 0."""
    if p == 1:
        return same
    return lambda value: s.call("sqrt", value) if p == 2 else s.binary("pow", value, 1.0 / p)


def finish(b: ExprBuilder, t: Tensor, dtype: DType, value: Value = same) -> Tensor:
    """`value` of each element of `t`, converted to `dtype`; `t` itself where that changes nothing."""
    if value is same and t.dtype is dtype:
        return t
    names = ("n", "c", *spatial_names(t.rank - 2))
    return b.compute(dtype, t.shape, lambda *i: s.cast(value(t[i]), dtype), "y", names)


@dataclass(frozen=True)
class MaxPool(_Pool):
    """Greatest element of each window.

    With `indices`, a second output: its place in x flattened, where `storage_order` 1 means that a plane's
    axes are in column-major order.
    """

    storage_order: int = 0
    indices: bool = False

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        y = self._type(x)
        return (y, TensorType(I64, y.shape)) if self.indices else (y,)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        view = self._windows(high(x), s.lowest(dtype_of(x)).value)
        y = view.max(axis=-1).astype(x.dtype)
        return (y, self._numpy_indices(x, view)) if self.indices else (y,)

    def _numpy_indices(self, x: np.ndarray, view: np.ndarray) -> np.ndarray:
        n, c, *sizes = x.shape
        place = np.arange(int(np.prod(sizes))).reshape(sizes, order="F" if self.storage_order else "C")
        planes = np.broadcast_to(place, x.shape) + (np.arange(n * c) * place.size).reshape(
            n, c, *(1,) * len(sizes)
        )
        inside = self._windows(np.ones(x.shape, bool), False)
        greatest = (view == view.max(axis=-1, keepdims=True)) | np.isnan(view)
        best = (greatest & inside).argmax(axis=-1)[..., None]
        found = np.take_along_axis(self._windows(planes, 0), best, axis=-1)[..., 0]
        starts = (np.arange(o) * t - p for o, t, p in zip(view.shape[2:-1], self.strides, self.pads))
        at = [
            np.minimum(np.where(a < 0, a % d, a), size - 1)
            for a, d, size in zip(starts, self.dilations, sizes)
        ]
        first = planes[np.ix_(range(n), range(c), *at)] if x.size else found
        return np.where(inside.any(axis=-1), found, first)

    def compute(self, b: ExprBuilder, x: Tensor) -> tuple[Tensor, ...]:
        y = self._reduce(b, x, "max", x.dtype, s.lowest(x.dtype))
        return (y, self._indices(b, x)) if self.indices else (y,)

    def _indices(self, b: ExprBuilder, x: Tensor) -> Tensor:
        rank, sizes = len(self.kernel), x.shape[2:]

        def taps_of(k: Expr) -> tuple[Expr, ...]:
            taps: list[Expr] = []
            for extent in reversed(self.kernel):
                taps.insert(0, k % extent)
                k = k // extent
            return tuple(taps)

        def candidate(n: Expr, c: Expr, *rest: Expr) -> Expr:
            at = self._at(rest[:rank], taps_of(rest[rank]))
            return read(x, (n, c, *at), self._inside(at, sizes), s.lowest(x.dtype), x.dtype)

        def first(position: tuple[Expr, ...]) -> tuple[Expr, ...]:
            """Of the window's elements."""
            starts = self._at(position, (s.const(0),) * rank)
            inside = (s.select(s.lt(at, 0), at % d, at) for at, d in zip(starts, self.dilations))
            return tuple(s.minimum(at, size - 1) for at, size in zip(inside, sizes))

        def place(n: Expr, c: Expr, *position: Expr) -> Expr:
            at = self._at(position, taps_of(best[(n, c, *position)]))
            there = self._inside(at, sizes)  # or else all elements are as little as what lies outside
            at = tuple(s.select(there, found, least) for found, least in zip(at, first(position)))
            result = n * x.shape[1] + c
            for axis in range(rank):
                result = result * sizes[axis]
            step = 1
            offset: Expr = s.const(0)
            for axis in range(rank) if self.storage_order else reversed(range(rank)):
                offset = offset + at[axis] * step
                step *= sizes[axis]
            return result + offset

        shape = (*x.shape[:2], *self._outs(sizes))
        best = b.reduce("argmax", I64, shape, (int(np.prod(self.kernel)),), candidate, "best")
        return b.compute(I64, shape, place, "place")


@dataclass(frozen=True)
class AveragePool(_Pool):
    """Mean of each window; padding counts if `count_include_pad`, what `ceil_mode` adds beyond it never."""

    count_include_pad: bool = False

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        if not x.dtype.is_float:
            raise ModelError(f"input {x}: expected floats")
        return (self._type(x),)

    def _limits(self, sizes: tuple[int, ...]) -> list[tuple[int, int]]:
        """For each axis the positions that count, from … to (exclusive)."""
        rank = len(sizes)
        if not self.count_include_pad:
            return [(0, n) for n in sizes]
        return [(-self.pads[a], sizes[a] + self.pads[rank + a]) for a in range(rank)]

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        rank = len(self.kernel)
        total = self._windows(high(x), 0).sum(axis=-1)
        grown = self.pads if self.count_include_pad else (0,) * 2 * rank
        ones = np.pad(np.ones(x.shape[2:]), list(zip(grown[:rank], grown[rank:])), constant_values=1.0)
        shift = tuple(p - q for p, q in zip(self.pads, grown))
        view = windows(ones[None, None], self.kernel, total.shape[2:], self.strides, self.dilations, shift, 0)
        return ((total / view.reshape(1, 1, *total.shape[2:], -1).sum(axis=-1)).astype(x.dtype),)

    def compute(self, b: ExprBuilder, x: Tensor) -> tuple[Tensor, ...]:
        acc, sizes = wide(x.dtype), x.shape[2:]
        outs, limits = self._outs(sizes), self._limits(x.shape[2:])
        total = self._reduce(b, x, "sum", acc, s.const(0, acc))

        def body(n: Expr, c: Expr, *position: Expr) -> Expr:
            count: Expr = s.const(1)
            for a, o in enumerate(position):
                count = count * self._count(a, o, outs[a], limits[a])
            return s.cast(total[(n, c, *position)] / s.cast(count, acc), x.dtype)

        names = ("n", "c", *spatial_names(len(sizes)))
        return (b.compute(x.dtype, total.shape, body, "y", names),)

    def _count(self, axis: int, o: Expr, outs: int, limits: tuple[int, int]) -> Expr:
        """How many taps of window `o` lie within `limits`; a constant where all windows have all."""
        kernel, stride, dilation, pad = (
            v[axis] for v in (self.kernel, self.strides, self.dilations, self.pads)
        )
        low, high_ = limits
        first, last = -pad, (outs - 1) * stride - pad + (kernel - 1) * dilation
        start = o * stride - pad
        begin: Expr = s.const(0)
        end: Expr = s.const(kernel)
        if first < low:
            begin = s.minimum(s.maximum((low - start + (dilation - 1)) // dilation, 0), kernel)
        if last >= high_:
            end = s.maximum(s.minimum((high_ - start + (dilation - 1)) // dilation, kernel), 0)
        return end - begin


@dataclass(frozen=True)
class LpPool(_Pool):
    """(Σ |x|^p)^(1/p) of each window."""

    p: int = 2

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        if not x.dtype.is_float or self.p < 1:
            raise ModelError(f"input {x} and p {self.p}: expected floats and a positive p")
        return (self._type(x),)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        return (((np.abs(self._windows(high(x), 0)) ** self.p).sum(axis=-1) ** (1 / self.p)).astype(x.dtype),)

    def compute(self, b: ExprBuilder, x: Tensor) -> tuple[Tensor, ...]:
        acc = wide(x.dtype)
        total = self._reduce(b, x, "sum", acc, s.const(0, acc), power(self.p))
        return (finish(b, total, x.dtype, root(self.p)),)


@dataclass(frozen=True)
class _GlobalPool(Op, abstract=True):
    """Over all spatial axes, which stay with size 1."""

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        if x.rank < 2 or not x.dtype.is_float:
            raise ModelError(f"input {x}: expected floats with batch and channels")
        if self.attributes().get("p", 1) < 1:
            raise ModelError("p must be positive")
        return (TensorType(x.dtype, (*x.dims[:2], *(1,) * (x.rank - 2))),)

    def _reduce(self, b: ExprBuilder, x: Tensor, op: str, acc: DType, value: Value = same) -> Tensor:
        rank = x.rank - 2
        return b.reduce(
            op,
            acc,
            (*x.shape[:2], *(1,) * rank),
            x.shape[2:],
            lambda n, c, *rest: value(s.cast(x[(n, c, *rest[rank:])], acc)),
            axes=("n", "c", *spatial_names(rank)),
            reduce_axes=spatial_names(rank, "k"),
        )


def _spatial(x: np.ndarray) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


@dataclass(frozen=True)
class GlobalAveragePool(_GlobalPool):
    """Mean of all spatial positions."""

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        count = int(np.prod(x.shape[2:]))
        total = high(x).sum(axis=_spatial(x), keepdims=True)
        return ((total / count if count else total * np.nan).astype(x.dtype),)

    def compute(self, b: ExprBuilder, x: Tensor) -> tuple[Tensor, ...]:
        count = int(np.prod(x.shape[2:]))
        factor = 1 / count if count else float("nan")
        total = self._reduce(b, x, "sum", wide(x.dtype))
        return (finish(b, total, x.dtype, lambda value: value * factor),)


@dataclass(frozen=True)
class GlobalMaxPool(_GlobalPool):
    """Greatest of all spatial positions."""

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        least = s.lowest(dtype_of(x)).value
        return (high(x).max(axis=_spatial(x), keepdims=True, initial=least).astype(x.dtype),)

    def compute(self, b: ExprBuilder, x: Tensor) -> tuple[Tensor, ...]:
        return (self._reduce(b, x, "max", x.dtype),)


@dataclass(frozen=True)
class GlobalLpPool(_GlobalPool):
    """(Σ |x|^p)^(1/p) over all spatial positions."""

    p: int = 2

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        total = (np.abs(high(x)) ** self.p).sum(axis=_spatial(x), keepdims=True)
        return ((total ** (1 / self.p)).astype(x.dtype),)

    def compute(self, b: ExprBuilder, x: Tensor) -> tuple[Tensor, ...]:
        total = self._reduce(b, x, "sum", wide(x.dtype), power(self.p))
        return (finish(b, total, x.dtype, root(self.p)),)
