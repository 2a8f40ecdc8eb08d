"""Import of quantisation."""

from __future__ import annotations

from ...compiler.ir.types import DType, dtype_by_code
from ...compiler.ops.elementwise import Cast
from ...compiler.ops.quantize import (
    DequantizeLinear,
    DynamicQuantizeLinear,
    QLinearConv,
    QLinearMatMul,
    QuantizeLinear,
)
from .registry import NodeContext, onnx
from .rules_conv import kernel_of, window
from .rules_matmul import matrix_product


def dtype_attribute(c: NodeContext, name: str, default: DType) -> DType:
    """The dtype that an attribute names by number, 0 meaning the default."""
    code = c.attr(name, 0)
    try:
        return dtype_by_code(code) if code else default
    except KeyError:
        raise c.unsupported(f"{name}={code}", "use 8-bit or 16-bit integers and f32, f16 or bf16") from None


@onnx("QuantizeLinear")
def quantize(c: NodeContext, x: str, scale: str, zero: str | None = None) -> tuple[str, ...]:
    to = dtype_attribute(c, "output_dtype", dtype_by_code(2)) if zero is None else c.type(zero).dtype
    precision = dtype_attribute(c, "precision", c.type(scale).dtype)
    if not to.is_integer or not precision.is_float:
        raise c.unsupported(f"quantisation to {to} with {precision} scales")
    if c.attr("precision", 0) or (c.type(x).dtype.is_float and c.type(x).dtype is not precision):
        x, scale = (c.one(Cast(precision.name), value) for value in (x, scale))
    op = QuantizeLinear(c.attr("axis", 1), c.attr("block_size", 0), to.name, precision.name)
    return c.emit(op, x, scale, zero)


@onnx("DequantizeLinear")
def dequantize(c: NodeContext, x: str, scale: str, zero: str | None = None) -> tuple[str, ...]:
    to = dtype_attribute(c, "output_dtype", c.type(scale).dtype)
    if c.type(x).dtype.is_float and x not in c.g.small_types:
        raise c.unsupported(f"dequantising {c.type(x)}")
    if not to.is_float:
        raise c.unsupported(f"dequantising to {to}", "use f32, f16 or bf16")
    return c.emit(DequantizeLinear(c.attr("axis", 1), c.attr("block_size", 0), to.name), x, scale, zero)


@onnx("DynamicQuantizeLinear")
def dynamic_quantize(c: NodeContext, x: str) -> tuple[str, ...]:
    return c.emit(DynamicQuantizeLinear(), x)


@onnx("QLinearConv")
def qlinear_conv(
    c: NodeContext, x: str, x_scale: str, x_zero: str, w: str, *rest: str | None
) -> tuple[str, ...]:
    v = window(c, x, kernel_of(c, w))
    op = QLinearConv(v.strides, v.pads, v.dilations, c.attr("group", 1))
    return c.emit(op, x, x_scale, x_zero, w, *rest)


@onnx("QLinearMatMul")
def qlinear_matmul(c: NodeContext, a: str, a_scale: str, a_zero: str, b: str, *rest: str) -> str:
    return matrix_product(c, lambda a, b: c.one(QLinearMatMul(), a, a_scale, a_zero, b, *rest), a, b)
