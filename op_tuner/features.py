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

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from .columns import Columns
from .nest_features import COUNTS, MAIN, OTHER, Shown, log, of_nests
from .sketch import Sketch
from .totals import Plan, Totals

FEATURES = 2
"""Version: features of different versions must not be mixed."""
PROGRAM = (
    "work", "statements", "heaviest", "steps", "tasks", "imbalance", "body", "registers", "scratch", "params",
    "temps", "prefetches", "nearest_prefetch", "farthest_prefetch", "guards",
)  # fmt: skip
CHUNK = 1024  # programs at a time, so that what is computed of them stays in the cache
SHOWN = (MAIN, OTHER, OTHER)
"""Of the heaviest nest, the second and the third."""

OfNests = Callable[[np.ndarray, np.ndarray, Shown], np.ndarray]
"""(n, shown.width) float32 of nests, -1 for none, of the programs at (n,) places of a batch."""


def _names() -> Iterator[str]:
    yield from PROGRAM
    for n, shown in enumerate(SHOWN):
        nest = f"nest{n}." if n else ""
        yield from (f"{nest}{what}" for what in ("share",) if n)
        yield from (nest + name for name in shown.names())


NAMES = tuple(_names())
"""Of the columns that `evaluate` gives. All are logarithms, log2(1 + x), but for the kinds of loops."""


def evaluate(sketches: Sequence[Sketch]) -> np.ndarray:
    """(sketches, len(NAMES)) float32."""
    columns = Columns(key for sk in sketches for key in sk)
    values = columns.stack(sketches)
    columns.compare(values)
    values = columns.complete(values)
    found, plan = np.zeros((len(sketches), len(NAMES)), np.float32), Plan(columns)
    for at in range(0, len(sketches) if columns.names else 0, CHUNK):
        part = slice(at, at + CHUNK)
        found[part] = Batch(plan, values[:, part]).features()
    return found


class Batch:
    """Programs side by side: the last axis of every array is theirs, so that numpy's loops are long.

    `values` are complete, but for those that only features of nests need where `of_nests` gives these.
    """

    def __init__(self, plan: Plan, values: np.ndarray, of_nests: OfNests | None = None):
        self.columns, self.values, self._of_nests = plan.columns, values, of_nests or self._computed
        self.totals = Totals(plan, values)
        self.every = np.arange(values.shape[1])
        self.heaviest = [nest for nest, _ in self.totals.heaviest]
        """The nests that have features, (n,) each: the most work first; -1 where there are fewer."""

    def _computed(self, nest: np.ndarray, at: np.ndarray, shown: Shown) -> np.ndarray:
        return of_nests(self.columns, self.values[:, at], nest, shown)

    def features(self) -> np.ndarray:
        """(n, len(NAMES)) float32."""
        first, second, third = self.heaviest
        main = self._of_nests(first, self.every, MAIN)
        both = self._of_nests(np.concatenate([second, third]), np.tile(self.every, 2), OTHER)
        shares = log(np.stack([work for _, work in self.totals.heaviest[1:]]))[:, :, None]
        program = log(self._program(first, *main[:, :COUNTS].T)).T
        others = np.split(both[:, COUNTS:], 2)
        return np.concatenate([program, main[:, COUNTS:], shares[0], others[0], shares[1], others[1]], axis=1)

    def _program(self, main: np.ndarray, tasks: np.ndarray, unrolled: np.ndarray) -> np.ndarray:
        totals = self.totals
        nearest, farthest = totals.ahead("nearest"), totals.ahead("farthest")
        nearest = np.where(nearest > 0, nearest, np.inf).min(axis=0, initial=np.inf)
        operations = np.append(self.columns.of_nests["operations"], self.columns.find(""))[main]
        threads = self._one("threads")
        values = {
            "work": totals.sums["operations"],
            "statements": totals.sums["stores"],
            "heaviest": totals.heaviest[0][1],
            "steps": self._one("steps"),
            "tasks": tasks,
            "imbalance": np.ceil(tasks / threads) * threads / tasks,
            "body": unrolled * self.values[operations, self.every],
            "registers": totals.scope("register"),
            "scratch": totals.scope("scratch"),
            "params": self._one("params"),
            "temps": self._one("temps"),
            "prefetches": totals.sums["prefetches"],
            "nearest_prefetch": np.where(nearest < np.inf, nearest, 0),
            "farthest_prefetch": farthest.max(axis=0, initial=0),
            "guards": totals.sums["guarded"],
        }
        return np.stack([values[name] for name in PROGRAM])

    def _one(self, what: str) -> np.ndarray:
        return self.values[self.columns.index[what,]]
