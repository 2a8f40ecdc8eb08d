"""Import of what is a constant once shapes are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...compiler.ir.types import DType, dtype_of
from ...compiler.ops.movement import Expand
from ...errors import ModelError
from .registry import NodeContext, onnx
from .tensors import MAX_MADE_BYTES, checked_bytes, onnx_dtype, tensor_array


@onnx("Constant")
def constant(c: NodeContext):
    (attribute,) = c.node.attribute
    match attribute.name:
        case "value":
            array, small_type = c.g.stored(attribute.t, None, c.label)
            return c.const(array, small_type=small_type)
        case "value_float" | "value_floats":
            return c.const(np.array(c.attr(attribute.name), np.float32))
        case "value_int" | "value_ints":
            return c.const(np.array(c.attr(attribute.name), np.int64))
        case "sparse_value":
            return c.const(_dense(c, attribute.sparse_tensor))
    raise c.unsupported(f"a constant given as {attribute.name}")


def _dense(c: NodeContext, sparse) -> np.ndarray:
    values = tensor_array(sparse.values, None, c.label)
    indices = tensor_array(sparse.indices, None, c.label)
    shape = tuple(sparse.dims)
    full = filled(c, 0, dtype_of(values), shape).ravel()
    flat = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), shape)
    full[flat] = values
    return full.reshape(shape)


def filled(c: NodeContext, value: float, dtype: DType, shape: Sequence[int]) -> np.ndarray:
    """An array of one value, its size checked before memory is taken."""
    checked_bytes(dtype, shape, c.label, MAX_MADE_BYTES)
    return np.full(shape, value, dtype.numpy)


@onnx("ConstantOfShape")
def constant_of_shape(c: NodeContext, shape: str):
    sizes = c.ints(shape, "shape")
    tensor = next((a.t for a in c.node.attribute if a.name == "value"), None)
    value = np.zeros(1, np.float32) if tensor is None else tensor_array(tensor, None, c.label)
    checked_bytes(dtype_of(value), sizes, c.label)
    return c.emit(Expand(sizes), c.const(value.reshape(())))


@onnx("EyeLike")
def eye_like(c: NodeContext, x: str):
    dtype = onnx_dtype(c.attr("dtype", c.type(x).dtype.code), c.label)
    rows, columns = c.dims(x, 2)
    checked_bytes(dtype, (rows, columns), c.label, MAX_MADE_BYTES)
    return c.const(np.eye(rows, columns, c.attr("k", 0), dtype.numpy))


@onnx("Shape")
def shape_of(c: NodeContext, x: str):
    return c.const(np.array(c.type(x).dims[c.attr("start", 0) : c.attr("end")], np.int64))


@onnx("Size")
def size_of(c: NodeContext, x: str):
    return c.const(np.array(c.type(x).size, np.int64))


@onnx("Range")
def range_(c: NodeContext, start: str, limit: str, delta: str):
    """Counted in f64, as by onnxruntime and onnx.reference; onnx infers shapes in the range's own type."""
    dtype = c.type(start).dtype
    first, end, step = (
        c.value(v, w).item() for v, w in ((start, "start"), (limit, "limit"), (delta, "delta"))
    )
    if step == 0:
        raise ModelError(f"{c.label}: its delta is 0; expected another number")
    steps = (end - first) / step
    if not np.isfinite(steps):
        raise ModelError(f"{c.label}: a range from {first} to {end} in steps of {step} never ends")
    count = max(0, int(np.ceil(steps)))
    checked_bytes(dtype, (count,), c.label, MAX_MADE_BYTES)
    return c.const((first + np.arange(count) * step).astype(dtype.numpy))


@onnx("HannWindow")
def hann_window(c: NodeContext, size: str):
    return _window(c, size, (0.5, 0.5))


@onnx("HammingWindow")
def hamming_window(c: NodeContext, size: str):
    return _window(c, size, (25 / 46, 21 / 46))


@onnx("BlackmanWindow")
def blackman_window(c: NodeContext, size: str):
    return _window(c, size, (0.42, 0.5, 0.08))


def _window(c: NodeContext, size: str, weights: tuple[float, ...]) -> str:
    """Σ (-1)^n weights[n] cos(2πn·i / period)."""
    count = c.int_(size, "size")
    dtype = onnx_dtype(c.attr("output_datatype", 1), c.label)
    checked_bytes(dtype, (count,), c.label, MAX_MADE_BYTES)
    period = count if c.attr("periodic", 1) else count - 1
    phase = 2 * np.pi * np.arange(count) / max(period, 1)
    return c.const(sum((-1) ** n * w * np.cos(n * phase) for n, w in enumerate(weights)).astype(dtype.numpy))
