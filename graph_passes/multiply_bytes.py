"""Convolutions and matrix products of 8-bit integers, for machines that add up four such products at once.

Σ (x - zx)·w becomes Σ b·w - zb·Σ w, b being the bytes that the machine wants (u8 or i8; zb is zx as such a
byte): words of four bytes are multiplied, and the second sum is one constant for each output channel. Padding
holds zx, so that every output sums over all taps. Weights are constants, less their zero point.

Products of dequantised operands, of which ONNX's quantised models are made, become such products of integers
where those are faster than products of f32.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ..compiler.ir.graph import Graph, Node
from ..compiler.ir.types import F32, I8, U8
from ..compiler.ops.byte_products import BYTES, DotConv, DotDepthwise, DotMatMul, PackBytes, words_of
from ..compiler.ops.conv import Conv, ConvInteger
from ..compiler.ops.elementwise import Binary, Cast
from ..compiler.ops.matmul import MatMul, MatMulInteger
from ..compiler.ops.movement import Reshape, Transpose
from ..compiler.ops.quantize import DequantizeLinear, of_weights
from ..compiler.target import Target
from .fold import fold
from .match_signs import match_signs
from .rewrite import Rewriter, Rule


def multiply_bytes(graph: Graph, target: Target) -> Graph:
    """An equal graph whose products of 8-bit integers are those that the target is fast at."""
    found = _Bytes(target)
    graph = match_signs(fold(graph, keep=of_weights), target)
    rules = [
        Rule("conv_integer(x, w) => dot_conv(words(x), words(w)) - …", (ConvInteger,), found.convolution),
        Rule("matmul_integer(a, b) => dot_matmul(words(a), words(b)) - …", (MatMulInteger,), found.product),
        Rule("conv(real(x), real(w)) => real(conv_integer(x, w))", (Conv,), found.real_convolution),
        Rule("matmul(real(a), real(b)) => real(matmul_integer(a, b))", (MatMul,), found.real_product),
    ]
    return Rewriter(graph).run(rules)


@dataclass(frozen=True)
class _Quantised:
    """real = (value - zero) · scale; both without axes, or one for each channel of constant weights."""

    value: str
    scale: str
    zero: str | None


@dataclass(frozen=True)
class _Weights:
    """As i8, and what they are made of."""

    array: np.ndarray
    key: tuple[str | None, ...]

    def sums(self, axis: int) -> np.ndarray:
        """Over all axes but this one, modulo 2**32 as the products' sums."""
        return _summed(self.array, axis).astype(np.int32)

    def fits(self, axis: int) -> bool:
        """Whether no sum of products with bytes less their zero point leaves 32 bits."""
        return bool(255 * _summed(np.abs(self.array.astype(np.int64)), axis).max() < 1 << 31)


def _summed(array: np.ndarray, axis: int) -> np.ndarray:
    """Over all axes but this one, as i64."""
    return array.sum(tuple(a for a in range(array.ndim) if a != axis), dtype=np.int64)


@dataclass(frozen=True)
class _Bytes:
    target: Target
    made: dict[tuple, str] = field(
        default_factory=dict
    )  # words by the weights and zero points that they are of

    @property
    def signed(self) -> bool:
        return self.target.dot == "dot4_i8"

    # --- integers -----------------------------------------------------------------------------------------

    def convolution(self, r: Rewriter, node: Node) -> str | None:
        assert isinstance(node.op, ConvInteger)
        x, w, x_zero, w_zero = (*node.inputs, None, None)[:4]
        weights = self.convolved(r, x, x_zero, w, w_zero, node.op)
        return None if weights is None else self.convolve(r, x or "", x_zero, weights, node.op)

    def convolved(
        self,
        r: Rewriter,
        x: str | None,
        x_zero: str | None,
        w: str | None,
        w_zero: str | None,
        op: ConvInteger | Conv,
    ) -> _Weights | None:
        """The weights less their zero points; None where words of four channels, or rows, do not serve."""
        found = _shifted(r, w, w_zero, 0)
        if not self.target.dot or found is None or r.type_of(x or "").size == 0:
            return None
        if _by_channel(op, found.array):
            return found if x_zero is None or r.const(x_zero) is not None else None
        return found if op.group == 1 or found.array.shape[1] % BYTES == 0 else None

    def words(self, r: Rewriter, weights: _Weights, axis: int) -> str:
        """A constant, the same for all who multiply by these weights."""
        key = (*weights.key, axis)
        if key not in self.made:
            self.made[key] = r.constant(words_of(weights.array, axis), "weights")
        return self.made[key]

    def convolve(
        self, r: Rewriter, x: str, zero: str | None, weights: _Weights, op: ConvInteger | Conv
    ) -> str:
        rank = len(op.strides)
        if _by_channel(op, weights.array):
            total = self.by_channel(r, x, zero, weights, op)
            return self.less(r, total, x, zero, weights.sums(0).reshape(-1, *(1,) * rank))
        pads = (0, 0, *op.pads[:rank], 0, 0, *op.pads[rank:])
        fill = (zero,) if zero is not None and any(pads) else ()  # what fills up a word is multiplied by 0
        words = r.emit(PackBytes(1, pads, self.flips(r, x)), x, *fill)
        dot = DotConv(op.strides, (0,) * (2 * rank), op.dilations, op.group, self.signed)
        total = r.emit(dot, words, self.words(r, weights, 1))
        return self.less(r, total, x, zero, weights.sums(0).reshape(-1, *(1,) * rank))

    def by_channel(
        self, r: Rewriter, x: str, zero: str | None, weights: _Weights, op: ConvInteger | Conv
    ) -> str:
        """The sums of bytes as they are, the constant zero point around them."""
        known = None if zero is None else r.const(zero)
        dot = DotDepthwise(
            *(op.strides, op.pads, op.dilations, op.group),
            rows=weights.array.shape[2],
            fill=0 if known is None else known.item(),
            flip=self.flips(r, x),
            signed=self.signed,
        )
        return r.emit(dot, x, self.words(r, weights, 2))

    def product(self, r: Rewriter, node: Node) -> str | None:
        a, b, a_zero, b_zero = (*node.inputs, None, None)[:4]
        weights = self.multiplied(r, a, b, b_zero, -1, trans_b=False)
        by_rows = a_zero is None or r.type_of(a_zero).dims[-1:] in ((), (1,))
        if weights is None or not by_rows:
            left, right = (_centred(r, v or "", zero) for v, zero in ((a, a_zero), (b, b_zero)))
            return r.emit(MatMul(), left, right)
        return self.multiply(r, a or "", a_zero, weights)

    def multiplied(
        self, r: Rewriter, a: str | None, b: str | None, b_zero: str | None, axis: int, trans_b: bool
    ) -> _Weights | None:
        """The right matrix (k, n) less its zero points, of which there is one along `axis`, if any."""
        found = _shifted(r, b, b_zero, axis)
        if not self.target.dot or found is None or found.array.ndim != 2 or r.type_of(a or "").size == 0:
            return None
        turned = replace(found, array=np.ascontiguousarray(found.array.T), key=(*found.key, "transposed"))
        return turned if trans_b else found

    def multiply(self, r: Rewriter, a: str, zero: str | None, weights: _Weights) -> str:
        words = r.emit(PackBytes(-1, (0,) * (2 * r.type_of(a).rank), self.flips(r, a)), a)
        total = r.emit(DotMatMul(signed=self.signed), words, self.words(r, weights, 0))
        return self.less(r, total, a, zero, weights.sums(1))

    def flips(self, r: Rewriter, x: str) -> bool:
        return r.type_of(x).dtype is not (I8 if self.signed else U8)

    def less(self, r: Rewriter, total: str, x: str, zero: str | None, sums: np.ndarray) -> str:
        """total - sums · (the zero point of x as the machine's byte)."""
        shift = (-128 if self.signed else 128) * self.flips(r, x)
        known = np.zeros((), np.int32) if zero is None else r.const(zero)
        if known is not None:
            known = known.astype(np.int32) + np.int32(shift)
            if not known.any():
                return total
            known = known.reshape(()) if known.size == 1 else known
            return r.emit(Binary("sub"), total, r.constant(known * sums, "zeros"))
        assert zero is not None
        wide = r.emit(Cast("i32"), zero)
        if shift:
            wide = r.emit(Binary("add"), wide, r.constant(np.asarray(shift, np.int32), "shift"))
        if r.type_of(wide).size == 1:
            wide = r.emit(Reshape(()), wide)
        return r.emit(Binary("sub"), total, r.emit(Binary("mul"), wide, r.constant(sums, "sums")))

    # --- dequantised reals --------------------------------------------------------------------------------

    def real_convolution(self, r: Rewriter, node: Node) -> str | None:
        assert isinstance(node.op, Conv)
        data, filters, bias = (node.input(n) for n in range(3))
        x, w = self.quantised(r, data, None), self.quantised(r, filters, 0)
        if x is None or w is None:
            return None
        weights = self.convolved(r, x.value, x.zero, w.value, w.zero, node.op)
        if weights is None or not weights.fits(0):
            return None
        total = self.convolve(r, x.value, x.zero, weights, node.op)
        column = (1,) * len(node.op.strides)
        y = self.scaled(r, total, x.scale, w.scale, column)
        if bias is None:
            return y
        return r.emit(Binary("add"), y, r.emit(Reshape((r.type_of(bias).size, *column)), bias))

    def real_product(self, r: Rewriter, node: Node) -> str | None:
        assert isinstance(node.op, MatMul)
        matrix, trans_b = node.inputs[1], node.op.trans_b
        turned = r.made_by(matrix, Transpose)
        if turned is not None and turned.op == Transpose((1, 0)):
            matrix, trans_b = turned.inputs[0], not trans_b
        axis = 0 if trans_b else 1
        a, b = self.quantised(r, node.inputs[0], None), self.quantised(r, matrix, axis)
        if a is None or b is None or node.op.trans_a:
            return None
        weights = self.multiplied(r, a.value, b.value, b.zero, axis, trans_b)
        if weights is None or not weights.fits(1):
            return None
        return self.scaled(r, self.multiply(r, a.value, a.zero, weights), a.scale, b.scale, ())

    def quantised(self, r: Rewriter, real: str | None, axis: int | None) -> _Quantised | None:
        """What a DequantizeLinear of 8-bit integers to f32 reads; scales along no other axis than the one."""
        node = r.made_by(real, DequantizeLinear)
        if node is None or not self.target.fast_dot:
            return None
        op = node.op
        assert isinstance(op, DequantizeLinear)
        value, scale, zero = (node.input(n) for n in range(3))
        assert value is not None and scale is not None
        type, scales = r.type_of(value), r.type_of(scale)
        along = scales.size == 1 or (axis is not None and op.axis % type.rank == axis % type.rank)
        of_bytes = type.dtype in (I8, U8) and scales.dtype is F32 and op.to == "f32"
        return _Quantised(value, scale, zero) if of_bytes and along and not op.block else None

    def scaled(self, r: Rewriter, total: str, a: str, b: str, column: tuple[int, ...]) -> str:
        """The integer sums times both scales; those of b lie along the channels, before `column`."""
        size = r.type_of(b).size
        left = r.emit(Reshape(()), a)
        right = r.emit(Reshape((size, *column) if size > 1 else ()), b)
        return r.emit(Binary("mul"), r.emit(Cast("f32"), total), r.emit(Binary("mul"), right, left))


def _by_channel(op: ConvInteger | Conv, weights: np.ndarray) -> bool:
    """Whether each channel is convolved by itself, with weights of its own."""
    return op.group > 1 and weights.shape[:2] == (op.group, 1)


def _centred(r: Rewriter, x: str, zero: str | None) -> str:
    """x - zero in i32."""
    wide = r.emit(Cast("i32"), x)
    return wide if zero is None else r.emit(Binary("sub"), wide, r.emit(Cast("i32"), zero))


def _shifted(r: Rewriter, weights: str | None, zero: str | None, axis: int) -> _Weights | None:
    """Constant 8-bit weights less their zero points, one or along an axis, if all fit into i8."""
    array, zeros = r.const(weights), None if zero is None else r.const(zero)
    if array is None or array.size == 0 or (zero is not None and zeros is None):
        return None
    wide = array.astype(np.int32)
    if zeros is not None:
        along = zeros.ndim == 1 or (zeros.ndim == array.ndim and zeros.size == zeros.shape[axis])
        if zeros.size > 1 and not (along and zeros.size == array.shape[axis]):
            return None
        column = [1] * array.ndim
        column[axis] = zeros.size
        wide = wide - zeros.astype(np.int32).reshape(column)
    fits = wide.min() >= -128 and wide.max() <= 127
    return _Weights(wide.astype(np.int8), (weights, zero)) if fits else None
