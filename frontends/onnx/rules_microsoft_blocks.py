"""Import of onnxruntime's operators on weights of two to eight bits, where each block has a scale of its own.

Those of two, four or eight bits stay as they are where blocks are whole; others become floats at import.
"""

from __future__ import annotations

import numpy as np

from ...compiler.ir.types import F16, F32, I64
from ...compiler.ops.block_products import WIDTHS, BlockMatMul, UnpackBlocks
from ...compiler.ops.elementwise import Binary, Cast, Where
from ...compiler.ops.indexing import Gather
from ...compiler.ops.matmul import MatMul
from ...compiler.ops.movement import Reshape
from ...compiler.ops.shapes import axis_of
from ...errors import ModelError
from .registry import NodeContext
from .rules_microsoft import microsoft

BITS = range(2, 9)


@microsoft("MatMulNBits")
def matmul_n_bits(
    c: NodeContext,
    a: str,
    b: str,
    scales: str,
    zeros: str | None = None,
    group: str | None = None,
    bias: str | None = None,
):
    """`group` names the block of each term, where blocks are no neighbours."""
    if c.attr("weight_prepacked", 0):
        raise c.unsupported("weight_prepacked", "export the weights as they are")
    rows, terms, size = (c.required(name) for name in ("N", "K", "block_size"))
    if min(rows, terms, size) < 1:
        raise ModelError(f"{c.label}: N={rows}, K={terms}, block_size={size}: expected positive numbers")
    blocks, stored, bits = -(-terms // size), _known(c, b, "weights"), _bits(c)
    if not stored.size:
        raise c.unsupported("a product without weights", "export the model with them")
    stored = _shaped(c, stored, "weights", rows, blocks, size * bits // 8)
    factors = _shaped(c, _scales(c, scales), "scales", rows, blocks).astype(np.float32)
    middle = _middle(c, zeros, bits, 1 << bits - 1, rows, blocks)
    if group is None and _stays(c, b, bits, terms, size) and c.type(a).dtype is F32:
        default = 1 << bits - 1 if zeros is None else 0
        shift = [] if zeros is None else [c.const(-middle * factors)]
        result = c.one(BlockMatMul(bits, default), a, c.const(stored), c.const(factors), *shift)
    else:
        numbers = _unpacked(c, stored, bits).reshape(rows, blocks * size)[:, :terms].astype(np.float32)
        of_term = np.arange(terms) // size if group is None else _blocks_of_terms(c, group, terms, blocks)
        weights = (numbers - middle[:, of_term]) * factors[:, of_term]
        result = c.one(MatMul(), a, c.const(np.ascontiguousarray(weights.T).astype(c.type(a).dtype.numpy)))
    return result if bias is None else c.one(Binary("add"), result, bias)


def _blocks_of_terms(c: NodeContext, group: str, terms: int, blocks: int) -> np.ndarray:
    of_term = _shaped(c, _known(c, group, "blocks of terms"), "blocks of terms", -1)[:terms]
    if len(of_term) < terms or not ((of_term >= 0) & (of_term < blocks)).all():
        raise ModelError(f"{c.label}: the blocks of {terms} terms are not numbers below {blocks}")
    return of_term


@microsoft("GatherBlockQuantized")
def gather_block_quantized(c: NodeContext, data: str, indices: str, scales: str, zeros: str | None = None):
    """Of integers of 4 bits, of short floats, or of bytes, which hold their numbers along the last axis. An
    index out of range gives zeros."""
    stored, factors = _known(c, data, "data"), _scales(c, scales)
    floats = data in c.g.small_types and stored.dtype.kind == "f"
    bits = BITS[-1] if floats else _bits(c)
    if not stored.ndim:
        raise c.unsupported(f"data {c.type(data)}", "export the table as rows")
    packed, default = data not in c.g.small_types, 0
    shape = stored.shape
    if packed:
        _require_bytes(c, stored, bits)
        shape, default = (*shape[:-1], shape[-1] * 8 // bits), 1 << bits - 1
    gathered = axis_of(c.attr("gather_axis", 0), stored.ndim)
    axis, size = axis_of(c.attr("quantize_axis", 1), stored.ndim), c.attr("block_size", 128)
    size = size or shape[axis] if floats else size
    blocks = -(-shape[axis] // max(size, 1))
    expected = tuple(blocks if n == axis else d for n, d in enumerate(shape))
    if floats and factors.ndim == len(expected):
        factors = np.broadcast_to(factors, [e if f == 1 else f for e, f in zip(expected, factors.shape)])
    if size < 1 or factors.shape != expected:
        raise ModelError(f"{c.label}: scales {list(factors.shape)}, expected {list(expected)}")
    middle = _middle(c, zeros, bits, default, *expected)
    indices, inside = _inside(c, indices, shape[gathered], stored.ndim - 1 - gathered)
    if (
        _stays(c, data, bits, shape[axis], size)
        and gathered < axis == stored.ndim - 1
        and c.type(scales).dtype is F32
    ):
        parts = [stored.reshape(*expected, size * bits // 8), factors]
        parts += [] if zeros is None else [-middle * factors]
        rows = (c.one(Gather(gathered), c.const(p), indices) for p in parts)
        result = c.one(UnpackBlocks(bits, default if zeros is None else 0), *rows)
    else:
        numbers = _unpacked(c, stored, bits) if packed else stored
        spread = np.arange(shape[axis]) // size
        table = (numbers - middle.take(spread, axis)) * factors.take(spread, axis)
        result = c.one(Gather(gathered), c.const(table.astype(factors.dtype)), indices)
    return result if inside is None else c.one(Where(), inside, result, c.const(np.zeros((), factors.dtype)))


def _inside(c: NodeContext, indices: str, count: int, behind: int) -> tuple[str, str | None]:
    """Indices of `count` rows, and which of them were so before, for `behind` more axes; None if all were."""
    held = c.g.constants.get(indices)
    if count < 1 or (held is not None and (np.abs(held.astype(np.int64) + 0.5) < count).all()):
        return indices, None
    wide = c.one(Cast(I64.name), indices)
    least, most = (c.const(np.array(n, np.int64)) for n in (-count, count - 1))
    near = c.one(Binary("min"), c.one(Binary("max"), wide, least), most)
    inside = c.one(Binary("eq"), near, wide)
    return near, c.one(Reshape((*c.type(indices).dims, *(1,) * behind)), inside)


def _stays(c: NodeContext, value: str, bits: int, terms: int, size: int) -> bool:
    """Whether blocks are whole, and bytes."""
    return value not in c.g.small_types and bits in WIDTHS and not terms % size and not size * bits % 8


def _bits(c: NodeContext) -> int:
    bits = c.attr("bits", 4)
    if bits not in BITS:
        raise ModelError(f"{c.label}: bits={bits}: expected {BITS[0]} to {BITS[-1]}")
    return bits


def _require_bytes(c: NodeContext, stored: np.ndarray, bits: int) -> None:
    if stored.dtype != np.uint8:
        raise c.unsupported(f"numbers of {bits} bits in {stored.dtype}")


def _unpacked(c: NodeContext, stored: np.ndarray, bits: int) -> np.ndarray:
    """The numbers that bytes hold along the last axis, low bits first; those that fill the last byte, too."""
    _require_bytes(c, stored, bits)
    every = np.unpackbits(stored, axis=-1, bitorder="little")
    whole = every.shape[-1] // bits
    parts = every[..., : whole * bits].reshape(*stored.shape[:-1], whole, bits)
    return np.packbits(parts, axis=-1, bitorder="little")[..., 0]


def _middle(c: NodeContext, zeros: str | None, bits: int, default: int, *dims: int) -> np.ndarray:
    """Zero points of these sizes: bytes that hold them along the last axis, or numbers of another type."""
    if zeros is None:
        return np.full(dims, default, np.float32)
    stored = _known(c, zeros, "zero points")
    if stored.dtype == np.uint8 and zeros not in c.g.small_types:
        packed = *dims[:-1], -(-dims[-1] * bits // 8)
        stored = _unpacked(c, _shaped(c, stored, "zero points", *packed), bits)[..., : dims[-1]]
    return _shaped(c, stored, "zero points", *dims).astype(np.float32)


def _scales(c: NodeContext, value: str) -> np.ndarray:
    if c.type(value).dtype not in (F32, F16):
        raise c.unsupported(f"scales of {c.type(value).dtype}", "export them as f32")
    return _known(c, value, "scales")


def _known(c: NodeContext, value: str, what: str) -> np.ndarray:
    if value in c.g.constants:
        return c.g.constants[value]
    array = None if c.value_sources(value) else c.computed(value)  # of constants too large to be folded
    if array is None:
        raise c.unsupported(f"{what} that are computed", "store them in the model as a constant")
    return array


def _shaped(c: NodeContext, array: np.ndarray, what: str, *dims: int) -> np.ndarray:
    try:
        return array.reshape(dims)
    except ValueError:
        found = list(array.shape)
        raise ModelError(f"{c.label}: {what} {found}: expected as many as in {list(dims)}") from None
