"""Points of a space as rows of small numbers, drawn and changed thousands at a time.

A template asks its questions in Python, which takes tens of microseconds for one point: too slow for walks of
many steps. So it is asked some hundred times, and what it offers after which answers is learnt (`Factored`).
What was learnt may be wrong; `points` asks the template again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .factored import Factored
from .space import TRIES, Point, Space

SURVEY = 600  # points from which the questions are learnt, drawn and again as neighbours of those


@dataclass
class _Knob:
    """A question: its answers, numbered from 1, and the sets of them that have been offered."""

    name: str
    answers: dict[object, int] = field(default_factory=dict)
    offers: dict[tuple[int, ...], int] = field(default_factory=dict)

    def offer(self, options: Sequence[object]) -> int:
        numbers = tuple(self.answers.setdefault(o, len(self.answers) + 1) for o in options)
        return self.offers.setdefault(numbers, len(self.offers))

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(offers, most) numbers of answers, (offers,) how many, and (offers, answers + 1) the place of each
        answer, -1 where it is not offered."""
        most = max(map(len, self.offers))
        choices = np.array([(*o, *(0,) * (most - len(o))) for o in self.offers])
        places = np.full((len(self.offers), len(self.answers) + 1), -1)
        for n, offer in enumerate(self.offers):
            places[n, list(offer)] = range(len(offer))
        return choices, np.array([len(o) for o in self.offers]), places


class Numbered:
    """Rows are (knobs,) numbers of answers; 0 stands for a question that is not asked."""

    def __init__(self, space: Space, seed: int = 0):
        self.space = space
        self.knobs: dict[str, _Knob] = {}
        self._order: list[str] = []  # in which questions are asked
        self._survey(random.Random(seed))
        arrays = [knob.arrays() for knob in self.knobs.values()]
        self._choices, self._sizes, self._places = ([a[n] for a in arrays] for n in range(3))

    def rows(self, points: Sequence[Point]) -> np.ndarray:
        """(n, knobs); -1 throughout for a point with an answer that no question was seen to offer."""
        found = np.zeros((len(points), len(self.knobs)), int)
        for row, point in zip(found, points):
            for name, answer in point:
                number = self.knobs[name].answers.get(answer, -1) if name in self.knobs else -1
                if number < 0:
                    row[:] = -1
                    break
                row[self._place[name]] = number
        return found

    def points(self, rows: np.ndarray) -> list[Point | None]:
        """None for rows that are no points after all."""
        names = [(name, [None, *knob.answers]) for name, knob in self.knobs.items()]
        wanted = [{name: answers[a] for (name, answers), a in zip(names, row) if a} for row in rows]
        return [self.space.point(answers) for answers in wanted]

    def draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """(count, knobs) any points; fewer where most are rejected."""
        found = np.zeros((0, len(self.knobs)), int)
        for _ in range(TRIES if self._any else 0):
            if len(found) == count:
                break
            rows = np.zeros((count - len(found), len(self.knobs)), int)
            self._settle(rows, np.full(len(rows), -1), rng)
            found = np.concatenate([found, rows[~self._rejected(rows)]])
        return found

    def every(self, limit: int) -> np.ndarray | None:
        """(n, knobs) all points; None if there may be more than `limit`."""
        rows = np.zeros((int(self._any), len(self.knobs)), int)
        for name in self._order:
            n = self._place[name]
            offer, asked = self._offers(n, rows), self._asked(n, rows)
            sizes = np.where(asked, self._sizes[n][offer], 1)
            if sizes.sum() > limit:
                return None
            option = np.concatenate([np.arange(size) for size in sizes]) if len(rows) else np.zeros(0, int)
            before = np.repeat(np.arange(len(rows)), sizes)
            rows = rows[before]
            rows[:, n] = np.where(asked[before], self._choices[n][offer[before], option], 0)
        return rows[~self._rejected(rows)]

    def neighbours(self, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Each row with one answer changed; later answers stay where they are still offered. Rows stay as
        they are where that is rejected, or nothing can be changed."""
        if not self.knobs or not len(rows):
            return rows
        found = rows.copy()
        every = np.arange(len(rows))
        offers = np.stack([self._offers(n, rows) for n in range(len(self.knobs))], axis=1)
        sizes = np.stack([self._sizes[n][offers[:, n]] for n in range(len(self.knobs))], axis=1)
        free = (rows > 0) & (sizes > 1)
        changed = np.argmax(np.where(free, rng.random(rows.shape), -1), axis=1)
        chance = rng.random(len(rows))
        for n in np.unique(changed):
            own = np.flatnonzero((changed == n) & free[every, changed])
            offer = offers[own, n]
            now = self._places[n][offer, rows[own, n]]
            other = (chance[own] * (sizes[own, n] - (now >= 0))).astype(int)
            found[own, n] = self._choices[n][offer, other + ((now >= 0) & (other >= now))]
        self._settle(found, changed, rng)
        return np.where(self._rejected(found)[:, None], rows, found)

    def _settle(self, rows: np.ndarray, fixed: np.ndarray, rng: np.random.Generator) -> None:
        """Asks every question again, but for the one that is fixed in a row; what is no longer offered is
        answered by chance."""
        for name in self._order:
            n = self._place[name]
            offer, asked = self._offers(n, rows), self._asked(n, rows)
            kept = (self._places[n][offer, rows[:, n]] >= 0) | (fixed == n)
            if not (asked & kept).all():
                drawn = (rng.random(len(rows)) * self._sizes[n][offer]).astype(int)
                rows[:, n] = np.where(asked, np.where(kept, rows[:, n], self._choices[n][offer, drawn]), 0)

    def _asked(self, knob: int, rows: np.ndarray) -> np.ndarray:
        return self._asks.one(knob, rows) > 0

    def _offers(self, knob: int, rows: np.ndarray) -> np.ndarray:
        return self._questions.one(knob, rows).astype(int)

    def _rejected(self, rows: np.ndarray) -> np.ndarray:
        return self._rejects.one(0, rows) > 0

    # --- learning the questions ----------------------------------------------------------------------

    def _survey(self, rng: random.Random) -> None:
        taken: list[tuple[Point, list[int]]] = []
        refused: list[Point] = []
        points: list[Point] = []
        for n in range(2 * SURVEY):
            wanted = dict(rng.choice(points)) if n >= SURVEY and points else {}
            if wanted:
                del wanted[rng.choice(list(wanted))]
            answers, offered, accepted = self.space.ask(wanted, rng)
            self._meet(answers)
            numbers = [self.knobs[name].offer(options) for (name, _), options in zip(answers, offered)]
            if accepted:
                points.append(answers)
                taken.append((answers, numbers))
            else:
                refused.append(answers)
        self._learn(taken, refused, rng)

    def _meet(self, point: Point) -> None:
        """Knobs that are new go behind those that are asked before them."""
        at = 0
        for name, _ in point:
            if name not in self.knobs:
                self.knobs[name] = _Knob(name)
                self._order.insert(at, name)
            at = max(at, self._order.index(name) + 1)

    def _learn(
        self, taken: Sequence[tuple[Point, list[int]]], refused: Sequence[Point], rng: random.Random
    ) -> None:
        self._any = bool(taken)
        self._place = {name: n for n, name in enumerate(self.knobs)}
        rows = self.rows([point for point, _ in taken])
        offers = np.full((len(self.knobs), len(rows)), np.nan)
        for n, (point, numbers) in enumerate(taken):
            for (name, _), number in zip(point, numbers):
                offers[self._place[name], n] = number
        rank = np.array([self._order.index(name) for name in self.knobs])
        self._asks, self._questions = Factored(), Factored()
        earlier = rank[None, :] < rank[:, None]
        self._asks.fit(rows, (~np.isnan(offers)).astype(float), allowed=earlier)
        self._questions.fit(rows, offers, allowed=earlier)
        # What was refused, whatever the answers to later questions would have been.
        partial = self.rows(refused)
        if len(rows):
            partial = np.where(partial > 0, partial, rows[[rng.randrange(len(rows)) for _ in refused]])
        self._rejects = Factored()
        labels = np.repeat([0.0, 1.0], [len(rows), len(partial)])
        self._rejects.fit(np.concatenate([rows, partial]), labels[None])
