"""What operators share: checks of inputs, axes, broadcasting, the type that arithmetic is done in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import NoReturn

import numpy as np

from ...errors import ModelError
from ..ir import scalar as s
from ..ir.scalar import Expr
from ..ir.types import F32, NARROW, DType, TensorType


def fail(message: str) -> NoReturn:
    raise ModelError(message)


def given(type: TensorType | None, what: str = "an input") -> TensorType:
    """The type of an input that must be present."""
    if type is None:
        raise ModelError(f"{what} is missing")
    return type


def axis_of(axis: int, rank: int, what: str = "axis") -> int:
    """A possibly negative axis as one in [0, rank)."""
    if not -rank <= axis < rank:
        raise ModelError(f"{what} {axis} is outside a tensor of {rank} axes; give one in [{-rank}, {rank})")
    return axis % rank


def axes_of(axes: Iterable[int], rank: int, what: str = "axis") -> tuple[int, ...]:
    """Axes made non-negative and sorted; ModelError if one stands twice."""
    result = tuple(sorted(axis_of(a, rank, what) for a in axes))
    if len(set(result)) != len(result):
        raise ModelError(f"an {what} stands twice in {result}")
    return result


def broadcast_shape(*shapes: Sequence[int]) -> tuple[int, ...]:
    """numpy's broadcasting of shapes."""
    try:
        return tuple(int(d) for d in np.broadcast_shapes(*(tuple(shape) for shape in shapes)))
    except ValueError:
        listed = " and ".join(str(list(shape)) for shape in shapes)
        raise ModelError(
            f"shapes {listed} do not broadcast: aligned at the right, sizes must be equal or 1"
        ) from None


def same_dtype(*types: TensorType) -> DType:
    first = types[0].dtype
    if any(t.dtype is not first for t in types):
        raise ModelError(f"inputs must have one dtype, but are {', '.join(str(t.dtype) for t in types)}")
    return first


def wide(dtype: DType) -> DType:
    """The type that arithmetic is done in: f32 for the narrow floats, else `dtype` itself."""
    return F32 if dtype in NARROW else dtype


def widen(x: Expr) -> Expr:
    return s.cast(x, wide(x.dtype))


def wide_array(x: np.ndarray) -> np.ndarray:
    """The numpy side of `widen`."""
    return x.astype(np.float32) if x.dtype.itemsize == 2 and x.dtype.kind not in "iub" else x


def size_of(shape: Iterable[int]) -> int:
    return prod(shape)


def wrap_index(index: Expr, extent: int) -> Expr:
    """An index that may count from the end, as i64, checked against [-extent, extent)."""
    i = s.cast(index, s.I64)
    return s.call("checked", s.select(s.lt(i, 0), i + extent, i), s.const(extent))


def wrapped_array(index: np.ndarray, extent: int) -> np.ndarray:
    """The numpy side of `wrap_index`."""
    i = np.asarray(index).astype(np.int64)
    i = np.where(i < 0, i + extent, i)
    if np.any((i < 0) | (i >= extent)):
        raise ModelError(f"an index is outside an axis of {extent}")
    return i
