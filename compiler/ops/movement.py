"""Operators that only move elements: every output element is one input element, or a constant."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..ir import scalar as s
from ..ir.affine import simplify
from ..ir.expr import ExprBuilder, Tensor
from ..ir.scalar import Expr, const, select
from ..ir.types import Layout, TensorType
from .base import Op
from .shapes import axis_of, broadcast_shape, fail, given, same_dtype, size_of


@dataclass(frozen=True)
class Identity(Op):
    """A copy, which simplification removes."""

    def infer(self, x: TensorType | None) -> tuple[TensorType, ...]:
        x = given(x)
        return (TensorType(x.dtype, x.shape),)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        return (np.asarray(x),)

    def compute(self, b: ExprBuilder, x: Tensor) -> tuple[Tensor, ...]:
        return (b.compute(x.dtype, x.shape, lambda *i: x[i], "identity"),)


@dataclass(frozen=True)
class Transpose(Op):
    """Axis n of y is axis perm[n] of x."""

    perm: tuple[int, ...]

    def infer(self, x: TensorType | None) -> tuple[TensorType, ...]:
        x = given(x)
        if sorted(self.perm) != list(range(x.rank)):
            fail(f"perm {list(self.perm)} is no permutation of the {x.rank} axes")
        return (TensorType(x.dtype, tuple(x.shape[p] for p in self.perm)),)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        return (np.transpose(x, self.perm),)

    def compute(self, b: ExprBuilder, x: Tensor) -> tuple[Tensor, ...]:
        def body(*i: Expr) -> Expr:
            return x[tuple(i[self.perm.index(axis)] for axis in range(x.rank))]

        return (b.compute(x.dtype, tuple(x.shape[p] for p in self.perm), body, "transposed"),)


@dataclass(frozen=True)
class BlockedFlatten(Op):
    """(batch, channels, …) → (batch, everything else) in the memory order of a layout that does not pad;
    made by layout
    assignment, which gives the matrix that reads it the same order.
    """

    layout: str

    def infer(self, x: TensorType | None) -> tuple[TensorType, ...]:
        x = given(x)
        return (TensorType(x.dtype, (x.dims[0], size_of(x.dims[1:]))),)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        return (Layout.parse(self.layout).pack(x).reshape(x.shape[0], -1),)

    def compute(self, b: ExprBuilder, x: Tensor) -> tuple[Tensor, ...]:
        layout = Layout.parse(self.layout)
        physical = layout.physical_shape(x.shape)

        def body(n: Expr, flat: Expr) -> Expr:
            place: list[Expr] = []
            for extent in reversed(physical[1:]):
                place.append(flat % extent)
                flat = flat // extent
            place.append(n)
            place.reverse()
            index = list(place[: x.rank])
            for (axis, factor), inner in zip(layout.blocks, place[x.rank :]):
                index[axis] = index[axis] * factor + inner
            return x[tuple(index)]

        return (b.compute(x.dtype, (x.shape[0], size_of(x.shape[1:])), body, "flat"),)


@dataclass(frozen=True)
class Reshape(Op):
    """The same elements in row-major order under another shape, in which -1 and 0 mean nothing special."""

    shape: tuple[int, ...]

    def infer(self, x: TensorType | None) -> tuple[TensorType, ...]:
        x = given(x)
        if any(d < 0 for d in self.shape) or size_of(self.shape) != x.size:
            fail(f"a tensor of shape {list(x.dims)} cannot be reshaped to {list(self.shape)}")
        return (TensorType(x.dtype, self.shape),)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        return (np.reshape(x, self.shape),)

    def compute(self, b: ExprBuilder, x: Tensor) -> tuple[Tensor, ...]:
        return (
            b.compute(x.dtype, self.shape, lambda *i: x[reshaped_index(i, self.shape, x.shape)], "reshaped"),
        )


def reshaped_index(
    index: tuple[Expr, ...], shape: tuple[int, ...], source: tuple[int, ...]
) -> tuple[Expr, ...]:
    """Where element `index` of a tensor of `shape` lies when the same memory is seen as `source`.

    The shapes are cut into the shortest groups of axes with equal products, so that axes which only split
    or merge do not meet the others in one expression.
    """
    if size_of(shape) == 0:
        return tuple(const(0) for _ in source)
    result: list[Expr] = []
    for to, of in _groups(shape, source):
        flat: Expr = const(0)
        for axis in to:
            flat = flat * shape[axis] + index[axis]
        ranges = {i.name: (0, shape[axis] - 1) for axis in to if isinstance(i := index[axis], s.Var)}
        step = size_of(source[axis] for axis in of)
        for axis in of:
            step //= source[axis]
            result.append(simplify((flat // step) % source[axis], ranges))
    return tuple(result)


def _groups(shape: tuple[int, ...], source: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Pairs of consecutive axes of both shapes whose products are equal, as short as they can be."""
    groups: list[tuple[list[int], list[int]]] = []
    p = q = 0
    while p < len(shape) or q < len(source):
        to: list[int] = []
        of: list[int] = []
        left, right = 1, 1
        while True:
            if left < right or (left == right and p < len(shape) and (not to or shape[p] == 1)):
                left, p = left * shape[p], p + 1
                to.append(p - 1)
            elif right < left or (q < len(source) and (not of or source[q] == 1)):
                right, q = right * source[q], q + 1
                of.append(q - 1)
            else:
                break
        groups.append((to, of))
    return groups


@dataclass(frozen=True)
class Concat(Op):
    """The inputs behind each other along `axis`."""

    axis: int

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        types = [given(t) for t in inputs]
        if not types:
            fail("nothing to concatenate")
        first = types[0]
        axis = axis_of(self.axis, first.rank)
        for t in types[1:]:
            if t.rank != first.rank or any(
                a != b for n, (a, b) in enumerate(zip(t.dims, first.dims)) if n != axis
            ):
                fail(f"shapes {list(first.dims)} and {list(t.dims)} differ outside axis {axis}")
        total = sum(t.dims[axis] for t in types)
        return (TensorType(same_dtype(*types), (*first.dims[:axis], total, *first.dims[axis + 1 :])),)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        return (np.concatenate(inputs, self.axis),)

    def compute(self, b: ExprBuilder, *inputs: Tensor) -> tuple[Tensor, ...]:
        axis = self.axis % inputs[0].rank
        parts = [t for t in inputs if t.shape[axis]] or [inputs[0]]
        starts = [sum(t.shape[axis] for t in parts[:n]) for n in range(len(parts))]

        def body(*i: Expr) -> Expr:
            def joined(first: int, end: int) -> Expr:
                """The parts [first, end): halved, since long concatenations must not nest deep."""
                if end - first == 1:
                    return parts[first][(*i[:axis], i[axis] - starts[first], *i[axis + 1 :])]
                middle = (first + end) // 2
                return select(s.lt(i[axis], starts[middle]), joined(first, middle), joined(middle, end))

            return joined(0, len(parts))

        shape = list(inputs[0].shape)
        shape[axis] = sum(t.shape[axis] for t in parts)
        return (b.compute(inputs[0].dtype, shape, body, "joined"),)


@dataclass(frozen=True)
class Slice(Op):
    """y[i, …] = x[starts + i · steps, …]; a start in [0, extent), a size and a nonzero step for each axis."""

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    steps: tuple[int, ...]

    def infer(self, x: TensorType | None) -> tuple[TensorType, ...]:
        x = given(x)
        if not x.rank == len(self.starts) == len(self.sizes) == len(self.steps):
            fail(f"starts, sizes and steps must each name all {x.rank} axes")
        for extent, start, size, step in zip(x.dims, self.starts, self.sizes, self.steps):
            if (
                size < 0
                or step == 0
                or (size and not (0 <= start < extent and 0 <= start + (size - 1) * step < extent))
            ):
                fail(f"a slice from {start} of {size} elements with step {step} leaves an axis of {extent}")
        return (TensorType(x.dtype, self.sizes),)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        index = [n + step * np.arange(size) for n, size, step in zip(self.starts, self.sizes, self.steps)]
        return (np.asarray(x[np.ix_(*index)] if index else x),)

    def compute(self, b: ExprBuilder, x: Tensor) -> tuple[Tensor, ...]:
        def body(*i: Expr) -> Expr:
            return x[tuple(a * step + n for a, n, step in zip(i, self.starts, self.steps))]

        return (b.compute(x.dtype, self.sizes, body, "sliced"),)


@dataclass(frozen=True)
class Expand(Op):
    """x broadcast to `shape`, as numpy broadcasts (so the result may be larger in x's own axes)."""

    shape: tuple[int, ...]

    def infer(self, x: TensorType | None) -> tuple[TensorType, ...]:
        x = given(x)
        return (TensorType(x.dtype, broadcast_shape(x.dims, self.shape)),)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        return (np.broadcast_to(x, broadcast_shape(x.shape, self.shape)),)

    def compute(self, b: ExprBuilder, x: Tensor) -> tuple[Tensor, ...]:
        return (
            b.compute(x.dtype, broadcast_shape(x.shape, self.shape), lambda *i: x.broadcast(i), "expanded"),
        )


@dataclass(frozen=True)
class Tile(Op):
    """x repeated `repeats[n]` times along axis n."""

    repeats: tuple[int, ...]

    def infer(self, x: TensorType | None) -> tuple[TensorType, ...]:
        x = given(x)
        if len(self.repeats) != x.rank or any(r < 0 for r in self.repeats):
            fail(f"repeats {list(self.repeats)} must be {x.rank} counts, one for each axis")
        return (TensorType(x.dtype, tuple(d * r for d, r in zip(x.dims, self.repeats))),)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        return (np.tile(x, self.repeats),)

    def compute(self, b: ExprBuilder, x: Tensor) -> tuple[Tensor, ...]:
        def body(*i: Expr) -> Expr:
            return x[tuple(a if r == 1 else a % d for a, r, d in zip(i, self.repeats, x.shape))]

        return (b.compute(x.dtype, tuple(d * r for d, r in zip(x.shape, self.repeats)), body, "tiled"),)


PAD_MODES = ("constant", "reflect", "edge", "wrap")


@dataclass(frozen=True)
class Pad(Op):
    """`before` and `after` elements are added to each axis (negative: cut off).

    Inputs: x and, optionally, the scalar to pad with.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    mode: str = "constant"

    def infer(self, x: TensorType | None, value: TensorType | None = None) -> tuple[TensorType, ...]:
        x = given(x)
        if self.mode not in PAD_MODES:
            fail(f"mode {self.mode!r} is unknown; known: {', '.join(PAD_MODES)}")
        if not len(self.before) == len(self.after) == x.rank:
            fail(f"pads must name all {x.rank} axes")
        if value is not None and (value.size != 1 or value.dtype is not x.dtype):
            fail(f"the value to pad with must be one {x.dtype}, but is {value}")
        shape = tuple(d + p + q for d, p, q in zip(x.dims, self.before, self.after))
        for d, e, p, q in zip(x.dims, shape, self.before, self.after):
            if e < 0:
                fail(f"pads {p} and {q} cut more than an axis of {d} has")
            if self.mode != "constant" and (p > 0 or q > 0) and d == 0 and e > 0:
                fail(f"an axis of 0 elements cannot be padded in mode {self.mode}")
        return (TensorType(x.dtype, shape),)

    def reference(self, x: np.ndarray, value: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
        grown = [(max(p, 0), max(q, 0)) for p, q in zip(self.before, self.after)]
        if self.mode == "constant":
            fill = np.zeros((), x.dtype) if value is None else value.reshape(())
            y = np.full([d + p + q for d, p, q in zip(x.shape, self.before, self.after)], fill, x.dtype)
            whole = list(zip(self.before, x.shape, y.shape))
            to = tuple(slice(min(max(p, 0), e), max(min(p + d, e), 0)) for p, d, e in whole)
            if all(part.stop > part.start for part in to):
                y[to] = x[tuple(slice(part.start - p, part.stop - p) for part, (p, _, _) in zip(to, whole))]
            return (y,)
        y = np.pad(x, grown, self.mode)  # type: ignore[call-overload]
        keep = (slice(max(-p, 0), d - max(-q, 0)) for d, p, q in zip(y.shape, self.before, self.after))
        return (y[tuple(keep)],)

    def compute(self, b: ExprBuilder, x: Tensor, value: Tensor | None = None) -> tuple[Tensor, ...]:
        shape = tuple(d + p + q for d, p, q in zip(x.shape, self.before, self.after))
        padded = [n for n in range(x.rank) if self.before[n] > 0 or self.after[n] > 0]

        def body(*i: Expr) -> Expr:
            source = [a - p for a, p in zip(i, self.before)]
            if self.mode != "constant":
                for n in padded:
                    source[n] = self._folded(source[n], x.shape[n])
                return x[tuple(source)]
            fill = const(0, x.dtype) if value is None else value[(0,) * value.rank]
            inside = s.both(*(s.within(source[n], x.shape[n]) for n in padded))
            return select(inside, x[tuple(source)], fill)

        return (b.compute(x.dtype, shape, body, "padded"),)

    def _folded(self, i: Expr, extent: int) -> Expr:
        """The index in [0, extent) that stands for `i`."""
        if self.mode == "edge":
            return s.minimum(s.maximum(i, 0), extent - 1)
        if self.mode == "wrap":
            return i % extent
        if extent == 1:
            return const(0)
        phase = i % (2 * (extent - 1))
        return s.minimum(phase, const(2 * (extent - 1)) - phase)


@dataclass(frozen=True)
class Trilu(Op):
    """The upper (or lower) triangle of the last two axes, from diagonal k on; zero elsewhere."""

    upper: bool
    k: int = 0

    def infer(self, x: TensorType | None) -> tuple[TensorType, ...]:
        x = given(x)
        if x.rank < 2:
            fail(f"a matrix is needed, but x has {x.rank} axes")
        return (TensorType(x.dtype, x.shape),)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        mask = np.tri(x.shape[-2], x.shape[-1], self.k - 1 if self.upper else self.k, dtype=np.bool_)
        return (np.where(mask != self.upper, x, x.dtype.type(0)),)

    def compute(self, b: ExprBuilder, x: Tensor) -> tuple[Tensor, ...]:
        def body(*i: Expr) -> Expr:
            kept = s.ge(i[-1], i[-2] + self.k) if self.upper else s.le(i[-1], i[-2] + self.k)
            return select(kept, x[i], const(0, x.dtype))

        return (b.compute(x.dtype, x.shape, body, "triangle"),)
