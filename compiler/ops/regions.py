"""Pooling of regions of interest, and operators that put pooled or unfolded elements back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod

import numpy as np

from ..ir import scalar as s
from ..ir.expr import ExprBuilder, Tensor
from ..ir.loops import Program, Stmt, Store, loop
from ..ir.scalar import Expr, Var
from ..ir.types import F32, I64, DType, TensorType
from .base import Op
from .programs import allocated, get, nest, program_buffers, put, register
from .shapes import fail, wide, wide_array
from .window import check_windows, high, output_sizes, spatial_names

MOST_SAMPLES = 1 << 14
"""Of a bin along an axis: regions that are larger are no regions, but numbers that overflowed."""
LEAST_WORK = 128
"""Elements whose memory says what a sample costs the reference in time."""
ROI, C, PH, PW, IY, IX = (Var(n) for n in ("roi", "c", "ph", "pw", "iy", "ix"))


@dataclass(frozen=True)
class RoiAlign(Op):
    """Mean (or maximum) of bilinear samples in each of height × width bins of each region.

    Inputs x (batch, channels, h, w), rois (count, 4) as x1, y1, x2, y2, and the batch index of each.
    `sampling` samples per bin and axis, 0: as many as the bin has elements, where more than MOST_SAMPLES are
    an error of the run. `shift` moves regions by half an element. As in ONNX, the maximum is taken over the
    samples' four weighted neighbours, not over their sums.
    """

    height: int = 1
    width: int = 1
    sampling: int = 0
    scale: float = 1.0
    mode: str = "avg"
    shift: bool = True

    def infer(self, x: TensorType, rois: TensorType, batch: TensorType) -> tuple[TensorType, ...]:
        if x.rank != 4 or not x.dtype.is_float or rois.dtype is not x.dtype or 0 in x.dims[2:]:
            fail(f"input {x} and regions {rois}: expected floats of one type and 4 axes, none empty")
        if rois.rank != 2 or rois.dims[1] != 4 or batch.dims != rois.dims[:1] or not batch.dtype.is_integer:
            fail(f"regions {rois} and batch indices {batch}: expected [n, 4] and [n] integers")
        sound = 0 <= self.sampling <= MOST_SAMPLES and min(self.height, self.width) >= 1
        if self.mode not in ("avg", "max") or not sound:
            fail(f"mode {self.mode!r} with {self.height}×{self.width} bins and {self.sampling} samples")
        return (TensorType(x.dtype, (rois.dims[0], x.dims[1], self.height, self.width)),)

    def reference(self, x: np.ndarray, rois: np.ndarray, batch: np.ndarray) -> tuple[np.ndarray, ...]:
        y = np.zeros((len(rois), x.shape[1], self.height, self.width))
        samples = 0
        for r, image in enumerate(batch):
            if not 0 <= image < x.shape[0]:
                raise IndexError(f"batch index {image} of {x.shape[0]}")
            edges = wide_array(rois)[r]  # not in f64: how many samples there are depends on the rounding
            x1, y1, x2, y2 = edges * edges.dtype.type(self.scale) - edges.dtype.type(0.5 * self.shift)
            starts, sizes = (y1, x1), np.array([y2 - y1, x2 - x1])
            sizes = sizes if self.shift else np.maximum(sizes, 1)
            bins = sizes / np.array((self.height, self.width), sizes.dtype)
            counts = [self.sampling or max(int(np.ceil(size)), 0) for size in bins]
            if max(counts) > MOST_SAMPLES:
                raise IndexError(f"{max(counts)} samples of a bin, at most {MOST_SAMPLES}")
            samples += prod((self.height, self.width, *counts))
            check_windows(samples * max(4 * x.shape[1], LEAST_WORK))
            for ph, pw in np.ndindex(self.height, self.width):
                values = [
                    self._corners(
                        high(x[image]),
                        starts[0] + (ph + (iy + 0.5) / counts[0]) * bins[0],
                        starts[1] + (pw + (ix + 0.5) / counts[1]) * bins[1],
                    )
                    for iy, ix in np.ndindex(*counts)
                ]
                if values:
                    corners = np.stack(values)  # (samples, 4, channels)
                    y[r, :, ph, pw] = (
                        corners.max(axis=(0, 1)) if self.mode == "max" else corners.sum(1).mean(0)
                    )
        return (y.astype(x.dtype),)

    @staticmethod
    def _corners(plane: np.ndarray, y: float, x: float) -> np.ndarray:
        """(4, channels): the four neighbours times their weights; zeros further than 1 outside."""
        h, w = plane.shape[1:]
        if not (-1 <= y <= h and -1 <= x <= w):
            return np.zeros((4, plane.shape[0]))
        y, x = min(max(y, 0.0), h - 1.0), min(max(x, 0.0), w - 1.0)
        top, left = int(y), int(x)
        rows = ((top, 1 - (y - top)), (min(top + 1, h - 1), y - top))
        columns = ((left, 1 - (x - left)), (min(left + 1, w - 1), x - left))
        return np.stack([plane[:, i, j] * (a * b) for i, a in rows for j, b in columns])

    def loops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> Program:
        buffers = program_buffers(inputs, outputs)
        x, rois, batch, y = (Tensor(b.name, b.dtype, b.shape) for b in buffers)
        acc, average = wide(x.dtype), self.mode == "avg"
        image, total = register("image", I64), register("total", acc)
        rows, columns = sides = _Side("h", acc), _Side("w", acc)
        zero = s.const(0, acc)
        value = self._sample(x, get(image), rows, columns)
        combined = get(total) + value if average else s.maximum(get(total), value)
        samples = s.maximum(get(rows.count), 0) * s.maximum(get(columns.count), 0)
        start = zero if average else s.select(s.eq(samples, 0), zero, s.lowest(acc))
        result = get(total) / s.cast(s.maximum(samples, 1), acc) if average else get(total)
        inner = loop("ix", get(columns.count), columns.sample(PW, IX), put(total, combined))
        one_bin = (
            put(total, start),
            loop("iy", get(rows.count), rows.sample(PH, IY), inner),
            Store(y.name, (ROI, C, PH, PW), s.cast(result, y.dtype)),
        )
        body = (
            put(image, s.call("checked", s.cast(batch[ROI], I64), s.const(x.shape[0]))),
            *self._measure(rows, rois, 1, self.height),
            *self._measure(columns, rois, 0, self.width),
            *nest(("ph", "pw"), y.shape[2:], one_bin, "serial"),
        )
        registers = [image, total, *(r for side in sides for r in side.registers)]
        steps = nest(("roi", "c"), y.shape[:2], [allocated(registers, *body)])
        return Program(self.name, tuple(buffers), steps)

    def _measure(self, side: _Side, rois: Tensor, column: int, bins: int) -> tuple[Stmt, ...]:
        """Start, bin size and samples per bin of one axis, whose edges stand in `column` and `column` + 2."""
        acc = side.at.dtype
        first, last = (
            s.cast(rois[ROI, n], acc) * self.scale - (0.5 if self.shift else 0.0)
            for n in (column, column + 2)
        )
        size = last - first if self.shift else s.maximum(last - first, 1.0)
        count: Expr = s.const(self.sampling)
        if not self.sampling:
            found = s.maximum(s.cast(s.call("ceil", get(side.bin)), I64), 0)
            count = s.call("checked", found, s.const(MOST_SAMPLES + 1))
        return put(side.start, first), put(side.bin, size / float(bins)), put(side.count, count)

    def _sample(self, x: Tensor, image: Expr, rows: _Side, columns: _Side) -> Expr:
        """Sum or maximum of the weighted neighbours; zero further than 1 outside of x."""
        acc, (h, w) = rows.at.dtype, x.shape[2:]
        corners = [
            s.cast(x[image, C, row, column], acc) * (a * b)
            for row, a in rows.neighbours(h)
            for column, b in columns.neighbours(w)
        ]
        value = reduce(lambda a, b: a + b if self.mode == "avg" else s.maximum(a, b), corners)
        return s.select(s.both(rows.found(h), columns.found(w)), value, s.const(0, acc))


class _Side:
    """The variables of one axis of a region: where it starts, its bins' size, samples per bin, the sample."""

    def __init__(self, name: str, dtype: DType) -> None:
        self.start, self.bin, self.at = (register(f"{n}_{name}", dtype) for n in ("start", "bin", "at"))
        self.count = register(f"count_{name}", I64)
        self.registers = (self.start, self.bin, self.count, self.at)

    def sample(self, p: Expr, i: Expr) -> Stmt:
        dtype = self.at.dtype
        inside = (s.cast(i, dtype) + 0.5) / s.cast(get(self.count), dtype)
        return put(self.at, get(self.start) + (s.cast(p, dtype) + inside) * get(self.bin))

    def found(self, extent: int) -> Expr:
        return s.both(s.ge(get(self.at), -1.0), s.le(get(self.at), float(extent)))

    def neighbours(self, extent: int) -> list[tuple[Expr, Expr]]:
        """(index, weight) of the elements before and behind the sample."""
        at = s.minimum(s.maximum(get(self.at), 0.0), extent - 1.0)
        low = s.maximum(s.minimum(s.cast(at, I64), extent - 1), 0)
        part = at - s.cast(low, at.dtype)
        return [(low, 1 - part), (s.minimum(low + 1, extent - 1), part)]


@dataclass(frozen=True)
class MaxRoiPool(Op):
    """Greatest element in each of height × width bins of each region; zero in an empty bin.

    Inputs x (batch, channels, h, w), rois (count, 5) as batch index, x1, y1, x2, y2, rounded and inclusive.
    """

    height: int
    width: int
    scale: float = 1.0

    def infer(self, x: TensorType, rois: TensorType) -> tuple[TensorType, ...]:
        if x.rank != 4 or not x.dtype.is_float or rois.dtype is not x.dtype:
            fail(f"input {x} and regions {rois}: expected floats of one type and 4 axes")
        if rois.rank != 2 or rois.dims[1] != 5 or min(self.height, self.width) < 1:
            fail(f"regions {rois} in {self.height}×{self.width} bins: expected [n, 5] and positive sizes")
        return (TensorType(x.dtype, (rois.dims[0], x.dims[1], self.height, self.width)),)

    def reference(self, x: np.ndarray, rois: np.ndarray) -> tuple[np.ndarray, ...]:
        y = np.zeros((len(rois), x.shape[1], self.height, self.width))
        for r, roi in enumerate(rois):
            image = int(roi[0])
            if not 0 <= image < x.shape[0]:
                raise IndexError(f"batch index {image} of {x.shape[0]}")
            moved = roi[1:].astype(np.float32) * np.float32(self.scale)
            x1, y1, x2, y2 = np.trunc(moved + np.copysign(np.float32(0.5), moved)).astype(int)
            for ph, pw in np.ndindex(self.height, self.width):
                rows = self._bin(ph, y1, y2, self.height, x.shape[2])
                columns = self._bin(pw, x1, x2, self.width, x.shape[3])
                part = high(x[image])[:, rows, columns]
                if part.size:
                    y[r, :, ph, pw] = part.max(axis=(1, 2))
        return (y.astype(x.dtype),)

    @staticmethod
    def _bin(n: int, first: int, last: int, bins: int, extent: int) -> slice:
        size = np.float32(max(last - first + 1, 1)) / np.float32(bins)
        begin, end = int(np.floor(n * size)) + first, int(np.ceil((n + 1) * size)) + first
        return slice(min(max(begin, 0), extent), min(max(end, 0), extent))

    def loops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> Program:
        buffers = program_buffers(inputs, outputs)
        x, rois, y = (Tensor(b.name, b.dtype, b.shape) for b in buffers)
        acc, (images, _, h, w) = wide(x.dtype), x.shape
        image, total = register("image", I64), register("total", acc)
        edges = {n: register(n, I64) for n in ("top", "bottom", "left", "right")}
        limits = [
            self._limits(rois, first, p, bins, extent)
            for first, p, bins, extent in ((2, PH, self.height, h), (1, PW, self.width, w))
        ]
        values = [e for pair in limits for e in pair]
        row, column = Var("row"), Var("column")
        value = s.cast(x[get(image), C, row, column], acc)
        best = loop(
            "column", get(edges["right"]), put(total, s.maximum(get(total), value)), begin=get(edges["left"])
        )
        empty = s.binary(
            "or", s.ge(get(edges["top"]), get(edges["bottom"])), s.ge(get(edges["left"]), get(edges["right"]))
        )
        body = (
            put(image, s.call("checked", s.cast(rois[ROI, 0], I64), s.const(images))),
            *(put(edge, e) for edge, e in zip(edges.values(), values)),
            put(total, s.select(empty, s.const(0, acc), s.lowest(acc))),
            loop("row", get(edges["bottom"]), best, begin=get(edges["top"])),
            Store(y.name, (ROI, C, PH, PW), s.cast(get(total), y.dtype)),
        )
        registers = [image, total, *edges.values()]
        inner = nest(("ph", "pw"), y.shape[2:], body, "serial")
        return Program(
            self.name, tuple(buffers), nest(("roi", "c"), y.shape[:2], [allocated(registers, *inner)])
        )

    def _limits(self, rois: Tensor, column: int, p: Expr, bins: int, extent: int) -> tuple[Expr, Expr]:
        """Begin and end of bin p along the axis whose edges stand in columns `column` and `column` + 2."""
        acc = F32

        def edge(n: int) -> Expr:
            moved = s.cast(rois[ROI, n], acc) * self.scale
            return s.cast(s.call("trunc", moved + s.call("copysign", s.const(0.5, acc), moved)), I64)

        first, last = edge(column), edge(column + 2)
        size = s.cast(s.maximum(last - first + 1, 1), acc) / float(bins)
        begin = s.cast(s.call("floor", s.cast(p, acc) * size), I64) + first
        end = s.cast(s.call("ceil", s.cast(p + 1, acc) * size), I64) + first
        return tuple(s.maximum(s.minimum(e, extent), 0) for e in (begin, end))  # type: ignore[return-value]


@dataclass(frozen=True)
class MaxUnpool(Op):
    """Zeros of `shape`, with the elements of x at the places that `MaxPool`'s second output names. Inputs x,
    places."""

    shape: tuple[int, ...]

    def infer(self, x: TensorType, places: TensorType) -> tuple[TensorType, ...]:
        if places.dims != x.dims or places.dtype is not I64:
            fail(f"input {x} and indices {places}: expected i64 indices of the same shape")
        if x.rank != len(self.shape) or min(*self.shape, 0) < 0:
            fail(f"input {x} cannot be unpooled to {list(self.shape)}")
        return (TensorType(x.dtype, self.shape),)

    def reference(self, x: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, ...]:
        y = np.zeros(prod(self.shape), x.dtype)
        if np.any((places < 0) | (places >= y.size)):
            raise IndexError("an index is outside the unpooled tensor")
        y[places.ravel()] = x.ravel()
        return (y.reshape(self.shape),)

    def loops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> Program:
        buffers = program_buffers(inputs, outputs)
        x, places, y = (Tensor(b.name, b.dtype, b.shape) for b in buffers)
        names = [f"i{n}" for n in range(x.rank)]
        index = tuple(Var(n) for n in names)
        clear = nest(names, y.shape, [Store(y.name, index, s.const(0, y.dtype))])
        place = register("place", I64)
        target: list[Expr] = []
        rest: Expr = get(place)
        for extent in reversed(self.shape):
            target.insert(0, rest % extent)
            rest = rest // extent
        body = (
            put(place, s.call("checked", places[index], s.const(prod(self.shape)))),
            Store(y.name, tuple(target), x[index]),
        )
        scatter = nest(names, x.shape, [allocated([place], *body)], "serial")
        return Program(self.name, tuple(buffers), (*clear, *scatter))


@dataclass(frozen=True)
class Col2Im(Op):
    """Adds up the blocks that a sliding window cut out of (batch, channels, *sizes).

    x is (batch, channels · taps, blocks).
    """

    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]

    def _blocks(self) -> tuple[int, ...]:
        return output_sizes("Col2Im", self.sizes, self.kernel, self.strides, self.dilations, self.pads)

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        taps, blocks = prod(self.kernel), prod(self._blocks())
        if x.rank != 3 or x.dims[1] % taps or x.dims[2] != blocks:
            fail(f"input {x}: expected channels times {taps} rows, and {blocks} blocks")
        if x.dtype.kind == "bool":
            fail(f"input {x}: expected numbers")
        return (TensorType(x.dtype, (x.dims[0], x.dims[1] // taps, *self.sizes)),)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        n, rank, blocks = x.shape[0], len(self.kernel), self._blocks()
        channels = x.shape[1] // prod(self.kernel)
        columns = high(x).reshape(n, channels, *self.kernel, *blocks)
        grown = [d + p + q for d, p, q in zip(self.sizes, self.pads[:rank], self.pads[rank:])]
        y = np.zeros((n, channels, *grown), columns.dtype)
        for tap in np.ndindex(*self.kernel):
            region = tuple(
                slice(k * d, k * d + (count - 1) * st + 1, st)
                for k, d, count, st in zip(tap, self.dilations, blocks, self.strides)
            )
            y[(slice(None), slice(None), *region)] += columns[(slice(None), slice(None), *tap)]
        cut = tuple(slice(p, p + d) for p, d in zip(self.pads, self.sizes))
        return (y[(slice(None), slice(None), *cut)].astype(x.dtype),)

    def compute(self, b: ExprBuilder, x: Tensor) -> tuple[Tensor, ...]:
        rank, blocks, acc = len(self.kernel), self._blocks(), wide(x.dtype)

        def body(n: Expr, c: Expr, *rest: Expr) -> Expr:
            at, taps = rest[:rank], rest[rank:]
            row, column, guards = c, s.const(0), []
            for a in range(rank):
                moved = at[a] + self.pads[a] - taps[a] * self.dilations[a]
                block = moved // self.strides[a]
                if self.strides[a] > 1:
                    guards.append(s.eq(moved % self.strides[a], 0))
                guards.append(s.within(block, blocks[a]))
                row = row * self.kernel[a] + taps[a]
                column = column * blocks[a] + block  # type: ignore[assignment]
            return s.select(s.both(*guards), s.cast(x[n, row, column], acc), s.const(0, acc))

        channels = x.shape[1] // prod(self.kernel)
        axes, reduce_axes = ("n", "c", *spatial_names(rank)), spatial_names(rank, "k")
        shape = (x.shape[0], channels, *self.sizes)
        total = b.reduce("sum", acc, shape, self.kernel, body, "acc", axes, reduce_axes)
        if acc is x.dtype:
            return (total,)
        return (b.compute(x.dtype, shape, lambda *i: s.cast(total[i], x.dtype), "rounded"),)
