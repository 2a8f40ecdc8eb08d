"""Sliding windows over spatial axes: sizes, padding and indices, shared by convolutions and pooling.

An output position o and a kernel tap k meet at the input position o·stride + k·dilation - pad.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from ...errors import ModelError
from ..ir import scalar as s
from ..ir.expr import Tensor
from ..ir.scalar import Expr
from ..ir.types import DType

SPATIAL = {1: ("w",), 2: ("h", "w"), 3: ("d", "h", "w")}
"""Names of the spatial axes by their number."""


def spatial_names(rank: int, prefix: str = "") -> tuple[str, ...]:
    return tuple(prefix + n for n in SPATIAL.get(rank, tuple(f"s{i}" for i in range(rank))))


def output_size(
    size: int, kernel: int, stride: int, dilation: int, pad_begin: int, pad_end: int, ceil_mode: bool = False
) -> int:
    """Number of windows along one axis; with `ceil_mode` a last, partial one counts if it starts inside."""
    room = size + pad_begin + pad_end - ((kernel - 1) * dilation + 1)
    if not ceil_mode:
        return room // stride + 1
    count = -(-room // stride) + 1
    return count - 1 if (count - 1) * stride >= size + pad_begin else count


def resolve_auto_pad(
    auto_pad: str,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
) -> tuple[int, ...]:
    """Explicit pads (all begins, then all ends) for ONNX's auto_pad."""
    if auto_pad in ("NOTSET", ""):
        return tuple(pads) or (0,) * (2 * len(kernel))
    if auto_pad == "VALID":
        return (0,) * (2 * len(kernel))
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        raise ModelError(f"auto_pad is {auto_pad!r}, expected NOTSET, VALID, SAME_UPPER or SAME_LOWER")
    begins, ends = [], []
    for n, k, st, d in zip(sizes, kernel, strides, dilations, strict=True):
        total = max((-(-n // st) - 1) * st + (k - 1) * d + 1 - n, 0)
        small, large = total // 2, total - total // 2
        begins.append(small if auto_pad == "SAME_UPPER" else large)
        ends.append(large if auto_pad == "SAME_UPPER" else small)
    return (*begins, *ends)


def check_window(
    what: str,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
) -> None:
    """ModelError unless the attributes fit the number of spatial axes and are positive where they must be."""
    rank = len(sizes)
    for name, values, count in (
        ("kernel_shape", kernel, rank),
        ("strides", strides, rank),
        ("dilations", dilations, rank),
        ("pads", pads, 2 * rank),
    ):
        if len(values) != count:
            raise ModelError(f"{what}: {name} {list(values)} has {len(values)} entries, expected {count}")
        least = 0 if name == "pads" else 1
        if any(v < least for v in values):
            raise ModelError(f"{what}: {name} {list(values)} has an entry below {least}")


def output_sizes(
    what: str,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    ceil_mode: bool = False,
) -> tuple[int, ...]:
    """`output_size` for every spatial axis; ModelError where a kernel does not fit its padded input."""
    check_window(what, sizes, kernel, strides, dilations, pads)
    rank = len(sizes)
    result = tuple(
        output_size(n, k, st, d, begin, end, ceil_mode)
        for n, k, st, d, begin, end in zip(sizes, kernel, strides, dilations, pads[:rank], pads[rank:])
    )
    if any(n < 0 for n in result) or (any(n == 0 for n in result) and 0 not in sizes):
        raise ModelError(
            f"{what}: a kernel of {list(kernel)} with dilations {list(dilations)} does not fit an input of "
            f"{list(sizes)} with pads {list(pads)}"
        )
    return result


def positions(
    outs: Sequence[Expr],
    taps: Sequence[Expr],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
) -> tuple[Expr, ...]:
    """Input positions o·stride + k·dilation - pad."""
    return tuple(
        o * st + k * d - p for o, k, st, d, p in zip(outs, taps, strides, dilations, pads[: len(outs)])
    )


def inside(
    index: Sequence[Expr],
    sizes: Sequence[int],
    kernel: Sequence[int],
    outs: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
) -> Expr:
    """Whether the position lies in the input; axes that no window leaves are not asked."""
    conditions = []
    for a, (i, n) in enumerate(zip(index, sizes)):
        last = (outs[a] - 1) * strides[a] + (kernel[a] - 1) * dilations[a] - pads[a]
        if pads[a] > 0 or last >= n:
            conditions.append(s.within(i, n))
    return s.both(*conditions)


def read(x: Tensor, index: Sequence[Expr], guard: Expr, outside: Expr, to: DType) -> Expr:
    """x[index] as `to` where `guard` holds, else `outside`."""
    return s.select(guard, s.cast(x[tuple(index)], to), outside)


_limit: ContextVar[float] = ContextVar(
    "most bytes that all windows of an operator may take", default=math.inf
)


@contextmanager
def window_limit(nbytes: int) -> Iterator[None]:
    """In here references raise MemoryError where they would write out more."""
    before = _limit.set(nbytes)
    try:
        yield
    finally:
        _limit.reset(before)


def check_windows(elements: int) -> None:
    if 8 * elements > _limit.get():
        raise MemoryError("the windows of an operator that is evaluated when compiling")


def windows(
    x: np.ndarray,
    kernel: Sequence[int],
    outs: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    fill: float | int,
) -> np.ndarray:
    """numpy: x (n, c, *spatial) → (n, c, *outs, *kernel), `fill` outside of x."""
    rank = len(kernel)
    widths = [(0, 0), (0, 0)]
    for a in range(rank):
        need = (outs[a] - 1) * strides[a] + (kernel[a] - 1) * dilations[a] + 1
        widths.append((pads[a], max(need - pads[a] - x.shape[2 + a], 0)))
    sizes = (*x.shape[:2], *(n + sum(pair) for n, pair in zip(x.shape[2:], widths[2:])))
    check_windows(max(math.prod(sizes), math.prod((*x.shape[:2], *outs, *kernel))))
    padded = np.pad(x, widths, constant_values=fill)
    spans = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations))
    if 0 in outs or 0 in padded.shape:
        return np.zeros((*x.shape[:2], *outs, *kernel), x.dtype)
    view = np.lib.stride_tricks.sliding_window_view(padded, spans, axis=tuple(range(2, 2 + rank)))
    pick = tuple(slice(0, (o - 1) * st + 1, st) for o, st in zip(outs, strides))
    taps = tuple(slice(None, None, d) for d in dilations)
    return view[(slice(None), slice(None), *pick, *taps)]


def high(array: np.ndarray) -> np.ndarray:
    """numpy: floats as float64, integers as they are, for references."""
    return array.astype(np.float64) if array.dtype.kind not in "iub" else array
