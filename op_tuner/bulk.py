"""Rows of features of a task's points, tens of thousands a second.

Lowering a program to read its sketch takes milliseconds. So some hundred are lowered, and for each number of
a sketch the few answers are found that it depends on (`Factored`); the sketches of all other points are put
together from the numbers of those. A row is *sure* if each of its numbers was read off a program with the
same answers to what the number depends on. Others are those of the most similar programs.

Most points differ from others in few of their nests: what follows from the numbers of a nest is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .columns import Columns
from .factored import Factored
from .features import CHUNK, NAMES, SHOWN, Batch
from .nest_features import MAIN, OTHER, Shown, of_nests
from .sketch import Key, Sketch

GROWTH = 1.25  # how many more examples there must be before what they say is put together again
KEPT = 1 << 14  # features of nests
OTHERS = len(SHOWN) - 1  # nests of a program that are asked for at once, at most


class Bulk:
    """Learns from points that were lowered, given as rows of `Numbered`."""

    def __init__(self) -> None:
        self._points: list[np.ndarray] = []
        self._sketches: list[Sketch] = []
        self._keys: dict[Key, None] = {}
        self.columns = Columns(())
        self.factored = Factored()
        self._fitted = 0

    def __len__(self) -> int:
        return len(self._points)

    def add(self, points: np.ndarray, sketches: Sequence[Sketch]) -> None:
        """(n, knobs) points, and what was read off their programs."""
        self._points += list(points)
        self._sketches += sketches
        for sketch in sketches:
            self._keys.update(dict.fromkeys(sketch))

    def features(self, points: np.ndarray) -> np.ndarray:
        """(n, len(NAMES)) float32."""
        return self._ask(points, doubt=False)[0]

    def rows(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(n, len(NAMES)) float32, and (n,) which of them are sure."""
        return self._ask(points, doubt=True)

    def _ask(self, points: np.ndarray, doubt: bool) -> tuple[np.ndarray, np.ndarray]:
        found, sure = np.zeros((len(points), len(NAMES)), np.float32), np.zeros(len(points), bool)
        if len(self._points) > GROWTH * self._fitted:
            self.fit()
        for at in range(0, len(points) if self._points else 0, CHUNK):
            part = slice(at, at + CHUNK)
            rows = self.factored.find(points[part])
            values = self.values(rows, self._of_programs, self._programs)
            batch = Batch(self.columns, values, _Kept(self, rows))
            found[part] = batch.features()
            if doubt:
                matter = self.columns.matter(values, np.array(batch.heaviest))
                sure[part] = self.factored.sure(self.factored.unseen(rows), matter)
        return found, sure

    def values(self, rows: np.ndarray, wanted: np.ndarray, memory: np.ndarray) -> np.ndarray:
        """Complete, but for those that are not wanted; in `memory`, as `_memory` gives it."""
        found = memory[:, : rows.shape[1]]
        self.factored.fill(found, rows, wanted)
        return found

    def _memory(self, count: int) -> np.ndarray:
        """(keys + what is not there, count) values of which those are filled in that are always the same."""
        nothing = self.columns.nothing(count)
        found = np.empty((len(self.columns.index) + len(nothing), count))
        found[len(self.columns.index) :] = nothing
        self.factored.fill_constants(found)
        return found

    def fit(self) -> None:
        """Takes in what was added; the others do so now and then."""
        if len(self._keys) != len(self.columns.index):
            self.columns = Columns(self._keys)
        columns = self.columns
        values = columns.stack(self._sketches)
        columns.compare(values)
        self.factored.fit(np.array(self._points), values, gates=columns.gates)
        self._fitted = len(self._points)
        self._programs, self.of_some = self._memory(CHUNK), self._memory(OTHERS * CHUNK)
        self._of_programs = columns.of_programs
        self.of_nest = np.array([columns.of_nest(name) for name in columns.names], bool)
        users = np.array([self.factored.users(own) for own in self.of_nest], bool)
        random = np.random.default_rng(0)
        self.weights = random.integers(1, 1 << 63, users.shape, np.uint64) * users
        self.salts = random.integers(0, 1 << 63, len(users), np.uint64)
        self.kept = {shown: _Memo(shown.width) for shown in (MAIN, OTHER)}


class _Kept:
    """Features of nests of programs whose numbers stand at `rows` of tables, computed once for equal nests.

    Nests are equal if all that belongs to them is; they are told from others by a random hash of it.
    """

    def __init__(self, bulk: Bulk, rows: np.ndarray):
        self._bulk, self._rows = bulk, rows
        self._labels = bulk.factored.labels(rows)

    def __call__(self, nest: np.ndarray, at: np.ndarray, shown: Shown) -> np.ndarray:
        keys = np.zeros(len(nest), np.uint64)
        for k in np.unique(nest[nest >= 0]):
            own, uses = np.flatnonzero(nest == k), self._bulk.weights[k] > 0
            labels = self._labels[uses][:, at[own]]
            keys[own] = self._bulk.salts[k] + self._bulk.weights[k, uses] @ labels

        def computed(some: np.ndarray) -> np.ndarray:
            order = np.argsort(nest[some], kind="stable")
            some = some[order]
            wanted = self._bulk.of_nest[np.unique(nest[some])].any(axis=0)
            values = self._bulk.values(self._rows[:, at[some]], wanted, self._bulk.of_some)
            found = np.empty((len(some), shown.width), np.float32)
            found[order] = of_nests(self._bulk.columns, values, nest[some], shown)
            return found

        return self._bulk.kept[shown](keys, computed)


class _Memo:
    """Rows by numbers."""

    def __init__(self, width: int):
        self._places: dict[int, int] = {}
        self._rows = np.empty((0, width), np.float32)

    def __call__(self, keys: np.ndarray, compute: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """(n, width); `compute` gives those of some of the n that are not known."""
        if len(self._places) > KEPT:
            self._places = {}
        at = np.array([self._places.get(key, -1) for key in keys.tolist()], int)
        missing = np.flatnonzero(at < 0)
        if len(missing):
            new, first, inverse = np.unique(keys[missing], return_index=True, return_inverse=True)
            begin = len(self._places)
            end = begin + len(new)
            if end > len(self._rows):
                more = np.empty((2 * end, self._rows.shape[1]), np.float32)
                more[:begin] = self._rows[:begin]
                self._rows = more
            self._rows[begin:end] = compute(missing[first])
            self._places.update(zip(new.tolist(), range(begin, end)))
            at[missing] = begin + inverse
        return self._rows[at]
