"""The configs of one task: every sequence of answers that its template's questions admit.

A question's options may depend on earlier answers, so the space is a tree. A point is a leaf: the answers in
the order of the questions, in the plain form of records.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from ..compiler.kernel_task import Config, DefaultConfig, KernelTask, RejectedConfig
from ..compiler.templates.registry import template
from ..errors import InputError
from .record import plain
from .records import RecordedConfig

T = TypeVar("T")
Point = tuple[tuple[str, object], ...]
TRIES = 200  # draws until one is taken that the template does not reject


class Space:
    """Points are drawn with the random numbers that the caller gives, so that a seed repeats a search."""

    def __init__(self, task: KernelTask):
        if not task.asks:
            raise InputError(f"{task.name} is given as a loop program: there is nothing to choose")
        self.task = task
        self._params = template(task).params

    def default(self) -> Point:
        """The template's own rule."""
        config = DefaultConfig()
        self._params(self.task, config)
        return _point(config.chosen.items())

    def draw(self, rng: random.Random) -> Point:
        """Any point; at every question each option is as likely."""
        return self._answer({}, rng)

    def neighbour(self, point: Point, rng: random.Random) -> Point:
        """The point with one answer changed; later answers stay where they are still offered."""
        for _ in range(TRIES if point else 0):
            changed = rng.choice(point)[0]
            found = self._answer({k: v for k, v in point if k != changed}, rng)
            if found != point:
                return found
        return point

    def cross(self, a: Point, b: Point, rng: random.Random) -> Point:
        """Every answer from one of two parents."""
        mother, father = dict(a), dict(b)
        knobs = dict.fromkeys((*mother, *father))
        mixed = {k: (mother if rng.random() < 0.5 else father).get(k) for k in knobs}
        return self._answer({k: v for k, v in mixed.items() if v is not None}, rng)

    def ask(
        self, wanted: Mapping[str, object], rng: random.Random
    ) -> tuple[Point, list[tuple[object, ...]], bool]:
        """The wanted answers where they are offered, random ones elsewhere; what was offered with each; and
        whether the template took them. If not, they end with the question before it refused."""
        config = _Drawn(wanted, rng)
        try:
            self._params(self.task, config)
        except RejectedConfig:
            return _point(config.chosen.items()), config.offered, False
        return _point(config.chosen.items()), config.offered, True

    def point(self, answers: Mapping[str, object]) -> Point | None:
        """The point with just these answers, in the order of the questions; None if there is none."""
        config = RecordedConfig(answers)
        try:
            self._params(self.task, config)
        except RejectedConfig:
            return None
        point = _point(config.chosen.items())
        return point if dict(point) == answers else None

    def size(self, samples: int = 100, seed: int = 0) -> float:
        """How many points there are, about: the mean product of the numbers of options on random ways down.

        Knuth, Estimating the efficiency of backtrack programs (1975). Rejected ways count as none.
        """
        rng, total = random.Random(seed), 0.0
        for _ in range(samples):
            config = _Drawn({}, rng)
            try:
                self._params(self.task, config)
            except RejectedConfig:
                continue
            total += config.ways
        return total / samples

    @staticmethod
    def config(point: Point) -> Config:
        return RecordedConfig(dict(point))

    def _answer(self, wanted: Mapping[str, object], rng: random.Random) -> Point:
        """The wanted answers where they are offered, random ones elsewhere."""
        for _ in range(TRIES):
            config = _Drawn(wanted, rng)
            try:
                self._params(self.task, config)
            except RejectedConfig:
                wanted = {k: v for k, v in wanted.items() if rng.random() < 0.9}
                continue
            return _point(config.chosen.items())
        return self.default()


class _Drawn(DefaultConfig):
    """Wanted answers, else random ones. `ways` is the product of the numbers of options."""

    def __init__(self, wanted: Mapping[str, object], rng: random.Random):
        super().__init__()
        self.wanted, self.rng, self.ways = wanted, rng, 1.0
        self._options: list[Sequence[object]] = []

    def choose(self, knob: str, options: Sequence[T], default: T) -> T:
        self.ways *= len(options)
        self._options.append(options)
        answer = None
        if knob in self.wanted:
            answer = next((o for o in options if plain(o) == self.wanted[knob]), None)
        if answer is None:
            answer = options[self.rng.randrange(len(options))]
        self.chosen[knob] = answer
        return answer

    @property
    def offered(self) -> list[tuple[object, ...]]:
        return [tuple(map(plain, options)) for options in self._options]


def _point(answers: Iterable[tuple[str, object]]) -> Point:
    return tuple((knob, plain(answer)) for knob, answer in answers)
