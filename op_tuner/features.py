"""What a cost model sees of a scheduled loop program, comparable between templates, shapes and depths.

`evaluate` turns the sketches of many programs into rows of features at once. Chen et al. 2018, *Learning to
Optimize Tensor Programs*, appendix A:

    loops      of each: length, annotation, product of the lengths outside (top-down) and inside (bottom-up)
    buffers    of each: bytes touched, reuse (bottom-up / elements touched), strides
    relations  R_t(i, j) = max Z[k, i] over the loops k where Z[k, j] < 2^t, with j the touched bytes and i
               the reuse or the top-down product: what is reused how often within which amount of memory

Differences: the three nests with most work, not the deepest chain (a Winograd convolution transforms,
multiplies and transforms again); loops of one iteration are left out; bytes, not elements, stand against the
thresholds, as caches do; and the sum over all buffers is related, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .columns import Columns, Nest
from .sketch import BUFFERS, KINDS, NESTS, Sketch

FEATURES = 2
"""Version: features of different versions must not be mixed."""
THRESHOLDS = tuple(range(4, 32, 2))  # log2 of bytes
PROGRAM = (
    "work", "statements", "heaviest", "steps", "tasks", "imbalance", "body", "registers", "scratch", "params",
    "temps", "prefetches", "nearest_prefetch", "farthest_prefetch", "guards",
)  # fmt: skip
CHUNK = 256  # programs at a time, so that what is computed of them stays in the cache


@dataclass(frozen=True)
class _Shown:
    """How much of a nest has features of its own."""

    loops: int  # the innermost
    buffers: int
    related: tuple[int | str, ...]  # buffers, and "all" together


_OTHER = _Shown(5, 3, ("all",))
SHOWN = (_Shown(10, BUFFERS, (*range(BUFFERS), "all")), _OTHER, _OTHER)
"""Of the heaviest nest, the second and the third."""


def _names() -> Iterator[str]:
    yield from PROGRAM
    for n, shown in enumerate(SHOWN):
        nest = f"nest{n}." if n else ""
        yield from (f"{nest}{what}" for what in ("share",) if n)
        for what in ("length", *KINDS, "top_down", "bottom_up"):
            yield from (f"{nest}loop{n}.{what}" for n in range(shown.loops))
        for what in ("bytes", "reuse", "inner_stride", "vector_stride"):
            yield from (f"{nest}buffer{b}.{what}" for b in range(shown.buffers))
        for what in ("reuse", "top_down"):
            yield from (f"{nest}{what}.{b}<2^{t}" for b in shown.related for t in THRESHOLDS)


NAMES = tuple(_names())
"""Of the columns that `evaluate` gives. All are logarithms, log2(1 + x), but for the kinds of loops."""


def evaluate(sketches: Sequence[Sketch]) -> np.ndarray:
    """(sketches, len(NAMES)) float32."""
    columns = Columns(key for sk in sketches for key in sk)
    return rows(columns, columns.stack(sketches))[0]


def rows(columns: Columns, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(n, len(NAMES)) float32 of values as `Columns.stack` gives them; and (NESTS, n) the places among
    `Columns.names` of the nests that have features, -1 where there are fewer."""
    n = values.shape[1]
    found, nests = np.zeros((n, len(NAMES)), np.float32), np.full((NESTS, n), -1)
    for at in range(0, n if columns.names else 0, CHUNK):
        part = slice(at, at + CHUNK)
        batch = _Batch(columns, values[:, part])
        found[part], nests[:, part] = batch.features().T, batch.heaviest
    return found, nests


class _Batch:
    """Programs side by side: the last axis of every array is theirs, so that numpy's loops are long."""

    def __init__(self, columns: Columns, values: np.ndarray):
        self.columns, self.values = columns, values
        self.every = np.arange(values.shape[1])
        self.there = values[columns.of_nests["there"]] > 0  # (nests, n)

    def features(self) -> np.ndarray:
        """(len(NAMES), n) float32."""
        first, second, third = self.heaviest
        main = _Nest(self, first, self.every, SHOWN[0])
        others = _Nest(self, np.concatenate([second, third]), np.tile(self.every, 2), _OTHER)
        shares = _log(np.stack([self._of(self.work, second), self._of(self.work, third)]))
        both = np.split(np.concatenate(others.features()), 2, axis=1)
        parts = [_log(self._program(main)), *main.features(), shares[:1], both[0], shares[1:], both[1]]
        return np.concatenate(parts)

    def nests(self, what: str) -> np.ndarray:
        """(nests, n); 0 where there is nothing."""
        return np.where(self.there, np.nan_to_num(self.values[self.columns.of_nests[what]]), 0)

    def _of(self, numbers: np.ndarray, nest: np.ndarray) -> np.ndarray:
        return np.where(nest >= 0, numbers[nest, self.every], 0)

    @cached_property
    def runs(self) -> np.ndarray:
        """(nests, n) how often each nest is executed, a vector counting once."""
        columns, values = self.columns, self.values
        vector = values[columns.kind] == KINDS.index("vector")
        step = np.where(vector, 1, values[columns.extent])
        found = np.ones((len(columns.nests), len(self.every)))
        for own, nest in zip(found, columns.nests):
            for factor in np.where(values[nest.around] > 0, step[nest.loops], 1):
                own *= factor
        return found

    @cached_property
    def work(self) -> np.ndarray:
        return self.runs * self.nests("operations")

    @cached_property
    def heaviest(self) -> list[np.ndarray]:
        """The nests that have features, (n,) each: the most work first; -1 where there are fewer."""
        left = self.work.copy()
        found = []
        for _ in range(NESTS):
            most = left.max(axis=0)
            nest = np.argmax(left, axis=0)
            left[nest, self.every] = 0
            found.append(np.where(most > 0, nest, -1))
        return found

    def _program(self, main: _Nest) -> np.ndarray:
        nearest, zero = self.nests("nearest"), np.zeros(len(self.every))
        nearest = np.min(np.where(nearest > 0, nearest, np.inf), axis=0, initial=np.inf)
        threads = self._one("threads")
        values = {
            "work": self.work.sum(axis=0),
            "statements": self.nests("stores").sum(axis=0),
            "heaviest": self._of(self.work, main.nest),
            "steps": self._one("steps"),
            "tasks": main.tasks,
            "imbalance": np.ceil(main.tasks / threads) * threads / main.tasks,
            "body": main.unrolled * self._of(self.nests("operations"), main.nest),
            "registers": self._total("register"),
            "scratch": self._total("scratch"),
            "params": self._one("params"),
            "temps": self._one("temps"),
            "prefetches": np.sum(self.nests("prefetches") * self.runs, axis=0),
            "nearest_prefetch": np.where(nearest < np.inf, nearest, zero),
            "farthest_prefetch": self.nests("farthest").max(axis=0),
            "guards": np.sum(self.nests("guarded") * self.runs, axis=0),
        }
        return np.stack([values[name] for name in PROGRAM])

    def _one(self, what: str) -> np.ndarray:
        return self.values[self.columns.index[what,]]

    def _total(self, scope: str) -> np.ndarray:
        return np.sum(self.values[self.columns.scopes[scope]], axis=0)


class _Nest:
    """Nests of programs: `nest`, -1 for none, of the programs `at`. Loops are from the outside in; where
    there are fewer, the last have one iteration."""

    def __init__(self, batch: _Batch, nest: np.ndarray, at: np.ndarray, shown: _Shown):
        self.nest, self.shown, self.every = nest, shown, np.arange(len(nest))
        columns = batch.columns
        groups = [(columns.nests[k], np.flatnonzero(nest == k)) for k in np.unique(nest[nest >= 0])]
        depth = max([1, *(len(own.loops) for own, _ in groups)])
        shape = (shown.buffers, columns.dims, len(nest))
        self.extent = np.ones((depth + 1, len(nest)), np.float32)  # the last: of what is not there
        self.kind = np.full((depth + 1, len(nest)), -1)
        self.moves = np.zeros((depth + 1, *shape), np.float32)  # (loops, buffers, dims, n)
        self.limit, self.stride = np.ones(shape, np.float32), np.zeros(shape, np.float32)
        self.itemsize = np.zeros((shown.buffers, len(nest)), np.float32)
        for own, those in groups:
            self._fill(columns, batch.values[:, at[those]], own, those)
        self.extent, self.kind, self.moves = self.extent[:-1], self.kind[:-1], self.moves[:-1]
        self.present = self.extent > 1
        dealt = np.arange(depth)[:, None] < batch.nests("dealt")[nest, at]
        self.kind = np.where(self.present & dealt, KINDS.index("parallel"), self.kind)
        self.inside = _accumulate(np.multiply, self.extent[::-1])[::-1]
        self.outside = self.inside[0] / self.inside

    def _fill(self, columns: Columns, values: np.ndarray, own: Nest, those: np.ndarray) -> None:
        """What `values` say of one nest."""
        there = values[own.around] > 0
        extent = np.where(there, values[columns.extent[own.loops]], 1)
        above = values[own.above]  # (loops, loops, n)
        above = np.where(own.turned[:, :, None], 1 - above, above)
        depth = len(self.extent) - 1
        place = np.sum((above > 0) & there[:, None], axis=0)
        place = np.where(there, np.minimum(place, depth), depth)
        self.extent[place, those] = extent
        self.kind[place, those] = np.nan_to_num(values[columns.kind[own.loops]], nan=-1)
        buffers = self.shown.buffers
        self.itemsize[:, those] = np.nan_to_num(values[own.itemsize[:buffers]])
        limit = values[own.limit[:buffers]]
        self.limit[:, :, those] = np.where(np.isnan(limit), 1, limit)
        self.stride[:, :, those] = np.nan_to_num(values[own.stride[:buffers]])
        buffer, dim, loop, column = own.moves[:, own.moves[0] < buffers]
        self.moves[place[loop], buffer[:, None], dim[:, None], those] = np.nan_to_num(values[column])

    @property
    def tasks(self) -> np.ndarray:
        """Iterations of the parallel loops, which are outside of all others."""
        return np.prod(np.where(self.kind == KINDS.index("parallel"), self.extent, 1), axis=0)

    @property
    def unrolled(self) -> np.ndarray:
        return np.prod(np.where(self.kind == KINDS.index("unroll"), self.extent, 1), axis=0)

    def features(self) -> list[np.ndarray]:
        count = self._touched()  # (buffers, loops, n)
        used = self.itemsize > 0
        touched = np.where(used[:, None], count * self.itemsize[:, None], np.inf)
        reuse = np.where(used[:, None], self.inside / count, 0)
        outer = [np.where(used, touched[:, 0], 0), reuse[:, 0]]
        steps = [self._steps(self._last(self.present))]
        steps += [self._steps(self._last(self.present & (self.kind == KINDS.index("vector"))))]
        logs = _log(np.stack([self.inside, self.outside]))
        whole = np.sum(np.where(used[:, None], touched, 0), axis=0)
        related = touched[: len(self.shown.related) - 1], _log(reuse[: len(self.shown.related) - 1])
        bytes_ = np.concatenate([related[0], whole[None]])
        values = np.concatenate([related[1], logs[:1]])
        relations = self._relations(bytes_, values, logs[1])
        return [*self._loops(logs), *map(_log, outer), *map(_log, steps), *relations]

    def _touched(self) -> np.ndarray:
        """(buffers, loops, n) different elements that each loop touches, with all loops inside it."""
        loops, buffers, _, n = self.moves.shape
        found = np.ones((buffers, loops, n), np.float32)
        span = np.full(self.limit.shape, 1 + 2**-10, np.float32)  # what fractions of steps may lose
        iterations = np.ones((buffers, n), np.float32)
        depends = np.any(self.moves != 0, axis=2)
        steps = np.abs(self.moves)
        for at in reversed(range(loops)):
            span += steps[at] * (self.extent[at] - 1)
            iterations *= np.where(depends[at], self.extent[at], 1)
            box = np.prod(np.minimum(np.floor(span), self.limit), axis=1)
            found[:, at] = np.maximum(np.minimum(box, iterations), 1)
        return found

    def _relations(self, touched: np.ndarray, reuse: np.ndarray, outside: np.ndarray) -> list[np.ndarray]:
        """The largest logarithms of reuse and top-down products of the loops that touch fewer bytes than each
        threshold, for each of `touched`; 0 if none does. A loop touches all that those inside it touch."""
        many, loops, n = touched.shape
        exponent = np.frexp(touched)[
            1
        ]  # the least e with x < 2^e, but for powers of two, which have one more
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
            above = _accumulate(np.maximum, found.reshape(-1, many, n)[: len(THRESHOLDS)])
            result.append(above.swapaxes(0, 1).reshape(-1, n))
        return result

    def _loops(self, logs: np.ndarray) -> list[np.ndarray]:
        """Of the innermost loops, the innermost first; zeros where there are fewer."""
        count, depth = self.shown.loops, len(self.extent)
        inner = _accumulate(np.add, self.present[::-1].astype(int))[::-1] - 1
        loops = np.full((count + 1, len(self.every)), depth)
        loops[np.where(self.present & (inner < count), inner, count), self.every] = np.arange(depth)[:, None]
        places = loops[:count] * len(self.every) + self.every

        def shown(values: np.ndarray) -> np.ndarray:
            none = np.zeros((1, len(self.every)), np.float32)
            return np.concatenate([values, none]).reshape(-1)[places]

        kind = shown(self.kind + 1)
        kinds = [(kind == k + 1).astype(np.float32) for k in range(len(KINDS))]
        return [shown(_log(self.extent)), *kinds, shown(logs[1]), shown(logs[0])]

    def _last(self, where: np.ndarray) -> np.ndarray:
        """(n,) the innermost loop of those; -1 if there is none."""
        return np.where(where.any(axis=0), len(where) - 1 - np.argmax(where[::-1], axis=0), -1)

    def _steps(self, loop: np.ndarray) -> np.ndarray:
        """(buffers, n) bytes from one iteration to the next."""
        moves = np.moveaxis(self.moves[loop, :, :, self.every], 0, -1)
        return np.where(loop >= 0, np.abs(np.sum(moves * self.stride, axis=1)), 0)


def _accumulate(operation: np.ufunc, x: np.ndarray) -> np.ndarray:
    """Along the first axis, many times faster than the ufunc's own method."""
    found = x.copy()
    for n in range(1, len(x)):
        operation(found[n - 1], x[n], out=found[n])
    return found


def _log(x: np.ndarray) -> np.ndarray:
    return np.log(1 + x, dtype=np.float32) * np.float32(1 / math.log(2))
