"""Import of onnxruntime's attention operators, whose heads lie side by side in the last axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...compiler.ir.types import F32
from ...compiler.ops.elementwise import Binary, Cast, Where
from ...compiler.ops.indexing import Gather
from ...compiler.ops.matmul import MatMul
from ...compiler.ops.movement import Concat, Reshape, Slice, Transpose
from ...compiler.ops.reduction import Softmax
from ...errors import ModelError
from .registry import NodeContext
from .rules_microsoft import Results, microsoft, total
from .tensors import MAX_MADE_BYTES, checked_bytes


@microsoft("Attention")
def attention(
    c: NodeContext,
    x: str,
    weights: str,
    bias: str | None = None,
    mask: str | None = None,
    past: str | None = None,
    added: str | None = None,
    *shared: str | None,
) -> Results:
    """onnxruntime calls `x` input, `mask` mask_index and `added` attention_bias."""
    refuse_shared_buffers(c, *shared)
    projected = total(c, c.one(MatMul(), x, weights), bias)
    return self_attention(c, projected, mask, past, added)


def refuse_shared_buffers(c: NodeContext, *inputs: str | None) -> None:
    """Buffers of keys and values that are longer than the values in them, and what goes with them."""
    if c.attr("past_present_share_buffer", 0) or any(i is not None for i in inputs):
        raise c.unsupported("a buffer that past and present share", "export the model without it")
    if c.attr("do_rotary", 0):
        raise c.unsupported("do_rotary", "export it with rotary embeddings as operators of their own")


def self_attention(
    c: NodeContext, projected: str, mask: str | None, past: str | None, added: str | None = None
) -> Results:
    """Of queries, keys and values [batch, steps, their widths behind each other]; its output and present."""
    width = c.type(projected).dims[-1]
    widths = tuple(c.attr("qkv_hidden_sizes") or (width // 3,) * 3)
    if len(widths) != 3 or sum(widths) != width:
        raise ModelError(f"{c.label}: queries, keys and values of the widths {list(widths)} are not {width}")
    starts = (0, widths[0], widths[0] + widths[1])
    q, k, v = (heads(c, part(c, projected, -1, s, n)) for s, n in zip(starts, widths))
    if (past is not None or c.wants(1)) and widths[1] != widths[2]:
        raise c.unsupported("past or present of keys and values that differ in width")
    if past is not None:
        k, v = (c.one(Concat(2), halved(c, past, n), new) for n, new in enumerate((k, v)))
    stacked = [c.one(Reshape((1, *c.type(t).dims)), t) for t in (k, v)] if c.wants(1) else []
    present = c.one(Concat(0), *stacked) if stacked else None
    return attend(c, q, k, v, mask, added, c.type(k).dims[2] - c.type(q).dims[2]), present


@microsoft("MultiHeadAttention")
def multi_head_attention(
    c: NodeContext,
    q: str,
    k: str | None = None,
    v: str | None = None,
    bias: str | None = None,
    mask: str | None = None,
    added: str | None = None,
    past_k: str | None = None,
    past_v: str | None = None,
    *shared: str | None,
) -> Results:
    """onnxruntime calls `mask` key_padding_mask and `added` attention_bias."""
    refuse_shared_buffers(c, *shared)
    if k is None or v is None:
        raise c.unsupported("packed queries, keys or values", "export the model for onnxruntime on a CPU")
    parts = [q, k, v]
    if bias is not None:
        if c.type(k).rank == 4:
            raise c.unsupported("a bias where keys are given by head", "add it by an operator of its own")
        sizes = [c.type(t).dims[-1] for t in parts]
        starts = [sum(sizes[:n]) for n in range(3)]
        parts = [total(c, t, part(c, bias, 0, s, n)) for t, s, n in zip(parts, starts, sizes)]
    queries, keys, values = (t if c.type(t).rank == 4 else heads(c, t) for t in parts)
    past = 0
    if (past_k is None) != (past_v is None):
        raise ModelError(f"{c.label}: one of past keys and past values is given without the other")
    if past_k is not None and past_v is not None:
        past = c.type(past_k).dims[2]
        keys, values = c.one(Concat(2), past_k, keys), c.one(Concat(2), past_v, values)
    return attend(c, queries, keys, values, mask, added, past), keys, values


@microsoft("RotaryEmbedding")
def rotary_embedding(c: NodeContext, x: str, places: str, cosines: str, sines: str):
    """Pairs of numbers of a head turned by an angle that grows with the step: Su et al., RoFormer (2021).

    A pair is two neighbours (`interleaved`), or a number and that half of the turned ones behind it.
    onnxruntime calls `places` position_ids, `cosines` and `sines` cos_cache and sin_cache.
    """
    if c.attr("is_packed_batching", 0):
        raise c.unsupported("is_packed_batching", "export it with a batch axis")
    if c.type(x).rank not in (3, 4):
        raise ModelError(f"{c.label}: {c.type(x)}: expected three or four axes")
    split = c.type(x).rank == 4
    if split:
        x = c.one(Transpose((0, 2, 1, 3)), x)
    dims = c.type(x).dims
    count = c.attr("num_heads", 0) or (dims[-2] if split else max(1, dims[-1] // _turned(c, cosines, sines)))
    batch, steps, size = dims[0], dims[1], math.prod(dims[2:]) // count
    if count * size != math.prod(dims[2:]):
        raise ModelError(f"{c.label}: {c.type(x)}: expected {count} heads of one size")
    if c.type(places).dims == (1,):  # that of the first step
        places = c.one(Binary("add"), places, c.const(np.arange(steps, dtype=np.int64)))
    elif c.type(places).dims != (batch, steps):
        raise ModelError(f"{c.label}: places {c.type(places)}: expected one, or [{batch}, {steps}]")
    by_head = c.one(Reshape((batch, steps, count, size)), x)
    result = turned(c, by_head, places, cosines, sines, bool(c.attr("interleaved", 0)))
    if split:
        return c.one(Transpose((0, 2, 1, 3)), result)
    return c.one(Reshape(dims), result)


def _turned(c: NodeContext, cosines: str, sines: str) -> int:
    """How many numbers of a head are."""
    table, other = c.type(cosines), c.type(sines)
    if table.dims != other.dims or table.rank != 2 or not table.dims[1]:
        raise ModelError(
            f"{c.label}: tables {table} and {other}: expected two axes, equal ones, not of nothing"
        )
    return 2 * table.dims[1]


def turned(c: NodeContext, x: str, places: str, cosines: str, sines: str, interleaved: bool) -> str:
    """x [batch, steps, heads, size] by the rows of the tables at `places`, [batch or none, steps]."""
    count = _turned(c, cosines, sines)
    batch, steps, heads, size = c.type(x).dims
    if size < count:
        raise ModelError(f"{c.label}: {c.type(x)}: expected heads of {count} numbers or more")
    by_step = (*c.type(places).dims, 1, count // 2)
    cos, sin = (c.one(Reshape(by_step), c.one(Gather(0), table, places)) for table in (cosines, sines))
    first = part(c, x, 3, 0, count)
    shape = (batch, steps, heads, count // 2)
    if interleaved:
        pairs = c.one(Reshape((*shape, 2)), first)
        a, b = (c.one(Reshape(shape), part(c, pairs, 4, n, 1)) for n in (0, 1))
    else:
        a, b = (part(c, first, 3, n * count // 2, count // 2) for n in (0, 1))

    def product(p: str, q: str) -> str:
        return c.one(Binary("mul"), p, q)

    real = c.one(Binary("sub"), product(a, cos), product(b, sin))
    imaginary = c.one(Binary("add"), product(a, sin), product(b, cos))
    if interleaved:
        both = c.one(Concat(4), *(c.one(Reshape((*shape, 1)), v) for v in (real, imaginary)))
        done = [c.one(Reshape((batch, steps, heads, count)), both)]
    else:
        done = [real, imaginary]
    if count < size:
        done.append(part(c, x, 3, count, size - count))
    return c.one(Concat(3), *done) if len(done) > 1 else done[0]


def part(c: NodeContext, x: str, axis: int, start: int, size: int) -> str:
    """[start, start + size) of an axis."""
    dims = list(c.type(x).dims)
    starts = [0] * len(dims)
    starts[axis], dims[axis] = start, size
    return c.one(Slice(tuple(starts), tuple(dims), (1,) * len(dims)), x)


def halved(c: NodeContext, past: str, n: int) -> str:
    """Keys (0) or values (1) of both."""
    dims = c.type(past).dims
    return c.one(Reshape(dims[1:]), part(c, past, 0, n, 1))


def heads(c: NodeContext, x: str) -> str:
    """[batch, heads, steps, size] of [batch, steps, heads · size]."""
    return c.one(Transpose((0, 2, 1, 3)), by_head(c, x, c.required("num_heads")))


def by_head(c: NodeContext, x: str, count: int) -> str:
    """[batch, steps, heads, size] of [batch, steps, heads · size]."""
    if count < 1 or c.type(x).rank != 3 or c.type(x).dims[2] % count:
        raise ModelError(f"{c.label}: {c.type(x)}: expected [batch, steps, a multiple of {count}]")
    batch, steps, width = c.type(x).dims
    return c.one(Reshape((batch, steps, count, width // count)), x)


def scaled_products(c: NodeContext, q: str, k: str, scale: float) -> str:
    """scale · q · kᵀ in f32, to which products of 16 bits are not rounded before."""
    products = c.one(MatMul(trans_b=True, in_wide=c.type(q).dtype.bytes == 2), q, k)
    return c.one(Binary("mul"), c.one(Cast("f32"), products), c.const(np.array(scale, np.float32)))


def attend(c: NodeContext, q: str, k: str, v: str, mask: str | None, added: str | None, past: int = 0) -> str:
    """softmax(scale · q · kᵀ + mask + added) · v as [batch, steps, heads · size]; each of q, k and v is
    [batch, heads, its steps, size]. Of the keys, `past` are of earlier steps."""
    batch, count, steps, size = c.type(q).dims
    length = c.type(k).dims[2]
    narrow, number = c.type(q).dtype.name, np.float32  # what is masked leaves the range of f16
    scale = c.attr("scale") or 1 / math.sqrt(size)
    scores = scaled_products(c, q, k, scale)
    added = None if added is None else c.one(Cast("f32"), added)
    hidden, lowest = None, np.finfo(number).min
    if mask is not None:
        visible = seen(c, mask, batch, steps, length)
        masked = c.const(np.array(c.attr("mask_filter_value", -1e4), number))
        hidden = c.one(Where(), visible, c.const(np.array(0, number)), masked)
    if c.attr("unidirectional", 0):
        checked_bytes(F32, (steps, length), c.label, MAX_MADE_BYTES)
        later = np.triu(np.full((steps, length), lowest, number), past + 1)
        later[-1:] = 0  # the last step sees all, in onnxruntime, even if there are more keys
        hidden = total(c, hidden, c.const(later))
        if mask is not None:  # what is hidden twice is no less than what is hidden once
            hidden = c.one(Binary("max"), hidden, c.const(np.array(lowest, number)))
    shares = c.one(Cast(narrow), c.one(Softmax(3), total(c, scores, hidden, added)))
    result = c.one(MatMul(), shares, v)
    return c.one(Reshape((batch, steps, count * c.type(v).dims[3])), c.one(Transpose((0, 2, 1, 3)), result))


def seen(c: NodeContext, mask: str, batch: int, steps: int, length: int) -> str:
    """bool[batch or 1, 1, steps or 1, length] of a mask in one of onnxruntime's forms:

    [batch, length], [batch, steps, length]    1 where a key counts
    [batch, 1]                                 all keys count
    [batch]                                    how many keys count
    [2 · batch]                                before which key those end that count, where they begin
    """
    type = c.type(mask)
    if type.dims in ((batch, 1), (1, 1)):  # onnxruntime takes it for none
        return c.const(np.ones((1, 1, 1, length), np.bool_))

    def constant(values: np.ndarray | int) -> str:
        return c.const(np.asarray(values, type.dtype.numpy))

    def column(start: int) -> str:
        return c.one(Reshape((batch, 1, 1, 1)), part(c, mask, 0, start, batch))

    forms: Sequence[tuple[int, ...]] = ((batch, length), (1, length), (batch, steps, length))
    if type.dims in forms:
        middle = (1,) if type.rank == 2 else ()
        return c.one(
            Reshape((type.dims[0], 1, *middle, *type.dims[1:])), c.one(Binary("gt"), mask, constant(0))
        )
    place = constant(np.arange(length))
    if type.dims == (batch,):
        return c.one(Binary("lt"), place, column(0))
    if type.dims == (2 * batch,):
        begun = c.one(Binary("ge"), place, column(batch))
        return c.one(Binary("and"), begun, c.one(Binary("lt"), place, column(0)))
    expected = ", ".join(str(list(f)) for f in (*forms, (batch,), (2 * batch,)))
    raise c.unsupported(f"a mask {type}", f"expected one of {expected}")
