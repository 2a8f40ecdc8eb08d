"""Normalisations. Statistics are two-pass: the mean first, then the variance around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np

from ..ir import scalar as s
from ..ir.expr import ExprBuilder, Tensor
from ..ir.scalar import Expr
from ..ir.types import DTYPES, DType, TensorType
from .base import Decomposer, Op
from .elementwise import Binary, Cast, Unary
from .movement import Reshape
from .shapes import axes_of, axis_of, broadcast_shape, fail, wide
from .window import high

At = Callable[[tuple[Expr, ...], tuple[Expr, ...]], Expr]
"""(kept indices, reduced indices) → the element, in the type to accumulate in."""


def mean_of(
    b: ExprBuilder, acc: DType, keep: tuple[int, ...], over: tuple[int, ...], at: At, name: str
) -> Tensor:
    """The mean over `over` for every position in `keep`. A quotient: where the sum of equal numbers is exact,
    so is their mean, and nothing is left of them without it. A product with a rounded 1 / n, or one that an
    fma does not round, would leave something."""
    count = prod(over)
    total = b.reduce("sum", acc, keep, over, lambda *i: at(i[: len(keep)], i[len(keep) :]), f"{name}_sum")
    return b.compute(
        acc, keep, lambda *i: total[i] / float(count) if count else total[i] * float("nan"), name
    )


def moments(
    b: ExprBuilder, acc: DType, keep: tuple[int, ...], over: tuple[int, ...], at: At
) -> tuple[Tensor, Tensor]:
    """Mean and variance over `over`."""
    mean = mean_of(b, acc, keep, over, at, "mean")

    def squared(kept: tuple[Expr, ...], reduced: tuple[Expr, ...]) -> Expr:
        centred = at(kept, reduced) - mean[kept]
        return centred * centred

    return mean, mean_of(b, acc, keep, over, squared, "variance")


def inverse_root(b: ExprBuilder, variance: Tensor, epsilon: float) -> Tensor:
    """1 / sqrt(variance + epsilon)."""
    one = s.const(1, variance.dtype)
    return b.compute(
        variance.dtype, variance.shape, lambda *i: one / s.call("sqrt", variance[i] + epsilon), "inverse"
    )


def check_float(x: TensorType, rank: int = 1) -> None:
    if not x.dtype.is_float or x.rank < rank:
        fail(f"input {x}: expected floats and at least {rank} axes")


@dataclass(frozen=True)
class BatchNormalization(Op):
    """scale · (x - mean) / sqrt(variance + epsilon) + bias by channel, as one product and one sum.

    Inputs x (batch, channels, …), scale, bias, mean, variance (channels).
    """

    epsilon: float = 1e-5

    def infer(self, x: TensorType, *params: TensorType) -> tuple[TensorType, ...]:
        check_float(x)
        channels = x.dims[1] if x.rank > 1 else 1
        if len(params) != 4 or any(p.dims != (channels,) or not p.dtype.is_float for p in params):
            listed = ", ".join(map(str, params))
            fail(f"input {x} with scale, bias, mean and variance {listed}: expected [{channels}] for each")
        return (TensorType(x.dtype, x.shape),)

    def reference(self, x: np.ndarray, *params: np.ndarray) -> tuple[np.ndarray, ...]:
        column = (-1, *(1,) * (x.ndim - 2))
        scale, bias, mean, variance = (high(p).reshape(column) for p in params)
        return ((scale * (high(x) - mean) / np.sqrt(variance + self.epsilon) + bias).astype(x.dtype),)

    def decompose(self, g: Decomposer, x: str, *params: str) -> tuple[str, ...]:
        dtype, rank = g.type(x).dtype, g.type(x).rank
        acc = wide(dtype)

        def as_acc(value: str) -> str:
            return value if g.type(value).dtype is acc else g.one(Cast(acc.name), value)

        def column(value: str) -> str:
            return g.one(Reshape((g.type(value).size, *(1,) * (rank - 2))), value) if rank > 2 else value

        scale, bias, mean, variance = map(as_acc, params)
        epsilon = g.const(np.asarray(self.epsilon, acc.numpy), "epsilon")
        deviation = g.one(Unary("sqrt"), g.one(Binary("add"), variance, epsilon))
        factor = g.one(Binary("div"), scale, deviation)
        shift = g.one(Binary("sub"), bias, g.one(Binary("mul"), mean, factor))
        y = g.one(Binary("mul"), as_acc(x), column(factor))
        y = g.one(Binary("add"), y, column(shift))
        return (y if acc is dtype else g.one(Cast(dtype.name), y),)


@dataclass(frozen=True)
class LayerNormalization(Op):
    """Mean 0 and variance 1 over the axes from `axis` on, then · scale + bias, which broadcast.

    With `statistics`, also the mean and 1 / sqrt(variance + epsilon), in the dtype of that name.
    """

    axis: int = -1
    epsilon: float = 1e-5
    statistics: str = ""

    def infer(
        self, x: TensorType, scale: TensorType, bias: TensorType | None = None
    ) -> tuple[TensorType, ...]:
        check_float(x)
        axis = axis_of(self.axis, x.rank)
        for t in (scale, bias):
            if t is not None and (not t.dtype.is_float or broadcast_shape(x.dims, t.dims) != x.dims):
                fail(f"scale or bias {t} does not broadcast to the input {x}")
        y = TensorType(scale.dtype, x.shape)
        if not self.statistics:
            return (y,)
        held = TensorType(DTYPES[self.statistics], (*x.dims[:axis], *(1,) * (x.rank - axis)))
        return (y, held, held)

    def reference(
        self, x: np.ndarray, scale: np.ndarray, bias: np.ndarray | None = None
    ) -> tuple[np.ndarray, ...]:
        axes = tuple(range(axis_of(self.axis, x.ndim), x.ndim))
        mean = high(x).mean(axis=axes, keepdims=True)
        inverse = 1 / np.sqrt(high(x).var(axis=axes, keepdims=True) + self.epsilon)
        y = (high(x) - mean) * inverse * high(scale)
        y = (y if bias is None else y + high(bias)).astype(scale.dtype)
        if not self.statistics:
            return (y,)
        dtype = DTYPES[self.statistics].numpy
        return y, mean.astype(dtype), inverse.astype(dtype)

    def compute(
        self, b: ExprBuilder, x: Tensor, scale: Tensor, bias: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        acc, axis = wide(x.dtype), axis_of(self.axis, x.rank)
        keep, over = x.shape[:axis], x.shape[axis:]
        mean, variance = moments(b, acc, keep, over, lambda kept, rest: s.cast(x[kept + rest], acc))
        inverse = inverse_root(b, variance, self.epsilon)

        def body(*i: Expr) -> Expr:
            value = (s.cast(x[i], acc) - mean[i[:axis]]) * inverse[i[:axis]]
            value = value * s.cast(scale.broadcast(i), acc)
            return s.cast(value if bias is None else value + s.cast(bias.broadcast(i), acc), scale.dtype)

        y = b.compute(scale.dtype, x.shape, body, "y")
        if not self.statistics:
            return (y,)
        dtype = DTYPES[self.statistics]
        shape = (*keep, *(1,) * len(over))
        held = (b.compute(dtype, shape, lambda *i, t=t: s.cast(t[i[:axis]], dtype)) for t in (mean, inverse))
        return (y, *held)


@dataclass(frozen=True)
class RMSNormalization(Op):
    """x / sqrt(mean of squares + epsilon) over the axes from `axis` on, then · scale, which broadcasts."""

    axis: int = -1
    epsilon: float = 1e-5

    def infer(self, x: TensorType, scale: TensorType) -> tuple[TensorType, ...]:
        check_float(x)
        axis_of(self.axis, x.rank)
        if not scale.dtype.is_float or broadcast_shape(x.dims, scale.dims) != x.dims:
            fail(f"scale {scale} does not broadcast to the input {x}")
        return (TensorType(scale.dtype, x.shape),)

    def reference(self, x: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, ...]:
        axes = tuple(range(axis_of(self.axis, x.ndim), x.ndim))
        root = np.sqrt((high(x) ** 2).mean(axis=axes, keepdims=True) + self.epsilon)
        return ((high(x) / root * high(scale)).astype(scale.dtype),)

    def compute(self, b: ExprBuilder, x: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
        acc, axis = wide(x.dtype), axis_of(self.axis, x.rank)

        def squared(kept: tuple[Expr, ...], rest: tuple[Expr, ...]) -> Expr:
            value = s.cast(x[kept + rest], acc)
            return value * value

        square = mean_of(b, acc, x.shape[:axis], x.shape[axis:], squared, "square")
        inverse = inverse_root(b, square, self.epsilon)

        def body(*i: Expr) -> Expr:
            value = s.cast(x[i], acc) * inverse[i[:axis]] * s.cast(scale.broadcast(i), acc)
            return s.cast(value, scale.dtype)

        return (b.compute(scale.dtype, x.shape, body, "y"),)


@dataclass(frozen=True)
class GroupNormalization(Op):
    """Mean 0 and variance 1 over each of `groups` groups of channels of each sample, then · scale + bias.

    Inputs x (batch, channels, …), scale and bias, each one value per channel, or per group.
    """

    groups: int
    epsilon: float = 1e-5

    def infer(self, x: TensorType, scale: TensorType, bias: TensorType) -> tuple[TensorType, ...]:
        check_float(x, 2)
        channels = x.dims[1]
        if self.groups < 1 or channels % self.groups:
            fail(f"{channels} channels do not divide into {self.groups} groups")
        if scale.dims not in ((channels,), (self.groups,)) or bias.dims != scale.dims:
            fail(f"scale {scale} and bias {bias}: expected [{channels}] or [{self.groups}]")
        return (TensorType(x.dtype, x.shape),)

    def reference(self, x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, ...]:
        n, channels = x.shape[:2]
        grouped = high(x).reshape(n, self.groups, -1) if x.size else high(x)
        mean = grouped.mean(axis=-1, keepdims=True)
        y = ((grouped - mean) / np.sqrt(grouped.var(axis=-1, keepdims=True) + self.epsilon)).reshape(x.shape)
        column = (-1, *(1,) * (x.ndim - 2))
        factor, shift = (np.repeat(high(p), channels // p.size).reshape(column) for p in (scale, bias))
        return ((y * factor + shift).astype(x.dtype),)

    def compute(self, b: ExprBuilder, x: Tensor, scale: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        acc, (n, channels, *spatial) = wide(x.dtype), x.shape
        size = channels // self.groups

        def at(kept: tuple[Expr, ...], rest: tuple[Expr, ...]) -> Expr:
            return s.cast(x[(kept[0], kept[1] * size + rest[0], *rest[1:])], acc)

        mean, variance = moments(b, acc, (n, self.groups), (size, *spatial), at)
        inverse = inverse_root(b, variance, self.epsilon)

        def body(*i: Expr) -> Expr:
            place = (i[0], i[1] // size)
            p = i[1] // max(1, channels // max(1, scale.shape[0]))
            value = (s.cast(x[i], acc) - mean[place]) * inverse[place]
            return s.cast(value * s.cast(scale[p], acc) + s.cast(bias[p], acc), x.dtype)

        return (b.compute(x.dtype, x.shape, body, "y"),)


@dataclass(frozen=True)
class MeanVarianceNormalization(Op):
    """(x - mean) / (standard deviation + 1e-9) over `axes`."""

    axes: tuple[int, ...] = (0, 2, 3)

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        check_float(x)
        axes_of(self.axes, x.rank)
        return (TensorType(x.dtype, x.shape),)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        axes = axes_of(self.axes, x.ndim)
        centred = high(x) - high(x).mean(axis=axes, keepdims=True)
        return ((centred / (high(x).std(axis=axes, keepdims=True) + 1e-9)).astype(x.dtype),)

    def compute(self, b: ExprBuilder, x: Tensor) -> tuple[Tensor, ...]:
        acc, axes = wide(x.dtype), axes_of(self.axes, x.rank)
        kept_axes = tuple(a for a in range(x.rank) if a not in axes)

        def at(kept: tuple[Expr, ...], rest: tuple[Expr, ...]) -> Expr:
            place = dict(zip((*kept_axes, *axes), kept + rest))
            return s.cast(x[tuple(place[a] for a in range(x.rank))], acc)

        keep, over = (tuple(x.shape[a] for a in group) for group in (kept_axes, axes))
        mean, variance = moments(b, acc, keep, over, at)

        def body(*i: Expr) -> Expr:
            kept = tuple(i[a] for a in kept_axes)
            value = (s.cast(x[i], acc) - mean[kept]) / (s.call("sqrt", variance[kept]) + 1e-9)
            return s.cast(value, x.dtype)

        return (b.compute(x.dtype, x.shape, body, "y"),)


@dataclass(frozen=True)
class LpNormalization(Op):
    """x / (Σ |x|^p)^(1/p) along `axis`; zero where that norm is zero."""

    axis: int = -1
    p: int = 2

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        check_float(x)
        axis_of(self.axis, x.rank)
        if self.p not in (1, 2):
            fail(f"p is {self.p}, expected 1 or 2")
        return (TensorType(x.dtype, x.shape),)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        norm = np.linalg.norm(high(x), ord=self.p, axis=self.axis, keepdims=True)
        return ((high(x) / np.where(norm == 0, 1, norm)).astype(x.dtype),)

    def compute(self, b: ExprBuilder, x: Tensor) -> tuple[Tensor, ...]:
        acc, axis = wide(x.dtype), axis_of(self.axis, x.rank)

        def term(*i: Expr) -> Expr:
            value = s.cast(x[(*i[:axis], i[-1], *i[axis:-1])], acc)
            return value * value if self.p == 2 else s.call("abs", value)

        keep = (*x.shape[:axis], *x.shape[axis + 1 :])
        norm = b.reduce("sum", acc, keep, (x.shape[axis],), term, "norm")

        def body(*i: Expr) -> Expr:
            total = norm[(*i[:axis], *i[axis + 1 :])]
            divisor = s.call("sqrt", total) if self.p == 2 else total
            zero = s.const(0, acc)
            return s.cast(s.select(s.eq(total, zero), zero, s.cast(x[i], acc) / divisor), x.dtype)

        return (b.compute(x.dtype, x.shape, body, "y"),)


@dataclass(frozen=True)
class LRN(Op):
    """x / (bias + alpha / size · Σ x² over `size` neighbouring channels)^beta."""

    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    bias: float = 1.0

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        check_float(x, 2)
        if self.size < 1:
            fail(f"size is {self.size}, expected a positive number of channels")
        return (TensorType(x.dtype, x.shape),)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        before = (self.size - 1) // 2
        total = np.zeros(x.shape)
        for c in range(x.shape[1]):
            region = high(x)[:, max(0, c - before) : c - before + self.size]
            total[:, c] = (region**2).sum(axis=1)
        return ((high(x) / (self.bias + self.alpha / self.size * total) ** self.beta).astype(x.dtype),)

    def compute(self, b: ExprBuilder, x: Tensor) -> tuple[Tensor, ...]:
        acc, before = wide(x.dtype), (self.size - 1) // 2

        def term(n: Expr, c: Expr, *rest: Expr) -> Expr:
            other = c + rest[-1] - before
            guard = s.within(other, x.shape[1])
            value = s.select(guard, s.cast(x[(n, other, *rest[:-1])], acc), s.const(0, acc))
            return value * value

        total = b.reduce("sum", acc, x.shape, (self.size,), term, "square")

        def body(*i: Expr) -> Expr:
            base = total[i] * (self.alpha / self.size) + self.bias
            return s.cast(s.cast(x[i], acc) / s.binary("pow", base, self.beta), x.dtype)

        return (b.compute(x.dtype, x.shape, body, "y"),)
