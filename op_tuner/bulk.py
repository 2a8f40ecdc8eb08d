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
from .factored import EXACT, Factored, Wanted
from .features import CHUNK, NAMES, SHOWN, Batch
from .nest_features import Shown, of_nests
from .sketch import Key, Sketch
from .totals import Plan

GROWTH = 1.25  # how many more examples there must be before what they say is put together again
KEPT = 1 << 14  # features of nests
SLOTS = 1 << 16  # where they are found; of two with the same slot the later one is
OTHERS = len(SHOWN) - 1  # nests of a program that are asked for at once, at most


class Bulk:
    """Learns from points that were lowered, given as rows of `Numbered`."""

    def __init__(self) -> None:
        self._points: list[np.ndarray] = []
        self._sketches: list[Sketch] = []
        self._keys: dict[Key, None] = {}
        self.columns = Columns(())
        self.factored = Factored()
        self.fit_of_now = object()
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
            batch = Batch(self.plan, values, _Kept(self, rows))
            found[part] = batch.features()
            if doubt:
                matter = self.plan.columns.matter(values, np.array(batch.heaviest))
                sure[part] = self.factored.sure(self.factored.unseen(rows), matter)
        return found, sure

    def values(self, rows: np.ndarray, wanted: Wanted, memory: np.ndarray) -> np.ndarray:
        """Complete, but for those that are not wanted; in `memory`, as `_memory` gives it."""
        found = memory[:, : rows.shape[1]]
        self.factored.fill(found, rows, wanted)
        return found

    def wanted(self, nests: np.ndarray) -> Wanted:
        """What features of those need."""
        nests = np.unique(nests)
        key = nests.tobytes()
        if key not in self._of_nests:
            self._of_nests[key] = self.factored.wanted(self.of_nest[nests].any(axis=0))
        return self._of_nests[key]

    def _memory(self, count: int) -> np.ndarray:
        """(places + what is not there, count) values; only those are filled in that are always the same."""
        return np.repeat(self.plan.columns.always[:, None], count, axis=1)

    def fit(self) -> None:
        """Takes in what was added; the others do so now and then."""
        if len(self._keys) != len(self.columns.index):
            self.columns = Columns(self._keys)
        values = self.columns.stack(self._sketches)
        self.columns.compare(values)
        self.factored.fit(np.array(self._points), values, gates=self.columns.gates)
        self._fitted = len(self._points)
        columns = self.columns.shared(self.factored.place, self.factored.always)
        self.plan = Plan(columns)
        self._programs, self.of_some = self._memory(CHUNK), self._memory(OTHERS * CHUNK)
        self._of_programs = self.factored.wanted(columns.of_programs)
        self._of_nests: dict[bytes, Wanted] = {}
        self.of_nest = np.array([columns.of_nest(n) for n in range(len(columns.names))], bool)
        self.alike = columns.alike()
        self.used, self.of_used = np.unique(self._users(), axis=0, return_inverse=True)
        self.salts = np.random.default_rng(1).integers(0, self.factored.most, len(self.alike)).astype(float)
        self.ranks = np.argsort(np.argsort(columns.shapes, kind="stable")) % (1 << 63 - EXACT)
        self.fit_of_now = object()

    def _users(self) -> np.ndarray:
        """(nests + 1, tables) 1 where features of a nest need the table; the last are those of none."""
        users = [self.factored.users(own) for own in self.of_nest]
        return np.array([*users, np.zeros(len(self.factored.tables), bool)], float)


class _Kept:
    """Features of nests of programs whose numbers stand at `rows` of tables, computed once for equal nests.

    Nests are equal if all that belongs to them is; they are told from others by a random hash of it, which
    begins with a rank: sorted, nests of one shape stand side by side.
    """

    def __init__(self, bulk: Bulk, rows: np.ndarray):
        self._bulk, self._rows = bulk, rows
        self._hashes = bulk.used @ bulk.factored.labels(rows)

    def __call__(self, nest: np.ndarray, at: np.ndarray, shown: Shown) -> np.ndarray:
        bulk, nest = self._bulk, self._bulk.alike[nest]
        keys = (bulk.salts[nest] + self._hashes[bulk.of_used[nest], at]).astype(int)
        keys += bulk.ranks[nest] << EXACT

        def computed(some: np.ndarray) -> np.ndarray:
            values = bulk.values(self._rows[:, at[some]], bulk.wanted(nest[some]), bulk.of_some)
            return of_nests(bulk.plan.columns, values, nest[some], shown)

        return _memo(shown, bulk.fit_of_now)(keys, computed)


def _memo(shown: Shown, owner: object) -> _Memo:
    """One for all: tasks are asked for one after the other, and a memo each would take much memory."""
    memo = _memos.get(shown)
    if memo is None:
        memo = _memos[shown] = _Memo(shown.width)
    if memo.owner is not owner:
        memo.forget()
        memo.owner = owner
    return memo


_memos: dict[Shown, _Memo] = {}


class _Memo:
    """Rows by numbers, the last bits of which are random; at most OTHERS * CHUNK are asked for at once.

    They have their place once and for all: a page that is touched for the first time costs as much as
    computing several rows."""

    def __init__(self, width: int):
        self._rows = np.empty((KEPT + OTHERS * CHUNK, width), np.float32)
        self.owner: object = None
        self.forget()

    def forget(self) -> None:
        self._count = 0
        self._keys, self._places = np.full(SLOTS, -1), np.zeros(SLOTS, int)

    def __call__(self, keys: np.ndarray, compute: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """(n, width); `compute` gives those of some of the n that are not known, in the order of keys."""
        if self._count > len(self._rows) - OTHERS * CHUNK:
            self.forget()
        slots = keys % SLOTS
        at = self._places[slots]
        missing = np.flatnonzero(self._keys[slots] != keys)
        if len(missing):
            _, first, inverse = np.unique(keys[missing], return_index=True, return_inverse=True)
            begin, new = self._count, missing[first]
            self._count += len(new)
            self._rows[begin : self._count] = compute(new)
            self._keys[slots[new]], self._places[slots[new]] = keys[new], np.arange(begin, self._count)
            at[missing] = begin + inverse
        return self._rows[at]
