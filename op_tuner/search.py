"""Strategies that choose which configs of a task to measure next; all draw from the same space.

random     every point of the space is as likely as its answers
genetic    crosses and changes the fastest measured so far
annealing  simulated annealing on models of the costs, then a batch of high scores that differ from each
           other (Chen et al. 2018, *Learning to Optimize Tensor Programs*, algorithm 1) and from what is
           known. The walk goes by drafts, which are quick; the best of them are scored properly. In a small
           space all are drafted. There are several models, which differ where little is known; each leads its
           own chains and proposes its part of the batch

None of them proposes a point twice.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from itertools import islice, zip_longest
from typing import Protocol

import numpy as np

from .numbered import Numbered
from .space import TRIES, Point, Space

CHAINS = 256
STEPS = 125  # of every chain in a round, at most
PATIENCE = 25  # steps without a better point
FEW = 8192  # points that are all scored instead of walking among them
PLANNED = 0.25  # how many points a round chooses, over those measured by then; one batch at least
DRAFTED = 16  # times the batch: the best drafts, out of which those that are apart are
VERIFIED = 2  # times the batch: scored properly
EPSILON = 0.05  # share of a batch that is random
LOCAL, MOVES = 0.5, 128  # share of the others that are neighbours of the fastest; draws of such
NOVELTY = 2.0  # standard deviations of the scores known that a point is worth which has none near it
POPULATION, MUTATED = 32, 0.5


class Strategy(Protocol):
    """What a tuner asks and tells."""

    def propose(self, count: int) -> list[Point]:
        """Points that are not known yet, the most promising first; fewer where the space ends."""

    def chance(self, count: int) -> list[Point]:
        """Points that are not known yet, drawn by chance, which takes no time; fewer where most are known."""

    def tell(self, point: Point, seconds: float | None, error: str | None = None) -> None:
        """A measured point; None if it failed, of an `error` of `Measurement`."""

    def avoid(self, point: Point) -> None:
        """Its program ended a process that made it, or may have: not to be made here."""

    def expected(self, points: Sequence[Point]) -> list[float] | None:
        """Scores of a model, once it has learnt; larger is faster."""


class Scorer(Protocol):
    """Models of the costs of one task, so many as `opinions`, whose scores do not compare."""

    opinions: int

    def ready(self) -> bool:
        """Whether it has learnt anything."""

    def study(self, numbered: Numbered) -> bool:
        """Learns a part of what drafts need to know of the space; whether there is more to learn."""

    def scores(self, points: Sequence[Point], opinion: int) -> np.ndarray:
        """Larger is faster; -inf for what cannot be built."""

    def drafts(self, numbered: Numbered, rows: np.ndarray, opinions: np.ndarray) -> np.ndarray:
        """Scores of points, given as rows of small numbers, each by one of the models. They may be off: a
        walk asks for thousands."""


Watch = Callable[[Point], AbstractContextManager[object]]


class Random:
    """`watched` is entered while a point's program is made, which may end the process."""

    def __init__(self, space: Space, seed: int = 0):
        self.space, self.rng = space, random.Random(seed)
        self.times: dict[Point, float | None] = {}
        self.watched: Watch = nullcontext

    def tell(self, point: Point, seconds: float | None, error: str | None = None) -> None:
        self.times[point] = seconds

    def avoid(self, point: Point) -> None:
        pass  # nothing is made

    def hold(self, points: Sequence[Point]) -> None:
        """They are being measured, and not to be proposed again meanwhile."""
        for point in points:
            self.times.setdefault(point, None)

    def expected(self, points: Sequence[Point]) -> list[float] | None:
        return None

    def prepare(self) -> bool:
        """A part of what choosing needs to know of the space; whether there is more."""
        return False

    def propose(self, count: int) -> list[Point]:
        return self.chance(count)

    def chance(self, count: int) -> list[Point]:
        return self._random(count, [])

    def _random(self, count: int, taken: Sequence[Point]) -> list[Point]:
        """`count` points of chance, neither known nor taken."""
        found: dict[Point, None] = {}
        for _ in range(TRIES * count):
            if len(found) == count:
                break
            point = self.space.draw(self.rng)
            if point not in self.times and point not in taken:
                found[point] = None
        return list(found)

    def _fastest(self, count: int) -> list[tuple[float, Point]]:
        worked = [(seconds, point) for point, seconds in self.times.items() if seconds is not None]
        return sorted(worked, key=lambda pair: pair[0])[:count]


class Genetic(Random):
    def propose(self, count: int) -> list[Point]:
        parents = self._fastest(POPULATION)
        if len(parents) < 2:
            return self.chance(count)
        best = parents[0][0]
        fitness = [best / max(seconds, 1e-12) for seconds, _ in parents]
        points = [point for _, point in parents]
        found: dict[Point, None] = {}
        for _ in range(TRIES):
            if len(found) == count:
                break
            mother, father = self.rng.choices(points, fitness, k=2)
            child = self.space.cross(mother, father, self.rng)
            if self.rng.random() < MUTATED:
                child = self.space.neighbour(child, self.rng)
            if child not in self.times:
                found[child] = None
        return [*found, *self._random(count - len(found), list(found))]


class Annealing(Random):
    """Chains keep their points from round to round; before the scorer has learnt, points are random."""

    def __init__(self, space: Space, scorer: Scorer, seed: int = 0):
        super().__init__(space, seed)
        self.scorer = scorer
        self.chains: list[Point] = []
        self.walked = 0  # different points that were drafted in the last round
        self._random_rows = np.random.default_rng(seed)
        self._planned: list[Point] = []

    @cached_property
    def numbered(self) -> Numbered:
        return Numbered(self.space)

    @cached_property
    def _every(self) -> np.ndarray | None:
        """(n, knobs) of a small space."""
        return self.numbered.every(FEW)

    def prepare(self) -> bool:
        return self.scorer.study(self.numbered)

    def propose(self, count: int) -> list[Point]:
        """In rounds, the longer the more is known: a few more measurements then change a model little."""
        planned = [point for point in self._planned if point not in self.times]
        if len(planned) < count:
            planned += self._round(count, planned) if self.scorer.ready() else self._random(count, planned)
        self._planned = planned[count:]
        return planned[:count]

    def _round(self, count: int, planned: Sequence[Point]) -> list[Point]:
        """Points beside those that are planned, some of chance at any places among them."""
        size = count * max(1, int(PLANNED * len(self.times) / max(count, 1)))
        chance = sum(self.rng.random() < EPSILON for _ in range(size))
        found = self._promising(size - chance, planned)
        others = self._random(size - len(found), [*planned, *found])
        for point in others[:chance]:
            found.insert(self.rng.randrange(len(found) + 1), point)
        return found + others[chance:]

    def _promising(self, count: int, planned: Sequence[Point] = ()) -> list[Point]:
        """As many that are neither measured nor planned, those of the models in turns. Of each, the best
        drafts of its chains, in a small space of all points, are scored properly; before them come neighbours
        of the fastest."""
        rows, opinions, drafts = self._walk()
        self.walked = len(rows)
        known = self.numbered.rows([*self.times, *planned])
        order = np.argsort(-drafts, kind="stable")
        parts = []
        for opinion in range(self.scorer.opinions):
            share = len(range(opinion, count, self.scorer.opinions))
            near = self._near(known, opinion, sum(self.rng.random() < LOCAL for _ in range(share)))
            known = np.concatenate([known, self.numbered.rows(near)])
            share -= len(near)
            best = order[opinions[order] == opinion]
            best = best[unknown(rows[best], known, DRAFTED * share)]
            worth = NOVELTY * self._spread(known, opinion)
            drafted = apart(rows[best], drafts[best], known, VERIFIED * share, worth)
            points = self._valid(rows[best[drafted]])
            found = self.numbered.rows(points)
            scores = self.scorer.scores(points, opinion)
            chosen = apart(found, scores, known, share, worth)
            parts.append([*near, *(points[n] for n in chosen)])
            known = np.concatenate([known, found[chosen]])
        return [point for turn in zip_longest(*parts) for point in turn if point is not None]

    def _near(self, known: np.ndarray, opinion: int, count: int) -> list[Point]:
        """The most promising by one model of those that are one answer from the fastest."""
        fastest = self.numbered.rows([point for _, point in self._fastest(1)])
        if not count or not len(fastest) or (fastest < 0).any():
            return []
        moved = self.numbered.neighbours(np.repeat(fastest, MOVES, axis=0), self._random_rows)
        moved = np.unique(moved, axis=0)
        moved = moved[unknown(moved, known, len(moved))]
        if not len(moved):
            return []
        drafts = self.scorer.drafts(self.numbered, moved, np.full(len(moved), opinion))
        points = self._valid(moved[np.argsort(-drafts, kind="stable")[: VERIFIED * count]])
        scores = self.scorer.scores(points, opinion)
        return [points[n] for n in np.argsort(-scores, kind="stable")[:count] if np.isfinite(scores[n])]

    def _spread(self, known: np.ndarray, opinion: int) -> float:
        """Standard deviation of what a model says of known points whose answers all have numbers."""
        known = known[(known >= 0).all(axis=1)]
        drafts = self.scorer.drafts(self.numbered, known, np.full(len(known), opinion))
        finite = drafts[np.isfinite(drafts)]
        return float(np.std(finite)) if len(finite) else 0.0

    def _valid(self, rows: np.ndarray) -> list[Point]:
        return [point for point in self.numbered.points(rows) if point is not None]

    def _walk(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(n, knobs) points, (n,) the models that they were drafted by, and (n,) those drafts."""
        self.scorer.study(self.numbered)
        if self._every is None:
            return self._anneal()
        opinions = np.repeat(np.arange(self.scorer.opinions), len(self._every))
        rows = np.tile(self._every, (self.scorer.opinions, 1))
        return rows, opinions, self.scorer.drafts(self.numbered, rows, opinions)

    def _anneal(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All points that the chains came to.

        Temperature falls from one to zero; a worse point is taken with probability exp(change / temperature).
        """
        drafts = _Drafts(self.scorer, self.numbered)
        rows = self._start()
        if not len(rows):
            return rows, np.zeros(0, int), np.zeros(0)
        opinions = np.arange(len(rows)) % self.scorer.opinions
        now = drafts.of(rows, opinions)
        best, idle = now.max(), 0
        for step in range(STEPS):
            if idle >= PATIENCE:
                break
            temperature = 1 - step / STEPS
            moved = self.numbered.neighbours(rows, self._random_rows)
            new = drafts.of(moved, opinions)
            with np.errstate(invalid="ignore"):
                change = np.where(new == now, 0, new - now)  # -inf where neither can be built
            chance = np.exp(np.clip(change / (temperature + 1e-5), -700, 0))
            taken = self._random_rows.random(len(rows)) < chance
            rows, now = np.where(taken[:, None], moved, rows), np.where(taken, new, now)
            idle = 0 if new.max() > best else idle + 1
            best = max(best, new.max())
        self.chains = [point for point in self.numbered.points(rows) if point is not None]
        return drafts.everything()

    def _start(self) -> np.ndarray:
        """Where chains stood; chance where there are none. The fastest measured stands in the first of each
        model."""
        fastest = [point for _, point in self._fastest(1)] * self.scorer.opinions
        rows = self.numbered.rows([*fastest, *self.chains][:CHAINS])
        rows = rows[(rows >= 0).all(axis=1)]
        return np.concatenate([rows, self.numbered.draw(CHAINS - len(rows), self._random_rows)])


class _Drafts:
    """What a scorer says, asked once for every point and model."""

    def __init__(self, scorer: Scorer, numbered: Numbered):
        self._scorer, self._numbered = scorer, numbered
        self._known: dict[bytes, float] = {}

    def of(self, rows: np.ndarray, opinions: np.ndarray) -> np.ndarray:
        asked = np.column_stack([opinions, rows])
        keys = [row.tobytes() for row in asked]
        missing = {key: n for n, key in enumerate(keys) if key not in self._known}
        if missing:
            which = list(missing.values())
            found = self._scorer.drafts(self._numbered, rows[which], opinions[which])
            self._known.update(zip(missing, found.tolist()))
        return np.array([self._known[key] for key in keys])

    def everything(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(n, knobs) rows, (n,) models and (n,) drafts."""
        asked = np.frombuffer(b"".join(self._known), int).reshape(len(self._known), -1)
        return asked[:, 1:], asked[:, 0], np.array(list(self._known.values()))


def unknown(rows: np.ndarray, known: np.ndarray, count: int) -> np.ndarray:
    """Indices of the first rows that are not known."""
    taken = {row.tobytes() for row in known}
    return np.array(list(islice((n for n, row in enumerate(rows) if row.tobytes() not in taken), count)), int)


def apart(rows: np.ndarray, scores: np.ndarray, known: np.ndarray, count: int, worth: float) -> np.ndarray:
    """Indices of a batch: greedily by score less `worth` log(1 + Σ e^-d), over the known and chosen ones that
    differ from it in d answers. Scores alone would ask for ever more of what is known to be good, and never
    hear of what a model is wrong about."""
    near = np.zeros(len(rows))
    for row in known:
        near += np.exp(-np.sum(rows != row, axis=1))
    left, chosen = np.array(scores, float), []
    for _ in range(min(count, int(np.isfinite(left).sum()))):
        best = int(np.argmax(left - worth * np.log1p(near)))
        chosen.append(best)
        left[best] = -math.inf
        near += np.exp(-np.sum(rows != rows[best], axis=1))
    return np.array(chosen, int)
