"""Import of pooling."""

from __future__ import annotations

from ...compiler.ops.pool import (
    AveragePool,
    GlobalAveragePool,
    GlobalLpPool,
    GlobalMaxPool,
    LpPool,
    MaxPool,
)
from .registry import NodeContext, onnx
from .rules_conv import Window, window


def _window(c: NodeContext, x: str) -> tuple[Window, bool]:
    """The window, and whether partial ones count: with auto_pad VALID ONNX's size has no room for them."""
    ceil_mode = bool(c.attr("ceil_mode", 0)) and c.attr("auto_pad", "NOTSET") in ("NOTSET", "")
    return window(c, x, tuple(c.required("kernel_shape"))), ceil_mode


@onnx("MaxPool")
def max_pool(c: NodeContext, x: str) -> tuple[str, ...]:
    v, ceil_mode = _window(c, x)
    order = c.attr("storage_order", 0)
    return c.emit(MaxPool(v.kernel, v.strides, v.pads, v.dilations, ceil_mode, order, c.wants(1)), x)


@onnx("AveragePool")
def average_pool(c: NodeContext, x: str) -> tuple[str, ...]:
    v, ceil_mode = _window(c, x)
    include = bool(c.attr("count_include_pad", 0))
    return c.emit(AveragePool(v.kernel, v.strides, v.pads, v.dilations, ceil_mode, include), x)


@onnx("LpPool")
def lp_pool(c: NodeContext, x: str) -> tuple[str, ...]:
    v, ceil_mode = _window(c, x)
    return c.emit(LpPool(v.kernel, v.strides, v.pads, v.dilations, ceil_mode, c.attr("p", 2)), x)


onnx("GlobalAveragePool")(lambda c, x: c.emit(GlobalAveragePool(), x))
onnx("GlobalMaxPool")(lambda c, x: c.emit(GlobalMaxPool(), x))
onnx("GlobalLpPool")(lambda c, x: c.emit(GlobalLpPool(c.attr("p", 2)), x))
