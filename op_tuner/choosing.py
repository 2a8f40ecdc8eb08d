"""Who chooses which configs of a task are measured next, and how much of a run that may take.

A process of its own chooses (`chooser`), if one may be forked. Where cores are idle, what is measured until
it has answered is drawn by chance. Elsewhere choosing and measuring take turns, and chance draws what would
take more than SHARE of a run to choose.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from importlib.util import find_spec

from ..compiler.kernel_task import KernelTask
from ..errors import BurnishError
from .chooser import Chooser, ChooserEnded, Elsewhere
from .learner import Learner
from .model import CostModel
from .search import Annealing, Genetic, Random, Strategy
from .space import Point, Space

SHARE = 0.1  # of a run that choosing may take, where nothing is measured meanwhile
AHEAD = 8  # tasks whose spaces a process that chooses should know, before anyone asks


class Choosing:
    """Gives tasks their strategies and asks these. ToolError if xgboost is missing where it is needed.

    prior   what a learned model begins with
    idle    CPUs that do not measure; None where no process may be forked
    failure why chance chooses from some moment on; "" before
    """

    def __init__(
        self,
        strategy: str,
        objective: str,
        seed: int,
        prior: CostModel | None,
        idle: Collection[int] | None,
    ):
        self._strategy, self._objective, self._seed, self._prior = strategy, objective, seed, prior
        self._learner: Learner | None = None
        if self.learns and find_spec("xgboost") is None:
            Learner(objective)  # says so
        apart = self.learns and idle is not None
        self._chooser = Chooser(self._here, idle or (), seed) if apart else None
        self.failure = ""
        self._spent = 0.0
        self._choices: dict[Strategy, list[float]] = {}  # seconds
        self._prepared: set[Strategy] = set()

    @property
    def learns(self) -> bool:
        return self._strategy == "annealing"

    def strategy(self, task: KernelTask) -> Strategy:
        return self._here(task) if self._chooser is None else self._chooser.strategy(task)

    def propose(
        self, strategy: Strategy, count: int, elapsed: float, whole: float
    ) -> tuple[list[Point], list[float] | None]:
        """Points of a task, and their scores if a model chose them, in a run of which `elapsed` of about
        `whole` seconds are over."""
        if not self.failure:
            try:
                return self._propose(strategy, count, elapsed, whole)
            except OSError:  # there can be no process at the moment
                pass
            except Exception as error:  # of whatever chooses: measuring goes on without it
                self._fails(error)
        return strategy.chance(count), None

    def _propose(
        self, strategy: Strategy, count: int, elapsed: float, whole: float
    ) -> tuple[list[Point], list[float] | None]:
        if not self._wise(strategy, count, elapsed, whole) and (points := strategy.chance(count)):
            return points, None
        start = time.monotonic()
        points = strategy.propose(count)
        scores = strategy.expected(points)
        self._choices.setdefault(strategy, []).append(time.monotonic() - start)
        self._spent += self._choices[strategy][-1]
        return points, scores

    def _wise(self, strategy: Strategy, count: int, elapsed: float, whole: float) -> bool:
        """Whether to ask the strategy."""
        if isinstance(strategy, Elsewhere):
            strategy.ask(count)
            return self.ready(strategy)
        allowed = SHARE * (elapsed + whole) / 2  # the first choices tell most
        return not self.learns or (
            self._prepare(strategy, allowed) and self._spent + self._expected(strategy) <= allowed
        )

    def _prepare(self, strategy: Strategy, allowed: float) -> bool:
        """Whether its space is known; learns it part by part while that is allowed."""
        while strategy not in self._prepared and self._spent < allowed:
            start = time.monotonic()
            if not (isinstance(strategy, Random) and strategy.prepare()):
                self._prepared.add(strategy)
            self._spent += time.monotonic() - start
        return strategy in self._prepared

    def ready(self, strategy: Strategy) -> bool:
        """Whether a strategy that was asked need not be waited for."""
        try:
            return bool(self.failure) or not isinstance(strategy, Elsewhere) or strategy.ready
        except OSError:
            return False
        except Exception as error:
            self._fails(error)
            return True

    def ask(self, strategy: Strategy, count: int) -> None:
        """Begins to choose, where others measure meanwhile."""
        if isinstance(strategy, Elsewhere) and not self.failure:
            with suppress(OSError):
                strategy.ask(count)

    def _fails(self, error: Exception) -> None:
        known = isinstance(error, (BurnishError, ChooserEnded))
        self.failure = ("" if known else f"{type(error).__name__}: ") + str(error).partition("\n")[0]

    def prepare(self, strategies: Sequence[Strategy]) -> None:
        """These are asked next, the first one first: what can be learnt of their spaces meanwhile is."""
        if self._chooser is not None and not self.failure:
            with suppress(OSError):
                self._chooser.prepare([s for s in strategies[:AHEAD] if isinstance(s, Elsewhere)])

    def close(self) -> None:
        if self._chooser is not None:
            self._chooser.close()

    def _here(self, task: KernelTask) -> Random:
        """In this process, or the one that chooses: importing xgboost takes a second."""
        if self.learns:
            self._learner = self._learner or Learner(self._objective, self._seed, self._prior)
            return Learning(Space(task), self._learner, self._seed)
        return {"genetic": Genetic, "random": Random}[self._strategy](Space(task), self._seed)

    def _expected(self, strategy: Strategy) -> float:
        """Seconds of a choice: as the latest of this task, or as the first ones of others; 0 before any."""
        if strategy in self._choices:
            return self._choices[strategy][-1]
        return max((seconds[0] for seconds in self._choices.values()), default=0.0)


class Learning(Annealing):
    """Annealing on a model that learns from every measurement."""

    def __init__(self, space: Space, learner: Learner, seed: int):
        self.own = learner.task(space.task)
        super().__init__(space, self.own, seed)
        self.own.watched = lambda point: self.watched(point)

    def tell(self, point: Point, seconds: float | None, error: str | None = None) -> None:
        super().tell(point, seconds)
        self.own.tell(point, seconds, error)

    def avoid(self, point: Point) -> None:
        self.own.avoid(point)

    def expected(self, points: Sequence[Point]) -> list[float] | None:
        """The model's scores, once it has learnt; larger is faster."""
        return list(map(float, self.own.scores(points))) if points and self.own.ready() else None
