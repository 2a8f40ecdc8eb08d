"""Medians with an interval that assumes nothing about how times are distributed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb


@dataclass(frozen=True)
class Interval:
    """A median and the values between which the true one lies with the probability `coverage`."""

    low: float
    middle: float
    high: float
    coverage: float


def median_interval(values: Sequence[float], wanted: float = 0.95) -> Interval:
    """The narrowest interval between two order statistics, equally far from both ends, that covers the
    true median with at least the probability `wanted`; the whole range where no interval does.

    The k-th smallest and k-th largest of n independent values enclose the median unless fewer than k
    values fall on one side of it, which is a matter of n tosses of a coin (David and Nagaraja, Order
    Statistics, section 7.1). Five values cover it with 0.9375, six with 0.96875.
    """
    ordered = sorted(values)
    count = len(ordered)
    if count == 0:
        raise ValueError("no values")
    trim = 0
    while 2 * (trim + 1) < count and _coverage(count, trim + 1) >= wanted:
        trim += 1
    return Interval(
        ordered[trim], statistics.median(ordered), ordered[count - 1 - trim], _coverage(count, trim)
    )


def _coverage(count: int, trim: int) -> float:
    tail = sum(comb(count, k) for k in range(trim + 1)) / 2**count
    return max(0.0, 1.0 - 2.0 * tail)
