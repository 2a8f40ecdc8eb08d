"""Import of onnxruntime's attention for decoders, where queries share the keys and values of a cache."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...compiler.ir.types import I64
from ...compiler.ops.elementwise import Binary, Cast, Unary, Where
from ...compiler.ops.indexing import TensorScatter
from ...compiler.ops.matmul import MatMul
from ...compiler.ops.movement import Concat, Expand, Pad, Reshape, Transpose
from ...compiler.ops.reduction import Softmax
from ...errors import ModelError
from .registry import NodeContext
from .rules_microsoft import Results, microsoft, total
from .rules_microsoft_attention import by_head, part, scaled_products, turned
from .tensors import MAX_MADE_BYTES, checked_bytes


@microsoft("GroupQueryAttention")
def group_query_attention(
    c: NodeContext,
    q: str,
    k: str | None,
    v: str | None,
    past_k: str | None,
    past_v: str | None,
    ends: str,
    whole: str,
    cosines: str | None = None,
    sines: str | None = None,
    places: str | None = None,
    added: str | None = None,
    sinks: str | None = None,
    key_scale: str | None = None,
    value_scale: str | None = None,
    *others: str | None,
) -> Results:
    """The new steps of a batch, after those of its cache, see what came before them, or all with causal=0.

    ends     (seqlens_k) [batch] the last step of each, counted with those of the cache
    whole    (total_sequence_length) the number of steps of the longest, which decides the size of the cache
             that results
    cosines, sines  (cos_cache, sin_cache) [places, half of the numbers of a head that are turned]
    places   (position_ids) [batch, steps] for the rotary embedding; else new steps follow those of the
             cache. In a first prompt all follow the first.
    added    (attention_bias) [batch or 1, heads or 1, steps, whole or the cache's length] to the scores
    sinks    (head_sink) [heads] scores of one more key, which has no value
    """
    _refuse(c, (key_scale, value_scale), others)
    if (past_k is None) != (past_v is None) or (k is None) != (v is None):
        raise ModelError(f"{c.label}: keys without values, or values without keys")
    queries, keys, values = _projections(c, q, k, v)
    batch, steps, own, _ = c.type(queries).dims
    groups = c.type(keys).dims[2]
    length = c.int_(whole, "number of steps")
    if past_k is None and length != steps:
        raise ModelError(f"{c.label}: {length} steps, {steps} of them new, without a cache: expected {steps}")
    checked_bytes(I64, (length,), c.label, MAX_MADE_BYTES)
    first = _first_steps(c, ends, batch, steps, prompt=steps == length)
    if c.attr("do_rotary", 0):
        if cosines is None or sines is None:
            raise ModelError(f"{c.label}: do_rotary without tables of cosines and sines")
        at = _places(c, first, places, steps, prompt=steps == length)
        pairs = bool(c.attr("rotary_interleaved", 0))
        queries, keys = (turned(c, x, at, cosines, sines, pairs) for x in (queries, keys))
    queries, keys, values = (c.one(Transpose((0, 2, 1, 3)), x) for x in (queries, keys, values))
    keys, values = (_cache(c, past, new, first, length) for past, new in ((past_k, keys), (past_v, values)))
    if c.attr("causal", 1):
        visible = _before(c, first, steps, c.type(keys).dims[2])
    else:
        visible = _until(c, ends, c.type(keys).dims[2])
    if added is not None:
        added = _by_group(c, added, groups, own // groups, steps, (length, c.type(keys).dims[2]))
    return _attend(c, queries, keys, values, visible, added, sinks), keys, values, None


def _refuse(c: NodeContext, scales: Sequence[str | None], others: Sequence[str | None]) -> None:
    """UnsupportedError for inputs, outputs and attributes of variants that Burnish does not have."""
    if any(scale is not None for scale in scales) or c.attr("kv_cache_bit_width", 0):
        raise c.unsupported("a quantised cache", "export the model with a cache of floats")
    for name, value in zip(("q_norm_weight", "k_norm_weight", "query_seqlens"), others):
        if value is not None:
            raise c.unsupported(f"the input {name}")
    if c.attr("sliding_window_cache", 0):
        raise c.unsupported("sliding_window_cache=1", "export the model with a cache of all steps")
    if c.wants(3):
        raise c.unsupported("an output of the scores")


def _projections(c: NodeContext, q: str, k: str | None, v: str | None) -> tuple[str, str, str]:
    """New queries, keys and values, each [batch, steps, its heads, size]."""
    groups, own = c.required("kv_num_heads"), c.required("num_heads")
    if groups < 1 or own < 1 or own % groups:
        raise ModelError(f"{c.label}: {own} heads of queries for {groups} of keys: expected a multiple")
    counts = (own, groups, groups)
    if k is None or v is None:
        q, k, v = _unpacked(c, q, counts)
    queries, keys, values = (by_head(c, x, n) for x, n in zip((q, k, v), counts))
    batch, steps, _, size = c.type(queries).dims
    if steps and not c.type(keys).dims[1]:
        raise c.unsupported("queries of the cache of another layer")
    for new in (keys, values):
        if c.type(new).dims != (batch, steps, groups, size):
            expected = f"[{batch}, {steps}, {groups * size}]"
            raise ModelError(f"{c.label}: keys {c.type(k)} and values {c.type(v)}: expected {expected}")
    return queries, keys, values


def _places(c: NodeContext, first: str, places: str | None, steps: int, prompt: bool) -> str:
    """[batch, steps] or [steps] of i64: rows of the tables for the new steps."""
    if places is None or prompt:
        if places is None:
            begin = c.one(Reshape((*c.type(first).dims, 1)), first)
        else:
            begin = part(c, part(c, places, 0, 0, 1), 1, 0, 1)
        places = c.one(Binary("add"), begin, c.const(np.arange(steps, dtype=np.int64)))
    return c.one(Reshape((steps,)), places) if c.type(places).dims[0] == 1 else places


def _unpacked(c: NodeContext, x: str, counts: tuple[int, ...]) -> list[str]:
    """Queries, keys and values that lie side by side."""
    size, rest = divmod(c.type(x).dims[-1] if c.type(x).rank else 0, sum(counts))
    if not size or rest:
        raise ModelError(
            f"{c.label}: {c.type(x)}: expected heads of one size, {' + '.join(map(str, counts))}"
        )
    starts = np.cumsum((0, *counts)) * size
    return [part(c, x, c.type(x).rank - 1, int(s), n * size) for s, n in zip(starts, counts)]


def _first_steps(c: NodeContext, ends: str, batch: int, steps: int, prompt: bool) -> str:
    """[batch] of i64: how many steps of the cache stand before the new ones."""
    if c.type(ends).size != batch:
        raise ModelError(f"{c.label}: last steps {c.type(ends)}: expected one for each of {batch}")
    if prompt:
        return c.const(np.zeros(batch, np.int64))
    last = c.one(Cast(I64.name), c.one(Reshape((batch,)), ends))
    return c.one(Binary("sub"), last, c.const(np.array(steps - 1, np.int64)))


def _cache(c: NodeContext, past: str | None, new: str, first: str, length: int) -> str:
    """[batch, heads, at least `length` steps, size]: the new steps behind what is there."""
    dims = list(c.type(new).dims)
    if past is None:
        return new
    if c.type(past).rank != 4 or (*c.type(past).dims[:2], c.type(past).dims[3]) != (*dims[:2], dims[3]):
        expected = f"[{dims[0]}, {dims[1]}, steps, {dims[3]}]"
        raise ModelError(f"{c.label}: a cache {c.type(past)}: expected {expected}")
    if (more := length - c.type(past).dims[2]) > 0:
        past = c.one(Pad((0, 0, 0, 0), (0, 0, more, 0)), past)
    if dims[2] == c.type(past).dims[2]:
        return new
    return c.one(TensorScatter(2), past, new, first)


def _attend(
    c: NodeContext, q: str, k: str, v: str, visible: str, added: str | None, sinks: str | None
) -> str:
    """[batch, steps, heads · size] of q [batch, heads, steps, size]; neighbours share heads of k and v."""
    batch, own, steps, size = c.type(q).dims
    _, groups, length, _ = c.type(k).dims
    narrow, shared = c.type(q).dtype.name, own // groups

    def number(value: float) -> str:
        return c.const(np.array(value, np.float32))

    rows = c.one(Reshape((batch, groups, shared * steps, size)), q)
    scores = scaled_products(c, rows, k, c.attr("scale", 0.0) or 1 / math.sqrt(size))
    scores = c.one(Reshape((batch, groups, shared, steps, length)), scores)
    if cap := c.attr("softcap", 0.0):
        scores = c.one(Binary("mul"), scores, number(1 / cap))
        scores = c.one(Binary("mul"), c.one(Unary("tanh"), scores), number(cap))
    if added is not None:
        scores = total(c, scores, added)
    scores = c.one(Where(), visible, scores, number(float(np.finfo(np.float32).min)))
    if sinks is not None or c.attr("smooth_softmax", 0) == 1:
        sinks = (
            number(0) if sinks is None else c.one(Cast("f32"), c.one(Reshape((groups, shared, 1, 1)), sinks))
        )
        scores = c.one(Concat(4), scores, c.one(Expand((batch, groups, shared, steps, 1)), sinks))
    shares = c.one(Softmax(4), scores)
    if c.type(shares).dims[4] > length:
        shares = part(c, shares, 4, 0, length)
    shares = c.one(Reshape((batch, groups, shared * steps, length)), c.one(Cast(narrow), shares))
    result = c.one(Reshape((batch, own, steps, size)), c.one(MatMul(), shares, v))
    return c.one(Reshape((batch, steps, own * size)), c.one(Transpose((0, 2, 1, 3)), result))


def _until(c: NodeContext, ends: str, length: int) -> str:
    """bool[batch, 1, 1, 1, length]: all keys that there are."""
    if c.attr("local_window_size", -1) > 0:
        raise c.unsupported("a window of keys where causal is 0")
    last = c.one(Cast(I64.name), c.one(Reshape((c.type(ends).size, 1, 1, 1, 1)), ends))
    return c.one(Binary("le"), c.const(np.arange(length, dtype=np.int64)), last)


def _before(c: NodeContext, first: str, steps: int, length: int) -> str:
    """bool[batch, 1, 1, steps, length]: no later step, and of those before at most a window."""
    batch = c.type(first).dims[0]
    new = c.const(np.arange(steps, dtype=np.int64).reshape(steps, 1))
    now = c.one(Binary("add"), c.one(Reshape((batch, 1, 1, 1, 1)), first), new)
    key = c.const(np.arange(length, dtype=np.int64))
    visible = c.one(Binary("le"), key, now)
    if (window := c.attr("local_window_size", -1)) > 0:
        begin = c.one(Binary("sub"), now, c.const(np.array(window, np.int64)))
        visible = c.one(Binary("and"), visible, c.one(Binary("gt"), key, begin))
    return visible


def _by_group(c: NodeContext, added: str, groups: int, shared: int, steps: int, keys: tuple[int, int]) -> str:
    """Scores of the `keys` that there are, or of the whole cache, for each or for all heads, as of groups."""
    type, (whole, length) = c.type(added), keys
    fits = type.rank == 4 and type.dims[1] in (1, groups * shared) and type.dims[3] in keys
    if not fits or type.dims[2] != steps:
        expected = f"[batch or 1, {groups * shared} or 1, {steps}, {whole}]"
        raise c.unsupported(f"scores {type} that are added", f"expected {expected}")
    by_group = (1, 1) if type.dims[1] == 1 else (groups, shared)
    added = c.one(Cast("f32"), c.one(Reshape((type.dims[0], *by_group, *type.dims[2:])), added))
    more = length - type.dims[3]
    return c.one(Pad((0,) * 5, (0,) * 4 + (more,)), added) if more else added
