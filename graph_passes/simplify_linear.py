"""Rules that move constant factors, summands and padding into convolutions and matrix products.

Weights are multiplied in their own type, f32 or f64: one more rounding for each weight.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..compiler.ir.graph import Node
from ..compiler.ir.types import F32, F64
from ..compiler.ops.byte_products import DotDepthwise
from ..compiler.ops.conv import Conv, ConvTranspose
from ..compiler.ops.elementwise import Binary
from ..compiler.ops.matmul import MatMul
from ..compiler.ops.movement import Pad, Transpose
from .rewrite import Rewriter, rule
from .simplify_movement import pad_value

ROUNDING = 4096
"""How many times larger than their sum two constants are of which the first rounds what they are added to."""


def _channel_constant(r: Rewriter, value: str | None, result: str) -> np.ndarray | None:
    """A constant that varies along axis 1 of `result` only, as one number a channel."""
    array, type = r.const(value), r.type_of(result)
    if array is None or type.dtype not in (F32, F64) or array.ndim > type.rank:
        return None
    shape = (1,) * (type.rank - array.ndim) + array.shape
    if any(d != 1 for axis, d in enumerate(shape) if axis != 1):
        return None
    return np.broadcast_to(array.reshape(-1), (type.dims[1],))


def _convolution(r: Rewriter, node: Node) -> Node | None:
    """The convolution with constant weights and bias whose result only this node reads, in the same shape."""
    value = node.inputs[0]
    conv = r.only_by(value, Conv) or r.only_by(value, ConvTranspose)
    if (
        conv is None
        or r.const(conv.inputs[1]) is None
        or not r.type_of(conv.inputs[1]).size
        or r.type_of(value).shape != r.type_of(node.outputs[0]).shape
    ):
        return None
    return conv if conv.input(2) is None or r.const(conv.input(2)) is not None else None


def _finite(array: np.ndarray) -> bool:
    return bool(np.isfinite(array).all())


@rule("conv(x, w, b) * s => conv(x, w * s, b * s)", Binary)
def scale_convolution(r: Rewriter, node: Node) -> str | None:
    conv = _convolution(r, node)
    if node.op.fn not in ("mul", "div") or conv is None:
        return None
    s = _channel_constant(r, node.inputs[1], node.outputs[0])
    if s is None or not _finite(s):
        return None
    apply = np.multiply if node.op.fn == "mul" else np.divide
    with np.errstate(all="ignore"):
        w = apply(r.constants[conv.inputs[1]], _along_outputs(conv, s, r.constants[conv.inputs[1]]))
        bias = r.const(conv.input(2))
        scaled = None if bias is None else apply(bias, s)
    if not _finite(w) or (scaled is not None and not _finite(scaled)):
        return None
    inputs = [conv.inputs[0], r.constant(w, conv.inputs[1])]
    if scaled is not None:
        inputs.append(r.constant(scaled, str(conv.input(2))))
    return r.emit(conv.op, *inputs, name=conv.name)


def _along_outputs(conv: Node, s: np.ndarray, w: np.ndarray) -> np.ndarray:
    """One number for each output channel, in the shape of the weights."""
    ones = (1,) * (w.ndim - 2)
    if isinstance(conv.op, Conv):
        return s.reshape(-1, 1, *ones)
    group, per_group = conv.op.group, w.shape[1]
    return np.repeat(s.reshape(group, 1, per_group), w.shape[0] // group, 1).reshape(-1, per_group, *ones)


@rule("conv(x, w, b) + c => conv(x, w, b + c)", Binary)
def add_to_convolution(r: Rewriter, node: Node) -> str | None:
    conv = _convolution(r, node)
    if node.op.fn != "add" or conv is None:
        return None
    c = _channel_constant(r, node.inputs[1], node.outputs[0])
    if c is None:
        return None
    bias = r.const(conv.input(2))
    total = c if bias is None else bias + c
    if not _finite(total) or (bias is not None and _rounds(bias, c, total)):
        return None
    held = r.constant(np.ascontiguousarray(total), conv.input(2) or str(node.inputs[1]))
    return r.emit(conv.op, *conv.inputs[:2], held, name=conv.name)


def _rounds(a: np.ndarray, b: np.ndarray, both: np.ndarray) -> bool:
    """Whether (x + a) + b is there to round x: in each channel the sum is as nothing beside them."""
    return a.size > 0 and bool((np.abs(both) < np.abs(b) / ROUNDING).all())


@rule("conv(x * s, w) => conv(x, w * s)", Conv)
def scaled_input(r: Rewriter, node: Node) -> str | None:
    scale, w = r.only_by(node.inputs[0], Binary), r.const(node.inputs[1])
    if scale is None or scale.op.fn != "mul" or w is None or not w.size:
        return None
    if r.type_of(scale.inputs[0]).shape != r.type_of(scale.outputs[0]).shape:
        return None
    s = _channel_constant(r, scale.inputs[1], scale.outputs[0])
    if s is None or not _finite(s):
        return None
    ones, per_group = (1,) * (w.ndim - 2), w.shape[1]
    factors = np.repeat(s.reshape(node.op.group, per_group), w.shape[0] // node.op.group, 0)
    with np.errstate(all="ignore"):
        scaled = w * factors.reshape(-1, per_group, *ones)
    if not _finite(scaled):
        return None
    return r.emit(node.op, scale.inputs[0], r.constant(scaled, node.inputs[1]), *node.inputs[2:])


@rule("conv(pad(x), w) => conv(x, w) with pads", Conv)
def padded_input(r: Rewriter, node: Node) -> str | None:
    pad = r.only_by(node.inputs[0], Pad)
    outside = node.op.fill if isinstance(node.op, DotDepthwise) else 0
    if pad is None or pad.op.mode != "constant" or pad_value(r, pad) != outside:
        return None
    before, after = pad.op.before, pad.op.after
    if any((*before[:2], *after[:2])) or min(*before, *after) < 0:
        return None
    pads = tuple(a + b for a, b in zip(node.op.pads, (*before[2:], *after[2:])))
    return r.emit(replace(node.op, pads=pads), pad.inputs[0], *node.inputs[1:])


@rule("matmul(x, w) * s => matmul(x, w * s)", Binary)
def scale_product(r: Rewriter, node: Node) -> str | None:
    product = r.only_by(node.inputs[0], MatMul)
    if node.op.fn not in ("mul", "div") or product is None:
        return None
    w, s, type = r.const(product.inputs[1]), r.const(node.inputs[1]), r.type_of(node.outputs[0])
    if (
        w is None
        or s is None
        or w.ndim != 2
        or w.dtype != s.dtype
        or type.dtype not in (F32, F64)
        or s.size not in (1, type.dims[-1])
    ):
        return None
    if (
        type.shape != r.type_of(node.inputs[0]).shape
        or (s.size > 1 and s.shape[-1] != s.size)
        or not _finite(s)
    ):
        return None
    columns = s.reshape(-1, 1) if product.op.trans_b else s.reshape(1, -1)
    with np.errstate(all="ignore"):
        scaled = w * columns if node.op.fn == "mul" else w / columns
    if not _finite(scaled):
        return None
    return r.emit(product.op, product.inputs[0], r.constant(scaled, product.inputs[1]), name=product.name)


@rule("matmul(a, transpose(b)) => matmul(a, b) with trans_b", MatMul)
def transposed_operand(r: Rewriter, node: Node) -> str | None:
    a, b = (r.made_by(i, Transpose) for i in node.inputs)
    flip_a, flip_b = (t is not None and _swaps_matrix(t) for t in (a, b))
    if not (flip_a or flip_b):
        return None
    op = replace(node.op, trans_a=node.op.trans_a ^ flip_a, trans_b=node.op.trans_b ^ flip_b)
    return r.emit(
        op, a.inputs[0] if a and flip_a else node.inputs[0], b.inputs[0] if b and flip_b else node.inputs[1]
    )


def _swaps_matrix(transpose: Node) -> bool:
    perm = transpose.op.perm
    n = len(perm)
    return n >= 2 and perm == (*range(n - 2), n - 1, n - 2)


LINEAR = (
    padded_input,
    scaled_input,
    scale_convolution,
    add_to_convolution,
    scale_product,
    transposed_operand,
)
