"""Import of gathers, scatters, sorting, running sums, and of results whose size depends on values."""

from __future__ import annotations

import numpy as np

from ...compiler.ops.indexing import (
    Gather,
    GatherElements,
    GatherND,
    OneHot,
    ReverseSequence,
    ScatterElements,
    ScatterND,
    TensorScatter,
)
from ...compiler.ops.movement import Reshape
from ...compiler.ops.shapes import axis_of
from ...compiler.ops.sorting import Cumulative, Det, TopK
from ...errors import ModelError
from .registry import NodeContext, onnx


@onnx("Gather")
def gather(c: NodeContext, x: str, indices: str):
    return c.emit(Gather(axis_of(c.attr("axis", 0), c.type(x).rank)), x, indices)


@onnx("GatherElements")
def gather_elements(c: NodeContext, x: str, indices: str):
    return c.emit(GatherElements(axis_of(c.attr("axis", 0), c.type(x).rank)), x, indices)


@onnx("GatherND")
def gather_nd(c: NodeContext, x: str, indices: str):
    return c.emit(GatherND(c.attr("batch_dims", 0)), x, indices)


@onnx("Scatter")
@onnx("ScatterElements")
def scatter_elements(c: NodeContext, x: str, indices: str, updates: str):
    axis = axis_of(c.attr("axis", 0), c.type(x).rank)
    return c.emit(ScatterElements(axis, c.attr("reduction", "none")), x, indices, updates)


@onnx("ScatterND")
def scatter_nd(c: NodeContext, x: str, indices: str, updates: str):
    return c.emit(ScatterND(c.attr("reduction", "none")), x, indices, updates)


@onnx("TensorScatter")
def tensor_scatter(c: NodeContext, past: str, update: str, start: str | None = None):
    axis = axis_of(c.attr("axis", -2), c.type(past).rank)
    return c.emit(
        TensorScatter(axis, c.choice("mode", "linear", "circular") == "circular"), past, update, start
    )


@onnx("OneHot")
def one_hot(c: NodeContext, indices: str, depth: str, values: str):
    return c.emit(OneHot(c.attr("axis", -1), c.int_(depth, "depth", whole=False)), indices, values)


@onnx("ReverseSequence")
def reverse_sequence(c: NodeContext, x: str, lengths: str):
    return c.emit(ReverseSequence(c.attr("batch_axis", 1), c.attr("time_axis", 0)), x, lengths)


@onnx("CumSum")
def cum_sum(c: NodeContext, x: str, axis: str):
    return _cumulative(c, "sum", x, axis)


@onnx("CumProd")
def cum_prod(c: NodeContext, x: str, axis: str):
    return _cumulative(c, "prod", x, axis)


def _cumulative(c: NodeContext, fn: str, x: str, axis: str):
    along = axis_of(c.int_(axis, "axis"), c.type(x).rank)
    return c.emit(Cumulative(fn, along, bool(c.attr("exclusive", 0)), bool(c.attr("reverse", 0))), x)


@onnx("TopK")
def top_k_attribute(c: NodeContext, x: str):
    return c.emit(TopK(axis_of(c.attr("axis", -1), c.type(x).rank), c.required("k")), x)


@onnx("TopK", since=10)
def top_k(c: NodeContext, x: str, k: str):
    axis = axis_of(c.attr("axis", -1), c.type(x).rank)
    return c.emit(TopK(axis, c.int_(k, "k"), bool(c.attr("largest", 1))), x)


@onnx("Det")
def det(c: NodeContext, x: str):
    return c.emit(Det(), x)


@onnx("Compress")
def compress(c: NodeContext, x: str, condition: str):
    kept = np.flatnonzero(c.value(condition, "condition"))
    axis = c.attr("axis")
    if axis is None:
        x, axis = c.one(Reshape((c.type(x).size,)), x), 0
    axis = axis_of(axis, c.type(x).rank)
    if kept.size and kept[-1] >= c.type(x).dims[axis]:
        raise ModelError(f"{c.label}: its condition keeps element {kept[-1]} of {c.type(x).dims[axis]}")
    return c.emit(Gather(axis), x, c.const(kept.astype(np.int64)))


@onnx("NonZero")
def non_zero(c: NodeContext, x: str):
    value = c.value(x, "input (the number of its nonzero elements)")
    count = np.count_nonzero(value)
    found = np.nonzero(value) if value.ndim else ()
    return c.const(np.array(found, np.int64).reshape(value.ndim, count))


@onnx("Unique")
def unique(c: NodeContext, x: str):
    value, axis = c.value(x, "input (the number of its distinct elements)"), c.attr("axis")
    found, first, inverse, counts = np.unique(
        value, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.ravel()
    if not c.attr("sorted", 1):
        order = np.argsort(first)
        found = np.take(found, order, 0 if axis is None else axis)
        first, counts, inverse = first[order], counts[order], np.argsort(order)[inverse]
    rest = (c.const(part.astype(np.int64)) for part in (first, inverse, counts))
    return (c.const(found), *rest)
