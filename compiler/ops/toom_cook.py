"""Winograd's minimal filtering F(m, r) by Toom–Cook interpolation, for any evaluation points.

    y = Aᵀ [(G g) ∘ (Bᵀ d)]    m outputs of a correlation with r taps from m + r - 1 inputs
Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (2016), section 4; the points that keep
the rounding
error small are those of docs/performance.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import prod

import numpy as np

POINTS: dict[int, tuple[Fraction, ...]] = {
    2: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(5, 8), Fraction(-5, 8), Fraction(3, 2), Fraction(-3, 2)),
    6: tuple(Fraction(*p) for p in ((0, 1), (1, 1), (-1, 1), (1, 2), (-1, 2), (2, 1), (-2, 1))),
}
"""Output tile size → finite points; infinity is always the last one."""


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


@lru_cache(maxsize=16)
def transform(m: int, r: int = 3) -> Transform:
    points = POINTS[m][: m + r - 2]
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


def _polynomial(roots: list[Fraction]) -> list[Fraction]:
    """Coefficients of Π (x - root), lowest power first."""
    c = [Fraction(1)]
    for root in roots:
        c = [(c[i - 1] if i else 0) - root * (c[i] if i < len(c) else 0) for i in range(len(c) + 1)]
    return c


def _array(rows: list[list[Fraction]]) -> np.ndarray:
    return np.array([[float(x) for x in row] for row in rows])


def transform_weights(w: np.ndarray, m: int, lanes: int, vectors: int) -> np.ndarray:
    """(out channels, in channels, 3, 3) → U (points, out channels / (vectors · lanes), in channels,
    vectors · lanes).
    """
    t = transform(m)
    u = np.einsum("ia,ocab,jb->ijoc", t.g, w.astype(np.float64), t.g).astype(np.float32)
    group = vectors * lanes
    out, channels = w.shape[:2]
    u = u.reshape(t.n * t.n, out // group, group, channels)
    return np.ascontiguousarray(u.transpose(0, 1, 3, 2))
