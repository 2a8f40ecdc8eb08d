"""A learned cost model: gradient-boosted trees on features of loop programs that rank candidates of a task.

Chen et al. 2018, *Learning to Optimize Tensor Programs*, sections 3 and 4. The objective is the rank loss

    Σ log(1 + exp(-sign(s_i - s_j) (f_i - f_j)))        over the pairs of a task, s their speeds, f the scores

or regression on the logarithm of the relative speed. For transfer, a model is the sum of a global one, of
other tasks, and a local one that is fitted to what the global one leaves. (xgboost's own `rank:pairwise`
samples pairs; with the few hundred candidates of a task, all of them rank far better and cost as little.)
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from ..errors import InputError, ToolError
from .forest import Forest

OBJECTIVES = ("rank", "regression")
DEPTH, ROUNDS = 3, 60
PARAMETERS: dict[str, Any] = {
    "eta": 0.3,
    "gamma": 1e-4,
    "min_child_weight": 0.0,
    "lambda": 1.0,
    "tree_method": "hist",
    "max_bin": 64,
    "verbosity": 0,
    "base_score": 0.0,
    "objective": "reg:squarederror",
}
PEERS = 256  # candidates that are compared, all with all; those of a larger task are dealt into such groups
FAILED = 0.0  # relative speed of what did not work
LEAST = 2.0**-8  # relative speeds below are all alike


class Base(Protocol):
    """Scores to add to; `trained` says whether measurements have taught it."""

    @property
    def trained(self) -> bool: ...

    def predict(self, rows: np.ndarray) -> np.ndarray: ...


class CostModel:
    """Scores of candidates: larger is faster, comparable within a task only.

    `base` is the global model that this one adds to, or a score that nobody had to learn; `depth` and
    `rounds` are the trees'. ToolError if xgboost is missing.
    """

    def __init__(
        self,
        objective: str = "rank",
        *,
        seed: int = 0,
        threads: int = 1,
        base: Base | None = None,
        depth: int = DEPTH,
        rounds: int = ROUNDS,
    ):
        if objective not in OBJECTIVES:
            raise InputError(f"objective {objective!r}: expected one of {', '.join(OBJECTIVES)}")
        self.objective, self.base = objective, base
        self._xgboost = load_xgboost()
        self._seed = seed
        self._parameters = {**PARAMETERS, "max_depth": depth, "seed": seed, "nthread": threads}
        self._rounds = rounds
        self._trees: Any = None
        self._forest: Forest | None = None  # of trees that stay as they are

    @property
    def trained(self) -> bool:
        return self._trees is not None or (self.base is not None and self.base.trained)

    def fit(self, rows: np.ndarray, seconds: Sequence[float | None], tasks: Sequence[str]) -> None:
        """Learns from measurements, forgetting earlier ones: (n, features), None where a candidate failed,
        and the task of each. Tasks in which all are alike teach nothing; if there are no others, the model
        stays as it is."""
        rows, speeds, groups = _useful(rows, relative_speeds(seconds, tasks), tasks)
        if not len(rows):
            return
        data = self._matrix(rows)
        data.set_label(np.log2(np.maximum(speeds, LEAST)))
        if self.base is not None:
            data.set_base_margin(self.base.predict(rows).astype(np.float32))
        loss = _RankLoss(speeds, groups, self._seed) if self.objective == "rank" else None
        self._trees, self._forest = self._xgboost.train(self._parameters, data, self._rounds, obj=loss), None

    def predict(self, rows: np.ndarray) -> np.ndarray:
        """(n,) scores; zeros of a model that has learnt nothing."""
        base = self.base.predict(rows) if self.base is not None else np.zeros(len(rows))
        # xgboost would add it by all threads, of which a forked process has one
        return base + self.added(rows)

    def added(self, rows: np.ndarray) -> np.ndarray:
        """(n,) what the model adds to its base."""
        if self._trees is None or not len(rows):
            return np.zeros(len(rows), np.float32)
        if self._forest is not None:
            return self._forest(rows)
        return np.asarray(self._trees.inplace_predict(rows, predict_type="margin", validate_features=False))

    def to_bytes(self) -> bytes:
        """The trees alone, without `base`."""
        return bytes(self._trees.save_raw("ubj"))

    @staticmethod
    def from_bytes(data: bytes, objective: str) -> CostModel:
        """InputError if they are none."""
        model = CostModel(objective)
        trees = model._xgboost.Booster({"nthread": 1})
        try:
            trees.load_model(bytearray(data))
        except model._xgboost.core.XGBoostError as error:
            raise InputError(f"the model's trees cannot be read: {str(error).splitlines()[0]}") from None
        model._trees, model._forest = trees, Forest(trees)
        return model

    def _matrix(self, rows: np.ndarray) -> Any:
        return self._xgboost.DMatrix(rows, nthread=self._parameters["nthread"])


class _RankLoss:
    """First and second derivatives of the rank loss, each candidate's divided by the number of its peers."""

    def __init__(self, speeds: np.ndarray, groups: np.ndarray, seed: int):
        random = np.random.default_rng(seed)
        self.peers: list[np.ndarray] = []
        for group in np.unique(groups):
            members = random.permutation(np.flatnonzero(groups == group))
            self.peers += np.array_split(members, -(-len(members) // PEERS))
        self.signs = [np.sign(speeds[p][:, None] - speeds[p]).astype(np.float32) for p in self.peers]

    def __call__(self, scores: np.ndarray, _: Any) -> tuple[np.ndarray, np.ndarray]:
        first, second = np.zeros(len(scores), np.float32), np.zeros(len(scores), np.float32)
        for members, sign in zip(self.peers, self.signs):
            own = scores[members]
            wrong = 1 / (1 + np.exp(np.clip(sign * (own[:, None] - own), -60, 60)))
            scale = 2 / max(len(members) - 1, 1)
            first[members] = -scale * np.sum(sign * wrong, axis=1)
            second[members] = scale * np.sum(np.abs(sign) * wrong * (1 - wrong), axis=1)
        return first, second


def relative_speeds(seconds: Sequence[float | None], tasks: Sequence[str]) -> np.ndarray:
    """The best time of the task over each time: 1 is the best of its task, 0 did not work."""
    best: dict[str, float] = {}
    for time, task in zip(seconds, tasks, strict=True):
        if time is not None:
            best[task] = min(time, best.get(task, time))
    return np.array(
        [FAILED if t is None else best[task] / max(t, 1e-12) for t, task in zip(seconds, tasks)], float
    )


def _useful(
    rows: np.ndarray, speeds: np.ndarray, tasks: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, speeds and group numbers, group by group, of the tasks in which speeds differ."""
    numbers = {task: n for n, task in enumerate(dict.fromkeys(tasks))}
    groups = np.array([numbers[task] for task in tasks], int)
    kept = [g for g in numbers.values() if np.ptp(speeds[groups == g]) > 0]
    order = np.concatenate([np.flatnonzero(groups == g) for g in kept]) if kept else np.zeros(0, int)
    return rows[order], speeds[order], groups[order]


def load_xgboost() -> ModuleType:
    try:
        import xgboost
    except ImportError:
        raise ToolError(
            "the learned cost model needs xgboost, which is not installed; "
            "run: pip install 'burnish[tune]', or choose another strategy"
        ) from None
    return xgboost
