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
"""Of windows that are taken as they are: some taps may meet nothing but padding."""


def _window(c: NodeContext, x: str, padding_counts: bool = False) -> tuple[Window, bool]:
    """The window, if it is large without taps that meet nothing but padding; and whether partial ones count:
    with auto_pad VALID ONNX's size has no room for them."""
    ceil_mode = bool(c.attr("ceil_mode", 0)) and c.attr("auto_pad", "NOTSET") in ("NOTSET", "")
    full = window(c, x, tuple(c.required("kernel_shape")))
    if prod(full.kernel) <= MOST_TAPS:
        return full, ceil_mode
    sizes = c.type(x).dims[2:]
    v = full if padding_counts or 0 in sizes else _cut(c, full, sizes, ceil_mode)
    if any(k > 2 * n for k, n in zip(v.kernel, sizes)):
        most = "expected at most two taps for each element along an axis"
        raise c.unsupported(f"kernel_shape {list(full.kernel)} on an input {c.type(x)}", most)
    return v, ceil_mode


def _cut(c: NodeContext, v: Window, sizes: tuple[int, ...], ceil_mode: bool) -> Window:
    """As many windows, which meet the same elements, with fewer taps."""
    outs = output_sizes(c.label, sizes, v.kernel, v.strides, v.dilations, v.pads, ceil_mode)
    kernel, begins, ends = list(v.kernel), list(v.pads[: len(sizes)]), list(v.pads[len(sizes) :])
    for a, (n, out, stride, dilation) in enumerate(zip(sizes, outs, v.strides, v.dilations)):
        before = max(0, (begins[a] - (out - 1) * stride) // dilation)  # of the last window and all others
        before = min(before, kernel[a] - 1)
        kernel[a], begins[a] = kernel[a] - before, begins[a] - before * dilation
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
