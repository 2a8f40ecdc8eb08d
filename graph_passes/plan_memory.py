"""One arena for all intermediate values: greedy by size, lowest offset that is free over the value's whole
life.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

from ..compiler.ir.plan import ALIGNMENT


@dataclass(frozen=True)
class Lifetime:
    """A value of `nbytes` that must be kept from step `first` to step `last`, both included."""

    name: str  # of equally large ones that begin together the first goes first
    nbytes: int
    first: int
    last: int


def plan_memory(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """(offset of each value, arena size) in bytes; offsets are multiples of 64."""
    offsets = [0] * len(lifetimes)
    placed: list[tuple[int, int, Lifetime]] = []  # (begin, end, value), by begin
    for n, value in sorted(enumerate(lifetimes), key=lambda v: (-v[1].nbytes, v[1].first, v[1].name)):
        size = max(ALIGNMENT, -(-value.nbytes // ALIGNMENT) * ALIGNMENT)
        offset = 0
        for begin, end, other in placed:
            if other.last < value.first or value.last < other.first:
                continue
            if offset + size <= begin:
                break
            offset = max(offset, end)
        offsets[n] = offset
        insort(placed, (offset, offset + size, value), key=lambda p: p[:2])
    return offsets, max((end for _, end, _ in placed), default=0)
