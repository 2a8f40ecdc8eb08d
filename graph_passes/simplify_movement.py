"""Rules on operators that move elements, and on casts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ..compiler.ir.graph import Node
from ..compiler.ir.types import BOOL, DTYPES, DType
from ..compiler.ops.elementwise import Cast, Where
from ..compiler.ops.movement import Concat, Expand, Identity, Pad, Reshape, Slice, Tile, Transpose
from .rewrite import Number, Rewriter, rule


@rule("identity(x) => x", Identity)
def identity(r: Rewriter, node: Node) -> str | None:
    return node.inputs[0]


@rule("reshape(x) => x, of the same shape", Reshape)
def reshape_to_itself(r: Rewriter, node: Node) -> str | None:
    return node.inputs[0] if node.op.shape == r.type_of(node.inputs[0]).shape else None


@rule("reshape(reshape(x)) => reshape(x)", Reshape)
def reshape_twice(r: Rewriter, node: Node) -> str | None:
    inner = r.made_by(node.inputs[0], Reshape)
    return r.emit(node.op, inner.inputs[0]) if inner else None


@rule("transpose(x) => x, in the same order", Transpose)
def transpose_in_order(r: Rewriter, node: Node) -> str | None:
    return node.inputs[0] if node.op.perm == tuple(range(len(node.op.perm))) else None


@rule("transpose(transpose(x)) => transpose(x)", Transpose)
def transpose_twice(r: Rewriter, node: Node) -> str | None:
    inner = r.made_by(node.inputs[0], Transpose)
    if inner is None:
        return None
    return r.emit(Transpose(tuple(inner.op.perm[p] for p in node.op.perm)), inner.inputs[0])


@rule("transpose(x) => reshape(x), where only axes of size 1 move", Transpose)
def transpose_of_ones(r: Rewriter, node: Node) -> str | None:
    shape = r.type_of(node.inputs[0]).dims
    long = [p for p in node.op.perm if shape[p] != 1]
    if long != sorted(long):
        return None
    return r.emit(Reshape(tuple(shape[p] for p in node.op.perm)), node.inputs[0])


@rule("expand(x) => x, to the same shape", Expand)
def expand_to_itself(r: Rewriter, node: Node) -> str | None:
    return node.inputs[0] if r.type_of(node.inputs[0]).shape == r.type_of(node.outputs[0]).shape else None


@rule("tile(x) => x, once", Tile)
def tile_once(r: Rewriter, node: Node) -> str | None:
    return node.inputs[0] if set(node.op.repeats) <= {1} else None


@rule("slice(x) => x, all of it", Slice)
def slice_all(r: Rewriter, node: Node) -> str | None:
    whole = node.op.sizes == r.type_of(node.inputs[0]).shape
    forward = all(step == 1 or size <= 1 for step, size in zip(node.op.steps, node.op.sizes))
    return node.inputs[0] if whole and forward else None


@rule("slice(slice(x)) => slice(x)", Slice)
def slice_twice(r: Rewriter, node: Node) -> str | None:
    inner = r.made_by(node.inputs[0], Slice)
    if inner is None or 0 in node.op.sizes:
        return None
    starts = tuple(a + b * s for a, b, s in zip(inner.op.starts, node.op.starts, inner.op.steps))
    steps = tuple(a * b for a, b in zip(inner.op.steps, node.op.steps))
    return r.emit(Slice(starts, node.op.sizes, steps), inner.inputs[0])


@rule("pad(x) => x, by nothing", Pad)
def pad_nothing(r: Rewriter, node: Node) -> str | None:
    return None if any(node.op.before) or any(node.op.after) else node.inputs[0]


@rule("pad(pad(x)) => pad(x), with one value", Pad)
def pad_twice(r: Rewriter, node: Node) -> str | None:
    inner = r.made_by(node.inputs[0], Pad)
    if inner is None or {inner.op.mode, node.op.mode} != {"constant"}:
        return None
    value = pad_value(r, node)
    if value is None or value != pad_value(r, inner):
        return None
    if min(*inner.op.before, *inner.op.after, *node.op.before, *node.op.after) < 0:
        return None
    before = tuple(a + b for a, b in zip(inner.op.before, node.op.before))
    after = tuple(a + b for a, b in zip(inner.op.after, node.op.after))
    return r.emit(Pad(before, after), inner.inputs[0], *node.inputs[1:])


def pad_value(r: Rewriter, node: Node) -> Number | None:
    """The constant that a Pad fills with; None if it is computed."""
    if len(node.inputs) < 2 or node.inputs[1] is None:
        return 0
    return r.uniform(node.inputs[1])


@rule("concat(x) => x", Concat)
def concat_one(r: Rewriter, node: Node) -> str | None:
    return node.inputs[0] if len(node.inputs) == 1 else None


@rule("concat(x, empty) => concat(x)", Concat)
def concat_empty(r: Rewriter, node: Node) -> str | None:
    kept = [i for i in node.inputs if r.type_of(i).dims[node.op.axis]]
    return r.emit(node.op, *kept) if 0 < len(kept) < len(node.inputs) else None


@rule("concat(concat(a, b), c) => concat(a, b, c)", Concat)
def concat_nested(r: Rewriter, node: Node) -> str | None:
    parts: list[str | None] = []
    times = Counter(node.inputs)
    for i in node.inputs:
        inner = r.only_by(i, Concat) if times[i] == 1 else None
        same = inner is not None and _axis(r, inner) == _axis(r, node)
        parts += inner.inputs if inner is not None and same else (i,)
    return r.emit(node.op, *parts) if len(parts) > len(node.inputs) else None


def _axis(r: Rewriter, node: Node) -> int:
    return node.op.axis % r.type_of(node.outputs[0]).rank


@rule("concat(slice(x), slice(x)) => slice(x), of neighbours", Concat)
def concat_slices(r: Rewriter, node: Node) -> str | None:
    axis, slices = _axis(r, node), [r.made_by(i, Slice) for i in node.inputs]
    if slices[0] is None or len(slices) < 2:
        return None
    first, end = slices[0], 0
    for position, s in enumerate(slices):
        if s is None or s.inputs != first.inputs or s.op.steps != first.op.steps or first.op.steps[axis] != 1:
            return None
        others = [n for n in range(len(s.op.starts)) if n != axis]
        if any((s.op.starts[n], s.op.sizes[n]) != (first.op.starts[n], first.op.sizes[n]) for n in others):
            return None
        if position and s.op.starts[axis] != end:
            return None
        end = s.op.starts[axis] + s.op.sizes[axis]
    sizes = list(first.op.sizes)
    sizes[axis] = end - first.op.starts[axis]
    return r.emit(replace(first.op, sizes=tuple(sizes)), first.inputs[0])


@rule("cast(x) => x, to its own type", Cast)
def cast_to_itself(r: Rewriter, node: Node) -> str | None:
    return node.inputs[0] if node.op.to == r.type_of(node.inputs[0]).dtype.name else None


@rule("cast(cast(x)) => cast(x), where the inner one loses nothing", Cast)
def cast_twice(r: Rewriter, node: Node) -> str | None:
    inner = r.made_by(node.inputs[0], Cast)
    if inner is None or not _widens(r.type_of(inner.inputs[0]).dtype, DTYPES[inner.op.to]):
        return None
    return r.emit(node.op, inner.inputs[0])


def _widens(source: DType, target: DType) -> bool:
    """Whether `target` holds every value of `source`, in a kind that a later cast treats alike."""
    if source is target:
        return True
    if source is BOOL:
        return target.is_integer
    if source.kind == target.kind:
        return source.bits < target.bits
    return source.kind == "uint" and target.kind == "int" and source.bits < target.bits


@rule("where(true, x, y) => x", Where)
def where_known(r: Rewriter, node: Node) -> str | None:
    known = r.uniform(node.inputs[0])
    if known is None:
        return None
    taken = node.inputs[1] if known else node.inputs[2]
    shape = r.type_of(node.outputs[0]).dims
    return taken if r.type_of(taken).dims == shape else r.emit(Expand(shape), taken)


MOVEMENT = (
    identity,
    reshape_to_itself,
    reshape_twice,
    transpose_in_order,
    transpose_of_ones,
    transpose_twice,
    expand_to_itself,
    tile_once,
    slice_all,
    slice_twice,
    pad_nothing,
    pad_twice,
    concat_one,
    concat_empty,
    concat_nested,
    concat_slices,
    cast_to_itself,
    cast_twice,
    where_known,
)
