"""Floating-point operations of an ONNX model, counted from the shapes in its graph.

Counted are the operators that make up nearly all of a network's work: products of matrices,
convolutions and recurrent cells. A multiply-add counts as two; biases, activations, pooling and the
like count nothing, as is usual, so that figures compare with published ones. An algorithm that needs
fewer operations (Winograd) is credited with the nominal ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

import numpy as np
import onnx
import onnx.inliner
import onnx.shape_inference

from ..errors import BurnishError, UnsupportedError
from ..frontends.onnx.importer import import_onnx
from ..frontends.onnx.interface import static_shape

Shape = tuple[int, ...]
LARGE = 1 << 16  # bytes of a constant, of which sizes may follow from its numbers up to there


def count_flops(model: onnx.ModelProto, inputs: Mapping[str, Shape] | None = None) -> int:
    """Operations of one inference, with `inputs` as the shapes of graph inputs that the model leaves open.

    Raises UnsupportedError, naming the node, where a shape that is needed cannot be inferred.
    """
    shapes = _infer_shapes(model, inputs or {})
    try:
        return _counted(shapes)
    except UnsupportedError:  # ONNX does not infer through operators of other domains
        try:
            graph = import_onnx(model, shapes=inputs)
        except BurnishError:
            graph = None
        if graph is None:
            raise
        shapes.known = {name: type.dims for name, type in graph.types.items()} | shapes.known
        return _counted(shapes)


def nominal_flops(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> int | None:
    """None where the model's shapes do not give them, or what it multiplies stands in branches."""
    try:
        return count_flops(model, {name: array.shape for name, array in inputs.items()}) or None
    except Exception:  # whatever inferring shapes raises for an odd model: it is a column of a table
        return None


def _counted(shapes: _Shapes) -> int:
    total = 0
    for node in shapes.graph.node:
        count = _COUNTERS.get(node.op_type) if node.domain in ("", "ai.onnx", "com.microsoft") else None
        if count is not None:
            total += count(node, shapes)
    return total


class _Shapes:
    """Shapes of every value of a graph; a missing one is an error only where it is asked for."""

    def __init__(self, graph: onnx.GraphProto):
        self.graph = graph
        self.known: dict[str, Shape] = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        for value in (*graph.input, *graph.value_info, *graph.output):
            if (shape := static_shape(value)) is not None:
                self.known.setdefault(value.name, shape)
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
                self.known.setdefault(node.output[0], tuple(node.attribute[0].t.dims))

    def of(self, node: onnx.NodeProto, name: str) -> Shape:
        if name not in self.known:
            title = node.name or node.output[0]
            raise UnsupportedError(f"{node.op_type} '{title}': the shape of '{name}' is not known")
        return self.known[name]


def _infer_shapes(model: onnx.ModelProto, inputs: Mapping[str, Shape]) -> _Shapes:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for weights in copy.graph.initializer:  # sizes are enough, and more than 2 GB could not be passed on
        if len(weights.raw_data) > LARGE:
            weights.ClearField("raw_data")
    if copy.functions:
        copy = onnx.inliner.inline_local_functions(copy)
    for value in copy.graph.input:
        if value.name in inputs:
            value.type.tensor_type.ClearField("shape")
            for size in inputs[value.name]:
                value.type.tensor_type.shape.dim.add().dim_value = size
    return _Shapes(onnx.shape_inference.infer_shapes(copy, data_prop=True).graph)


def _conv(weights: int, node: onnx.NodeProto, shapes: _Shapes) -> int:
    # weights are (out channels, in channels / group, *kernel)
    return 2 * prod(shapes.of(node, node.output[0])) * prod(shapes.of(node, node.input[weights])[1:])


def _conv_transpose(node: onnx.NodeProto, shapes: _Shapes) -> int:
    # weights are (in channels, out channels / group, *kernel)
    return 2 * prod(shapes.of(node, node.input[0])) * prod(shapes.of(node, node.input[1])[1:])


def _product(node: onnx.NodeProto, shapes: _Shapes) -> int:
    left = shapes.of(node, node.input[0])
    transposed = any(item.name == "transA" and item.i for item in node.attribute) and len(left) > 1
    return 2 * left[-2 if transposed else -1] * prod(shapes.of(node, node.output[0]))


def _attention(node: onnx.NodeProto, shapes: _Shapes) -> int:
    # x is (batch, steps, in), weights (in, queries + keys + values); every step looks at every other one
    (*rows, _), weights = shapes.of(node, node.input[0]), shapes.of(node, node.input[1])
    return 2 * prod(rows) * (prod(weights) + rows[-1] * weights[1] * 2 // 3)


def _recurrent(node: onnx.NodeProto, shapes: _Shapes) -> int:
    # x is (steps, batch, in) or (batch, steps, in); w and r are (directions, gates · hidden, in | hidden)
    rows = prod(shapes.of(node, node.input[0])[:2])
    return 2 * rows * sum(prod(shapes.of(node, name)) for name in node.input[1:3])


def _einsum(node: onnx.NodeProto, shapes: _Shapes) -> int:
    equation = next(item.s.decode() for item in node.attribute if item.name == "equation").replace(" ", "")
    terms = equation.partition("->")[0].split(",")
    if len(terms) != 2 or "..." in equation:
        return 0
    sizes: dict[str, int] = {}
    for term, name in zip(terms, node.input):
        for label, size in zip(term, shapes.of(node, name)):
            sizes[label] = max(size, sizes.get(label, 1))
    return 2 * prod(sizes.values())


_COUNTERS: dict[str, Callable[[onnx.NodeProto, _Shapes], int]] = {
    "Conv": lambda node, shapes: _conv(1, node, shapes),
    "ConvInteger": lambda node, shapes: _conv(1, node, shapes),
    "QLinearConv": lambda node, shapes: _conv(3, node, shapes),
    "ConvTranspose": _conv_transpose,
    "Gemm": _product,
    "MatMul": _product,
    "MatMulInteger": _product,
    "QLinearMatMul": _product,
    "Einsum": _einsum,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
    "Attention": lambda node, shapes: _attention(node, shapes) if node.domain == "com.microsoft" else 0,
    "DynamicQuantizeMatMul": _product,
    "FusedConv": lambda node, shapes: _conv(1, node, shapes),
    "FusedGemm": _product,
    "FusedMatMul": _product,
    "MatMulIntegerToFloat": _product,
    "MatMulNBits": _product,
    "QAttention": _attention,
    "QGemm": _product,
}
