"""Convolutions. x is (batch, channels, *spatial), weights (out channels, channels / group, *kernel)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import ModelError
from ..ir import scalar as s
from ..ir.expr import ExprBuilder, Tensor
from ..ir.scalar import Expr
from ..ir.types import I32, DType, TensorType
from .base import Op
from .shapes import wide
from .window import high, inside, output_sizes, positions, read, spatial_names, windows

Reader = Callable[[Tensor, Sequence[Expr]], Expr]
Product = Callable[[Expr, Expr], Expr]


@dataclass(frozen=True)
class _Window(Op, abstract=True):
    """`pads` are all begins, then all ends."""

    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    group: int = 1

    def _shape(self, x: TensorType, w: TensorType) -> tuple[int, ...]:
        if x.rank < 3 or w.rank != x.rank:
            raise ModelError(f"input {x} and weights {w}: expected the same rank, at least 3")
        (n, channels, *sizes), (out_channels, per_group, *kernel) = x.dims, w.dims
        if self.group < 1 or out_channels % self.group or channels != per_group * self.group:
            raise ModelError(f"input {x}, weights {w} and group {self.group} do not fit together")
        spatial = output_sizes(self.name, sizes, kernel, self.strides, self.dilations, self.pads)
        return (n, out_channels, *spatial)

    def _products(
        self,
        b: ExprBuilder,
        x: Tensor,
        w: Tensor,
        acc: DType,
        read_x: Reader,
        read_w: Reader,
        product: Product = operator.mul,
    ) -> Tensor:
        """The sum of products as one stage; `read_x` and `read_w` give operands of type `acc`."""
        out_channels, per_group, *kernel = w.shape
        sizes, rank = x.shape[2:], len(kernel)
        shape = self._shape(TensorType(x.dtype, x.shape), TensorType(w.dtype, w.shape))
        outs, group_size = shape[2:], out_channels // self.group

        def body(n: Expr, oc: Expr, *rest: Expr) -> Expr:
            position, ic, taps = rest[:rank], rest[rank], rest[rank + 1 :]
            at = positions(position, taps, self.strides, self.dilations, self.pads)
            guard = inside(at, sizes, kernel, outs, self.strides, self.dilations, self.pads)
            if self.group == 1:
                channel = ic
            elif per_group == 1:
                channel = oc // group_size
            else:
                channel = (oc // group_size) * per_group + ic
            padded = s.select(guard, read_x(x, (n, channel, *at)), s.const(0, acc))
            return product(padded, read_w(w, (oc, ic, *taps)))

        return b.reduce(
            "sum",
            acc,
            shape,
            (per_group, *kernel),
            body,
            axes=("n", "c", *spatial_names(rank)),
            reduce_axes=("ic", *spatial_names(rank, "k")),
        )

    def _numpy(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """Windows as a matrix times the weights of each group."""
        out_channels, per_group, *kernel = w.shape
        shape = self._shape(_type(I32, x), _type(I32, w))
        outs, taps = shape[2:], int(np.prod(kernel))
        view = windows(x, kernel, outs, self.strides, self.dilations, self.pads, 0)
        rank, n, g = len(kernel), x.shape[0], self.group
        view = view.reshape(n, g, per_group, *outs, *kernel)
        order = (0, 1, *range(3, 3 + rank), 2, *range(3 + rank, 3 + 2 * rank))
        matrix = view.transpose(order).reshape(n, g, int(np.prod(outs)), per_group * taps)
        weights = w.reshape(g, out_channels // g, per_group * taps).transpose(0, 2, 1)
        return (matrix @ weights).transpose(0, 1, 3, 2).reshape(shape)


def _type(dtype: DType, array: np.ndarray) -> TensorType:
    return TensorType(dtype, array.shape)


def check_bias(bias: TensorType | None, out_channels: int) -> None:
    if bias is not None and bias.dims != (out_channels,):
        raise ModelError(f"bias {bias}: expected one value for each of {out_channels} output channels")


def add_bias(b: ExprBuilder, acc: Tensor, bias: Tensor | None, out: DType) -> Tensor:
    """acc + bias[channel], converted to `out`; acc itself where there is nothing to do."""
    if bias is None and acc.dtype is out:
        return acc

    def body(n: Expr, c: Expr, *at: Expr) -> Expr:
        value = acc[(n, c, *at)]
        return s.cast(value if bias is None else value + s.cast(bias[c], acc.dtype), out)

    return b.compute(out, acc.shape, body, "y", ("n", "c", *spatial_names(len(acc.shape) - 2)))


@dataclass(frozen=True)
class Conv(_Window):
    """y[n, oc, o] = bias[oc] + Σ x[n, ic, o·stride + k·dilation - pad] · w[oc, ic, k], zeros outside of x."""

    def infer(self, x: TensorType, w: TensorType, bias: TensorType | None = None) -> tuple[TensorType, ...]:
        if not x.dtype.is_float or w.dtype is not x.dtype:
            raise ModelError(f"input {x} and weights {w}: expected floats of one type")
        shape = self._shape(x, w)
        check_bias(bias, shape[1])
        return (TensorType(x.dtype, shape),)

    def reference(
        self, x: np.ndarray, w: np.ndarray, bias: np.ndarray | None = None
    ) -> tuple[np.ndarray, ...]:
        y = self._numpy(high(x), high(w))
        if bias is not None:
            y = y + high(bias).reshape(-1, *(1,) * (x.ndim - 2))
        return (y.astype(x.dtype),)

    def compute(self, b: ExprBuilder, x: Tensor, w: Tensor, bias: Tensor | None = None) -> tuple[Tensor, ...]:
        acc = wide(x.dtype)

        def widened(t: Tensor, index: Sequence[Expr]) -> Expr:
            return s.cast(t[tuple(index)], acc)

        return (add_bias(b, self._products(b, x, w, acc, widened, widened), bias, x.dtype),)


@dataclass(frozen=True)
class ConvInteger(_Window):
    """Inputs x, w, zero point of x, zero point of w (one, or one per output channel): an i32 convolution."""

    def infer(
        self, x: TensorType, w: TensorType, x_zero: TensorType | None = None, w_zero: TensorType | None = None
    ) -> tuple[TensorType, ...]:
        shape = self._shape(x, w)
        if any(t.dtype.bits != 8 or not t.dtype.is_integer for t in (x, w)):
            raise ModelError(f"input {x} and weights {w}: expected 8-bit integers")
        if x_zero is not None and (x_zero.size != 1 or x_zero.dtype is not x.dtype):
            raise ModelError(f"zero point {x_zero} of the input: expected one value of {x.dtype}")
        one_or_all = w_zero is None or w_zero.size == 1 or w_zero.dims == (shape[1],)
        if w_zero is not None and (not one_or_all or w_zero.dtype is not w.dtype):
            raise ModelError(
                f"zero point {w_zero} of the weights: expected one value or {shape[1]} of {w.dtype}"
            )
        return (TensorType(I32, shape),)

    def reference(
        self, x: np.ndarray, w: np.ndarray, x_zero: np.ndarray | None = None, w_zero: np.ndarray | None = None
    ) -> tuple[np.ndarray, ...]:
        xi, wi = x.astype(np.int64), w.astype(np.int64)
        if x_zero is not None:
            xi = xi - x_zero.astype(np.int64).reshape(())
        if w_zero is not None:
            wi = wi - w_zero.astype(np.int64).reshape(-1, *(1,) * (w.ndim - 1))
        return (self._numpy(xi, wi).astype(np.int32),)

    def compute(
        self, b: ExprBuilder, x: Tensor, w: Tensor, x_zero: Tensor | None = None, w_zero: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        def shifted(zero: Tensor | None) -> Reader:
            def reader(t: Tensor, index: Sequence[Expr]) -> Expr:
                value = s.cast(t[tuple(index)], I32)
                if zero is None:
                    return value
                one = zero[tuple(s.const(0) if d == 1 else index[0] for d in zero.shape)]
                return value - s.cast(one, I32)

            return reader

        return (self._products(b, x, w, I32, shifted(x_zero), shifted(w_zero)),)


@dataclass(frozen=True)
class ConvTranspose(Op):
    """A convolution's gradient: x[n, ic, q] · w[ic, oc, k] is added to y[n, oc, q·stride + k·dilation - pad].

    Weights are (channels, out channels / group, *kernel); `sizes` are the output's spatial sizes, and what
    falls outside is cut.
    """

    strides: tuple[int, ...]
    pads: tuple[int, ...]  # begins only: the ends follow from `sizes`
    dilations: tuple[int, ...]
    sizes: tuple[int, ...]
    group: int = 1

    def infer(self, x: TensorType, w: TensorType, bias: TensorType | None = None) -> tuple[TensorType, ...]:
        if not x.dtype.is_float or w.dtype is not x.dtype:
            raise ModelError(f"input {x} and weights {w}: expected floats of one type")
        if (
            x.rank < 3
            or w.rank != x.rank
            or self.group < 1
            or x.dims[1] != w.dims[0]
            or x.dims[1] % self.group
        ):
            raise ModelError(f"input {x}, weights {w} and group {self.group} do not fit together")
        counts = {len(v) for v in (self.strides, self.pads, self.dilations, self.sizes)}
        if counts != {x.rank - 2} or min(*self.strides, *self.dilations, 1) < 1 or min(self.sizes) < 0:
            raise ModelError(
                f"strides {self.strides}, pads {self.pads}, dilations {self.dilations} and output sizes "
                f"{self.sizes} do not fit {x.rank - 2} spatial axes"
            )
        out_channels = w.dims[1] * self.group
        check_bias(bias, out_channels)
        return (TensorType(x.dtype, (x.dims[0], out_channels, *self.sizes)),)

    def reference(
        self, x: np.ndarray, w: np.ndarray, bias: np.ndarray | None = None
    ) -> tuple[np.ndarray, ...]:
        n, channels, *spatial = x.shape
        _, per_group, *kernel = w.shape
        g = self.group
        y = np.zeros((n, g * per_group, *self.sizes))
        xg = high(x).reshape(n, g, channels // g, int(np.prod(spatial)))
        wg = high(w).reshape(g, channels // g, per_group, *kernel)
        for tap in np.ndindex(*kernel):
            part = np.einsum("ngcp,gco->ngop", xg, wg[(..., *tap)]).reshape(n, g * per_group, *spatial)
            source: list[slice] = [slice(None), slice(None)]
            target: list[slice] = [slice(None), slice(None)]
            for a, k in enumerate(tap):
                st, shift = self.strides[a], k * self.dilations[a] - self.pads[a]
                first = max(0, -(shift // st))
                last = min(spatial[a], -((shift - self.sizes[a]) // st))
                source.append(slice(first, max(first, last)))
                target.append(slice(first * st + shift, max(first, last) * st + shift, st))
            if part[tuple(source)].size:
                y[tuple(target)] += part[tuple(source)]
        if bias is not None:
            y = y + high(bias).reshape(-1, *(1,) * (x.ndim - 2))
        return (y.astype(x.dtype),)

    def compute(self, b: ExprBuilder, x: Tensor, w: Tensor, bias: Tensor | None = None) -> tuple[Tensor, ...]:
        n, channels, *spatial = x.shape
        _, group_size, *kernel = w.shape
        rank, acc, per_group = len(kernel), wide(x.dtype), channels // self.group

        def body(n: Expr, oc: Expr, *rest: Expr) -> Expr:
            position, ic, taps = rest[:rank], rest[rank], rest[rank + 1 :]
            conditions, at = [], []
            for a in range(rank):
                shifted = position[a] + self.pads[a] - taps[a] * self.dilations[a]
                if self.strides[a] > 1:
                    conditions.append(s.eq(shifted % self.strides[a], 0))
                at.append(shifted // self.strides[a])
                conditions.append(s.within(at[a], spatial[a]))
            channel = ic if self.group == 1 else (oc // group_size) * per_group + ic
            value = read(x, (n, channel, *at), s.both(*conditions), s.const(0, acc), acc)
            return value * s.cast(w[(channel, oc if self.group == 1 else oc % group_size, *taps)], acc)

        total = b.reduce(
            "sum",
            acc,
            (n, group_size * self.group, *self.sizes),
            (per_group, *kernel),
            body,
            axes=("n", "c", *spatial_names(rank)),
            reduce_axes=("ic", *spatial_names(rank, "k")),
        )
        return (add_bias(b, total, bias, x.dtype),)
