"""What is added up over all nests of programs.

A nest adds a product: how often each loop around it is executed, and what its statements do. Programs of
many nests have few different products, as the phases of a polyphase convolution and all kinds of tiles share
their loops: numbers that stand at one place (`Columns.shared`) are multiplied once, constants are taken out,
and sums over nests are weighted ones of products. All are whole numbers, so that the order says nothing.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property

import numpy as np

from .columns import Columns
from .sketch import KINDS, NESTS

VECTOR = KINDS.index("vector")
SUMMED = {"operations": True, "prefetches": True, "guarded": True, "stores": False}
"""What is added up, and whether as often as it is executed, a vector counting once."""
AHEAD = ("nearest", "farthest")

Factor = tuple[int, ...]
"""Columns: around, extent and kind of a loop; or a number of a nest, 0 or 1 where that says whether it is
there."""


class Plan:
    """What columns say of all programs.

    factors    of products
    products   each is an earlier one times a factor; before them stands 1
    weights    (SUMMED, 1 + products) by which they are added up
    listed     (nests,) those that may be heavy, their products, and by what these are multiplied
    ahead      columns of each of AHEAD: whether a nest is there, and the number
    scopes     columns of each, and how many buffers have that number of bytes
    """

    def __init__(self, columns: Columns):
        self.columns = columns
        self._loops = [self._executed(n) for n in range(len(columns.nests))]
        terms = [(what, n, *self._term(what, n)) for n in range(len(columns.nests)) for what in SUMMED]
        terms = [term for term in terms if term[2]]
        common = Counter(factor for *_, factors in terms for factor in factors)
        place = {factor: n for n, (factor, _) in enumerate(common.most_common())}
        self.factors: list[Factor] = list(place)
        self.products: list[tuple[int, int]] = []
        known: dict[tuple[int, ...], int] = {(): 0}
        rows = [self._row(tuple(sorted(place[f] for f in factors)), known) for *_, factors in terms]
        self.weights = np.zeros((len(SUMMED), len(known)))
        for (what, _, scale, _), row in zip(terms, rows):
            self.weights[list(SUMMED).index(what), row] += scale
        heavy = [(n, row, scale) for (what, n, scale, _), row in zip(terms, rows) if what == "operations"]
        nests, heavy_rows, scales = np.array(heavy, float).reshape(-1, 3).T
        self.listed = nests.astype(int), heavy_rows.astype(int), scales
        self.ahead = {what: self._ahead(what) for what in AHEAD}
        self.scopes = {name: np.unique(own, return_counts=True) for name, own in columns.scopes.items()}

    def _executed(self, n: int) -> tuple[float, list[Factor]]:
        """How often a nest is executed, as `_term`."""
        nest, always = self.columns.nests[n], self.columns.always
        columns = np.stack([nest.around, self.columns.extent[nest.loops], self.columns.kind[nest.loops]])
        around, extent, kind = always[columns]
        counts = ~((around <= 0) | (kind == VECTOR) | (extent == 1))
        known = counts & ~np.isnan(around + extent + kind)
        factors: list[Factor] = [tuple(key) for key in columns[:, counts & ~known].T.tolist()]
        return float(np.prod(extent[known])), factors

    def _term(self, what: str, n: int) -> tuple[float, list[Factor]]:
        """What a nest adds: a constant, and by what it is multiplied."""
        scale, factors = self._loops[n] if SUMMED[what] else (1.0, [])
        factors = list(factors)
        for column in (self.columns.of_nests[what][n], self.columns.of_nests["there"][n]):
            always = self.columns.always[column]
            if np.isnan(always):
                factors.append((int(column),))
            else:
                scale *= always
        return scale, factors

    def _row(self, path: tuple[int, ...], known: dict[tuple[int, ...], int]) -> int:
        """The place of a product of factors."""
        if path not in known:
            self.products.append((self._row(path[:-1], known), path[-1]))
            known[path] = len(known)
        return known[path]

    def _ahead(self, what: str) -> np.ndarray:
        there, number = self.columns.of_nests["there"], self.columns.of_nests[what]
        return np.unique(np.stack([there, number])[:, self.columns.always[number] != 0], axis=1)


class Totals:
    """Of programs side by side, (places, n) complete values."""

    def __init__(self, plan: Plan, values: np.ndarray):
        self.plan, self.values = plan, values
        self._products = self._multiplied()

    def _multiplied(self) -> np.ndarray:
        """(1 + products, n)."""
        loops = np.array([f for f in self.plan.factors if len(f) > 1], int).reshape(-1, 3).T
        around, extent, kind = (self.values[columns] for columns in loops)
        steps = iter(np.where((around > 0) & (kind != VECTOR), extent, 1))
        factors = [next(steps) if len(f) > 1 else self.values[f[0]] for f in self.plan.factors]
        found = np.empty((1 + len(self.plan.products), self.values.shape[1]))
        found[0] = 1
        for row, (before, factor) in zip(found[1:], self.plan.products):
            np.multiply(found[before], factors[factor], out=row)
        return found

    @cached_property
    def sums(self) -> dict[str, np.ndarray]:
        """(n,) of each of SUMMED, over all nests."""
        return dict(zip(SUMMED, self.plan.weights @ self._products))

    @cached_property
    def heaviest(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """NESTS times (n,) nests and their work: the most first, of equal ones the first; -1 and 0 where
        there are no more."""
        nests, rows, scales = self.plan.listed
        low, high = (f(self._products, axis=1)[rows] * scales for f in (np.min, np.max))
        if len(nests) > NESTS:
            possible = high >= np.partition(low, -NESTS)[-NESTS]
            nests, rows, scales = nests[possible], rows[possible], scales[possible]
        left = np.concatenate([self._products[rows] * scales[:, None], np.zeros_like(self._products[:1])])
        nests, every = np.append(nests, -1), np.arange(left.shape[1])
        found = []
        for _ in range(NESTS):
            most = np.argmax(left, axis=0)
            work = left[most, every]
            left[most, every] = 0
            found.append((np.where(work > 0, nests[most], -1), work))
        return found

    def ahead(self, what: str) -> np.ndarray:
        """(nests, n) bytes, 0 where a nest does not prefetch; of equal nests one."""
        there, number = self.plan.ahead[what]
        return np.where(self.values[there] > 0, self.values[number], 0)

    def scope(self, name: str) -> np.ndarray:
        """(n,) bytes."""
        places, counts = self.plan.scopes[name]
        return counts.astype(float) @ self.values[places]
