"""Numbers of many sketches side by side, and where each belongs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np

from .sketch import Key, Sketch

ACCESS = ("itemsize", "limit", "stride", "move")
NOTHING = {"": 0.0, "limit": 1.0, "kind": -1.0}
"""Numbers of what is not there, by what they say; "" for all others."""
OF_NESTS = ("there", "stores", "operations", "guarded", "prefetches", "nearest", "farthest", "dealt")


class Columns:
    """Which number stands where. Values are (keys, n), NaN where nobody knows them: of what is not there, and
    of nests that are not among the heaviest. Where they are complete, numbers of what is not there follow,
    (len(NOTHING), n) of them, which stand for keys that do not occur, too.
    """

    def __init__(self, keys: Iterable[Key]):
        self.index = {key: n for n, key in enumerate(dict.fromkeys(keys))}
        self.size = len(self.index)
        self._none = np.array([NOTHING.get(str(key[0]), 0.0) for key in self.index])
        self._owner = np.array([self.index[_owner(key)] for key in self.index], int)
        self.loops = {str(key[1]): n for n, key in enumerate(k for k in self.index if k[0] == "extent")}
        self.names = sorted(str(key[1]) for key in self.index if key[0] == "there")
        self.extent, self.kind = (self._all(what, self.loops) for what in ("extent", "kind"))
        self.of_nests = {what: self._all(what, self.names) for what in OF_NESTS}
        self._pairs = [key for key in self.index if key[0] == "above"]
        self._same = np.full(self.size, np.nan)
        self.always = np.concatenate([self._same, list(NOTHING.values())])
        self.nests: list[Nest] = []  # of names, once programs were compared
        self.scopes = {
            scope: np.array([n for key, n in self.index.items() if key[0] == scope], int)
            for scope in ("register", "scratch")
        }

    def find(self, *key: str | int) -> int:
        none = list(NOTHING).index(str(key[0]) if key[0] in NOTHING else "")
        return self.index.get(key, self.size + none)

    def _all(self, what: str, names: Iterable[str]) -> np.ndarray:
        return np.array([self.find(what, name) for name in names], int)

    def shared(self, place: np.ndarray, always: np.ndarray) -> Columns:
        """Of values (places, n) where equal numbers stand at one place, (keys,); `always` (places,) are those
        that are the same in all programs, NaN for others."""
        place = np.concatenate([place, len(always) + np.arange(len(NOTHING))])
        found = copy(self)
        found.index = {key: int(place[n]) for key, n in self.index.items()}
        found.size = len(always)
        found.always = np.concatenate([always, list(NOTHING.values())])
        found.extent, found.kind = place[self.extent], place[self.kind]
        found.of_nests = {what: place[own] for what, own in self.of_nests.items()}
        found.scopes = {scope: place[own] for scope, own in self.scopes.items()}
        found.nests = [nest.shared(place) for nest in self.nests]
        return found

    @property
    def of_programs(self) -> np.ndarray:
        """(places,) what more than features of nests needs."""
        found = np.zeros(self.size, bool)
        found[[n for key, n in self.index.items() if key[0] not in (*ACCESS, "above")]] = True
        return found

    def of_nest(self, n: int) -> np.ndarray:
        """(places,) what features of a nest need."""
        found = np.zeros(self.size + len(NOTHING), bool)
        for places in self._parts(n):
            found[places] = True
        return found[: self.size]

    def _parts(self, n: int) -> list[np.ndarray]:
        nest = self.nests[n]
        return [
            *(self.extent[nest.loops], self.kind[nest.loops], nest.around, nest.pairs[2], nest.moves[3]),
            *(nest.itemsize, nest.limit, nest.stride, nest.dealt),
        ]

    def alike(self) -> np.ndarray:
        """(nests + 1,) of each the first that has the same features; -1 of -1."""
        seen: dict[object, int] = {}
        found = []
        for n, nest in enumerate(self.nests):
            found.append(seen.setdefault(_content(*self._parts(n), *nest.shape), n))
        return np.array([*found, -1])

    def stack(self, sketches: Sequence[Sketch]) -> np.ndarray:
        """(keys, n)."""
        values = np.full((len(self.index), len(sketches)), np.nan)
        for n, sketch in enumerate(sketches):
            for key, value in sketch.items():
                values[self.index[key], n] = value
        missing = np.isnan(values) & ~np.isnan(values[self._owner])
        return np.where(missing, self._none[:, None], values)

    def compare(self, values: np.ndarray) -> None:
        """Notes which pairs of loops, where they are there, are in the same order in all programs, given all
        that may come as (keys, n)."""
        pairs = [self.index[key] for key in self._pairs]
        low, high = (f.reduce(values[pairs], axis=1, initial=np.nan) for f in (np.fmin, np.fmax))
        self._same[pairs] = np.where(low == high, low, np.nan)
        of_names: dict[str, dict[Key, int]] = {name: {} for name in self.names}
        for key, n in self.index.items():
            if len(key) > 2 and key[1] in of_names:
                of_names[str(key[1])][key] = n
        self.nests = [Nest.of(self, name, of_names[name]) for name in self.names]
        seen: dict[object, int] = {}
        shapes = [seen.setdefault(_content(*nest.shape), len(seen)) for nest in self.nests]
        self.shapes = np.array([*shapes, -1])

    def order(self, a: str, b: str) -> float:
        """1 if a is around b in every program that has both around one nest, 0 if b is around a; else NaN."""
        key = ("above", min(a, b), max(a, b))
        if a == b or key not in self.index:
            return 0.0
        same = float(self._same[self.index[key]])
        return same if a < b else 1 - same

    def complete(self, values: np.ndarray) -> np.ndarray:
        """(keys + len(NOTHING), n) without NaN."""
        known = np.where(np.isnan(values), self._none[:, None], values)
        return np.concatenate([known, self.nothing(values.shape[1])])

    @staticmethod
    def nothing(count: int) -> np.ndarray:
        """(len(NOTHING), count)."""
        return np.repeat(np.array(list(NOTHING.values()))[:, None], count, axis=1)

    @property
    def gates(self) -> np.ndarray:
        """(keys,) groups of numbers that matter together, as `matter` has them; -1 of what always does."""
        loops, nests = len(self.loops), len(self.names)
        place = {name: n for n, name in enumerate(self.names)}
        pairs = {key: n for n, key in enumerate(self._pairs)}

        def gate(key: Key) -> int:
            what, name = key[0], str(key[1]) if len(key) > 1 else ""
            if len(key) == 1 or what in ("there", "register", "scratch"):
                return -1
            if what in ("extent", "kind"):
                return self.loops[name] + (loops if what == "kind" else 0)
            if what == "above":
                return 2 * loops + 3 * nests + pairs[key]
            which = 1 if what in ("nearest", "farthest") else 2 if what in ACCESS or what == "dealt" else 0
            return 2 * loops + which * nests + place[name]

        return np.array([gate(key) for key in self.index], int)

    def matter(self, values: np.ndarray, shown: np.ndarray) -> np.ndarray:
        """(n, groups) which of those matter: loops that are there, those of more than one iteration; nests
        that are there, those that prefetch, those that have features (`shown`, (NESTS, n)); pairs of loops.
        """
        n = values.shape[1]
        there = values[self.of_nests["there"]] > 0
        loops = np.zeros((len(self.loops), n), bool)
        for nest, here in zip(self.nests, there):
            loops[nest.loops] |= here & (values[nest.around] > 0)
        ahead = there & (values[self.of_nests["prefetches"]] > 0)
        listed = np.zeros((len(self.names) + 1, n), bool)
        listed[shown, np.arange(n)] = True  # -1 is none
        sized = loops & (values[self.extent] > 1)
        first, second = ([self.loops[str(key[k])] for key in self._pairs] for k in (1, 2))
        return np.concatenate([loops, sized, there, ahead, listed[:-1], loops[first] & loops[second]]).T


def _content(*arrays: np.ndarray) -> object:
    return tuple((array.shape, array.tobytes()) for array in arrays)


def _owner(key: Key) -> Key:
    """What a sketch has if it knows the key's number, be it none."""
    if key[0] in ACCESS:
        return ("itemsize", key[1], 0)
    if key[0] in ("there", "register", "scratch"):
        return ("steps",)
    return ("stores", key[1]) if key[0] == "around" else key


@dataclass(frozen=True)
class Nest:
    """Columns of one nest; `loops` are the places of those that any program has around it."""

    loops: np.ndarray  # (loops,)
    around: np.ndarray  # (loops,)
    above: np.ndarray  # (loops, loops) 1 where the second is around the first in all programs
    pairs: (
        np.ndarray
    )  # (3, pairs) of others: two places among `loops`, and whether the first is the outer one
    itemsize: np.ndarray  # (buffers,)
    limit: np.ndarray  # (buffers, dims)
    stride: np.ndarray  # (buffers, dims)
    dealt: np.ndarray  # ()
    moves: np.ndarray  # (4, moves): buffer, dim, place among `loops`, column

    def shared(self, place: np.ndarray) -> Nest:
        """Where columns are at other places."""
        pairs, moves = self.pairs.copy(), self.moves.copy()
        pairs[2], moves[3] = place[pairs[2]], place[moves[3]]
        own = ("around", "itemsize", "limit", "stride", "dealt")
        return replace(self, pairs=pairs, moves=moves, **{name: place[getattr(self, name)] for name in own})

    @property
    def shape(self) -> tuple[np.ndarray, ...]:
        """What nests have in common that differ in their columns only."""
        return self.above, self.pairs[:2], self.moves[:3], np.array(self.limit.shape)

    @staticmethod
    def of(columns: Columns, name: str, own: Mapping[Key, int]) -> Nest:
        """`own` are the keys of the nest that say more than its name."""
        buffers = range(1 + max((int(k[2]) for k in own if k[:2] == ("itemsize", name)), default=0))
        dims = range(1 + max((int(k[3]) for k in own if k[:2] == ("limit", name)), default=0))
        loops = [str(key[2]) for key in own if key[:2] == ("around", name)]
        place = {lp: n for n, lp in enumerate(loops)}
        moves = [(k[2], k[3], place[str(k[4])], n) for k, n in own.items() if k[:2] == ("move", name)]
        find, count = columns.find, len(loops)
        above = np.array([[columns.order(b, a) for b in loops] for a in loops]).reshape(count, count)
        unsure = [(place[a], place[b], find("above", a, b)) for a in loops for b in loops if a < b]
        pairs = np.array([p for p in unsure if np.isnan(above[p[0], p[1]])], int).reshape(-1, 3).T
        return Nest(
            np.array([columns.loops[lp] for lp in loops], int),
            np.array([find("around", name, lp) for lp in loops], int),
            np.where(np.isnan(above), 0, above).astype(np.float32),
            pairs,
            np.array([find("itemsize", name, b) for b in buffers]),
            np.array([[find("limit", name, b, d) for d in dims] for b in buffers]),
            np.array([[find("stride", name, b, d) for d in dims] for b in buffers]),
            np.array(find("dealt", name)),
            np.array(moves, int).reshape(-1, 4).T,
        )
