"""What has been measured, as rows of features, and the models that are fitted to it: one for all tasks, and
one for each that adds to it.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from contextlib import nullcontext

import numpy as np

from ..compiler.kernel_task import KernelTask
from ..compiler.lower.lower import scheduled
from .analytic import Analytic
from .bulk import Bulk
from .features import evaluate
from .model import CostModel
from .numbered import Numbered
from .search import Watch
from .sketch import Sketch, sketch
from .space import Point, Space

OPINIONS = 4  # models of a task, each fitted to its own random sample of what was measured
GROWTH = 1.25  # how much more there must be to learn from before the global model is fitted again
LESSON, LESSONS = 24, 4  # points, and as many neighbours, that are lowered before others are told from them
ENOUGH = 0.9  # share of the features of random points that are known for sure
WORTH = 0.05  # by which a lesson must have raised that share for another one to follow
UNSAFE = frozenset({"crash", "exit", "timeout", "memory", "build"})
"""Failures of configs that would do the same to the process that learns, where that makes their programs."""


class Learner:
    """Rows are computed once. `prior` is a model of the same objective to begin with, fitted to other tasks;
    without one, models begin with the analytic score.
    ToolError if xgboost is missing."""

    def __init__(self, objective: str = "rank", seed: int = 0, prior: CostModel | None = None):
        self.objective, self.seed = objective, seed
        self._global = CostModel(objective, seed=seed, base=prior or Analytic())
        self._learnt = 0
        self.tasks: list[TaskLearner] = []

    def task(self, task: KernelTask) -> TaskLearner:
        self.tasks.append(TaskLearner(self, task))
        return self.tasks[-1]

    def base(self, rows: np.ndarray) -> np.ndarray:
        """(n,) scores that the models of every task add to."""
        return self._global.predict(rows)

    def local(self, own: TaskLearner) -> list[CostModel]:
        """The global model and, on top of it, ones of the task alone, which differ where they know little.

        Each is fitted to a bootstrap sample, so that following each of them a part of the way is Thompson
        sampling (Chapelle & Li 2011): what only one of them believes in is tried, too.
        """
        samples = [(learner, sample) for learner in self.tasks for sample in learner.samples()]
        if len(self.tasks) > 1 and len(samples) >= GROWTH * self._learnt:
            rows = np.stack([row for _, (row, _) in samples])
            names = [learner.task.digest for learner, _ in samples]
            self._global.fit(rows, [seconds for _, (_, seconds) in samples], names)
            self._learnt = len(samples)
        found = own.samples()
        random = np.random.default_rng((self.seed, len(found)))
        models = []
        for n in range(OPINIONS):
            models.append(CostModel(self.objective, seed=self.seed + n, base=self._global))
            if found:
                own_sample = np.unique(random.choice(len(found), len(found)))
                rows = np.stack([found[k][0] for k in own_sample])
                models[-1].fit(rows, [found[k][1] for k in own_sample], [own.task.digest] * len(rows))
        return models


class TaskLearner:
    """Scores points of one task; learns from what it is told before it is next asked."""

    opinions = OPINIONS

    def __init__(self, learner: Learner, task: KernelTask):
        self.learner, self.task = learner, task
        self.times: dict[Point, float | None] = {}
        self._rows: dict[Point, np.ndarray | None] = {}  # of lowered points; None if that fails
        self._models: list[CostModel] = []
        self._numbered: Numbered | None = None
        self._lessons, self._sure = LESSONS, -WORTH
        self._random = np.random.default_rng(learner.seed)
        self._avoided: set[Point] = set()  # are not lowered any more
        self.watched: Watch = nullcontext  # is entered while a point is lowered
        self.bulk = Bulk()
        self._fresh: list[tuple[Point, Sketch]] = []  # what `_bulk` has not been given yet

    def tell(self, point: Point, seconds: float | None, error: str | None = None) -> None:
        self.times[point] = seconds
        self._models = []
        if error in UNSAFE:
            self.avoid(point)
        else:
            self._avoided.discard(point)

    def avoid(self, point: Point) -> None:
        self._avoided.add(point)

    def samples(self) -> list[tuple[np.ndarray, float | None]]:
        """(features, seconds) of what was measured and can be lowered, or whose features are known anyway."""
        self._rows.update(self._told([point for point in self.times if point in self._avoided]))
        rows = self._lowered(list(self.times))
        return [(row, seconds) for row, seconds in zip(rows, self.times.values()) if row is not None]

    def ready(self) -> bool:
        return any(model.trained for model in self._fitted())

    def scores(self, points: Sequence[Point], opinion: int | None = None) -> np.ndarray:
        """By one of the models, or the mean of all; -inf for points that cannot be lowered. Others are,
        unless their features are known for sure."""
        told = self._told(points)
        rows = [told.get(p, row) for p, row in zip(points, self._lowered(points, but=told.keys()))]
        scores = np.full(len(points), -np.inf)
        known = {n: row for n, row in enumerate(rows) if row is not None}
        if known:
            models = self._fitted() if opinion is None else [self._fitted()[opinion]]
            features = np.stack(list(known.values()))
            base = self.learner.base(features)
            scores[list(known)] = np.mean([base + model.added(features) for model in models], axis=0)
        return scores

    def study(self, numbered: Numbered) -> bool:
        """A lesson: lowers points, random ones and their neighbours. Whether another one is worth its time:
        not once most others' features are known for sure, or the last one told little."""
        if self._numbered is not numbered:
            self._numbered, self.bulk = numbered, Bulk()
            self._lessons, self._sure = LESSONS, -WORTH
        if not self._lessons:
            return False
        rows = numbered.draw(LESSON, self._random)
        rows = np.concatenate([rows, numbered.neighbours(rows, self._random)])
        before = self._sure
        self._sure = float(self.bulk.rows(rows)[1].mean()) if len(self.bulk) and len(rows) else 0.0
        if self._sure > ENOUGH or self._sure < before + WORTH:
            self._lessons = 0
            return False
        self._lowered([point for point in numbered.points(rows) if point is not None])
        self._lessons -= 1
        return self._lessons > 0

    def drafts(self, numbered: Numbered, rows: np.ndarray, opinions: np.ndarray) -> np.ndarray:
        """Scores from features that are put together from other programs'; each row's by the model named."""
        if self._numbered is not numbered:
            while self.study(numbered):
                pass
        models = self._fitted()  # which adds to what features are told from
        features = self.bulk.features(rows)
        scores = self.learner.base(features)
        for n, model in enumerate(models):
            if (own := opinions == n).any():
                scores[own] += model.added(features if own.all() else features[own])
        return scores

    def _fitted(self) -> list[CostModel]:
        if not self._models:
            self._models = self.learner.local(self)
        return self._models

    def _told(self, points: Sequence[Point]) -> dict[Point, np.ndarray]:
        """Rows that are sure without lowering."""
        missing = [p for p in points if p not in self._rows]
        if self._numbered is None or not missing:
            return {}
        numbers = self._numbered.rows(missing)
        rows, sure = self.bulk.rows(np.maximum(numbers, 0))
        sure &= (numbers >= 0).all(axis=1)
        return {missing[n]: rows[n] for n in np.flatnonzero(sure)}

    def _lowered(self, points: Sequence[Point], but: Set[Point] = frozenset()) -> list[np.ndarray | None]:
        """Rows of features, but for some points; None for those and what cannot be lowered."""
        known = self._rows.keys() | but | self._avoided
        missing = [p for p in dict.fromkeys(points) if p not in known]
        sketches = {p: self._sketch(p) for p in missing}
        found = {p: sk for p, sk in sketches.items() if sk is not None}
        self._rows.update(dict.fromkeys(missing))
        self._rows.update(zip(found, evaluate(list(found.values()))))
        self._fresh += found.items()
        if self._numbered is not None and self._fresh:
            numbers = self._numbered.rows([p for p, _ in self._fresh])
            kept = np.flatnonzero((numbers >= 0).all(axis=1))
            self.bulk.add(numbers[kept], [self._fresh[n][1] for n in kept])
            self._fresh = []
        return [self._rows.get(p) for p in points]

    def _sketch(self, point: Point) -> Sketch | None:
        try:
            with self.watched(point):
                return sketch(scheduled(self.task, Space.config(point)), self.task.threads)
        except (Exception, SystemExit):  # what a template makes of an odd config is the candidate's failure
            return None
