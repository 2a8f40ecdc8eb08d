"""Import of what only moves elements, and of constants that shapes decide."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...compiler.ops.movement import Concat, Expand, Identity, Pad, Reshape, Slice, Tile, Transpose, Trilu
from ...compiler.ops.shapes import axes_of, axis_of
from ...errors import ModelError
from .registry import NodeContext, onnx


@onnx("Identity")
def identity(c: NodeContext, x: str):
    return c.emit(Identity(), x)


@onnx("Dropout")
def dropout(c: NodeContext, x: str, ratio: str | None = None, training: str | None = None):
    trains = training is not None and bool(c.value(training, "training_mode"))
    if trains and (ratio is None or float(c.value(ratio, "ratio")) != 0):
        raise c.unsupported("dropout while training", "export the model for inference")
    outputs = c.emit(Identity(), x)
    mask = np.bool_ if c.opset >= 10 else c.type(x).dtype.numpy
    if not c.wants(1):
        return outputs
    return (*outputs, c.one(Expand(c.type(x).dims), c.const(np.ones((), mask))))


@onnx("Transpose")
def transpose(c: NodeContext, x: str):
    return c.emit(Transpose(tuple(c.attr("perm", range(c.type(x).rank)[::-1]))), x)


@onnx("Reshape")
def reshape(c: NodeContext, x: str, shape: str):
    wanted = c.ints(shape, "shape")
    return c.emit(Reshape(resolved_shape(c, wanted, c.type(x).dims, bool(c.attr("allowzero", 0)))), x)


def resolved_shape(
    c: NodeContext, wanted: Sequence[int], source: tuple[int, ...], zero_is_zero: bool
) -> tuple[int, ...]:
    """Reshape's shape with 0 (copy the size) and -1 (what is left) replaced."""
    if any(d < -1 for d in wanted) or list(wanted).count(-1) > 1:
        raise ModelError(f"{c.label}: shape {list(wanted)} may hold one -1 and nothing less")
    if not zero_is_zero and any(d == 0 and n >= len(source) for n, d in enumerate(wanted)):
        raise ModelError(f"{c.label}: shape {list(wanted)} copies a size that {list(source)} does not have")
    sizes = [source[n] if d == 0 and not zero_is_zero else d for n, d in enumerate(wanted)]
    known = int(np.prod([d for d in sizes if d != -1], dtype=np.int64))
    total = int(np.prod(source, dtype=np.int64))
    if -1 in sizes:
        if known == 0 or total % known:
            raise ModelError(f"{c.label}: {list(source)} cannot be reshaped to {list(wanted)}")
        sizes[sizes.index(-1)] = total // known
    return tuple(sizes)


@onnx("Flatten")
def flatten(c: NodeContext, x: str):
    dims = c.type(x).dims
    axis = c.attr("axis", 1)
    if not -len(dims) <= axis <= len(dims):
        raise ModelError(f"{c.label}: axis {axis} is outside a tensor of {len(dims)} axes")
    axis = axis + len(dims) if axis < 0 else axis
    return c.emit(
        Reshape((int(np.prod(dims[:axis], dtype=np.int64)), int(np.prod(dims[axis:], dtype=np.int64)))), x
    )


def axes_argument(c: NodeContext, axes: str | None) -> tuple[int, ...] | None:
    """Axes from the attribute of older opsets or the input of newer ones; None if neither is given."""
    if axes is not None:
        return c.ints(axes, "axes")
    attribute = c.attr("axes")
    return None if attribute is None else tuple(attribute)


@onnx("Squeeze")
def squeeze(c: NodeContext, x: str, axes: str | None = None):
    dims = c.type(x).dims
    given = axes_argument(c, axes)
    removed = [n for n, d in enumerate(dims) if d == 1] if given is None else axes_of(given, len(dims))
    if any(dims[n] != 1 for n in removed):
        raise ModelError(f"{c.label}: axes {list(removed)} of {list(dims)} are not all of size 1")
    return c.emit(Reshape(tuple(d for n, d in enumerate(dims) if n not in removed)), x)


@onnx("Unsqueeze")
def unsqueeze(c: NodeContext, x: str, axes: str | None = None):
    dims = list(c.type(x).dims)
    given = axes_argument(c, axes)
    if given is None:
        raise ModelError(f"{c.label}: its axes are missing")
    for axis in axes_of(given, len(dims) + len(given)):
        dims.insert(axis, 1)
    return c.emit(Reshape(tuple(dims)), x)


@onnx("Concat")
def concat(c: NodeContext, *parts: str):
    return c.emit(Concat(axis_of(c.required("axis"), c.type(parts[0]).rank)), *parts)


@onnx("Slice")
def slice_attributes(c: NodeContext, x: str):
    starts, ends = c.required("starts"), c.required("ends")
    return _slice(c, x, starts, ends, c.attr("axes", list(range(len(starts)))), [1] * len(starts))


@onnx("Slice", since=10)
def slice_inputs(
    c: NodeContext, x: str, starts: str, ends: str, axes: str | None = None, steps: str | None = None
):
    begin, end = c.ints(starts, "starts"), c.ints(ends, "ends")
    along = c.ints(axes, "axes") if axes else range(len(begin))
    return _slice(c, x, begin, end, along, c.ints(steps, "steps") if steps else [1] * len(begin))


def _slice(
    c: NodeContext,
    x: str,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int],
    steps: Sequence[int],
) -> str:
    dims = c.type(x).dims
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise ModelError(f"{c.label}: starts, ends, axes and steps must be equally many")
    ranges = [range(d) for d in dims]
    for start, end, axis, step in zip(starts, ends, axes, steps):
        if step == 0:
            raise ModelError(f"{c.label}: its step along axis {axis} is 0; expected another whole number")
        n = axis_of(axis, len(dims))
        if step < 0:  # what begins before the first element begins there; Python takes nothing
            start = max(start, -dims[n])
        ranges[n] = range(*slice(start, end, step).indices(dims[n]))
    return slice_ranges(c, x, ranges)


def slice_ranges(c: NodeContext, x: str, ranges: Sequence[range]) -> str:
    """The elements of x in one range for each axis."""
    starts = tuple(r.start if len(r) else 0 for r in ranges)
    return c.one(Slice(starts, tuple(len(r) for r in ranges), tuple(r.step for r in ranges)), x)


@onnx("Split")
def split(c: NodeContext, x: str, sizes: str | None = None):
    dims = c.type(x).dims
    axis = axis_of(c.attr("axis", 0), len(dims))
    given = c.ints(sizes, "split") if sizes else c.attr("split")
    if given is None:
        count = c.attr("num_outputs", c.output_count)
        if count != c.output_count:
            raise ModelError(f"{c.label}: num_outputs is {count}, but it has {c.output_count} outputs")
        size = -(-dims[axis] // count)
        given = [max(0, min(size, dims[axis] - n * size)) for n in range(count)]
    if sum(given) != dims[axis] or len(given) < c.output_count or any(n < 0 for n in given):
        raise ModelError(f"{c.label}: sizes {list(given)} do not split an axis of {dims[axis]}")
    ends = np.cumsum(given).tolist()
    parts = [[range(d) for d in dims] for _ in given]
    for part, size, end in zip(parts, given, ends):
        part[axis] = range(end - size, end)
    return tuple(slice_ranges(c, x, part) for part in parts[: c.output_count])


@onnx("Expand")
def expand(c: NodeContext, x: str, shape: str):
    return c.emit(Expand(c.ints(shape, "shape")), x)


@onnx("Tile")
def tile(c: NodeContext, x: str, repeats: str):
    return c.emit(Tile(c.ints(repeats, "repeats")), x)


@onnx("Pad")
def pad_attributes(c: NodeContext, x: str):
    value = c.const(np.array(c.attr("value", 0.0), c.type(x).dtype.numpy))
    return _pad(c, x, c.required("pads"), value, range(c.type(x).rank))


@onnx("Pad", since=11)
def pad(c: NodeContext, x: str, pads: str, value: str | None = None, axes: str | None = None):
    along = c.ints(axes, "axes") if axes else range(c.type(x).rank)
    return _pad(c, x, c.ints(pads, "pads"), value, along)


def _pad(
    c: NodeContext, x: str, pads: Sequence[int], value: str | None, axes: Sequence[int]
) -> tuple[str, ...]:
    rank = c.type(x).rank
    if len(pads) != 2 * len(axes):
        raise ModelError(f"{c.label}: {len(pads)} pads are given, but {len(axes)} axes need {2 * len(axes)}")
    before, after = [0] * rank, [0] * rank
    for n, axis in enumerate(axes):
        before[axis_of(axis, rank)] = pads[n]
        after[axis_of(axis, rank)] = pads[n + len(axes)]
    if not rank:
        return c.emit(Identity(), x)
    mode = c.attr("mode", "constant")
    if mode != "constant" and min(*before, *after, 0) < 0:  # what is cut off is not repeated
        x = _cut(c, x, before, after)
        before, after = [max(n, 0) for n in before], [max(n, 0) for n in after]
    return c.emit(Pad(tuple(before), tuple(after), mode), x, value if mode == "constant" else None)


def _cut(c: NodeContext, x: str, before: Sequence[int], after: Sequence[int]) -> str:
    """x without what negative pads cut off."""
    dims = c.type(x).dims
    starts = tuple(max(-p, 0) for p in before)
    sizes = tuple(d - p - max(-q, 0) for d, p, q in zip(dims, starts, after))
    if min(sizes) < 0:
        raise ModelError(f"{c.label}: pads {list(before)} and {list(after)} cut more than {list(dims)} has")
    return c.one(Slice(starts, sizes, (1,) * len(dims)), x)


@onnx("CenterCropPad")
def center_crop_pad(c: NodeContext, x: str, shape: str):
    dims = list(c.type(x).dims)
    sizes = c.ints(shape, "shape")
    axes = [axis_of(a, len(dims)) for a in c.attr("axes", range(len(dims)))]
    before, after = [0] * len(dims), [0] * len(dims)
    for axis, size in zip(axes, sizes, strict=True):
        grow = size - dims[axis]
        before[axis] = grow // 2 if grow > 0 else -(-grow // 2)
        after[axis] = grow - before[axis]
    return c.emit(Pad(tuple(before), tuple(after)), x)


def _block_size(c: NodeContext) -> int:
    block = c.required("blocksize")
    if block < 1:
        raise ModelError(f"{c.label}: a blocksize of {block}, expected 1 or more")
    return block


@onnx("DepthToSpace")
def depth_to_space(c: NodeContext, x: str):
    n, depth, h, w = c.dims(x, 4)
    block = _block_size(c)
    column_first = c.choice("mode", "DCR", "CRD") == "CRD"
    inner = depth // block**2
    split = (n, inner, block, block, h, w) if column_first else (n, block, block, inner, h, w)
    perm = (0, 1, 4, 2, 5, 3) if column_first else (0, 3, 4, 1, 5, 2)
    moved = c.one(Transpose(perm), c.one(Reshape(split), x))
    return c.emit(Reshape((n, inner, h * block, w * block)), moved)


@onnx("SpaceToDepth")
def space_to_depth(c: NodeContext, x: str):
    n, depth, h, w = c.dims(x, 4)
    block = _block_size(c)
    perm = (0, 1, 3, 5, 2, 4) if c.choice("mode", "DCR", "CRD") == "CRD" else (0, 3, 5, 1, 2, 4)
    moved = c.one(Transpose(perm), c.one(Reshape((n, depth, h // block, block, w // block, block)), x))
    return c.emit(Reshape((n, depth * block**2, h // block, w // block)), moved)


@onnx("Trilu")
def trilu(c: NodeContext, x: str, k: str | None = None):
    return c.emit(Trilu(bool(c.attr("upper", 1)), c.int_(k, "k") if k else 0), x)
