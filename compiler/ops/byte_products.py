"""Products of 8-bit integers by machines that add up four of them at once: words of four neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..ir import scalar as s
from ..ir.expr import ExprBuilder, Tensor
from ..ir.scalar import Expr
from ..ir.types import I32, TensorType
from .base import Op
from .conv import Conv
from .matmul import MatMul
from .shapes import axis_of, fail
from .window import inside, positions, spatial_names, windows

BYTES = 4
SIGNS = -0x7F7F7F80  # 0x80808080 as an i32


@dataclass(frozen=True)
class PackBytes(Op):
    """Four neighbours along `axis` of x become the bytes of one i32, the first the lowest.

    Around x lie `pads` (of every axis: all begins, then all ends) of its zero point, which also fills up the
    last word; without one that is 0. `flip` turns the sign bits: u8 and i8 change places, 128 less or more.
    """

    axis: int
    pads: tuple[int, ...]
    flip: bool = False

    def infer(self, x: TensorType, zero: TensorType | None = None) -> tuple[TensorType, ...]:
        axis = axis_of(self.axis, x.rank)
        if x.dtype.bits != 8 or not x.dtype.is_integer:
            fail(f"input {x}: expected 8-bit integers")
        if zero is not None and (zero.size != 1 or zero.dtype is not x.dtype):
            fail(f"zero point {zero}: expected one value of {x.dtype}")
        if len(self.pads) != 2 * x.rank or any(p < 0 for p in self.pads) or self.pads[axis]:
            fail(f"pads {self.pads} do not fit {x}, or stand before the axis {axis} of words")
        sizes = [d + b + e for d, b, e in zip(x.dims, self.pads, self.pads[x.rank :])]
        sizes[axis] = -(-sizes[axis] // BYTES)
        return (TensorType(I32, tuple(sizes)),)

    def reference(self, x: np.ndarray, zero: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
        axis = axis_of(self.axis, x.ndim)
        widths = list(zip(self.pads, self.pads[x.ndim :]))
        widths[axis] = (0, widths[axis][1] + -(x.shape[axis] + widths[axis][1]) % BYTES)
        fill = 0 if zero is None else zero.reshape(()).item()
        bytes = np.pad(x, widths, constant_values=fill).view(np.uint8) ^ (0x80 if self.flip else 0)
        bytes = np.moveaxis(bytes, axis, -1)
        words = np.ascontiguousarray(bytes).astype(np.uint8).view("<i4")
        return (np.moveaxis(words, -1, axis).astype(np.int32),)

    def compute(self, b: ExprBuilder, x: Tensor, zero: Tensor | None = None) -> tuple[Tensor, ...]:
        axis = axis_of(self.axis, x.rank)
        filler = None if zero is None else TensorType(zero.dtype, zero.shape)
        (result,) = self.infer(TensorType(x.dtype, x.shape), filler)

        def body(*i: Expr) -> Expr:
            fill: Expr = s.const(0, x.dtype) if zero is None else zero[(s.const(0),) * zero.rank]
            inside = [
                s.within(i[a] - self.pads[a], d)
                for a, d in enumerate(x.shape)
                if a != axis and (self.pads[a] or self.pads[a + x.rank])
            ]
            bytes = []
            for n in range(BYTES):
                place = [e - p for e, p in zip(i, self.pads)]
                place[axis] = i[axis] * BYTES + n
                bytes.append(x[tuple(place)])
                if result.dims[axis] * BYTES > x.shape[axis]:
                    bytes[n] = s.select(s.lt(place[axis], x.shape[axis]), bytes[n], fill)
            word = s.select(s.both(*inside), s.call("word", *bytes), s.call("word", *[fill] * BYTES))
            return s.binary("xor", word, s.const(SIGNS, I32)) if self.flip else word

        return (b.compute(I32, result.dims, body, "words"),)


@dataclass(frozen=True)
class DotConv(Conv):
    """A convolution of words of four channels: x (batch, channels / 4, *spatial), weights likewise, in i32.

    Bytes of the weights are signed, those of x if `signed`.
    """

    signed: bool = False

    def infer(self, x: TensorType, w: TensorType, bias: TensorType | None = None) -> tuple[TensorType, ...]:
        _check_words(x, w)
        if bias is not None:
            fail("words are convolved without a bias")
        return (TensorType(I32, self._shape(x, w)),)

    def reference(
        self, x: np.ndarray, w: np.ndarray, bias: np.ndarray | None = None
    ) -> tuple[np.ndarray, ...]:
        return (self._numpy(_bytes(x, 1, self.signed), _bytes(w, 1, True)).astype(np.int32),)

    def compute(self, b: ExprBuilder, x: Tensor, w: Tensor, bias: Tensor | None = None) -> tuple[Tensor, ...]:
        def plain(t: Tensor, index: Sequence[Expr]) -> Expr:
            return t[tuple(index)]

        return (self._products(b, x, w, I32, plain, plain, _dot(self.signed)),)


@dataclass(frozen=True)
class DotDepthwise(Conv):
    """A convolution of each channel of x, of bytes, by itself, in i32; outside of x lies `fill`.

    Words are made of four neighbours along the first spatial axis where they are multiplied; the weights' are
    (channels, 1, ⌈rows / 4⌉, *others). Their bytes are signed, those of x if `signed`; `flip`: see PackBytes.
    """

    rows: int = 1  # of the kernel
    fill: int = 0
    flip: bool = False
    signed: bool = False

    def infer(self, x: TensorType, w: TensorType, bias: TensorType | None = None) -> tuple[TensorType, ...]:
        if x.dtype.bits != 8 or not x.dtype.is_integer:
            fail(f"input {x}: expected 8-bit integers")
        _check_words(w)
        if bias is not None or w.dims[:2] != (self.group, 1) or w.dims[2:3] != (-(-self.rows // BYTES),):
            fail(f"weights {w}: expected words of {self.rows} rows for {self.group} channels, and no bias")
        return (TensorType(I32, self._shape(x, TensorType(I32, (*w.dims[:2], self.rows, *w.dims[3:])))),)

    def reference(
        self, x: np.ndarray, w: np.ndarray, bias: np.ndarray | None = None
    ) -> tuple[np.ndarray, ...]:
        weights = _bytes(w, 2, True)[:, :, : self.rows]
        shift = (0x80 if self.signed else -0x80) * self.flip
        outs = self._shape(TensorType(I32, x.shape), TensorType(I32, weights.shape))[2:]
        sizes = weights.shape[2:]
        view = windows(x, sizes, outs, self.strides, self.dilations, self.pads, self.fill).astype(np.int64)
        spatial = tuple(range(-len(outs), 0))
        aligned = weights.reshape(1, self.group, *(1,) * len(outs), *sizes)
        return (((view - shift) * aligned).sum(spatial).astype(np.int32),)

    def compute(self, b: ExprBuilder, x: Tensor, w: Tensor, bias: Tensor | None = None) -> tuple[Tensor, ...]:
        groups, *others = w.shape[2:]
        kernel, rank = (groups * BYTES, *others), len(others) + 1
        shape = self._shape(TensorType(I32, x.shape), TensorType(I32, (*w.shape[:2], self.rows, *others)))
        fill = s.const(self.fill, x.dtype)
        filled_up = groups * BYTES > self.rows
        nothing = s.const((-0x80 if x.dtype.kind == "int" else 0x80) * self.flip, x.dtype)

        def body(n: Expr, c: Expr, *rest: Expr) -> Expr:
            position, taps = rest[:rank], rest[rank:]

            def byte(row: int) -> Expr:
                if groups == 1 and row >= self.rows:
                    return nothing  # and not a read where its index may leave x
                tap = taps[0] * BYTES + row
                at = positions(position, (tap, *taps[1:]), self.strides, self.dilations, self.pads)
                guard = inside(at, x.shape[2:], kernel, shape[2:], self.strides, self.dilations, self.pads)
                found = s.select(guard, x[(n, c, *at)], fill)
                return s.select(s.lt(tap, self.rows), found, nothing) if filled_up else found

            word = s.call("word", *map(byte, range(BYTES)))
            word = s.binary("xor", word, s.const(SIGNS, I32)) if self.flip else word
            return _dot(self.signed)(word, w[(c, s.const(0), *taps)])

        return (
            b.reduce(
                "sum",
                I32,
                shape,
                (groups, *others),
                body,
                axes=("n", "c", *spatial_names(rank)),
                reduce_axes=spatial_names(rank, "k"),
            ),
        )


@dataclass(frozen=True)
class DotMatMul(MatMul):
    """A matrix product of words of four terms, in i32. Bytes of b are signed, those of a if `signed`."""

    signed: bool = False

    def infer(self, a: TensorType | None, b: TensorType | None) -> tuple[TensorType, ...]:
        _check_words(a, b)
        return super().infer(a, b)

    def reference(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, ...]:
        x = _bytes(a, a.ndim - (2 if self.trans_a else 1), self.signed)
        y = _bytes(b, b.ndim - (1 if self.trans_b else 2), True)
        return (MatMul(self.trans_a, self.trans_b).reference(x, y)[0].astype(np.int32),)

    def compute(self, b: ExprBuilder, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (self._products(b, x, y, _dot(self.signed)),)


def _check_words(*types: TensorType | None) -> None:
    for t in types:
        if t is None or t.dtype is not I32:
            fail(f"input {t}: expected words of four bytes, as i32")


def _dot(signed: bool) -> Callable[[Expr, Expr], Expr]:
    return lambda x, y: s.call("dot4_i8" if signed else "dot4_u8", x, y)


def _bytes(words: np.ndarray, axis: int, signed: bool) -> np.ndarray:
    """numpy: the bytes of words along an axis, in i64."""
    last = np.ascontiguousarray(np.moveaxis(words, axis, -1))
    bytes = last.astype("<i4").view(np.int8 if signed else np.uint8)
    return np.moveaxis(bytes, -1, axis).astype(np.int64)


def words_of(weights: np.ndarray, axis: int) -> np.ndarray:
    """numpy: i8 weights as words along an axis, filled up with zeros."""
    return PackBytes(axis, (0,) * (2 * weights.ndim)).reference(weights.astype(np.int8))[0]
