"""What has been measured, as rows of features, and the models that are fitted to it: one for all tasks, and
one for each that adds to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..compiler.kernel_task import KernelTask
from ..compiler.lower.lower import scheduled
from .features import evaluate
from .model import CostModel
from .sketch import Sketch, sketch
from .space import Point, Space

GROWTH = 1.25  # how much more there must be to learn from before the global model is fitted again


class Learner:
    """Rows are computed once. `prior` is a model of the same objective to begin with, fitted to other tasks.
    ToolError if xgboost is missing."""

    def __init__(self, objective: str = "rank", seed: int = 0, prior: CostModel | None = None):
        self.objective, self.seed = objective, seed
        self._global = CostModel(objective, seed=seed, base=prior)
        self._learnt = 0
        self.tasks: list[TaskLearner] = []

    def task(self, task: KernelTask) -> TaskLearner:
        self.tasks.append(TaskLearner(self, task))
        return self.tasks[-1]

    def local(self, own: TaskLearner) -> CostModel:
        """The global model and, on top of it, one of the task alone."""
        samples = [(learner, sample) for learner in self.tasks for sample in learner.samples()]
        if len(self.tasks) > 1 and len(samples) >= GROWTH * self._learnt:
            rows = np.stack([row for _, (row, _) in samples])
            names = [learner.task.digest for learner, _ in samples]
            self._global.fit(rows, [seconds for _, (_, seconds) in samples], names)
            self._learnt = len(samples)
        model = CostModel(self.objective, seed=self.seed, base=self._global)
        if found := own.samples():
            rows = np.stack([row for row, _ in found])
            model.fit(rows, [seconds for _, seconds in found], [own.task.digest] * len(found))
        return model


class TaskLearner:
    """Scores points of one task; learns from what it is told before it is next asked."""

    def __init__(self, learner: Learner, task: KernelTask):
        self.learner, self.task = learner, task
        self.times: dict[Point, float | None] = {}
        self._rows: dict[Point, np.ndarray | None] = {}
        self._model: CostModel | None = None

    def tell(self, point: Point, seconds: float | None) -> None:
        self.times[point] = seconds
        self._model = None

    def samples(self) -> list[tuple[np.ndarray, float | None]]:
        """(features, seconds) of what was measured and can be lowered."""
        rows = self._find(list(self.times))
        return [(row, seconds) for row, seconds in zip(rows, self.times.values()) if row is not None]

    def ready(self) -> bool:
        return self._fitted().trained

    def scores(self, points: Sequence[Point]) -> np.ndarray:
        rows = self._find(points)
        scores = np.full(len(points), -np.inf)
        known = {n: row for n, row in enumerate(rows) if row is not None}
        if known:
            scores[list(known)] = self._fitted().predict(np.stack(list(known.values())))
        return scores

    def _fitted(self) -> CostModel:
        if self._model is None:
            self._model = self.learner.local(self)
        return self._model

    def _find(self, points: Sequence[Point]) -> list[np.ndarray | None]:
        missing = [p for p in dict.fromkeys(points) if p not in self._rows]
        sketches = [self._sketch(p) for p in missing]
        rows = iter(evaluate([sk for sk in sketches if sk is not None]))
        self._rows.update((p, None if sk is None else next(rows)) for p, sk in zip(missing, sketches))
        return [self._rows[p] for p in points]

    def _sketch(self, point: Point) -> Sketch | None:
        try:
            return sketch(scheduled(self.task, Space.config(point)), self.task.threads)
        except Exception:  # as `measure`: what a template makes of an odd config is the candidate's failure
            return None
