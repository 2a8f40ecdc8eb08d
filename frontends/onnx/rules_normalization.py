"""Import of normalisations."""

from __future__ import annotations

from ...compiler.ir.types import F32
from ...compiler.ops.normalization import (
    LRN,
    BatchNormalization,
    GroupNormalization,
    LayerNormalization,
    LpNormalization,
    MeanVarianceNormalization,
    RMSNormalization,
)
from .registry import NodeContext, onnx
from .rules_quantize import dtype_attribute


@onnx("BatchNormalization")
def batch_normalization(c: NodeContext, x: str, *params: str) -> tuple[str, ...]:
    if c.attr("training_mode", 0):
        raise c.unsupported("training_mode", "export the model for inference")
    if any(c.wants(output) for output in range(1, c.output_count)):
        raise c.unsupported("more than one output", "export the model for inference")
    if not c.attr("spatial", 1):
        raise c.unsupported("spatial=0", "export the model with a newer opset")
    return c.emit(BatchNormalization(c.attr("epsilon", 1e-5)), x, *params)


@onnx("InstanceNormalization")
def instance_normalization(c: NodeContext, x: str, scale: str, bias: str) -> tuple[str, ...]:
    type = c.type(x)
    channels = type.dims[1] if type.rank > 1 else 1
    return c.emit(GroupNormalization(max(channels, 1), c.attr("epsilon", 1e-5)), x, scale, bias)


@onnx("GroupNormalization", since=18)
def group_normalization(c: NodeContext, x: str, scale: str, bias: str) -> tuple[str, ...]:
    return c.emit(GroupNormalization(c.required("num_groups"), c.attr("epsilon", 1e-5)), x, scale, bias)


@onnx("LayerNormalization", since=17)
def layer_normalization(c: NodeContext, x: str, scale: str, bias: str | None = None) -> tuple[str, ...]:
    stash = dtype_attribute(c, "stash_type", F32)
    statistics = stash.name if c.wants(1) or c.wants(2) else ""
    return c.emit(LayerNormalization(c.attr("axis", -1), c.attr("epsilon", 1e-5), statistics), x, scale, bias)


@onnx("RMSNormalization", since=23)
def rms_normalization(c: NodeContext, x: str, scale: str) -> tuple[str, ...]:
    return c.emit(RMSNormalization(c.attr("axis", -1), c.attr("epsilon", 1e-5)), x, scale)


@onnx("MeanVarianceNormalization", since=9)
def mean_variance_normalization(c: NodeContext, x: str) -> tuple[str, ...]:
    axes = c.attr("axes", (0, 2, 3)) or range(c.type(x).rank)  # none are all, as for ReduceMean
    return c.emit(MeanVarianceNormalization(tuple(axes)), x)


@onnx("LpNormalization")
def lp_normalization(c: NodeContext, x: str) -> tuple[str, ...]:
    return c.emit(LpNormalization(c.attr("axis", -1), c.attr("p", 2)), x)


@onnx("LRN")
def lrn(c: NodeContext, x: str) -> tuple[str, ...]:
    """Where each channel's neighbours are all channels, a larger size is but a smaller factor."""
    size, alpha, type = c.required("size"), c.attr("alpha", 1e-4), c.type(x)
    most = max(2 * type.dims[1] - 1, 1) if type.rank > 1 else size
    if size > most:
        size, alpha = most, alpha / size * most
    return c.emit(LRN(size, alpha, c.attr("beta", 0.75), c.attr("bias", 1.0)), x)
