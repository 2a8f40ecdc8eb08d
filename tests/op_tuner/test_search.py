"""Strategies on a space whose best point is known: valid points, none twice, better than chance, seeds."""

import random
from itertools import product

import numpy as np
import pytest
from burnish.compiler.templates import registry
from burnish.op_tuner import search
from burnish.op_tuner.search import CHAINS, VERIFIED, Annealing, Genetic, Random, apart
from burnish.op_tuner.space import Space

from .tasks import double

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Tiles:
    """Four questions of eight answers; tiles of the largest two together are rejected."""

    def params(self, task, cfg):
        found = [cfg.choose(name, SIZES, 1) for name in ("x", "y", "z", "unroll")]
        cfg.require(found[0] * found[1] < 1 << 13, "too large")
        return found


def cost(point):
    """Smooth, with its minimum 1.0 at (16, 8, 32, 4)."""
    return 1 + sum(
        abs(np.log2(v) - best) ** 1.5 * weight
        for (_, v), best, weight in zip(point, (4, 3, 5, 2), (1, 0.7, 0.5, 0.3))
    )


class Knowing:
    """A scorer that knows the costs, but for noise."""

    opinions = 1

    def __init__(self, noise=0.5):
        self.noise, self.asked = noise, set()
        self.known = {}

    def ready(self):
        return True

    def study(self, numbered):
        return False

    def scores(self, points, opinion=0):
        self.asked.update(points)
        return np.array([-cost(p) + self.noise * random.Random(repr(p)).random() for p in points])

    def drafts(self, numbered, rows, opinions=None):
        keys = [row.tobytes() for row in rows]
        missing = [n for n, key in enumerate(keys) if key not in self.known]
        points = numbered.points(rows[missing])
        assert None not in points
        self.known.update(zip((keys[n] for n in missing), self.scores(points)))
        return np.array([self.known[key] for key in keys])


class Ignorant(Knowing):
    def ready(self):
        return False


@pytest.fixture
def space(monkeypatch):
    monkeypatch.setitem(registry.TEMPLATES, "naive", Tiles())
    return Space(double())


def strategies(space, seed=0):
    return [Random(space, seed), Genetic(space, seed), Annealing(space, Knowing(), seed)]


def run(strategy, rounds=10, count=8):
    """Everything that was proposed, in order."""
    points = []
    for _ in range(rounds):
        for point in strategy.propose(count):
            points.append(point)
            strategy.tell(point, cost(point))
    return points


@pytest.mark.parametrize("which", range(3))
def test_points_are_valid_and_new(space, which):
    points = run(strategies(space)[which])
    assert len(points) == len(set(points)) == 80
    for point in points:
        Tiles().params(None, Space.config(point))
        assert [knob for knob, _ in point] == ["x", "y", "z", "unroll"]


@pytest.mark.parametrize("which", range(3))
def test_a_seed_repeats(space, which):
    assert run(strategies(space, 7)[which]) == run(strategies(space, 7)[which])
    assert run(strategies(space, 7)[which]) != run(strategies(space, 8)[which])


def test_searching_beats_chance(space):
    best = np.array([[min(map(cost, run(s))) for s in strategies(space, seed)] for seed in range(6)]).mean(
        axis=0
    )
    assert best[1] < best[0] and best[2] < best[0] and best[2] < 1.6


@pytest.mark.parametrize("which", range(3))
def test_a_small_space_ends(monkeypatch, which):
    class Few:
        def params(self, task, cfg):
            return cfg.choose("x", (1, 2, 3), 1), cfg.choose("y", (1, 2), 1)

    monkeypatch.setitem(registry.TEMPLATES, "naive", Few())
    strategy = strategies(Space(double()))[which]
    strategy.tell((("x", 1), ("y", 1)), 1.0)
    points = run(strategy, rounds=4)
    assert {tuple(v for _, v in p) for p in points} == set(product((1, 2, 3), (1, 2))) - {(1, 1)}
    assert strategy.propose(8) == []


def test_a_task_without_questions(monkeypatch):
    class Silent:
        def params(self, task, cfg):
            return ()

    monkeypatch.setitem(registry.TEMPLATES, "naive", Silent())
    for strategy in strategies(Space(double())):
        strategy.tell((), 1.0)
        assert strategy.propose(4) == []


@pytest.mark.parametrize("which", range(3))
def test_failures_are_not_built_upon(space, which):
    strategy = strategies(space)[which]
    for point in strategy.propose(8):
        strategy.tell(point, None)
    assert len(set(strategy.propose(8))) == 8


def test_chains_go_on(space, monkeypatch):
    """From round to round; a chain stands on the fastest that was measured."""
    monkeypatch.setattr(search, "FEW", 0)
    strategy = Annealing(space, Knowing())
    strategy.propose(4)
    first = list(strategy.chains)
    assert len(first) == CHAINS
    fastest = (("x", 16), ("y", 8), ("z", 32), ("unroll", 4))
    strategy.tell(fastest, 1.0)
    assert fastest in strategy.numbered.points(strategy._start())
    assert len(set(strategy.numbered.points(strategy._start())) & set(first)) > 20


def test_the_best_drafts_are_scored(space, monkeypatch):
    """The walk finds the best of the space by drafts; what is proposed are the best by scores among them."""

    class Doubtful(Knowing):
        def __init__(self):
            super().__init__()
            self.scored = []

        def drafts(self, numbered, rows, opinions=None):
            return np.array([-cost(p) for p in numbered.points(rows)])

        def scores(self, points, opinion=0):
            self.scored.append(points)
            return np.array([-cost(p) - 5 * (dict(p)["unroll"] == 4) for p in points])

    monkeypatch.setattr(search, "EPSILON", 0.0)
    scorer = Doubtful()
    strategy = Annealing(space, scorer)
    found = strategy.propose(8)
    (scored,) = scorer.scored
    assert len(scored) == 8 * VERIFIED and min(map(cost, scored)) == 1.0
    share = [np.mean([dict(p)["unroll"] == 4 for p in points]) for points in (scored, found)]
    assert share[0] > 0.2 > share[1]


@pytest.mark.parametrize("few", (0, search.FEW))
def test_every_model_proposes(space, monkeypatch, few):
    """Two that believe in opposite answers each get their half of a batch, in turns."""

    class Divided(Knowing):
        opinions = 2

        def scores(self, points, opinion=0):
            return np.array([dict(p)["x"] * (-1.0) ** opinion for p in points])

        def drafts(self, numbered, rows, opinions=None):
            scores = np.array([dict(p)["x"] for p in numbered.points(rows)], float)
            return np.where(opinions == 0, scores, -scores)

    monkeypatch.setattr(search, "FEW", few)
    monkeypatch.setattr(search, "EPSILON", 0.0)
    points = Annealing(space, Divided()).propose(8)
    assert len(set(points)) == 8
    assert [dict(p)["x"] >= 32 for p in points] == [True, False] * 4
    assert [dict(p)["x"] <= 4 for p in points] == [False, True] * 4


@pytest.mark.parametrize("few", (0, search.FEW))
def test_rounds_grow(space, monkeypatch, few):
    """Behind many measurements several batches are chosen at once; none is proposed twice."""
    monkeypatch.setattr(search, "FEW", few)
    strategy = Annealing(space, Knowing())
    for point in Random(space, 1).propose(64):
        strategy.tell(point, cost(point))
    rounds = []
    monkeypatch.setattr(strategy.scorer, "ready", lambda: rounds.append(1) or True)
    for walked in (1, 1, 2):
        batch = strategy.propose(8)
        assert len(set(batch) - set(strategy.times)) == 8 and len(rounds) == walked
        for point in batch:
            strategy.tell(point, cost(point))


class Apart(Knowing):
    """Remembers what was scored, not what was drafted."""

    def drafts(self, numbered, rows, opinions=None):
        return np.array([-cost(p) for p in numbered.points(rows)])


def begun(space, count=64):
    strategy = Annealing(space, Apart())
    for point in Random(space, 1).propose(count):
        strategy.tell(point, cost(point))
    return strategy


def test_points_of_chance_stand_anywhere_in_a_round(space, monkeypatch):
    """A run that ends before a round does has its share of them."""
    monkeypatch.setattr(search, "EPSILON", 0.25)
    strategies = [begun(space) for _ in range(4)]
    for seed, strategy in enumerate(strategies):
        strategy.rng.seed(seed)
    first = [p not in s.scorer.asked for s in strategies for p in s.propose(8)]
    second = [p not in s.scorer.asked for s in strategies for p in s.propose(8)]
    assert 2 < sum(first) < 14 and 2 < sum(second) < 14


def test_what_is_left_of_a_round_is_proposed_first(space):
    strategy = begun(space)
    points, left = [], []
    for count in (8, 5, 8):
        left = list(strategy._planned)
        batch = strategy.propose(count)
        assert len(batch) == count and batch[: len(left)] == left[:count]
        strategy.hold(batch)
        points += batch
    assert len(left) == 3 and len(set(points)) == len(points) == 21


def test_annealing_is_random_before_anything_is_learnt(space):
    scorer = Ignorant()
    assert len(Annealing(space, scorer).propose(8)) == 8 and not scorer.asked


def test_annealing_leaves_out_what_cannot_be_built(space):
    class Partly(Knowing):
        def scores(self, points, opinion=0):
            return np.array([-np.inf if dict(p)["x"] > 4 else -cost(p) for p in points])

    strategy = Annealing(space, Partly())
    strategy.rng = random.Random(3)
    points = [p for _ in range(4) for p in strategy.propose(8)]
    assert np.mean([dict(p)["x"] <= 4 for p in points]) > 0.75


def test_batches_are_apart():
    """Of nearly equals, those far from what is known and from each other; a much better score wins."""
    rows = np.array([[1, 1, 0], [1, 1, 1], [2, 2, 0], [3, 3, 0]])
    none = np.zeros((0, 3), int)
    scores = np.array([1.0, 0.999, 0.99, -10.0])
    assert list(apart(rows, scores, none, 2, 0.1)) == [0, 2]
    assert list(apart(rows, scores, none, 4, 0.1)) == [0, 2, 1, 3]
    assert list(apart(rows, scores, none, 2, 0.0)) == [0, 1]
    assert list(apart(rows, scores, np.array([[1, 1, 2]] * 3), 2, 0.1)) == [2, 1]
    assert list(apart(rows, np.full(4, -np.inf), none, 2, 0.1)) == []
    assert list(apart(none, np.zeros(0), none, 2, 0.1)) == []


def test_a_share_are_neighbours_of_the_fastest(space, monkeypatch):
    """The best of them by the model, though its walk leads far away and it scores what is there higher."""

    class Misled(Knowing):
        def scores(self, points, opinion=0):
            return np.array([-cost(p) + 100 * (dict(p)["x"] == 64) for p in points])

        def drafts(self, numbered, rows, opinions=None):
            return self.scores(numbered.points(rows))

    def away(point):
        return sum(a != b for a, b in zip(point, fastest))

    monkeypatch.setattr(search, "EPSILON", 0.0)
    strategy = Annealing(space, Misled())
    fastest = (("x", 16), ("y", 4), ("z", 32), ("unroll", 4))
    strategy.tell(fastest, cost(fastest))
    points = [p for p in strategy._promising(40) if dict(p)["x"] != 64]
    assert 10 <= len(points) <= 30 and {away(p) for p in points} == {1}
    assert (("x", 16), ("y", 8), ("z", 32), ("unroll", 4)) in points  # the best one of the space


def test_nothing_is_near_before_anything_worked(space):
    strategy = Annealing(space, Knowing())
    none = strategy.numbered.rows([])
    assert strategy._near(none, 0, 4) == []
    strategy.tell(Random(space, 1).propose(1)[0], None)
    assert strategy._near(none, 0, 4) == []
