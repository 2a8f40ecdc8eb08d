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

from .columns import Columns
from .sketch import BUFFERS, KINDS, Sketch

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
    values = columns.stack(sketches)
    return rows(columns, values, columns.trees_of(values))


def rows(columns: Columns, values: np.ndarray, trees: np.ndarray) -> np.ndarray:
    """(n, len(NAMES)) float32 of values as `Columns.stack` gives them, with `Columns.trees_of` them."""
    found = np.zeros((len(trees), len(NAMES)), np.float32)
    for at in range(0, len(found) if columns.nests else 0, CHUNK):
        part = slice(at, at + CHUNK)
        found[part] = _Batch(columns, values[:, part], trees[part]).features().T
    return found


class _Batch:
    """Programs side by side: the last axis of every array is theirs, so that numpy's loops are long."""

    def __init__(self, columns: Columns, values: np.ndarray, tree: np.ndarray):
        self.columns, self.values, self.tree = columns, values, tree
        self.every = np.arange(len(tree))
        none = np.full((1, len(tree)), np.nan)  # where a path has no loop
        extent = np.concatenate([values[columns.extent], none])
        self.extent = np.where(np.isnan(extent), 1, extent)  # (nodes + 1, n)
        self.kind = np.concatenate([values[columns.kind], none])

    def features(self) -> np.ndarray:
        """(len(NAMES), n) float32."""
        first, second, third = self.heaviest
        main = _Nest(self, first, self.every, SHOWN[0])
        others = _Nest(self, np.concatenate([second, third]), np.tile(self.every, 2), _OTHER)
        shares = _log(np.stack([self._of(self.work, second), self._of(self.work, third)]))
        both = np.split(np.concatenate(others.features()), 2, axis=1)
        parts = [_log(self._program(main)), *main.features(), shares[:1], both[0], shares[1:], both[1]]
        return np.concatenate(parts)

    def leaf(self, what: str) -> np.ndarray:
        """(leaves, n); 0 where there is nothing."""
        return np.nan_to_num(self.values[self.columns.of_leaves[what]])

    def _of(self, numbers: np.ndarray, leaf: np.ndarray) -> np.ndarray:
        return np.where(leaf >= 0, numbers[leaf, self.every], 0)

    @cached_property
    def runs(self) -> np.ndarray:
        """(leaves, n) how often each nest is executed, a vector counting once."""
        step = np.where(self.kind == KINDS.index("vector"), 1, self.extent)
        found = np.ones((len(self.columns.leaves), len(self.every)))
        for nodes in self.columns.paths[self.tree].T:
            found *= step[nodes, self.every]
        return found

    @cached_property
    def work(self) -> np.ndarray:
        return self.runs * self.leaf("operations")

    @cached_property
    def heaviest(self) -> list[np.ndarray]:
        """The nests that have features, (n,) each: the most work first, among equals as in the text; -1 where
        there are fewer."""
        left, order = self.work.copy(), self.leaf("order")
        found = []
        for _ in SHOWN:
            most = left.max(axis=0)
            leaf = np.argmin(np.where(left == most, order, np.inf), axis=0)
            left[leaf, self.every] = 0
            found.append(np.where(most > 0, leaf, -1))
        return found

    def _program(self, main: _Nest) -> np.ndarray:
        nearest, zero = self.leaf("nearest"), np.zeros(len(self.every))
        nearest = np.min(np.where(nearest > 0, nearest, np.inf), axis=0, initial=np.inf)
        threads = self._one("threads")
        values = {
            "work": self.work.sum(axis=0),
            "statements": self.leaf("stores").sum(axis=0),
            "heaviest": self._of(self.work, main.leaf),
            "steps": self._one("steps"),
            "tasks": main.tasks,
            "imbalance": np.ceil(main.tasks / threads) * threads / main.tasks,
            "body": main.unrolled * self._of(self.leaf("operations"), main.leaf),
            "registers": self._total("register"),
            "scratch": self._total("scratch"),
            "params": self._one("params"),
            "temps": self._one("temps"),
            "prefetches": np.sum(self.leaf("prefetches") * self.runs, axis=0),
            "nearest_prefetch": np.where(nearest < np.inf, nearest, zero),
            "farthest_prefetch": self.leaf("farthest").max(axis=0),
            "guards": np.sum(self.leaf("guarded") * self.runs, axis=0),
        }
        return np.stack([values[name] for name in PROGRAM])

    def _one(self, what: str) -> np.ndarray:
        return self.values[self.columns.index[what,]]

    def _total(self, scope: str) -> np.ndarray:
        return np.nansum(self.values[self.columns.scopes[scope]], axis=0)


class _Nest:
    """Nests of programs: `leaf`, -1 for none, of the programs `at`. Loops are from the outside in."""

    def __init__(self, batch: _Batch, leaf: np.ndarray, at: np.ndarray, shown: _Shown):
        self.leaf, self.shown, self.every = leaf, shown, np.arange(len(leaf))
        columns, values, tree = batch.columns, batch.values, batch.tree[at]
        paths = columns.paths[tree, leaf].T  # (loops, n)
        paths = np.where(leaf >= 0, paths, len(columns.nodes))
        self.extent = batch.extent[paths, at].astype(np.float32)
        self.kind = batch.kind[paths, at]
        self.present = self.extent > 1
        self.inside = _accumulate(np.multiply, self.extent[::-1])[::-1]
        self.outside = self.inside[0] / self.inside
        depth, shape = len(paths), (shown.buffers, columns.dims, len(leaf))
        moves = np.zeros((depth + 1, *shape), np.float32)
        self.limit, self.stride = np.ones(shape, np.float32), np.zeros(shape, np.float32)
        self.itemsize = np.zeros((shown.buffers, len(leaf)), np.float32)
        for number in np.unique(leaf[leaf >= 0]):
            access = columns.accesses[number]
            those = np.flatnonzero(leaf == number)
            own = at[those]
            self.itemsize[:, those] = np.nan_to_num(values[access.itemsize[: shown.buffers, None], own])
            limit = values[access.limit[: shown.buffers, :, None], own]
            self.limit[:, :, those] = np.where(np.isnan(limit), 1, limit)
            self.stride[:, :, those] = np.nan_to_num(values[access.stride[: shown.buffers, :, None], own])
            buffer, dim, node, column = access.moves[:, access.moves[0] < shown.buffers]
            loop = depth - 1 - columns.places[tree[those], number][:, node].T  # depth: it is not around
            moved = np.nan_to_num(values[column[:, None], own])
            moves[loop, buffer[:, None], dim[:, None], those] = moved
        self.moves = moves[:depth]  # (loops, buffers, dims, n)

    @property
    def tasks(self) -> np.ndarray:
        """Iterations of the parallel loops outside of all others."""
        parallel = (self.kind == KINDS.index("parallel")) | ~self.present
        leading = _accumulate(np.logical_and, parallel)
        return np.prod(np.where(leading, self.extent, 1), axis=0)

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
            found[:, at] = np.minimum(box, iterations)
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
