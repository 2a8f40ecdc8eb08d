"""Import of sampling at computed positions, regions of interest, and of what puts elements back."""

from __future__ import annotations

from ...compiler.ops.regions import Col2Im, MaxRoiPool, MaxUnpool, RoiAlign
from ...compiler.ops.sampling import DeformConv, GridSample
from ...errors import ModelError
from .registry import NodeContext, onnx
from .rules_conv import kernel_of, window


@onnx("GridSample", since=16)
def grid_sample(c: NodeContext, x: str, grid: str) -> tuple[str, ...]:
    mode = c.attr("mode", "linear")
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    op = GridSample(mode, c.attr("padding_mode", "zeros"), bool(c.attr("align_corners", 0)))
    return c.emit(op, x, grid)


@onnx("DeformConv", since=19)
def deform_conv(
    c: NodeContext, x: str, w: str, offset: str, bias: str | None = None, mask: str | None = None
) -> tuple[str, ...]:
    v = window(c, x, kernel_of(c, w), auto_pad=False)
    op = DeformConv(v.strides, v.pads, v.dilations, c.attr("group", 1), c.attr("offset_group", 1))
    return c.emit(op, x, w, offset, bias, mask)


@onnx("RoiAlign", since=10)
def roi_align(c: NodeContext, x: str, rois: str, batch: str) -> tuple[str, ...]:
    places = ("half_pixel", "output_half_pixel")
    places = places if c.opset >= 16 else places[::-1]
    op = RoiAlign(
        c.attr("output_height", 1),
        c.attr("output_width", 1),
        c.attr("sampling_ratio", 0),
        c.attr("spatial_scale", 1.0),
        c.attr("mode", "avg"),
        c.choice("coordinate_transformation_mode", *places) == "half_pixel",
    )
    return c.emit(op, x, rois, batch)


@onnx("MaxRoiPool")
def max_roi_pool(c: NodeContext, x: str, rois: str) -> tuple[str, ...]:
    bins = tuple(c.required("pooled_shape"))
    if len(bins) != 2:
        raise ModelError(f"{c.label}: pooled_shape {list(bins)} has {len(bins)} entries, expected 2")
    return c.emit(MaxRoiPool(*bins, c.attr("spatial_scale", 1.0)), x, rois)


@onnx("MaxUnpool", since=9)
def max_unpool(c: NodeContext, x: str, places: str, output_shape: str | None = None) -> tuple[str, ...]:
    """Places count in the output, which is as large as what MaxPool read.

    ONNX's test of `output_shape` counts in the size without it; onnxruntime does not either (onnx/onnx#2398).
    """
    v = window(c, x, tuple(c.required("kernel_shape")), auto_pad=False)
    if output_shape is not None:
        return c.emit(MaxUnpool(c.ints(output_shape, "output_shape")), x, places)
    dims = c.type(x).dims
    rank = len(dims) - 2
    shape = dims[:2] + tuple(
        (n - 1) * st - p - q + k
        for n, st, p, q, k in zip(dims[2:], v.strides, v.pads[:rank], v.pads[rank:], v.kernel)
    )
    return c.emit(MaxUnpool(shape), x, places)


@onnx("Col2Im", since=18)
def col2im(c: NodeContext, x: str, image_shape: str, block_shape: str) -> tuple[str, ...]:
    sizes, kernel = c.ints(image_shape, "image_shape"), c.ints(block_shape, "block_shape")
    rank = len(sizes)
    strides, dilations = (tuple(c.attr(name) or (1,) * rank) for name in ("strides", "dilations"))
    pads = tuple(c.attr("pads") or (0,) * 2 * rank)
    if not len(kernel) == len(strides) == len(dilations) == rank or len(pads) != 2 * rank:
        raise ModelError(f"{c.label}: block_shape, strides, dilations and pads do not fit {rank} axes")
    return c.emit(Col2Im(sizes, kernel, strides, pads, dilations), x)
