"""Features of nests: of the loops around them, the buffers of their heaviest statement, and both together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .columns import Columns, Nest
from .sketch import BUFFERS, KINDS

THRESHOLDS = tuple(range(4, 32, 2))  # log2 of bytes
CHUNK = 2048  # nests at a time, so that what is computed of them stays in the cache
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

    @cached_property
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
        groups = _groups(columns, values, nest)
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
            own, those, take = group.own, group.those, group.take
            few, dims = slice(0, min(self.buffers, len(own.itemsize))), slice(0, own.limit.shape[1])
            self.itemsize[few, those] = take(lambda nest: nest.itemsize)[few]
            self.limit[few, dims, those] = take(lambda nest: nest.limit)[few]
            self.stride[few, dims, those] = take(lambda nest: nest.stride)[few]
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
        steps = np.abs(self.moves)  # (loops, buffers, dims, n)
        moved = steps.max(axis=2) > 0
        span = steps
        span *= (self.extent - 1)[:, None, None]
        span[-1] += 1 + 2**-10  # what fractions of steps may lose
        for at in reversed(range(self.depth - 1)):
            span[at] += span[at + 1]
        np.floor(span, out=span)
        np.minimum(span, self.limit, out=span)
        box = np.multiply.reduce(span, axis=2)
        iterations = np.where(moved, self.extent[:, None], 1)[::-1]
        np.minimum(box, accumulate(np.multiply, iterations)[::-1], out=box)
        return np.maximum(box, 1, out=box).swapaxes(0, 1)

    def _relations(self, touched: np.ndarray, reuse: np.ndarray, outside: np.ndarray) -> list[np.ndarray]:
        """The largest logarithms of reuse and top-down products of the loops that touch fewer bytes than each
        threshold, for each of `touched`; 0 if none does. A loop touches all that those inside it touch."""
        many, loops, n = touched.shape
        # the least e with x < 2^e, but for powers of two, which have one more; as float32 has it, beyond all
        # thresholds where that is infinite
        exponent = (np.ascontiguousarray(touched, np.float32).view(np.int32) >> 23) - 126
        bins = np.clip((exponent - (THRESHOLDS[0] - 1)) >> 1, 0, len(THRESHOLDS))
        bins = np.where(self.present, bins, len(THRESHOLDS))
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
        many = self.stride[..., 0].size
        places = (np.maximum(loop, 0) * many + np.arange(many)[:, None]) * self.count + self.every
        moves = self.moves.reshape(-1).take(places).reshape(self.stride.shape)
        return np.where(loop >= 0, np.abs(np.sum(moves * self.stride, axis=1)), 0)


def _groups(columns: Columns, values: np.ndarray, nest: np.ndarray) -> list[_Group]:
    found: dict[int, dict[int, slice | np.ndarray]] = {}
    for name in np.unique(nest[nest >= 0]).tolist():
        found.setdefault(int(columns.shapes[name]), {})[name] = _places(nest == name)
    return [_Group(columns, values, np.arange(len(nest)), parts) for parts in found.values()]


class _Group:
    """The programs whose nests have the same shape; `parts` are those of each nest."""

    def __init__(
        self,
        columns: Columns,
        values: np.ndarray,
        every: np.ndarray,
        parts: Mapping[int, slice | np.ndarray],
    ):
        nests = columns.nests
        self._parts = [(nests[name], values[:, those]) for name, those in parts.items()]
        self.own = self._parts[0][0]
        self.at = np.concatenate([every[those] for those in parts.values()])
        self.those = _span(self.at)
        self.outer = self.take(lambda nest: nest.pairs[2]) > 0
        there = self.take(lambda nest: nest.around) > 0
        extent = self.take(lambda nest: columns.extent[nest.loops])
        sized = there & (extent > 1)
        self.extent = np.where(sized, extent, 1)
        self.kind = self.take(lambda nest: columns.kind[nest.loops])
        dealt = self.take(lambda nest: nest.dealt)
        if dealt.any():
            self.kind = np.where(self._outside(there) < dealt, KINDS.index("parallel"), self.kind)
        self.place = np.where(sized, self._outside(sized), -1).astype(int)
        self.depth = int(np.add.reduce(sized, axis=0, dtype=np.int8).max(initial=0))

    def take(self, of: Callable[[Nest], np.ndarray]) -> np.ndarray:
        """(..., n) values of the columns that a function gives."""
        found = [values[of(nest)] for nest, values in self._parts]
        return found[0] if len(found) == 1 else np.concatenate(found, axis=-1)

    def _outside(self, which: np.ndarray) -> np.ndarray:
        """(loops, n) around each loop, how many of those, (loops, n)."""
        found = self.own.above @ which.astype(np.float32)
        for (first, second), outer in zip(self.own.pairs[:2].T, self.outer):
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
        those = self.own.moves[0] < buffers
        buffer, dim, loop, _ = self.own.moves[:, those]
        flat = (place * (buffers * dims * count) + self.at)[loop]
        flat += ((buffer * dims + dim) * count)[:, None]
        moves.reshape(-1)[flat] = self.take(lambda nest: nest.moves[3, those])


def _places(where: np.ndarray) -> slice | np.ndarray:
    """Those of the true elements; a slice if they stand side by side."""
    return _span(np.flatnonzero(where))


def _span(found: np.ndarray) -> slice | np.ndarray:
    begin = int(found[0])
    return slice(begin, begin + len(found)) if (np.diff(found) == 1).all() else found


def accumulate(operation: np.ufunc, x: np.ndarray) -> np.ndarray:
    """Along the first axis, many times faster than the ufunc's own method."""
    found = x.copy()
    for n in range(1, len(x)):
        operation(found[n - 1], x[n], out=found[n])
    return found


def log(x: np.ndarray) -> np.ndarray:
    """log2(1 + x), float32."""
    return np.log(1 + x, dtype=np.float32) * np.float32(1 / math.log(2))
