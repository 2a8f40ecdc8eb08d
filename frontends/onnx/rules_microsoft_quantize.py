"""Import of onnxruntime's quantised operators: after each tensor come its scale and its zero point."""

from __future__ import annotations

import numpy as np

from ...compiler.ops.elementwise import Binary, Cast, Where
from ...compiler.ops.matmul import MatMulInteger
from ...compiler.ops.movement import Concat, Reshape, Transpose
from ...compiler.ops.quantize import (
    DequantizeLinear,
    DynamicQuantizeLinear,
    QuantizeLinear,
    quotient_of_scales,
    requantize,
)
from ...compiler.ops.reduction import Softmax
from ...compiler.ops.shapes import axis_of
from ...errors import ModelError
from .registry import NodeContext, Rule
from .rules_matmul import matrix_product
from .rules_microsoft import Results, microsoft, standard, total
from .rules_microsoft_attention import refuse_shared_buffers, self_attention
from .rules_quantize import dequantize, quantize
from .rules_recurrent import lstm
from .rules_reduction import softmax_of_flat

THROUGH = {
    "QLinearAveragePool": ("AveragePool", 19), "QLinearGlobalAveragePool": ("GlobalAveragePool", 1),
    "QLinearLeakyRelu": ("LeakyRelu", 16), "QLinearSigmoid": ("Sigmoid", 13),
}  # fmt: skip
"""Those of one tensor that are ONNX's operator of that name and opset on real numbers."""

microsoft("QuantizeLinear")(quantize)
microsoft("DequantizeLinear")(dequantize)


def real(c: NodeContext, x: str, scale: str, zero: str | None) -> str:
    return c.one(DequantizeLinear(to=c.type(scale).dtype.name), x, scale, zero)


def quantised(c: NodeContext, value: str, scale: str, zero: str | None, like: str) -> str:
    """In the type of `like`."""
    return c.one(QuantizeLinear(to=c.type(like).dtype.name), value, scale, zero)


def _through_rule(name: str, opset: int) -> Rule:
    def rule(
        c: NodeContext, x: str, x_scale: str, x_zero: str | None, y_scale: str, y_zero: str | None = None
    ):
        if c.attr("channels_last", 0):
            raise c.unsupported("channels_last", "quantise the model with channels first")
        result = standard(c, name, opset, real(c, x, x_scale, x_zero))
        return quantised(c, result, y_scale, y_zero, x)

    return rule


for _own, (_name, _opset) in THROUGH.items():
    microsoft(_own)(_through_rule(_name, _opset))


@microsoft("QLinearSoftmax")
def qlinear_softmax(
    c: NodeContext, x: str, x_scale: str, x_zero: str | None, y_scale: str, y_zero: str | None = None
):
    """`opset` says what `axis` means."""
    axis = axis_of(c.attr("axis", -1), c.type(x).rank)
    value = real(c, x, x_scale, x_zero)
    flat = c.required("opset") < 13
    result = softmax_of_flat(c, Softmax, value, axis) if flat else c.one(Softmax(axis), value)
    return quantised(c, result, y_scale, y_zero, x)


def _binary_rule(fn: str) -> Rule:
    def rule(
        c: NodeContext,
        a: str,
        a_scale: str,
        a_zero: str | None,
        b: str,
        b_scale: str,
        b_zero: str | None,
        y_scale: str,
        y_zero: str | None = None,
    ):
        result = c.one(Binary(fn), real(c, a, a_scale, a_zero), real(c, b, b_scale, b_zero))
        return quantised(c, result, y_scale, y_zero, a)

    return rule


microsoft("QLinearAdd")(_binary_rule("add"))
microsoft("QLinearMul")(_binary_rule("mul"))


@microsoft("QLinearWhere")
def qlinear_where(
    c: NodeContext,
    condition: str,
    x: str,
    x_scale: str,
    x_zero: str,
    y: str,
    y_scale: str,
    y_zero: str,
    z_scale: str,
    z_zero: str,
):
    chosen = c.one(Where(), condition, real(c, x, x_scale, x_zero), real(c, y, y_scale, y_zero))
    return quantised(c, chosen, z_scale, z_zero, x)


@microsoft("QLinearConcat")
def qlinear_concat(c: NodeContext, y_scale: str, y_zero: str, *parts: str):
    """`parts`: tensor, scale, zero point of each. Those with the result's own are taken as they are."""
    if not parts or len(parts) % 3:
        raise c.unsupported(f"{len(parts)} inputs after the result's scale", "it takes three of each part")

    def equal(a: str, b: str) -> bool:
        one, other = c.g.constants.get(a), c.g.constants.get(b)
        return a == b or (one is not None and other is not None and np.array_equal(one, other))

    def fitting(x: str, scale: str, zero: str) -> str:
        if equal(scale, y_scale) and equal(zero, y_zero):
            return x
        return quantised(c, real(c, x, scale, zero), y_scale, y_zero, y_zero)

    axis = axis_of(c.required("axis"), c.type(parts[0]).rank)
    return c.emit(Concat(axis), *(fitting(*parts[n : n + 3]) for n in range(0, len(parts), 3)))


# --- products -----------------------------------------------------------------------------------------------


@microsoft("QGemm")
def q_gemm(
    c: NodeContext,
    a: str,
    a_scale: str,
    a_zero: str,
    b: str,
    b_scale: str,
    b_zero: str,
    bias: str | None = None,
    y_scale: str | None = None,
    y_zero: str | None = None,
):
    """Without a scale and a zero point of the result, real numbers."""
    if (y_scale is None) != (y_zero is None):
        raise c.unsupported("a scale of the result without its zero point, or the other way round")
    left, right = (
        c.one(Transpose((1, 0)), v) if c.attr(n, 0) else v for n, v in (("transA", a), ("transB", b))
    )
    whole = total(c, c.one(MatMulInteger(), left, right, _scalar(c, a_zero), b_zero), bias)
    alpha = c.const(np.array(c.attr("alpha", 1.0), np.float32))
    factors = c.one(Binary("mul"), _scalar(c, a_scale), alpha), b_scale
    if y_scale is None or y_zero is None:
        return c.emit(Binary("mul"), c.one(Cast("f32"), whole), c.one(Binary("mul"), *factors))
    factor = quotient_of_scales(c.g, *factors, _scalar(c, y_scale))
    return requantize(c.g, whole, factor, _scalar(c, y_zero))


def _scalar(c: NodeContext, value: str) -> str:
    """One value, whatever its rank."""
    return value if c.type(value).rank == 0 else c.one(Reshape(()), value)


def _product(
    c: NodeContext, a: str, a_scale: str, a_zero: str | None, b: str, b_scale: str, b_zero: str | None
) -> str:
    """Of quantised matrices, in real numbers; what belongs to b may be one value a column."""
    whole = matrix_product(c, lambda a, b: c.one(MatMulInteger(), a, b, a_zero, b_zero), a, b)
    return c.one(Binary("mul"), c.one(Cast("f32"), whole), c.one(Binary("mul"), a_scale, b_scale))


@microsoft("MatMulIntegerToFloat")
def matmul_integer_to_float(
    c: NodeContext,
    a: str,
    b: str,
    a_scale: str,
    b_scale: str,
    a_zero: str | None = None,
    b_zero: str | None = None,
    bias: str | None = None,
):
    return total(c, _product(c, a, a_scale, a_zero, b, b_scale, b_zero), bias)


@microsoft("DynamicQuantizeMatMul")
def dynamic_quantize_matmul(
    c: NodeContext, a: str, b: str, b_scale: str, b_zero: str | None = None, bias: str | None = None
):
    whole, a_scale, a_zero = c.emit(DynamicQuantizeLinear(), a)
    return total(c, _product(c, whole, a_scale, a_zero, b, b_scale, b_zero), bias)


@microsoft("QAttention")
def q_attention(
    c: NodeContext,
    x: str,
    weights: str,
    bias: str,
    x_scale: str,
    w_scale: str,
    mask: str | None = None,
    x_zero: str | None = None,
    w_zero: str | None = None,
    past: str | None = None,
) -> Results:
    refuse_shared_buffers(c)
    projected = total(c, _product(c, x, x_scale, x_zero, weights, w_scale, w_zero), bias)
    return self_attention(c, projected, mask, past)


@microsoft("DynamicQuantizeLSTM")
def dynamic_quantize_lstm(c: NodeContext, x: str, w: str, r: str, *rest: str | None):
    """The weights' numbers; data and states, which onnxruntime rounds to 8 bits at each step, stay f32."""
    if len(rest) != 9:
        raise ModelError(f"{c.label}: {3 + len(rest)} inputs, expected 12")
    *states, w_scale, w_zero, r_scale, r_zero = rest
    return lstm(c, x, _gates(c, w, w_scale, w_zero), _gates(c, r, r_scale, r_zero), *states)


def _gates(c: NodeContext, weights: str, scale: str | None, zero: str | None) -> str:
    """[directions, gates, inputs] of [directions, inputs, gates]; one scale a direction, or a gate."""
    directions, _, gates = c.dims(weights, 3)

    def spread(value: str | None) -> str:
        size = gates if c.type(value or "").rank > 1 else 1
        return c.one(Reshape((directions, 1, size)), c.one(Cast("f32"), value))

    shifted = c.one(Binary("sub"), c.one(Cast("f32"), weights), spread(zero))
    return c.one(Transpose((0, 2, 1)), c.one(Binary("mul"), shifted, spread(scale)))
