"""Winograd's minimal filtering F(m, r) by Toom–Cook interpolation, for any evaluation points.

    y = Aᵀ [(G g) ∘ (Bᵀ d)]    m outputs of a correlation with r taps from m + r - 1 inputs
Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (2016), section 4; the points that keep
the rounding error small are those of docs/performance.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from math import prod

import numpy as np

_SMALL = ((0, 1), (1, 1), (-1, 1))
_MEDIUM = ((0, 1), (5, 8), (-5, 8), (3, 2), (-3, 2))
_LARGE = ((0, 1), (1, 1), (-1, 1), (1, 2), (-1, 2), (2, 1), (-2, 1))
POINTS: dict[tuple[int, int], tuple[Fraction, ...]] = {
    key: tuple(Fraction(*p) for p in points)
    for key, points in {
        (2, 2): _SMALL[1:],
        (3, 2): _SMALL,
        (2, 3): _SMALL,
        (4, 3): _MEDIUM,
        (6, 3): _LARGE,
        (2, 5): _MEDIUM,
        (4, 5): _LARGE,
    }.items()
}
"""(outputs, taps) → finite points; infinity is always the last one."""


@dataclass(frozen=True)
class Transform:
    """`a` is Aᵀ (m, n), `g` is G (n, r), `b` is Bᵀ (n, n), n = m + r - 1; float64."""

    m: int
    r: int
    a: np.ndarray
    g: np.ndarray
    b: np.ndarray

    @property
    def n(self) -> int:
        return self.m + self.r - 1


@dataclass(frozen=True)
class Band:
    """Tiles of m outputs on some of a transform's points, to be multiplied with that transform's weights.

    `points` are positions in the transform, infinity the last; `a` is Aᵀ (m, points), `b` Bᵀ (points,
    m + r - 1).
    """

    m: int
    points: tuple[int, ...]
    a: np.ndarray
    b: np.ndarray


@lru_cache(maxsize=64)
def transform(m: int, r: int = 3) -> Transform:
    return _on_points(m, r, POINTS[m, r])


def _on_points(m: int, r: int, points: Sequence[Fraction]) -> Transform:
    n = m + r - 1
    a = [[p**i for p in points] + [Fraction(int(i == m - 1))] for i in range(m)]
    g, b = [], []
    for j, p in enumerate(points):
        others = [q for k, q in enumerate(points) if k != j]
        scale = prod((p - q for q in others), start=Fraction(1))
        g.append([p**k / scale for k in range(r)])
        b.append(_polynomial(others) + [Fraction(0)])
    g.append([Fraction(int(k == r - 1)) for k in range(r)])
    b.append(_polynomial(list(points)))
    return Transform(m, r, _array(a), _array(g), _array(b).reshape(n, n))


@lru_cache(maxsize=64)
def band(m: int, r: int, outputs: int) -> Band:
    """F(outputs, r) on those points of F(m, r), infinity among them, that round least."""
    whole = transform(m, r)
    if outputs == m:
        return Band(m, tuple(range(whole.n)), whole.a, whole.b)
    finite = range(whole.n - 1)
    found = [_nested(m, r, outputs, chosen) for chosen in combinations(finite, outputs + r - 2)]
    return min(found, key=lambda nested: _amplification(nested, whole.g))


def _nested(m: int, r: int, outputs: int, chosen: tuple[int, ...]) -> Band:
    """The weights' scale is the whole transform's, so the inputs take up the difference."""
    points = POINTS[m, r]
    part = _on_points(outputs, r, [points[k] for k in chosen])
    ratio = [
        prod((points[j] - q for k, q in enumerate(points) if k != j and k not in chosen), start=Fraction(1))
        for j in chosen
    ]
    scale = np.array([*map(float, ratio), 1.0])
    return Band(outputs, (*chosen, len(points)), part.a, scale[:, None] * part.b)


def _amplification(nested: Band, g: np.ndarray) -> float:
    """Σ |A| (|G| ∘ |B|): how far rounded terms exceed the outputs that they add up to."""
    weights = np.abs(g[list(nested.points)]).sum(1)
    return float((np.abs(nested.a) @ (weights * np.abs(nested.b).sum(1))).max())


def _polynomial(roots: list[Fraction]) -> list[Fraction]:
    """Coefficients of Π (x - root), lowest power first."""
    c = [Fraction(1)]
    for root in roots:
        c = [(c[i - 1] if i else 0) - root * (c[i] if i < len(c) else 0) for i in range(len(c) + 1)]
    return c


def _array(rows: list[list[Fraction]]) -> np.ndarray:
    return np.array([[float(x) for x in row] for row in rows])
