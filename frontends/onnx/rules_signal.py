"""Import of Fourier transforms and mel filters: products with constant tables."""

from __future__ import annotations

import numpy as np

from ...compiler.ir.types import F32, I64, DType
from ...compiler.ops.elementwise import Binary
from ...compiler.ops.indexing import Gather
from ...compiler.ops.matmul import MatMul
from ...compiler.ops.movement import Pad, Reshape, Transpose
from ...compiler.ops.shapes import axis_of, size_of, wide
from ...errors import ModelError, UnsupportedError
from .registry import NodeContext, onnx
from .tensors import MAX_MADE_BYTES, checked_bytes, onnx_dtype

MOST_BINS = 1 << 16  # of mel


@onnx("DFT")
def dft_attribute(c: NodeContext, x: str, length: str | None = None):
    return _dft(c, x, length, c.attr("axis", 1))


@onnx("DFT", since=20)
def dft(c: NodeContext, x: str, length: str | None = None, axis: str | None = None):
    return _dft(c, x, length, c.int_(axis, "axis") if axis else -2)


def _dft(c: NodeContext, x: str, length: str | None, axis: int) -> str:
    dims = c.type(x).dims
    inverse, onesided = bool(c.attr("inverse", 0)), bool(c.attr("onesided", 0))
    axis = axis_of(axis, len(dims))
    if dims[-1] not in (1, 2) or axis == len(dims) - 1:
        raise ModelError(
            f"{c.label}: its last axis must hold 1 or 2 parts and cannot be transformed: {c.type(x)}"
        )
    if onesided and inverse:
        count = c.int_(length, "dft_length") if length else 2 * (dims[axis] - 1)
        taken = count // 2 + 1
    else:
        count = taken = c.int_(length, "dft_length") if length else dims[axis]
    if count < 1:
        raise ModelError(f"{c.label}: dft_length is {count}; expected 1 or more")
    after = tuple(taken - dims[axis] if n == axis else 0 for n in range(len(dims)))
    fitted = c.one(Pad((0,) * len(dims), after), x) if any(after) else x
    table = _fourier_table(c, c.type(x).dtype, count, taken, dims[-1], inverse, onesided)
    return _transform(c, fitted, axis, table)


def _fourier_table(
    c: NodeContext, dtype: DType, count: int, taken: int, parts: int, inverse: bool, onesided: bool
) -> np.ndarray:
    """What multiplies the input to give the transform: (elements, their parts, results, their parts)."""
    results = count // 2 + 1 if onesided and not inverse else count
    shape = (taken, parts, results, 2)
    if size_of(shape) * dtype.bytes > MAX_MADE_BYTES:
        raise UnsupportedError(
            f"{c.label}: a transform of {count} elements is a product with a table of {list(shape)}; "
            f"{MAX_MADE_BYTES:,} bytes are supported"
        )
    phase = 2 * np.pi * (np.outer(np.arange(taken), np.arange(results)) % count) / count
    cos, sin = np.cos(phase), np.sin(phase) * (1 if inverse else -1)
    table = np.stack([np.stack([cos, sin], -1), np.stack([-sin, cos], -1)], 1)[:, :parts]
    if inverse:
        table /= count
    if inverse and onesided:  # the other half is the conjugate; the result is real
        twice = [1 if n == 0 or 2 * n == count else 2 for n in range(taken)]
        table = table[..., :1] * np.reshape(twice, (-1, 1, 1, 1))
    return table.astype(dtype.numpy)


def _transform(c: NodeContext, x: str, axis: int, table: np.ndarray) -> str:
    """Contracts `axis` and the last axis of x with the table's first two, whose others replace them."""
    dims = c.type(x).dims
    outer = [n for n in range(len(dims) - 1) if n != axis]
    moved = c.one(Transpose((*outer, axis, len(dims) - 1)), x)
    rows = [dims[n] for n in outer]
    flat = c.one(Reshape((size_of(rows), dims[axis] * dims[-1])), moved)
    product = c.one(MatMul(), flat, c.const(table.reshape(table.shape[0] * table.shape[1], -1)))
    spread = c.one(Reshape((*rows, *table.shape[2:])), product)
    order = [*range(len(outer)), len(outer)]
    order.insert(axis, order.pop())
    return c.one(Transpose((*order, len(dims) - 1)), spread)


@onnx("STFT")
def stft(c: NodeContext, signal: str, step: str, window: str | None = None, length: str | None = None):
    type = c.type(signal)
    hop = c.int_(step, "frame_step")
    parts = c.dims(signal, 3)[2] if type.rank == 3 else 1
    batch, samples = type.dims[:2] if type.rank == 3 else c.dims(signal, 2)
    frame = c.type(window).dims[0] if window else samples
    if length:
        frame = c.int_(length, "frame_length")
    if hop < 1 or not 1 <= frame <= samples:
        raise ModelError(f"{c.label}: frames of {frame} every {hop} samples do not fit {samples}")
    frames = (samples - frame) // hop + 1
    checked_bytes(wide(type.dtype), (batch, frames, frame, parts), c.label)
    checked_bytes(I64, (frames, frame), f"{c.label}: its indices", MAX_MADE_BYTES)
    where = (np.arange(frames)[:, None] * hop + np.arange(frame)).astype(np.int64)
    shaped = c.one(Reshape((batch, samples, parts)), signal)
    cut = c.one(Gather(1), shaped, c.const(where))
    if window is not None:
        cut = c.one(Binary("mul"), cut, c.one(Reshape((frame, 1)), window))
    onesided = bool(c.attr("onesided", 1))
    return _transform(c, cut, 2, _fourier_table(c, type.dtype, frame, frame, parts, False, onesided))


@onnx("MelWeightMatrix")
def mel_weight_matrix(c: NodeContext, *arguments: str):
    names = ("num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz")
    if len(arguments) != len(names):
        raise ModelError(f"{c.label}: {len(arguments)} inputs, expected {len(names)}")
    bins, length, rate, low, high = (c.value(v, name).item() for v, name in zip(arguments, names))
    spectrum = length // 2 + 1
    dtype = onnx_dtype(c.attr("output_datatype", F32.code), c.label)
    checked_bytes(dtype, (spectrum, bins), c.label, MAX_MADE_BYTES)
    if bins > MOST_BINS:
        raise UnsupportedError(f"{c.label}: num_mel_bins is {bins}, at most {MOST_BINS} are supported")
    edges = np.linspace(_mel(low), _mel(high), bins + 2, endpoint=False)
    centres = ((length + 1) * (700 * (10 ** (edges / 2595) - 1)) // rate).astype(np.int64)
    table = np.zeros((spectrum, bins), dtype.numpy)
    for n in range(bins):
        first, centre, last = centres[n : n + 3]
        if centre == first:
            table[centre, n] = 1
        else:
            table[first : centre + 1, n] = np.arange(centre - first + 1) / (centre - first)
        if last > centre:
            table[centre:last, n] = np.arange(last - centre, 0, -1) / (last - centre)
    return c.const(table)


def _mel(hertz: float) -> float:
    return 2595 * float(np.log10(1 + hertz / 700))
