"""Import of Resize and Upsample: scales or sizes, for some or all axes, become both for all axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...compiler.ir.types import F64
from ...compiler.ops.resize import Resize
from ...compiler.ops.shapes import axis_of
from ...errors import ModelError
from .registry import NodeContext, onnx
from .tensors import MAX_MADE_BYTES, checked_bytes


def _with_axes(values: Sequence, axes: Sequence[int], default: Sequence) -> list:
    """`default` with the values of some axes replaced."""
    result = list(default)
    for axis, value in zip(axes, values):
        result[axis] = value
    return result


def _output_sizes(c: NodeContext, dims: Sequence[int], scales: Sequence[float]) -> tuple[int, ...]:
    if not all(0 < scale < 2**31 for scale in scales):
        raise ModelError(f"{c.label}: scales {list(scales)} are not all positive and finite")
    return tuple(d if scale == 1 else _output_size(d, scale) for d, scale in zip(dims, scales))


def _output_size(size: int, scale: float) -> int:
    """In f32, as exporters and onnxruntime count: 10 · 0.7 is 7."""
    return int(np.floor(np.float32(size) * np.float32(scale)))


def _emit_checked(c: NodeContext, op: Resize, x: str) -> tuple[str, ...]:
    """Checks the output's size first: tables as long as its axes are made at once."""
    checked_bytes(c.type(x).dtype, op.sizes, f"{c.label}: its output")
    longest = max(op.sizes, default=0)
    if op.antialias:  # with all elements that a position is made of
        longest = max(longest, 4 * max(c.type(x).dims, default=0))
    checked_bytes(F64, (longest,), f"{c.label}: a table of its positions", MAX_MADE_BYTES)
    return c.emit(op, x)


def _resize_before_11(c: NodeContext, x: str, scales: Sequence[float]) -> tuple[str, ...]:
    """The rules of opset 10 and before."""
    dims = c.type(x).dims
    if len(scales) != len(dims):
        raise ModelError(f"{c.label}: {len(scales)} scales for {len(dims)} axes")
    mode = c.attr("mode", "nearest")
    mode = "linear" if mode == "bilinear" else mode
    op = Resize(_output_sizes(c, dims, scales), tuple(map(float, scales)), mode, "asymmetric", "simple")
    return _emit_checked(c, op, x)


@onnx("Upsample", since=7)
def upsample_7(c: NodeContext, x: str) -> tuple[str, ...]:
    return _resize_before_11(c, x, c.required("scales"))


@onnx("Upsample", since=9)
@onnx("Resize", since=10)
def upsample_9(c: NodeContext, x: str, scales: str) -> tuple[str, ...]:
    return _resize_before_11(c, x, c.value(scales, "scales").ravel().tolist())


@onnx("Resize", since=11)
def resize(
    c: NodeContext, x: str, roi: str | None = None, scales: str | None = None, sizes: str | None = None
) -> tuple[str, ...]:
    dims = c.type(x).dims
    rank = len(dims)
    axes = [axis_of(a, rank) for a in c.attr("axes") or range(rank)]
    given_scales = [] if scales is None else c.value(scales, "scales").ravel().tolist()
    given_sizes = [] if sizes is None else list(c.ints(sizes, "sizes"))
    if len(given_sizes or given_scales) != len(axes):
        raise ModelError(f"{c.label}: expected one scale or one size for each of {len(axes)} axes")
    if given_sizes:
        outs, factors = _from_sizes(c, dims, axes, given_sizes)
    else:
        factors = _with_axes(given_scales, axes, [1.0] * rank)
        outs = _output_sizes(c, dims, factors)
    coordinates = c.attr("coordinate_transformation_mode", "half_pixel")
    region: list[float] = []
    if coordinates == "tf_crop_and_resize":
        values = c.value(roi, "roi").ravel().tolist()
        if len(values) != 2 * len(axes):
            raise ModelError(f"{c.label}: roi has {len(values)} entries, expected {2 * len(axes)}")
        begins, ends = values[: len(axes)], values[len(axes) :]
        region = _with_axes(begins, axes, [0.0] * rank) + _with_axes(ends, axes, [1.0] * rank)
    op = Resize(
        outs,
        tuple(factors),
        c.attr("mode", "nearest"),
        coordinates,
        c.choice("nearest_mode", "round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
        c.attr("cubic_coeff_a", -0.75),
        bool(c.attr("exclude_outside", 0)),
        bool(c.attr("antialias", 0)),
        c.attr("extrapolation_value", 0.0),
        tuple(region),
    )
    return _emit_checked(c, op, x)


def _from_sizes(
    c: NodeContext, dims: Sequence[int], axes: Sequence[int], sizes: Sequence[int]
) -> tuple[tuple[int, ...], list[float]]:
    """Sizes and scales of all axes, one common scale where the aspect ratio is to be kept."""
    if any(dims[a] == 0 and n for a, n in zip(axes, sizes)):
        raise ModelError(f"{c.label}: an input of {list(dims)} cannot be resized")
    factors = [n / dims[a] if dims[a] else 1.0 for a, n in zip(axes, sizes)]
    policy = c.attr("keep_aspect_ratio_policy", "stretch")
    if policy not in ("stretch", "not_larger", "not_smaller"):
        raise ModelError(f"{c.label}: unknown keep_aspect_ratio_policy {policy!r}")
    if policy != "stretch":
        factors = [min(factors) if policy == "not_larger" else max(factors)] * len(axes)
        sizes = [int(factor * dims[a] + 0.5) for a, factor in zip(axes, factors)]
    return tuple(_with_axes(sizes, axes, dims)), _with_axes(factors, axes, [1.0] * len(dims))
