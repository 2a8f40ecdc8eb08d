"""An ONNX model as a .tflite file, for LiteRT: convolutional networks in float32.

The graph is Burnish's after import and simplification, so that batch normalisations are in the weights.
Values of rank 4 lie channels last, the network's inputs and outputs too, as LiteRT's kernels read them. An
activation is part of the operator before it; padding that SAME does not mean is an operator of its own.
`schema` is the module schema_py_generated of ai-edge-litert (TensorFlow Lite's schema.fbs, version 3).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx

from ...compiler.ir.graph import Graph, Node
from ...compiler.ops.conv import Conv
from ...compiler.ops.elementwise import Binary, Unary
from ...compiler.ops.matmul import MatMul
from ...compiler.ops.movement import Concat, Reshape
from ...compiler.ops.pool import AveragePool, GlobalAveragePool, MaxPool
from ...compiler.ops.reduction import Softmax
from ...errors import ToolError, UnsupportedError
from ...frontends.onnx.importer import import_onnx
from ...graph_passes.fold import fold
from ...graph_passes.simplify import simplify

CHANNELS_LAST = (0, 2, 3, 1)
CHANNELS_FIRST = (0, 3, 1, 2)


def load_schema(site: Path) -> ModuleType:
    """schema_py_generated of the ai-edge-litert in the folder `site`, without its native code."""
    file = site / "ai_edge_litert" / "schema_py_generated.py"
    spec = importlib.util.spec_from_file_location("schema_py_generated", file)
    if spec is None or spec.loader is None or not file.is_file():
        raise ToolError(f"not installed: no {file}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def to_tflite(model: onnx.ModelProto, schema: ModuleType) -> bytes:
    """UnsupportedError naming the first node that has no counterpart here."""
    import flatbuffers

    graph = simplify(fold(import_onnx(model)))
    file = _File(graph, schema)
    for node in graph.nodes:
        if node.outputs[0] in file.taken:
            continue
        write = WRITERS.get(type(node.op))
        if write is None:
            raise UnsupportedError(f"{_called(node)}: cannot be written to a .tflite file")
        write(file, node)
    builder = flatbuffers.Builder(graph.constant_bytes + 2**20)
    builder.Finish(file.model().Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _called(node: Node) -> str:
    return f"{type(node.op).__name__} node {node.name!r}"


def _refuse(node: Node, unless: bool, what: str) -> None:
    if not unless:
        raise UnsupportedError(f"{_called(node)}: cannot be written to a .tflite file: {what}")


@dataclass
class _File:
    """What a .tflite file is made of. `tensors` are the indices of the graph's values; those `taken` are
    results of activations and biases that their producers have in them."""

    graph: Graph
    schema: Any
    tensors: dict[str, int] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    _tensors: list[Any] = field(default_factory=list)
    _buffers: list[Any] = field(default_factory=list)
    _operators: list[Any] = field(default_factory=list)
    _codes: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._buffers.append(self.schema.BufferT())  # the first one is empty
        self._consumers = self.graph.consumers()
        for name in self.graph.inputs:
            self.value(name)

    def value(self, name: str) -> int:
        """The tensor of a value that is not constant."""
        if name not in self.tensors:
            type = self.graph.type(name)
            if str(type.dtype) != "f32":
                raise UnsupportedError(f"value {name!r} is {type}: only f32 can be written to a .tflite file")
            shape = _last(type.dims)
            self.tensors[name] = self._tensor(name, shape, self.schema.TensorType.FLOAT32, 0)
        return self.tensors[name]

    def constant(self, array: np.ndarray) -> int:
        buffer = self.schema.BufferT()
        buffer.data = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
        self._buffers.append(buffer)
        types = self.schema.TensorType
        type = types.INT32 if array.dtype == np.int32 else types.FLOAT32
        return self._tensor(f"constant{len(self._buffers)}", array.shape, type, len(self._buffers) - 1)

    def between(self, shape: Sequence[int]) -> int:
        """A tensor that the graph does not have."""
        return self._tensor(f"between{len(self._tensors)}", shape, self.schema.TensorType.FLOAT32, 0)

    def _tensor(self, name: str, shape: Sequence[int], type: int, buffer: int) -> int:
        tensor = self.schema.TensorT()
        tensor.name, tensor.shape = name, np.array(shape, np.int32)
        tensor.type, tensor.buffer = type, buffer
        self._tensors.append(tensor)
        return len(self._tensors) - 1

    def add(self, code: str, inputs: Sequence[int], output: int, **options: Any) -> None:
        """An operator by its name in BuiltinOperator, options in those of its options' table."""
        operator = self.schema.OperatorT()
        operator.opcodeIndex = self._codes.setdefault(code, len(self._codes))
        operator.inputs, operator.outputs = list(inputs), [output]
        if table := OPTIONS.get(code):
            operator.builtinOptionsType = getattr(self.schema.BuiltinOptions, table)
            operator.builtinOptions = getattr(self.schema, f"{table}T")()
            for name, value in options.items():
                setattr(operator.builtinOptions, name, value)
        self._operators.append(operator)

    def sole_reader(self, value: str) -> Node | None:
        readers = self._consumers.get(value, [])
        return readers[0] if len(readers) == 1 and value not in self.graph.outputs else None

    def activated(self, node: Node) -> tuple[int, int]:
        """Where the node's result goes, and the activation on the way there."""
        (value,) = node.outputs
        reader = self.sole_reader(value)
        kinds = self.schema.ActivationFunctionType
        kind = _activation(reader)
        if reader is None or kind is None:
            return self.value(value), kinds.NONE
        self.taken.add(reader.outputs[0])
        return self.value(reader.outputs[0]), getattr(kinds, kind)

    def model(self) -> Any:
        graph, model = self.schema.SubGraphT(), self.schema.ModelT()
        graph.tensors, graph.operators = self._tensors, self._operators
        graph.inputs = [self.tensors[name] for name in self.graph.inputs]
        graph.outputs = [self.value(name) for name in self.graph.outputs]
        model.version, model.subgraphs, model.buffers = 3, [graph], self._buffers
        model.operatorCodes = []
        for name in self._codes:
            code = self.schema.OperatorCodeT()
            code.builtinCode = code.deprecatedBuiltinCode = getattr(self.schema.BuiltinOperator, name)
            code.version = 1
            model.operatorCodes.append(code)
        return model


def _last(dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(dims[axis] for axis in CHANNELS_LAST) if len(dims) == 4 else dims


def _activation(node: Node | None) -> str | None:
    if node is None or not isinstance(node.op, Unary):
        return None
    return {("relu", ()): "RELU", ("clip", (0.0, 6.0)): "RELU6"}.get((node.op.fn, node.op.params))


def _write_activation(file: _File, node: Node) -> None:
    kind = _activation(node)
    _refuse(node, kind is not None, f"the function {getattr(node.op, 'fn', '')!r}")
    file.add(kind or "", [file.value(node.inputs[0] or "")], file.value(node.outputs[0]))


def _padded(file: _File, node: Node, kernel: Sequence[int], outside: Callable[[], float]) -> tuple[int, int]:
    """The tensor of the node's first input, and SAME or VALID; for others it is padded with `outside`."""
    op: Any = node.op
    source = node.inputs[0] or ""
    sizes, begins, ends = file.graph.type(source).dims[2:], op.pads[:2], op.pads[2:]
    same = []
    for size, k, stride, dilation in zip(sizes, kernel, op.strides, op.dilations):
        total = max((-(-size // stride) - 1) * stride + (k - 1) * dilation + 1 - size, 0)
        same.append((total // 2, total - total // 2))
    tensor, kinds = file.value(source), file.schema.Padding
    if not any(op.pads):
        return tensor, kinds.VALID
    if same == list(zip(begins, ends)):
        return tensor, kinds.SAME
    n, c, *_ = file.graph.type(source).dims
    grown = file.between((n, *(s + b + e for s, b, e in zip(sizes, begins, ends)), c))
    amounts = file.constant(np.array([(0, 0), *zip(begins, ends), (0, 0)], np.int32))
    value = outside()
    if value == 0:
        file.add("PAD", [tensor, amounts], grown)
    else:
        file.add("PADV2", [tensor, amounts, file.constant(np.array(value, np.float32))], grown)
    return grown, kinds.VALID


def _write_conv(file: _File, node: Node) -> None:
    op: Any = node.op
    weights = file.graph.constants.get(node.inputs[1] or "")
    _refuse(node, weights is not None and weights.ndim == 4, "expected constant weights of rank 4")
    assert weights is not None
    channels, _, *kernel = weights.shape
    has_bias = len(node.reads) > 2
    bias = file.graph.constants.get(node.reads[2]) if has_bias else np.zeros(channels)
    _refuse(node, bias is not None, "expected a constant bias")
    tensor, padding = _padded(file, node, kernel, lambda: 0.0)
    output, activation = file.activated(node)
    depthwise = op.group > 1 and weights.shape[1] == 1
    order = (1, 2, 3, 0) if depthwise else CHANNELS_LAST
    inputs = [tensor, file.constant(weights.transpose(order)), file.constant(np.asarray(bias, np.float32))]
    options = {"padding": padding, "fusedActivationFunction": activation}
    options |= {"strideH": op.strides[0], "strideW": op.strides[1]}
    options |= {"dilationHFactor": op.dilations[0], "dilationWFactor": op.dilations[1]}
    if depthwise:
        file.add("DEPTHWISE_CONV_2D", inputs, output, depthMultiplier=channels // op.group, **options)
    else:
        file.add("CONV_2D", inputs, output, **options)


def _write_pool(file: _File, node: Node) -> None:
    op: Any = node.op
    plain = len(op.kernel) == 2 and len(node.outputs) == 1 and set(op.dilations) == {1} and not op.ceil_mode
    _refuse(node, plain, "expected windows of two dimensions without dilation and ceil_mode")
    is_max = isinstance(op, MaxPool)
    _refuse(node, is_max or not any(op.pads), "an average over padding")
    tensor, padding = _padded(file, node, op.kernel, lambda: _below(file, node.inputs[0] or ""))
    output, activation = file.activated(node)
    options = {"filterHeight": op.kernel[0], "filterWidth": op.kernel[1]}
    options |= {"strideH": op.strides[0], "strideW": op.strides[1]}
    code = "MAX_POOL_2D" if is_max else "AVERAGE_POOL_2D"
    file.add(code, [tensor], output, padding=padding, fusedActivationFunction=activation, **options)


def _below(file: _File, value: str) -> float:
    """What no element of a value is less than; 0 is cheap, since XNNPACK has an operator for it."""
    return 0.0 if _activation(file.graph.producers().get(value)) else float(np.finfo(np.float32).min)


def _write_mean(file: _File, node: Node) -> None:
    source = node.inputs[0] or ""
    _refuse(node, len(file.graph.type(source).dims) == 4, "expected two dimensions")
    axes = file.constant(np.array([1, 2], np.int32))
    file.add("MEAN", [file.value(source), axes], file.value(node.outputs[0]), keepDims=True)


def _write_add(file: _File, node: Node) -> None:
    op: Any = node.op
    a, b = (name or "" for name in node.inputs)
    same = file.graph.type(a).dims == file.graph.type(b).dims
    known = a in file.graph.constants or b in file.graph.constants
    _refuse(node, op.fn == "add" and same and not known, "expected a sum of two values of one shape")
    output, activation = file.activated(node)
    file.add("ADD", [file.value(a), file.value(b)], output, fusedActivationFunction=activation)


def _write_product(file: _File, node: Node) -> None:
    op: Any = node.op
    weights = file.graph.constants.get(node.inputs[1] or "")
    fits = weights is not None and weights.ndim == 2 and not op.trans_a
    _refuse(node, fits and len(file.graph.type(node.inputs[0] or "").dims) == 2, "expected constant weights")
    assert weights is not None
    inputs = [file.value(node.inputs[0] or ""), file.constant(weights if op.trans_b else weights.T)]
    reader = file.sole_reader(node.outputs[0])
    if reader is not None and isinstance(reader.op, Binary) and reader.op.fn == "add":
        bias = file.graph.constants.get(reader.inputs[1] or "")
        if bias is not None and bias.shape == file.graph.type(node.outputs[0]).dims[-1:]:
            inputs.append(file.constant(bias))
            file.taken.add(reader.outputs[0])
            node = reader
    output, activation = file.activated(node)
    file.add("FULLY_CONNECTED", inputs, output, fusedActivationFunction=activation)


def _write_reshape(file: _File, node: Node) -> None:
    source, target = file.graph.type(node.inputs[0] or "").dims, file.graph.type(node.outputs[0]).dims
    _refuse(node, len(target) != 4 or source[1:] == target[1:], "to rank 4")
    tensor = file.value(node.inputs[0] or "")
    if len(source) == 4 and source[2:] != (1, 1):
        first = file.between(source)
        file.add("TRANSPOSE", [tensor, file.constant(np.array(CHANNELS_FIRST, np.int32))], first)
        tensor = first
    shape = np.array(_last(target), np.int32)
    file.add("RESHAPE", [tensor, file.constant(shape)], file.value(node.outputs[0]), newShape=shape)


def _write_softmax(file: _File, node: Node) -> None:
    op: Any = node.op
    rank = len(file.graph.type(node.outputs[0]).dims)
    _refuse(node, not op.log and rank != 4 and op.axis in (-1, rank - 1), "expected the last axis")
    file.add("SOFTMAX", [file.value(node.inputs[0] or "")], file.value(node.outputs[0]), beta=1.0)


def _write_concat(file: _File, node: Node) -> None:
    op: Any = node.op
    rank = len(file.graph.type(node.outputs[0]).dims)
    known = any(name in file.graph.constants for name in node.reads)
    _refuse(node, not known, "constants")
    axis = CHANNELS_LAST.index(op.axis % rank) if rank == 4 else op.axis % rank
    inputs = [file.value(name) for name in node.reads]
    file.add("CONCATENATION", inputs, file.value(node.outputs[0]), axis=axis)


WRITERS: dict[type, Callable[[_File, Node], None]] = {
    AveragePool: _write_pool,
    Binary: _write_add,
    Concat: _write_concat,
    Conv: _write_conv,
    GlobalAveragePool: _write_mean,
    MatMul: _write_product,
    MaxPool: _write_pool,
    Reshape: _write_reshape,
    Softmax: _write_softmax,
    Unary: _write_activation,
}
OPTIONS = {  # BuiltinOperator → its table in BuiltinOptions
    "ADD": "AddOptions",
    "AVERAGE_POOL_2D": "Pool2DOptions",
    "CONCATENATION": "ConcatenationOptions",
    "CONV_2D": "Conv2DOptions",
    "DEPTHWISE_CONV_2D": "DepthwiseConv2DOptions",
    "FULLY_CONNECTED": "FullyConnectedOptions",
    "MAX_POOL_2D": "Pool2DOptions",
    "MEAN": "ReducerOptions",
    "PAD": "PadOptions",
    "PADV2": "PadV2Options",
    "RESHAPE": "ReshapeOptions",
    "SOFTMAX": "SoftmaxOptions",
    "TRANSPOSE": "TransposeOptions",
}
