"""Strategies that choose which configs of a task to measure next; all draw from the same space.

random     every point of the space is as likely as its answers
genetic    crosses and changes the fastest measured so far
annealing  simulated annealing on a model of the costs, then a batch of high scores that differ from each
           other (Chen et al. 2018, *Learning to Optimize Tensor Programs*, algorithm 1)

None of them proposes a point twice.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from .space import TRIES, Point, Space

CHAINS = 16
STEPS = 500  # of every chain in a round, at most
PATIENCE = 50  # steps without a better point
SCORED = 12  # new points that a round may score for each that it proposes: each has to be lowered
EPSILON = 0.05  # share of a batch that is random
CHOICE = 4  # times the batch: the best scored, of which it is chosen
DIVERSITY = 0.1  # standard deviations of the scores that a new answer to a question is worth
POPULATION, MUTATED = 32, 0.5


class Strategy(Protocol):
    """What a tuner asks and tells."""

    def propose(self, count: int) -> list[Point]:
        """Points that are not known yet, the most promising first; fewer where the space ends."""

    def tell(self, point: Point, seconds: float | None) -> None:
        """A measured point; None if it failed."""


class Scorer(Protocol):
    """A model of the costs of one task."""

    def ready(self) -> bool:
        """Whether it has learnt anything."""

    def scores(self, points: Sequence[Point]) -> np.ndarray:
        """Larger is faster; -inf for what cannot be built."""


class Random:
    def __init__(self, space: Space, seed: int = 0):
        self.space, self.rng = space, random.Random(seed)
        self.times: dict[Point, float | None] = {}

    def tell(self, point: Point, seconds: float | None) -> None:
        self.times[point] = seconds

    def propose(self, count: int) -> list[Point]:
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
            return self._random(count, [])
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
        self._lowered: set[Point] = set()

    def propose(self, count: int) -> list[Point]:
        if not self.scorer.ready():
            return self._random(count, [])
        chance = sum(self.rng.random() < EPSILON for _ in range(count))
        scores = {p: s for p, s in self._anneal(SCORED * count).items() if p not in self.times}
        found = diverse(scores, count - chance)
        return [*found, *self._random(count - len(found), found)]

    def _anneal(self, limit: int) -> dict[Point, float]:
        """Scores of all points that the chains came to; about `limit` of them, at most, are new.

        Temperature falls from one to zero; a worse point is taken with probability exp(change / temperature).
        """
        self._start()
        scores: dict[Point, float] = {}
        self._score(self.chains, scores)
        new, idle, best = 0, 0, max(scores.values())
        for step in range(STEPS):
            if new >= limit or idle >= PATIENCE:
                break
            temperature = 1 - max(step / STEPS, new / limit)
            moved = [self.space.neighbour(point, self.rng) for point in self.chains]
            new += self._score(moved, scores)
            for n, point in enumerate(moved):
                change = scores[point] - scores[self.chains[n]]
                if change >= 0 or self.rng.random() < math.exp(max(change / (temperature + 1e-5), -700)):
                    self.chains[n] = point
            top = max(scores.values())
            idle = 0 if top > best else idle + 1
            best = top
        return scores

    def _start(self) -> None:
        """Points of chance; in later rounds the fastest measured stands in the first chain."""
        while len(self.chains) < CHAINS:
            self.chains.append(self.space.draw(self.rng))
        for _, point in self._fastest(1):
            self.chains[0] = point

    def _score(self, points: Sequence[Point], scores: dict[Point, float]) -> int:
        """Adds what is missing; returns how many points were scored for the first time."""
        missing = [p for p in dict.fromkeys(points) if p not in scores]
        scores.update(zip(missing, map(float, self.scorer.scores(missing))))
        new = [p for p in missing if p not in self._lowered]
        self._lowered.update(new)
        return len(new)


def diverse(scores: dict[Point, float], count: int) -> list[Point]:
    """A batch out of the best, greedily by score and by how many answers it adds that no other one has."""
    finite = {p: s for p, s in scores.items() if s > -math.inf}
    pool = sorted(finite, key=lambda p: -finite[p])[: CHOICE * count]
    weight = DIVERSITY * float(np.std([finite[p] for p in pool])) if pool else 0.0
    covered: set[tuple[str, object]] = set()
    batch: list[Point] = []
    while pool and len(batch) < count:
        best = max(pool, key=lambda p: finite[p] + weight * len(set(p) - covered))
        pool.remove(best)
        covered |= set(best)
        batch.append(best)
    return batch
