"""Import of pooling."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ...compiler.ops.pool import (
    AveragePool,
    GlobalAveragePool,
    GlobalLpPool,
    GlobalMaxPool,
    LpPool,
    MaxPool,
)
from ...compiler.ops.window import output_sizes
from .registry import NodeContext, onnx
from .rules_conv import Window, window

MOST_TAPS = 1 << 16
"""Of windows some of whose taps meet nothing but padding that counts."""


def _window(c: NodeContext, x: str, padding_counts: bool = False) -> tuple[Window, bool]:
    """The window without taps that meet nothing but padding, and whether partial ones count: with auto_pad
    VALID ONNX's size has no room for them."""
    ceil_mode = bool(c.attr("ceil_mode", 0)) and c.attr("auto_pad", "NOTSET") in ("NOTSET", "")
    full = window(c, x, tuple(c.required("kernel_shape")))
    cut = _cut(c, full, c.type(x).dims[2:], ceil_mode)
    if not padding_counts:
        return cut, ceil_mode
    if cut != full and prod(full.kernel) > MOST_TAPS:
        raise c.unsupported(
            f"kernel_shape {list(full.kernel)} with count_include_pad, of which {list(cut.kernel)} meets the "
            f"input {c.type(x)},",
            f"at most {MOST_TAPS} taps are",
        )
    return full, ceil_mode


def _cut(c: NodeContext, v: Window, sizes: tuple[int, ...], ceil_mode: bool) -> Window:
    """As many windows of the same elements."""
    outs = output_sizes(c.label, sizes, v.kernel, v.strides, v.dilations, v.pads, ceil_mode)
    kernel, begins, ends = list(v.kernel), list(v.pads[: len(sizes)]), list(v.pads[len(sizes) :])
    for a, (n, out, stride, dilation) in enumerate(zip(sizes, outs, v.strides, v.dilations)):
        if not n or not out:
            continue
        first = max(0, (begins[a] - (out - 1) * stride) // dilation)  # before it even the last window's are
        kernel[a], begins[a] = kernel[a] - first, begins[a] - first * dilation
        behind = max(0, kernel[a] - 1 - -(-(n - 1 + begins[a]) // dilation))
        kernel[a], ends[a] = kernel[a] - behind, max(0, ends[a] - behind * dilation)
    return replace(v, kernel=tuple(kernel), pads=(*begins, *ends))


@onnx("MaxPool")
def max_pool(c: NodeContext, x: str) -> tuple[str, ...]:
    v, ceil_mode = _window(c, x)
    order = c.attr("storage_order", 0)
    return c.emit(MaxPool(v.kernel, v.strides, v.pads, v.dilations, ceil_mode, order, c.wants(1)), x)


@onnx("AveragePool")
def average_pool(c: NodeContext, x: str) -> tuple[str, ...]:
    include = bool(c.attr("count_include_pad", 0))
    v, ceil_mode = _window(c, x, include)
    return c.emit(AveragePool(v.kernel, v.strides, v.pads, v.dilations, ceil_mode, include), x)


@onnx("LpPool")
def lp_pool(c: NodeContext, x: str) -> tuple[str, ...]:
    v, ceil_mode = _window(c, x)
    return c.emit(LpPool(v.kernel, v.strides, v.pads, v.dilations, ceil_mode, c.attr("p", 2)), x)


onnx("GlobalAveragePool")(lambda c, x: c.emit(GlobalAveragePool(), x))
onnx("GlobalMaxPool")(lambda c, x: c.emit(GlobalMaxPool(), x))
onnx("GlobalLpPool")(lambda c, x: c.emit(GlobalLpPool(c.attr("p", 2)), x))
