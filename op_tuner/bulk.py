"""Rows of features of a task's points, tens of thousands a second.

Lowering a program to read its sketch takes milliseconds. So some hundred are lowered, and for each number of
a sketch the few answers are found that it depends on (`Factored`); the sketches of all other points are put
together from the numbers of those. A row is *sure* if each of its numbers was read off a program with the
same answers to what the number depends on. Others are those of the most similar programs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .columns import Columns
from .factored import Factored
from .features import NAMES, rows
from .sketch import Key, Sketch

GROWTH = 1.05  # how many more examples there must be before what they say is put together again


class Bulk:
    """Learns from points that were lowered, given as rows of `Numbered`."""

    def __init__(self) -> None:
        self._points: list[np.ndarray] = []
        self._sketches: list[Sketch] = []
        self._keys: dict[Key, None] = {}
        self._columns = Columns(())
        self._factored = Factored()
        self._fitted = 0

    def __len__(self) -> int:
        return len(self._points)

    def add(self, points: np.ndarray, sketches: Sequence[Sketch]) -> None:
        """(n, knobs) points, and what was read off their programs."""
        self._points += list(points)
        self._sketches += sketches
        for sketch in sketches:
            self._keys.update(dict.fromkeys(sketch))

    def rows(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(n, len(NAMES)) float32, and (n,) which of them are sure."""
        if not self._points:
            return np.zeros((len(points), len(NAMES)), np.float32), np.zeros(len(points), bool)
        if len(self._points) > GROWTH * self._fitted:
            self.fit()
        values, unseen = self._factored(points)
        values = np.concatenate([values, np.full((1, len(points)), np.nan)])
        found, nests = rows(self._columns, values)
        return found, self._factored.sure(unseen, self._columns.matter(values, nests))

    def fit(self) -> None:
        """Takes in what was added; `rows` does so now and then."""
        if len(self._keys) != len(self._columns.index):
            self._columns = Columns(self._keys)
        values = self._columns.stack(self._sketches)[:-1]
        self._factored.fit(np.array(self._points), values, gates=self._columns.gates)
        self._fitted = len(self._points)
