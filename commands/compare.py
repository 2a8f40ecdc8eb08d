"""Two results beside each other: errors relative to a tensor's scale, and equality of bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from .outputs import DTYPE_TOLERANCE, relative_error
from .peers.base import PRECISION_TOLERANCE


@dataclass(frozen=True)
class Check:
    """One tensor against what is expected. `where` is the node, or the run, that it comes from."""

    value: str
    where: str
    type: str
    error: float  # of scale; infinite for another shape or dtype, or NaN on one side only
    limit: float
    detail: str = ""
    note: str = ""

    @property
    def ok(self) -> bool:
        return self.error <= self.limit

    def text(self) -> str:
        verdict = f"{self.error:.1e} of scale" if self.ok else f"WRONG, {self.error:.1e} of scale"
        detail = "" if self.ok or not self.detail else f": {self.detail}"
        note = f"; {self.note}" if self.note else ""
        return f"{self.value} {self.type} ({self.where}): {verdict}{detail}{note}"


def compare(
    value: str,
    where: str,
    found: np.ndarray,
    expected: np.ndarray,
    precision: str = "f32",
    least: float = 0.0,
) -> Check:
    """The largest difference, and at a mismatch where it is. Factors may be rounded to `precision`.

    `least`: the tolerance of floats and 8-bit integers at least, `least_tolerance` of the network.
    """
    type = f"{expected.dtype}[{','.join(map(str, expected.shape))}]"
    limit = DTYPE_TOLERANCE.get(str(expected.dtype), 0.0)
    if expected.dtype == np.float32:
        limit = max(limit, PRECISION_TOLERANCE[precision])
    if expected.dtype.kind not in "iub" or expected.dtype in (np.int8, np.uint8):
        limit = max(limit, least)
    check = partial(Check, value=value, where=where, type=type, limit=limit)
    if found.dtype != expected.dtype or found.shape != expected.shape:
        other = f"found {found.dtype}[{','.join(map(str, found.shape))}]"
        return check(error=np.inf, detail=other)
    if limit == 0.0 and np.array_equal(found, expected):
        return check(error=0.0)
    error = relative_error({value: found}, {value: expected})
    if limit == 0.0:
        error = max(error, np.finfo(np.float64).tiny)  # int64 may differ by less than a double shows
    return check(error=error, detail="" if error <= limit else _worst(found, expected))


def _worst(found: np.ndarray, expected: np.ndarray) -> str:
    """The element with the largest difference."""
    a, b = found.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        difference = np.abs(a - b)
    both = np.isnan(a) & np.isnan(b) | (a == b)
    difference = np.where(both, 0.0, np.where(np.isnan(difference), np.inf, difference))
    at = np.unravel_index(int(np.argmax(difference)), difference.shape)
    place = ",".join(map(str, at))
    return f"at [{place}] {found[at]}, expected {expected[at]}"


def same_bits(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)
