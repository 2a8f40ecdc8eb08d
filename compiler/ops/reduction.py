"""Reductions over axes, the position of the best element, and the softmax family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..ir import scalar as s
from ..ir.expr import ExprBuilder, Tensor
from ..ir.scalar import Expr, call, const, select
from ..ir.types import BOOL, I64, TensorType, dtype_of
from .base import Op
from .shapes import axes_of, axis_of, fail, given, size_of, wide, wide_array, widen


def reduced_shape(shape: Sequence[int], axes: Sequence[int], keepdims: bool) -> tuple[int, ...]:
    """`axes` are not negative; they become 1, or go away."""
    return tuple(1 if n in axes else d for n, d in enumerate(shape) if keepdims or n not in axes)


def source_index(
    kept: Sequence[Expr], summed: Sequence[Expr], rank: int, axes: Sequence[int], keepdims: bool
) -> tuple[Expr, ...]:
    """Where the reduced tensor is read: `kept` indexes the result, `summed` the reduced axes."""
    rest = iter([i for n, i in enumerate(kept) if n not in axes] if keepdims else kept)
    inner = iter(summed)
    return tuple(next(inner) if n in axes else next(rest) for n in range(rank))


@dataclass(frozen=True)
class Reduction:
    """y = after(op(before(x)), count); `numpy` gets the array and the axes and keeps the axes as ones."""

    op: str
    numpy: Callable[[np.ndarray, tuple[int, ...]], np.ndarray]
    before: Callable[[Expr], Expr] | None = None
    after: Callable[[Expr, int], Expr] | None = None
    kinds: str = "float int uint"


def _total(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    return np.sum(x, axes, dtype=x.dtype, keepdims=True)


def _extreme(x: np.ndarray, axes: tuple[int, ...], name: str) -> np.ndarray:
    identity = (s.lowest if name == "max" else s.highest)(dtype_of(x)).value
    return getattr(np, name)(x, axes, initial=identity, keepdims=True)


def _mean(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    return _total(x, axes) / x.dtype.type(size_of(x.shape[axis] for axis in axes))


def _log_sum_exp(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    top = _extreme(x, axes, "max")
    top = np.where(np.isinf(top), x.dtype.type(0), top)
    return np.log(_total(np.exp(x - top), axes)) + top


REDUCTIONS: dict[str, Reduction] = {
    "sum": Reduction("sum", _total),
    "prod": Reduction("prod", lambda x, axes: np.prod(x, axes, dtype=x.dtype, keepdims=True)),
    "max": Reduction("max", lambda x, axes: _extreme(x, axes, "max"), kinds="float int uint bool"),
    "min": Reduction("min", lambda x, axes: _extreme(x, axes, "min"), kinds="float int uint bool"),
    "mean": Reduction("sum", _mean, None, lambda y, count: y / float(count), "float"),
    "l1": Reduction("sum", lambda x, axes: _total(np.abs(x), axes), lambda x: call("abs", x)),
    "l2": Reduction(
        "sum",
        lambda x, axes: np.sqrt(_total(x * x, axes)),
        lambda x: x * x,
        lambda y, _: call("sqrt", y),
        "float",
    ),
    "sum_square": Reduction("sum", lambda x, axes: _total(x * x, axes), lambda x: x * x),
    "log_sum": Reduction(
        "sum", lambda x, axes: np.log(_total(x, axes)), None, lambda y, _: call("log", y), "float"
    ),
    "log_sum_exp": Reduction("sum", _log_sum_exp, kinds="float"),
}


@dataclass(frozen=True)
class Reduce(Op):
    """y = fn over `axes` of x, which stay as axes of 1 with `keepdims`; no axes: each element on its own.

    Narrow floats are summed in f32, integers in their own type, wrapping around. Over no elements sum is 0,
    prod 1, mean NaN, max and min their identity (-inf and inf, the least and greatest integer).
    """

    fn: str
    axes: tuple[int, ...]
    keepdims: bool = True

    def infer(self, x: TensorType | None) -> tuple[TensorType, ...]:
        x = given(x)
        rule = REDUCTIONS.get(self.fn) or fail(f"unknown reduction {self.fn!r}")
        if x.dtype.kind not in rule.kinds.split():
            fail(f"the reduction {self.fn} is not defined on {x.dtype}")
        return (TensorType(x.dtype, reduced_shape(x.dims, axes_of(self.axes, x.rank), self.keepdims)),)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        axes = axes_of(self.axes, x.ndim)
        y = REDUCTIONS[self.fn].numpy(wide_array(x), axes)
        return (np.asarray(y).astype(x.dtype).reshape(reduced_shape(x.shape, axes, self.keepdims)),)

    def compute(self, b: ExprBuilder, x: Tensor) -> tuple[Tensor, ...]:
        rule = REDUCTIONS[self.fn]
        before, after = rule.before, rule.after
        if self.fn == "log_sum_exp":
            top = self._reduced(b, x, "max", lambda e, kept: e)
            finite = b.compute(
                top.dtype, top.shape, lambda *i: select(call("isinf", top[i]), 0, top[i]), "finite_top"
            )
            total = self._reduced(b, x, "sum", lambda e, kept: call("exp", e - finite[kept]))
            body = lambda *i: s.cast(call("log", total[i]) + finite[i], x.dtype)  # noqa: E731
            return (b.compute(x.dtype, total.shape, body, "log_sum_exp"),)
        total = self._reduced(b, x, rule.op, lambda e, kept: before(e) if before else e)
        if after is None and total.dtype is x.dtype:
            return (total,)
        count = size_of(x.shape[axis] for axis in axes_of(self.axes, x.rank))
        finish = after or (lambda y, count: y)
        return (
            b.compute(x.dtype, total.shape, lambda *i: s.cast(finish(total[i], count), x.dtype), self.fn),
        )

    def _reduced(
        self, b: ExprBuilder, x: Tensor, op: str, body: Callable[[Expr, tuple[Expr, ...]], Expr]
    ) -> Tensor:
        """op over the axes of body(x's element in the wide type, index of the result)."""
        axes = axes_of(self.axes, x.rank)
        shape = reduced_shape(x.shape, axes, self.keepdims)

        def element(*i: Expr) -> Expr:
            kept, inner = i[: len(shape)], i[len(shape) :]
            return body(widen(x[source_index(kept, inner, x.rank, axes, self.keepdims)]), kept)

        return b.reduce(op, wide(x.dtype), shape, [x.shape[axis] for axis in axes] or [1], element, op)


@dataclass(frozen=True)
class ArgReduce(Op):
    """The i64 index of the greatest ("argmax") or least ("argmin") element along `axis`; NaN counts as best.

    Of equals it is the first, or with `last` the last.
    """

    fn: str
    axis: int
    keepdims: bool = True
    last: bool = False

    def infer(self, x: TensorType | None) -> tuple[TensorType, ...]:
        x = given(x)
        axis = axis_of(self.axis, x.rank)
        if self.fn not in ("argmax", "argmin"):
            fail(f"unknown reduction {self.fn!r}; known: argmax, argmin")
        if x.dims[axis] == 0:
            fail(f"{self.fn} over an axis of no elements")
        return (TensorType(I64, reduced_shape(x.dims, (axis,), self.keepdims)),)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        best = np.argmax if self.fn == "argmax" else np.argmin
        x = wide_array(x)
        if self.last:
            y = x.shape[self.axis] - 1 - best(np.flip(x, self.axis), self.axis)
        else:
            y = best(x, self.axis)
        shape = reduced_shape(x.shape, (self.axis % x.ndim,), self.keepdims)
        return (np.asarray(y, np.int64).reshape(shape),)

    def compute(self, b: ExprBuilder, x: Tensor) -> tuple[Tensor, ...]:
        axes = (self.axis % x.rank,)
        shape = reduced_shape(x.shape, axes, self.keepdims)

        def body(*i: Expr) -> Expr:
            return widen(x[source_index(i[: len(shape)], i[len(shape) :], x.rank, axes, self.keepdims)])

        op = self.fn + ("_last" if self.last else "")
        return (b.reduce(op, I64, shape, [x.shape[axes[0]]], body, self.fn),)


@dataclass(frozen=True)
class Softmax(Op):
    """exp(x - max) / Σ exp(x - max) along `axis`; with `log`, its logarithm."""

    axis: int
    log: bool = False

    def infer(self, x: TensorType | None) -> tuple[TensorType, ...]:
        x = given(x)
        axis_of(self.axis, x.rank)
        if not x.dtype.is_float:
            fail(f"softmax is not defined on {x.dtype}")
        return (TensorType(x.dtype, x.shape),)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        wide_x = wide_array(x)
        shifted = wide_x - _extreme(wide_x, (self.axis % x.ndim,), "max")
        total = np.sum(np.exp(shifted), self.axis, keepdims=True)
        y = shifted - np.log(total) if self.log else np.exp(shifted) / total
        return (y.astype(x.dtype),)

    def compute(self, b: ExprBuilder, x: Tensor) -> tuple[Tensor, ...]:
        axis = self.axis % x.rank
        dtype, extent = wide(x.dtype), [x.shape[axis]]
        rows = (*x.shape[:axis], *x.shape[axis + 1 :])

        def row(i: Sequence[Expr]) -> tuple[Expr, ...]:
            return (*i[:axis], *i[axis + 1 :])

        def element(i: Sequence[Expr]) -> tuple[Expr, ...]:
            return (*i[:axis], i[-1], *i[axis:-1])

        top = b.reduce("max", dtype, rows, extent, lambda *i: widen(x[element(i)]), "top")
        if self.log:
            total = b.reduce(
                "sum",
                dtype,
                rows,
                extent,
                lambda *i: call("exp", widen(x[element(i)]) - top[i[:-1]]),
                "total",
            )
            body = lambda *i: (widen(x[i]) - top[row(i)]) - call("log", total[row(i)])  # noqa: E731
        else:
            powers = b.compute(dtype, x.shape, lambda *i: call("exp", widen(x[i]) - top[row(i)]), "powers")
            total = b.reduce("sum", dtype, rows, extent, lambda *i: powers[element(i)], "total")
            body = lambda *i: powers[i] / total[row(i)]  # noqa: E731
        return (b.compute(x.dtype, x.shape, lambda *i: s.cast(body(*i), x.dtype), "softmax"),)


@dataclass(frozen=True)
class Hardmax(Op):
    """1 at the first greatest element along `axis`, else 0."""

    axis: int

    def infer(self, x: TensorType | None) -> tuple[TensorType, ...]:
        x = given(x)
        axis_of(self.axis, x.rank)
        if x.dtype is BOOL:
            fail("hardmax is not defined on bool")
        return (TensorType(x.dtype, x.shape),)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        y = np.zeros(x.shape, x.dtype)
        if x.size:
            best = np.expand_dims(np.argmax(wide_array(x), self.axis), self.axis)
            np.put_along_axis(y, best, 1, self.axis)
        return (y,)

    def compute(self, b: ExprBuilder, x: Tensor) -> tuple[Tensor, ...]:
        axis = self.axis % x.rank
        rows = (*x.shape[:axis], *x.shape[axis + 1 :])
        best = b.reduce(
            "argmax", I64, rows, [x.shape[axis]], lambda *i: widen(x[(*i[:axis], i[-1], *i[axis:-1])]), "best"
        )

        def body(*i: Expr) -> Expr:
            here = s.eq(i[axis], best[(*i[:axis], *i[axis + 1 :])])
            return select(here, const(1, x.dtype), const(0, x.dtype))

        return (b.compute(x.dtype, x.shape, body, "hardmax"),)
