"""Seeded inputs and weights for any ONNX model, so that its outputs can tell right from wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ..errors import InputError
from ..frontends.onnx.interface import fed_inputs, is_fixed, static_shape
from .builder import AFTER_RELU, random_filters

# What a constant is to the operator that reads it, by (operator, input index).
_ROLES = {
    **{(op, 1): "weight" for op in ("Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN")},
    **{(op, 2): "weight" for op in ("LSTM", "GRU", "RNN")},
    **{(op, 2): "shift" for op in ("Conv", "ConvTranspose", "Gemm")},
    **{(op, 3): "shift" for op in ("LSTM", "GRU", "RNN")},
    **{(f"{op}Normalization", 1): "norm scale" for op in ("Batch", "Layer", "Instance", "Group")},
    **{(f"{op}Normalization", 2): "shift" for op in ("Batch", "Layer", "Instance", "Group")},
    ("BatchNormalization", 3): "shift",
    ("BatchNormalization", 4): "scale",
    ("MatMul", 0): "weight",
    ("Gather", 0): "table",
    ("PRelu", 1): "slope",
    **{("Mul", index): "scale" for index in (0, 1)},
    ("Div", 1): "scale",
    **{(op, index): "shift" for op in ("Add", "Sub", "Sum") for index in (0, 1)},
}
_ELEMENTWISE = {"Mul", "Div", "Add", "Sub", "Sum"}
_SAME_VALUES = {"Unsqueeze", "Squeeze", "Reshape", "Flatten", "Identity", "Transpose", "Cast"}
_RELUS = {"Relu", "Clip", "PRelu", "LeakyRelu"}
_SAME_SIGN = _SAME_VALUES | {"MaxPool", "AveragePool", "GlobalAveragePool", "Concat", "LRN", "Dropout"}
# A normalisation that ends a residual branch halves it, so that a deep trunk keeps its scale.
_BRANCH_GAIN = 0.5
_STD = {"shift": 0.1, "table": 1.0}


def random_inputs(model: onnx.ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    """An array for each input that is not an initializer: floats from N(0, 1), truth values, and integers
    that are 0 or 1, or any valid index where a Gather looks them up in a constant.

    Raises InputError for an input without static shape or with a dtype that is not numeric.
    """
    rng = np.random.default_rng(seed)
    limits = _index_limits(model.graph)
    return {
        value.name: _random_input(value, rng, limits.get(value.name, 2)) for value in fed_inputs(model.graph)
    }


def _random_input(value: onnx.ValueInfoProto, rng: np.random.Generator, limit: int) -> np.ndarray:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape") or tensor.elem_type in (
        onnx.TensorProto.STRING,
        onnx.TensorProto.UNDEFINED,
    ):
        raise InputError(
            f"input {value.name!r} is not a numeric tensor of known shape: give its values yourself"
        )
    shape = static_shape(value)
    if shape is None:
        axis, dim = next((n, d) for n, d in enumerate(tensor.shape.dim) if not is_fixed(d))
        name = dim.dim_param or "?"
        raise InputError(f"input {value.name!r}: dim {axis} ({name}) is not static: bind it (--dim {name}=1)")
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    if dtype.kind in "iub":
        return np.asarray(rng.integers(0, limit, shape)).astype(dtype)
    return np.asarray(rng.standard_normal(shape)).astype(dtype)


def _index_limits(graph: onnx.GraphProto) -> dict[str, int]:
    """The smallest dimension that each value indexes by Gather, where the data is constant."""
    shapes = {name: dims for name, dims, _ in _constants(graph)}
    limits: dict[str, int] = {}
    for node in graph.node:
        if node.op_type == "Gather" and node.input[0] in shapes:
            size = shapes[node.input[0]][_attribute(node, "axis", 0)]
            limits[node.input[1]] = min(size, limits.get(node.input[1], size))
    return limits


def random_weights(model: onnx.ModelProto, seed: int = 0) -> onnx.ModelProto:
    """A copy whose constant float weights (initializers, Constant and ConstantOfShape nodes) are seeded
    random initializers of the same name, shape and dtype: positive where they scale or are variances,
    elsewhere with mean zero and a variance that keeps activations in scale. Other constants (bounds,
    exponents, scalars of arithmetic) stay.

    Initializers leave the graph's inputs, which makes them constants, as IR version 4 allows.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    result.ir_version = max(result.ir_version, 8)
    links = _Links.of(graph)
    rng = np.random.default_rng(seed)
    replaced: dict[str, onnx.TensorProto] = {}
    for name, shape, elem_type in _constants(graph):
        use = links.use(name)
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(elem_type))
        if use is None or dtype.kind in "iubOSU":
            continue
        if use[0].op_type in _ELEMENTWISE and np.prod(shape) == 1:
            continue
        replaced[name] = numpy_helper.from_array(_draw(rng, shape, *use, links).astype(dtype), name)
    _replace(graph, replaced)
    return result


@dataclass(frozen=True)
class _Links:
    """Who makes and who reads each value."""

    producers: dict[str, onnx.NodeProto]
    consumers: dict[str, list[tuple[onnx.NodeProto, int]]]

    @classmethod
    def of(cls, graph: onnx.GraphProto) -> _Links:
        consumers: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
        for node in graph.node:
            for index, name in enumerate(node.input):
                consumers.setdefault(name, []).append((node, index))
        return cls({name: node for node in graph.node for name in node.output}, consumers)

    def use(self, name: str) -> tuple[onnx.NodeProto, int] | None:
        """The first use that makes the constant a weight, seen through operators that only move values."""
        for node, index in self.consumers.get(name, ()):
            if (node.op_type, index) in _ROLES:
                return node, index
            if node.op_type in _SAME_VALUES and index == 0 and (use := self.use(node.output[0])):
                return use
        return None

    def ends_branch(self, node: onnx.NodeProto) -> bool:
        return any(user.op_type in ("Add", "Sum") for user, _ in self.consumers.get(node.output[0], ()))

    def after_relu(self, node: onnx.NodeProto) -> bool:
        producer = self.producers.get(node.input[0])
        while producer is not None and producer.op_type in _SAME_SIGN:
            producer = self.producers.get(producer.input[0])
        return producer is not None and producer.op_type in _RELUS


def _constants(graph: onnx.GraphProto) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """(name, shape, element type) of initializers and of Constant and ConstantOfShape outputs."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for tensor in graph.initializer:
        yield tensor.name, tuple(tensor.dims), tensor.data_type
    for node in graph.node:
        value = _attribute(node, "value", None)
        if node.op_type == "Constant" and value is not None:
            tensors[node.output[0]] = value
            yield node.output[0], tuple(value.dims), value.data_type
        elif node.op_type == "ConstantOfShape" and node.input[0] in tensors:
            if tensors[node.input[0]].data_location == onnx.TensorProto.EXTERNAL:
                continue  # not read here
            shape = tuple(int(size) for size in numpy_helper.to_array(tensors[node.input[0]]))
            yield node.output[0], shape, onnx.TensorProto.FLOAT if value is None else value.data_type


def _attribute(node: onnx.NodeProto, name: str, default):
    for attribute in node.attribute:
        if attribute.name == name:
            return helper.get_attribute_value(attribute)
    return default


def _draw(
    rng: np.random.Generator, shape: tuple[int, ...], node: onnx.NodeProto, index: int, links: _Links
) -> np.ndarray:
    role = _ROLES[node.op_type, index]
    if role == "scale":
        return rng.uniform(0.7, 1.3, shape)
    if role == "norm scale":
        return rng.uniform(0.6, 1.2, shape) * (_BRANCH_GAIN if links.ends_branch(node) else 1.0)
    if role == "slope":
        return rng.uniform(0.05, 0.4, shape)
    if role in _STD:
        return rng.standard_normal(shape, np.float32) * np.float32(_STD[role])
    if node.op_type == "Conv":
        return random_filters(rng, shape, AFTER_RELU if links.after_relu(node) else 1.0)
    if node.op_type == "Gemm" and not _attribute(node, "transB", 0):
        return random_filters(rng, shape[::-1], gain=1.0).T
    fan_in = shape[_fan_in_axis(node, index, len(shape))]
    return rng.standard_normal(shape, np.float32) * np.float32(max(1, fan_in) ** -0.5)


def _fan_in_axis(node: onnx.NodeProto, index: int, rank: int) -> int:
    if node.op_type == "ConvTranspose":
        return 0
    return -2 if node.op_type == "MatMul" and index == 1 and rank > 1 else -1


def _read(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    """Names that nodes read, or bodies of theirs."""
    for node in nodes:
        yield from node.input
        for a in node.attribute:
            for body in (*((a.g,) if a.HasField("g") else ()), *a.graphs):
                yield from _read(body.node)
                yield from (output.name for output in body.output)


def _replace(graph: onnx.GraphProto, replaced: dict[str, onnx.TensorProto]) -> None:
    nodes = [node for node in graph.node if not any(name in replaced for name in node.output)]
    used = set(_read(nodes)) | {value.name for value in graph.output}
    tensors = [replaced.get(tensor.name, tensor) for tensor in graph.initializer if tensor.name in used]
    known = {tensor.name for tensor in tensors}
    tensors += [tensor for name, tensor in replaced.items() if name not in known]
    dropped = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in dropped]
    for field, kept in ((graph.node, nodes), (graph.initializer, tensors), (graph.input, inputs)):
        copies = [type(item)() for item in kept]
        for copy, item in zip(copies, kept):
            copy.CopyFrom(item)
        del field[:]
        field.extend(copies)
