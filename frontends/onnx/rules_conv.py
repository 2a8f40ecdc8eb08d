"""Import of convolutions: auto_pad, output_shape and defaults become explicit pads and sizes."""

from __future__ import annotations

from dataclasses import dataclass

from ...compiler.ops.conv import Conv, ConvInteger, ConvTranspose
from ...compiler.ops.window import resolve_auto_pad
from ...errors import ModelError
from .registry import NodeContext, onnx


@dataclass(frozen=True)
class Window:
    """The attributes that convolutions and pooling share, defaults filled in; pads are explicit."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]


def window(c: NodeContext, x: str, kernel: tuple[int, ...], auto_pad: bool = True) -> Window:
    """ModelError where an attribute has the wrong number of entries, or no sensible value."""
    sizes = c.type(x).dims[2:]
    rank = len(sizes)
    strides = tuple(c.attr("strides") or (1,) * rank)
    dilations = tuple(c.attr("dilations") or (1,) * rank)
    pads = tuple(c.attr("pads") or (0,) * 2 * rank)
    for name, values, count in (
        ("kernel_shape", kernel, rank),
        ("strides", strides, rank),
        ("dilations", dilations, rank),
        ("pads", pads, 2 * rank),
    ):
        if len(values) != count:
            raise ModelError(f"{c.label}: {name} {list(values)} has {len(values)} entries, expected {count}")
        if name != "pads" and min(values, default=1) < 1:
            raise ModelError(f"{c.label}: {name} {list(values)}: expected numbers from 1 on")
    if auto_pad:
        pads = resolve_auto_pad(c.attr("auto_pad", "NOTSET"), sizes, kernel, strides, dilations, pads)
    return Window(kernel, strides, pads, dilations)


def kernel_of(c: NodeContext, w: str) -> tuple[int, ...]:
    """The weights' spatial sizes, which a kernel_shape attribute must repeat."""
    kernel = c.type(w).dims[2:]
    declared = c.attr("kernel_shape")
    if declared and tuple(declared) != kernel:
        raise ModelError(f"{c.label}: kernel_shape {list(declared)} but the weights are {c.type(w)}")
    return kernel


@onnx("Conv")
def conv(c: NodeContext, x: str, w: str, bias: str | None = None) -> tuple[str, ...]:
    v = window(c, x, kernel_of(c, w))
    return c.emit(Conv(v.strides, v.pads, v.dilations, c.attr("group", 1)), x, w, bias)


@onnx("ConvInteger")
def conv_integer(
    c: NodeContext, x: str, w: str, x_zero: str | None = None, w_zero: str | None = None
) -> tuple[str, ...]:
    v = window(c, x, kernel_of(c, w))
    return c.emit(ConvInteger(v.strides, v.pads, v.dilations, c.attr("group", 1)), x, w, x_zero, w_zero)


@onnx("ConvTranspose")
def conv_transpose(c: NodeContext, x: str, w: str, bias: str | None = None) -> tuple[str, ...]:
    v = window(c, x, kernel_of(c, w), auto_pad=False)
    spatial = c.type(x).dims[2:]
    rank = len(spatial)
    extra = tuple(c.attr("output_padding") or (0,) * rank)
    if len(extra) != rank:
        raise ModelError(f"{c.label}: output_padding {list(extra)} has {len(extra)} entries, expected {rank}")
    if min(extra, default=0) < 0:
        raise ModelError(f"{c.label}: output_padding {list(extra)}, expected none below 0")
    full = tuple(
        (n - 1) * st + (k - 1) * d + 1 + e
        for n, k, st, d, e in zip(spatial, v.kernel, v.strides, v.dilations, extra)
    )
    auto_pad = c.choice("auto_pad", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
    sizes = tuple(c.attr("output_shape") or ())[-rank:]
    if not sizes and auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        sizes = tuple(min(n * st, f) for n, st, f in zip(spatial, v.strides, full))
    if sizes:
        totals = [max(f - n, 0) for f, n in zip(full, sizes)]
        # before opset 11 the text says it the other way round; onnxruntime takes the new one for all
        begins = tuple(t // 2 if auto_pad == "SAME_UPPER" else t - t // 2 for t in totals)
    else:
        pads = (0,) * 2 * rank if auto_pad == "VALID" else v.pads
        begins = pads[:rank]
        sizes = tuple(f - p - q for f, p, q in zip(full, pads[:rank], pads[rank:]))
    if len(sizes) != rank or min(sizes, default=-1) < 0:
        raise ModelError(f"{c.label}: its output would have the spatial sizes {list(sizes)}; check pads")
    op = ConvTranspose(v.strides, begins, v.dilations, sizes, c.attr("group", 1))
    return c.emit(op, x, w, bias)
