"""Operators that read or write where another tensor says. An index out of range is an error of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..ir import scalar as s
from ..ir.expr import ExprBuilder, Tensor
from ..ir.loops import Program, Store, loop
from ..ir.scalar import Expr, Load, Var, const, minimum, select
from ..ir.types import I64, U64, DType, TensorType
from .base import Op
from .programs import copy_step, nest, program_buffers
from .shapes import axis_of, fail, given, same_dtype, size_of, wide_array, widen, wrap_index, wrapped_array


def _integers(type: TensorType | None) -> TensorType:
    type = given(type)
    if not type.dtype.is_integer:
        fail(f"indices must be integers, but are {type.dtype}")
    return type


@dataclass(frozen=True)
class Gather(Op):
    """y[a…, i…, b…] = x[a…, indices[i…], b…], the index on `axis`; negative indices count from the end."""

    axis: int

    def infer(self, x: TensorType | None, indices: TensorType | None) -> tuple[TensorType, ...]:
        x, indices = given(x), _integers(indices)
        axis = axis_of(self.axis, x.rank)
        return (TensorType(x.dtype, (*x.dims[:axis], *indices.dims, *x.dims[axis + 1 :])),)

    def reference(self, x: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, ...]:
        return (np.take(x, wrapped_array(indices, x.shape[self.axis]), self.axis),)

    def compute(self, b: ExprBuilder, x: Tensor, indices: Tensor) -> tuple[Tensor, ...]:
        axis = self.axis % x.rank
        end = axis + indices.rank

        def body(*i: Expr) -> Expr:
            return x[(*i[:axis], wrap_index(indices[i[axis:end]], x.shape[axis]), *i[end:])]

        shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
        return (b.compute(x.dtype, shape, body, "gathered"),)


@dataclass(frozen=True)
class GatherElements(Op):
    """y[i…] = x[i…] with the index on `axis` replaced by indices[i…]."""

    axis: int

    def infer(self, x: TensorType | None, indices: TensorType | None) -> tuple[TensorType, ...]:
        x, indices = given(x), _integers(indices)
        _check_elements(x, indices, axis_of(self.axis, x.rank))
        return (TensorType(x.dtype, indices.dims),)

    def reference(self, x: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, ...]:
        where = list(np.ogrid[tuple(slice(0, d) for d in indices.shape)])
        where[self.axis] = wrapped_array(indices, x.shape[self.axis])
        return (x[tuple(where)],)

    def compute(self, b: ExprBuilder, x: Tensor, indices: Tensor) -> tuple[Tensor, ...]:
        axis = self.axis % x.rank

        def body(*i: Expr) -> Expr:
            return x[(*i[:axis], wrap_index(indices[i], x.shape[axis]), *i[axis + 1 :])]

        return (b.compute(x.dtype, indices.shape, body, "gathered"),)


def _check_elements(x: TensorType, indices: TensorType, axis: int) -> None:
    if indices.rank != x.rank or any(
        i > d for n, (i, d) in enumerate(zip(indices.dims, x.dims)) if n != axis
    ):
        fail(f"indices of shape {list(indices.dims)} do not fit into {list(x.dims)} outside axis {axis}")


@dataclass(frozen=True)
class GatherND(Op):
    """y[b…, i…, …] = x[b…, indices[b…, i…, 0], indices[b…, i…, 1], …, …] after `batch_dims` common axes."""

    batch_dims: int = 0

    def infer(self, x: TensorType | None, indices: TensorType | None) -> tuple[TensorType, ...]:
        x, indices = given(x), _integers(indices)
        batch = self.batch_dims
        if not 0 <= batch < min(x.rank, indices.rank) or x.dims[:batch] != indices.dims[:batch]:
            fail(f"{x} and indices {indices} do not share {batch} batch axes")
        depth = indices.dims[-1]
        if batch + depth > x.rank:
            fail(f"indices of {depth} numbers do not fit a tensor of {x.rank} axes")
        return (TensorType(x.dtype, (*indices.dims[:-1], *x.dims[batch + depth :])),)

    def reference(self, x: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, ...]:
        batch, depth = self.batch_dims, indices.shape[-1]
        grid = np.ogrid[tuple(slice(0, d) for d in indices.shape[:-1])][:batch] if batch else []
        where = [wrapped_array(indices[..., n], x.shape[batch + n]) for n in range(depth)]
        if not batch and not depth:
            return (np.broadcast_to(x, (*indices.shape[:-1], *x.shape)),)
        index = tuple(np.broadcast_to(w, indices.shape[:-1]) for w in (*grid, *where))
        return (np.asarray(x[index]),)

    def compute(self, b: ExprBuilder, x: Tensor, indices: Tensor) -> tuple[Tensor, ...]:
        batch, depth, outer = self.batch_dims, indices.shape[-1], indices.rank - 1

        def body(*i: Expr) -> Expr:
            where = (wrap_index(indices[(*i[:outer], n)], x.shape[batch + n]) for n in range(depth))
            return x[(*i[:batch], *where, *i[outer:])]

        shape = (*indices.shape[:-1], *x.shape[batch + depth :])
        return (b.compute(x.dtype, shape, body, "gathered"),)


@dataclass(frozen=True)
class OneHot(Op):
    """values[1] at indices[…] along a new `axis` of `depth` elements, values[0] elsewhere.

    An index outside of [-depth, depth) gives a row of values[0]. (Opset 9 says so of all negative ones;
    onnxruntime does not.)
    """

    axis: int
    depth: int

    def infer(self, indices: TensorType | None, values: TensorType | None) -> tuple[TensorType, ...]:
        indices, values = given(indices), given(values)
        axis = axis_of(self.axis, indices.rank + 1)
        if values.dims != (2,):
            fail(f"values must be two, off and on, but are {values}")
        if self.depth < 0:
            fail(f"a depth of {self.depth}")
        return (TensorType(values.dtype, (*indices.dims[:axis], self.depth, *indices.dims[axis:])),)

    def reference(self, indices: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, ...]:
        if indices.dtype == np.uint64:
            indices = np.minimum(indices, np.uint64(self.depth))
        none = np.isnan(indices) if indices.dtype.kind == "f" else np.zeros(indices.shape, np.bool_)
        index = np.where(none, -self.depth - 1, np.where(none, 0, indices).astype(np.int64))
        index = np.where(index < 0, index + self.depth, index)
        last = np.where(np.expand_dims(index, -1) == np.arange(self.depth), values[1], values[0])
        return (np.moveaxis(last, -1, self.axis),)

    def compute(self, b: ExprBuilder, indices: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        axis = self.axis % (indices.rank + 1)

        def body(*i: Expr) -> Expr:
            given = indices[(*i[:axis], *i[axis + 1 :])]
            if given.dtype is U64:  # what would be a negative number
                given = minimum(given, const(self.depth, U64))
            index = s.cast(given, I64)
            if given.dtype.is_float:
                index = select(s.call("isnan", given), const(-self.depth - 1), index)
            index = select(s.lt(index, 0), index + self.depth, index)
            return select(s.eq(index, i[axis]), values[1], values[0])

        shape = (*indices.shape[:axis], self.depth, *indices.shape[axis:])
        return (b.compute(values.dtype, shape, body, "one_hot"),)


@dataclass(frozen=True)
class ReverseSequence(Op):
    """The first lengths[b] elements along `time_axis` backwards, for each b of `batch_axis`."""

    batch_axis: int
    time_axis: int

    def infer(self, x: TensorType | None, lengths: TensorType | None) -> tuple[TensorType, ...]:
        x, lengths = given(x), _integers(lengths)
        batch, time = axis_of(self.batch_axis, x.rank), axis_of(self.time_axis, x.rank)
        if batch == time or lengths.dims != (x.dims[batch],):
            fail(f"lengths {lengths} must be one for each of {x.dims[batch]} sequences")
        return (TensorType(x.dtype, x.dims),)

    def reference(self, x: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, ...]:
        y = np.moveaxis(x, (self.batch_axis, self.time_axis), (0, 1)).copy()
        for row, length in zip(y, lengths):
            if not 0 <= length <= len(row):
                raise IndexError(f"a length of {length}, of {len(row)}")
            row[: int(length)] = row[: int(length)][::-1].copy()
        return (np.moveaxis(y, (0, 1), (self.batch_axis, self.time_axis)),)

    def compute(self, b: ExprBuilder, x: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        time = self.time_axis % x.rank

        def body(*i: Expr) -> Expr:
            length = s.cast(lengths[i[self.batch_axis % x.rank]], I64)
            length = s.call("checked", length, const(x.shape[time] + 1))
            mirrored = s.call("checked", length - 1 - i[time], const(x.shape[time]))
            return x[(*i[:time], select(s.lt(i[time], length), mirrored, i[time]), *i[time + 1 :])]

        return (b.compute(x.dtype, x.shape, body, "reversed"),)


@dataclass(frozen=True)
class TensorScatter(Op):
    """A cache with `update` written at write_indices[b] (default 0) along `axis`; axis 0 is the batch b."""

    axis: int
    circular: bool = False

    def infer(
        self, past: TensorType | None, update: TensorType | None, start: TensorType | None = None
    ) -> tuple[TensorType, ...]:
        past, update = given(past), given(update)
        axis = axis_of(self.axis, past.rank)
        rest = [n for n in range(past.rank) if n != axis]
        if axis == 0 or update.rank != past.rank or any(past.dims[n] != update.dims[n] for n in rest):
            fail(f"an update {update} does not fit the cache {past} along axis {axis}")
        if update.dims[axis] > past.dims[axis]:
            fail(f"an update of {update.dims[axis]} is longer than the cache's {past.dims[axis]}")
        if start is not None and _integers(start).dims != past.dims[:1]:
            fail(f"write_indices {start} must be one for each of {past.dims[0]} batches")
        return (TensorType(same_dtype(past, update), past.dims),)

    def reference(
        self, past: np.ndarray, update: np.ndarray, start: np.ndarray | None = None
    ) -> tuple[np.ndarray, ...]:
        y = np.moveaxis(past, self.axis, 1).copy()
        new = np.moveaxis(update, self.axis, 1)
        steps = np.arange(new.shape[1])
        for batch in range(len(y)):
            at = steps + (0 if start is None else int(start[batch]))
            if not self.circular and at.size and not 0 <= at[0] <= at[-1] < y.shape[1]:
                raise IndexError(f"an update from {at[0]} on leaves the cache of {y.shape[1]}")
            y[batch, at % y.shape[1] if self.circular else at] = new[batch]
        return (np.moveaxis(y, 1, self.axis),)

    def compute(
        self, b: ExprBuilder, past: Tensor, update: Tensor, start: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        axis = self.axis % past.rank
        extent, count = past.shape[axis], update.shape[axis]

        def body(*i: Expr) -> Expr:
            first: Expr = const(0)
            if start is not None:
                first = s.cast(start[i[0]], I64)
                if self.circular:
                    first = first % extent
                else:
                    first = s.call("checked", first, const(extent - count + 1))
            step = (i[axis] - first) % extent if self.circular else i[axis] - first
            inside = s.both(s.ge(step, 0), s.lt(step, count))
            return select(inside, update[(*i[:axis], step, *i[axis + 1 :])], past[i])

        return (b.compute(past.dtype, past.shape, body, "cache"),)


SCATTER_REDUCTIONS: dict[str, tuple[str | None, np.ufunc | None]] = {
    "none": (None, None),
    "add": ("add", np.add),
    "mul": ("mul", np.multiply),
    "max": ("max", np.maximum),
    "min": ("min", np.minimum),
}
"""How an update meets the element that it is written to: the scalar operator and its numpy ufunc."""


def _combined(reduction: str, old: Expr, new: Expr) -> Expr:
    op = SCATTER_REDUCTIONS[reduction][0]
    return new if op is None else s.cast(s.binary(op, widen(old), widen(new)), new.dtype)


def _write(y: np.ndarray, at: np.ndarray, new: np.ndarray, reduction: str) -> None:
    """new[n] into y[at[n]] one after the other."""
    function = SCATTER_REDUCTIONS[reduction][1]
    if function is None:
        places, first = np.unique(at[::-1], return_index=True)
        y[places] = new[::-1][first]
    elif wide_array(y[:0]).dtype != y.dtype:  # each result is rounded
        for n, place in enumerate(at):
            y[place] = function(wide_array(y[place]), wide_array(new[n])).astype(y.dtype)
    else:
        function.at(y, at, new)


def _check_reduction(reduction: str, dtype: DType) -> None:
    if reduction not in SCATTER_REDUCTIONS:
        fail(f"reduction {reduction!r} is unknown; known: {', '.join(SCATTER_REDUCTIONS)}")
    if reduction != "none" and dtype.kind == "bool":
        fail(f"reduction {reduction!r} is not defined on bool")


@dataclass(frozen=True)
class ScatterElements(Op):
    """x with updates[i…] written (or combined, in order) at i… whose index on `axis` is indices[i…]."""

    axis: int
    reduction: str = "none"

    def infer(
        self, x: TensorType | None, indices: TensorType | None, updates: TensorType | None
    ) -> tuple[TensorType, ...]:
        x, indices, updates = given(x), _integers(indices), given(updates)
        _check_elements(x, indices, axis_of(self.axis, x.rank))
        _check_reduction(self.reduction, same_dtype(x, updates))
        if updates.dims != indices.dims:
            fail(f"updates {updates} and indices {indices} must have one shape")
        return (TensorType(x.dtype, x.dims),)

    def reference(self, x: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> tuple[np.ndarray, ...]:
        y, axis = x.copy(), self.axis % x.ndim
        where: list[np.ndarray] = list(np.indices(indices.shape))
        where[axis] = wrapped_array(indices, x.shape[axis])
        if indices.size:
            at = np.ravel_multi_index(where, x.shape).reshape(-1)
            _write(y.reshape(-1), at, updates.reshape(-1), self.reduction)
        return (y,)

    def loops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> Program:
        x, indices, updates, y = buffers = program_buffers(inputs, outputs)
        axis = self.axis % len(x.shape)
        i = tuple(Var(f"i{n}") for n in range(len(x.shape)))
        where = wrap_index(Load(indices.name, i, indices.dtype), x.shape[axis])
        target = (*i[:axis], where, *i[axis + 1 :])
        value = _combined(self.reduction, Load(y.name, target, y.dtype), Load(updates.name, i, updates.dtype))
        along = loop(i[axis].name, indices.shape[axis], Store(y.name, target, value))
        others = [n for n in range(len(i)) if n != axis]
        steps = nest([i[n].name for n in others], [indices.shape[n] for n in others], [along])
        return Program("scatter_elements", tuple(buffers), (*copy_step(x, y), *steps))


@dataclass(frozen=True)
class ScatterND(Op):
    """x with updates[i…, …] written (or combined, in order) at x[indices[i…, 0], indices[i…, 1], …, …]."""

    reduction: str = "none"

    def infer(
        self, x: TensorType | None, indices: TensorType | None, updates: TensorType | None
    ) -> tuple[TensorType, ...]:
        x, indices, updates = given(x), _integers(indices), given(updates)
        _check_reduction(self.reduction, same_dtype(x, updates))
        if indices.rank == 0 or indices.dims[-1] > x.rank:
            fail(f"indices {indices} do not fit a tensor of {x.rank} axes")
        expected = (*indices.dims[:-1], *x.dims[indices.dims[-1] :])
        if updates.dims != expected:
            fail(f"updates have the shape {list(updates.dims)}, expected {list(expected)}")
        return (TensorType(x.dtype, x.dims),)

    def reference(self, x: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> tuple[np.ndarray, ...]:
        y, depth = x.copy(), indices.shape[-1]
        rest = x.shape[depth:]
        rows = indices.reshape(size_of(indices.shape[:-1]), depth)
        where = [wrapped_array(rows[:, n], d) for n, d in enumerate(x.shape[:depth])]
        if rows.size or not depth:
            at = np.ravel_multi_index(where, x.shape[:depth]) if depth else np.zeros(len(rows), np.int64)
            flat = y.reshape(size_of(x.shape[:depth]), *rest)
            _write(flat, at, updates.reshape(len(rows), *rest), self.reduction)
        return (y,)

    def loops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> Program:
        x, indices, updates, y = buffers = program_buffers(inputs, outputs)
        depth, outer = indices.shape[-1], indices.shape[:-1]
        i = tuple(Var(f"i{n}") for n in range(len(outer)))
        rest = tuple(Var(f"j{n}") for n in range(depth, len(x.shape)))
        where = (
            wrap_index(Load(indices.name, (*i, const(n)), indices.dtype), x.shape[n]) for n in range(depth)
        )
        target = (*where, *rest)
        new = Load(updates.name, (*i, *rest), updates.dtype)
        store = Store(y.name, target, _combined(self.reduction, Load(y.name, target, y.dtype), new))
        writes = nest([v.name for v in i], outer, [store], "serial")
        steps = nest([v.name for v in rest], x.shape[depth:], writes)
        return Program("scatter_nd", tuple(buffers), (*copy_step(x, y), *steps))
