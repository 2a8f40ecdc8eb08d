"""Features of nests: of the loops around them, the buffers of their heaviest statement, and both together."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .columns import Columns, Nest
from .sketch import BUFFERS, KINDS

THRESHOLDS = tuple(range(4, 32, 2))  # log2 of bytes
CHUNK = 1024  # nests at a time, so that what is computed of them stays in the cache
COUNTS = 2
"""Columns before the features: iterations of the parallel loops and of the unrolled ones."""


@dataclass(frozen=True)
class Shown:
    """How much of a nest has features of its own."""

    loops: int  # the innermost
    buffers: int
    related: tuple[int | str, ...]  # buffers, and "all" together

    def names(self) -> Iterator[str]:
        for what in ("length", *KINDS, "top_down", "bottom_up"):
            yield from (f"loop{n}.{what}" for n in range(self.loops))
        for what in ("bytes", "reuse", "inner_stride", "vector_stride"):
            yield from (f"buffer{b}.{what}" for b in range(self.buffers))
        for what in ("reuse", "top_down"):
            yield from (f"{what}.{b}<2^{t}" for b in self.related for t in THRESHOLDS)

    @property
    def width(self) -> int:
        return COUNTS + len(list(self.names()))


MAIN = Shown(10, BUFFERS, (*range(BUFFERS), "all"))
OTHER = Shown(5, 3, ("all",))


def of_nests(columns: Columns, values: np.ndarray, nest: np.ndarray, shown: Shown) -> np.ndarray:
    """(n, shown.width) float32 of nests, `nest`, -1 for none, of as many programs; values are complete. It is
    quicker where equal nests stand side by side."""
    found = np.empty((len(nest), shown.width), np.float32)
    for at in range(0, len(nest), CHUNK):
        part = slice(at, at + CHUNK)
        found[part] = _Nests(columns, values[:, part], nest[part], shown).features().T
    return found


class _Nests:
    """The last axis of every array is the programs', so that numpy's loops are long. Loops are those of more
    than one iteration, from the outside in; where there are fewer, the last have one."""

    def __init__(self, columns: Columns, values: np.ndarray, nest: np.ndarray, shown: Shown):
        self.shown, self.count, self.every = shown, len(nest), np.arange(len(nest))
        groups = [_Group(columns, values, nest, int(k)) for k in np.unique(nest[nest >= 0])]
        self.depth = max([1, *(group.depth for group in groups)])
        self.buffers = min(shown.buffers, max([1, *(len(g.own.itemsize) for g in groups)]))
        shape = (self.buffers, max([1, *(g.own.limit.shape[1] for g in groups)]), self.count)
        extent = np.ones((self.depth + 1, self.count), np.float32)  # the last: of what is not there
        kind = np.full((self.depth + 1, self.count), -1, np.int8)
        moves = np.zeros((self.depth + 1, *shape), np.float32)  # (loops, buffers, dims, n)
        self.limit, self.stride = np.ones(shape, np.float32), np.zeros(shape, np.float32)
        self.itemsize = np.zeros((self.buffers, self.count), np.float32)
        for group in groups:
            group.fill(extent, kind, moves)
            own, of, those = group.own, group.values, group.those
            few, dims = slice(0, min(self.buffers, len(own.itemsize))), slice(0, own.limit.shape[1])
            self.itemsize[few, those] = of[own.itemsize[few]]
            self.limit[few, dims, those] = of[own.limit[few]]
            self.stride[few, dims, those] = of[own.stride[few]]
        self.extent, self.kind, self.moves = extent[:-1], kind[:-1], moves[:-1]
        self.present = self.extent > 1
        self.inside = accumulate(np.multiply, self.extent[::-1])[::-1]
        self.outside = self.inside[0] / self.inside

    def features(self) -> np.ndarray:
        """(shown.width, n)."""
        count = self._touched()  # (buffers, loops, n)
        used = self.itemsize > 0
        touched = np.where(used[:, None], count * self.itemsize[:, None], np.inf)
        reuse = np.where(used[:, None], self.inside / count, 0)
        outer = [np.where(used, touched[:, 0], 0), reuse[:, 0]]
        steps = [self._steps(self._last(self.present))]
        steps += [self._steps(self._last(self.present & (self.kind == KINDS.index("vector"))))]
        of_buffers = np.zeros((4, self.shown.buffers, self.count), np.float32)
        of_buffers[:, : self.buffers] = log(np.stack([*outer, *steps]))
        logs = log(np.stack([self.inside, self.outside]))
        whole = np.sum(np.where(used[:, None], touched, 0), axis=0)
        related = min(self.buffers, len(self.shown.related) - 1)
        bytes_ = np.concatenate([touched[:related], whole[None]])
        values = np.concatenate([log(reuse[:related]), logs[:1]])
        counts = np.stack([self._iterations("parallel"), self._iterations("unroll")])
        relations = self._relations(bytes_, values, logs[1])
        return np.concatenate([counts, *self._loops(logs), *of_buffers, *relations])

    def _iterations(self, kind: str) -> np.ndarray:
        return np.prod(np.where(self.kind == KINDS.index(kind), self.extent, 1), axis=0)

    def _touched(self) -> np.ndarray:
        """(buffers, loops, n) different elements that each loop touches, with all loops inside it."""
        found = np.empty((self.buffers, self.depth, self.count), np.float32)
        span = np.full(self.limit.shape, 1 + 2**-10, np.float32)  # what fractions of steps may lose
        iterations = np.ones((self.buffers, self.count), np.float32)
        steps = np.abs(self.moves)
        for at in reversed(range(self.depth)):
            span += steps[at] * (self.extent[at] - 1)
            iterations *= np.where(steps[at].any(axis=1), self.extent[at], 1)
            box = np.multiply.reduce(np.minimum(np.floor(span), self.limit), axis=1)
            np.maximum(np.minimum(box, iterations), 1, out=found[:, at])
        return found

    def _relations(self, touched: np.ndarray, reuse: np.ndarray, outside: np.ndarray) -> list[np.ndarray]:
        """The largest logarithms of reuse and top-down products of the loops that touch fewer bytes than each
        threshold, for each of `touched`; 0 if none does. A loop touches all that those inside it touch."""
        many, loops, n = touched.shape
        # the least e with x < 2^e, but for powers of two, which have one more
        exponent = np.frexp(touched)[1]
        bins = np.clip((exponent - THRESHOLDS[0] + 1) // 2, 0, len(THRESHOLDS))
        bins = np.where(np.isfinite(touched) & self.present, bins, len(THRESHOLDS))
        places = (bins * many + np.arange(many)[:, None, None]) * n + self.every
        result = []
        for values in (np.where(self.present, reuse, 0), np.where(self.present, outside, 0)[None]):
            found = np.zeros((len(THRESHOLDS) + 1) * many * n, np.float32)
            best = np.zeros((many, n), np.float32)
            for at in reversed(range(loops)):
                best = np.maximum(best, values[:, at])
                found[places[:, at]] = best
            above = accumulate(np.maximum, found.reshape(-1, many, n)[: len(THRESHOLDS)])
            every = np.zeros((len(self.shown.related), len(THRESHOLDS), n), np.float32)
            every[[*range(many - 1), -1]] = above.swapaxes(0, 1)
            result.append(every.reshape(-1, n))
        return result

    def _loops(self, logs: np.ndarray) -> list[np.ndarray]:
        """Of the innermost loops, the innermost first; zeros where there are fewer."""
        count = self.shown.loops
        inner = np.add.reduce(self.present, axis=0, dtype=int) - 1 - np.arange(count)[:, None]
        places = np.where(inner >= 0, inner, self.depth) * self.count + self.every

        def shown(values: np.ndarray) -> np.ndarray:
            none = np.zeros((1, self.count), values.dtype)
            return np.concatenate([values, none]).reshape(-1).take(places)

        kind = shown(self.kind + np.int8(1))
        kinds = [(kind == k + 1).astype(np.float32) for k in range(len(KINDS))]
        return [shown(log(self.extent)), *kinds, shown(logs[1]), shown(logs[0])]

    def _last(self, where: np.ndarray) -> np.ndarray:
        """(n,) the innermost loop of those; -1 if there is none."""
        return np.where(where.any(axis=0), len(where) - 1 - np.argmax(where[::-1], axis=0), -1)

    def _steps(self, loop: np.ndarray) -> np.ndarray:
        """(buffers, n) bytes from one iteration to the next."""
        moves = np.moveaxis(self.moves[loop, :, :, self.every], 0, -1)
        return np.where(loop >= 0, np.abs(np.sum(moves * self.stride, axis=1)), 0)


class _Group:
    """The programs whose nest is one and the same."""

    def __init__(self, columns: Columns, values: np.ndarray, nest: np.ndarray, name: int):
        own = columns.nests[name]
        self.own: Nest = own
        self.those = _places(nest == name)
        self.values = values[:, self.those]
        self.at = np.arange(len(nest))[self.those]
        there = self.values[own.around] > 0
        extent = self.values[columns.extent[own.loops]]
        sized = there & (extent > 1)
        self.extent = np.where(sized, extent, 1)
        self.kind = self.values[columns.kind[own.loops]]
        dealt = self.values[columns.of_nests["dealt"][name]]
        if dealt.any():
            self.kind = np.where(self._outside(there) < dealt, KINDS.index("parallel"), self.kind)
        self.place = np.where(sized, self._outside(sized), -1).astype(int)
        self.depth = int(np.add.reduce(sized, axis=0, dtype=np.int8).max(initial=0))

    def _outside(self, which: np.ndarray) -> np.ndarray:
        """(loops, n) around each loop, how many of those, (loops, n)."""
        found = self.own.above @ which.astype(np.float32)
        for first, second, column in self.own.pairs.T:
            outer = self.values[column] > 0
            found[second] += outer & which[first]
            found[first] += ~outer & which[second]
        return found

    def fill(self, extent: np.ndarray, kind: np.ndarray, moves: np.ndarray) -> None:
        """Puts loops where they belong; those of one iteration, and none, behind all others."""
        depth, buffers, dims, count = moves.shape
        place = np.where(self.place < 0, depth - 1, self.place)
        flat = place * count + self.at
        extent.reshape(-1)[flat] = self.extent
        kind.reshape(-1)[flat] = self.kind
        buffer, dim, loop, column = self.own.moves[:, self.own.moves[0] < buffers]
        flat = (place[loop] * (buffers * dims) + (buffer * dims + dim)[:, None]) * count + self.at
        moves.reshape(-1)[flat] = self.values[column]


def _places(where: np.ndarray) -> slice | np.ndarray:
    """Those of the true elements; a slice if they stand side by side."""
    found = np.flatnonzero(where)
    begin, end = found[0], found[-1] + 1
    return slice(begin, end) if end - begin == len(found) else found


def accumulate(operation: np.ufunc, x: np.ndarray) -> np.ndarray:
    """Along the first axis, many times faster than the ufunc's own method."""
    found = x.copy()
    for n in range(1, len(x)):
        operation(found[n - 1], x[n], out=found[n])
    return found


def log(x: np.ndarray) -> np.ndarray:
    """log2(1 + x), float32."""
    return np.log(1 + x, dtype=np.float32) * np.float32(1 / math.log(2))
