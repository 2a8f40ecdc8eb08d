"""Spaces: every point is one that the template takes, sizes are right, seeds repeat."""

import random
from dataclasses import dataclass, replace
from itertools import product

import pytest
from burnish.compiler.ops.conv import Conv
from burnish.compiler.ops.reduction import Softmax
from burnish.compiler.templates import direct, registry
from burnish.compiler.templates.registry import template
from burnish.op_tuner.record import plain
from burnish.op_tuner.space import Space

from .tasks import double, op_task


@dataclass
class Questions:
    """A template that only asks: the second question depends on the first, and some answers contradict."""

    asked: int = 0

    def params(self, task, cfg):
        self.asked += 1
        rows = cfg.choose("rows", (1, 2, 3), 1)
        column = cfg.choose("columns", range(1, rows + 1), 1)
        order = cfg.choose("order", ("ab", "ba"), "ab")
        cfg.require(not (rows == 3 and order == "ba"))
        return rows, column, order

    def schedule(self, task, params):
        raise NotImplementedError


ALL = {(r, c, o) for r, o in product((1, 2, 3), ("ab", "ba")) for c in range(1, r + 1) if (r, o) != (3, "ba")}


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setitem(registry.TEMPLATES, "naive", Questions())
    return Space(double())


def values(point):
    return tuple(v for _, v in point)


def test_every_point_is_drawn(small):
    rng = random.Random(0)
    assert {values(small.draw(rng)) for _ in range(400)} == ALL
    assert values(small.default()) == (1, 1, "ab")


def test_size_is_the_number_of_points(small):
    assert small.size(4000) == pytest.approx(len(ALL), rel=0.1)


def test_neighbours_reach_everything(small):
    rng = random.Random(1)
    point, seen = small.default(), set()
    for _ in range(600):
        found = small.neighbour(point, rng)
        assert found != point and values(found) in ALL
        kept = sum(a == b for a, b in zip(found, point))
        assert kept >= 1 or values(point)[0] != values(found)[0]
        point = found
        seen.add(values(point))
    assert seen == ALL


def test_children_have_their_parents_answers(small):
    rng = random.Random(2)
    for _ in range(200):
        a, b = small.draw(rng), small.draw(rng)
        child = values(small.cross(a, b, rng))
        assert child in ALL
        for knob, answer in small.cross(a, a, rng):
            assert answer == dict(a)[knob]


@pytest.mark.parametrize(
    "task",
    [
        op_task(
            Conv(strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=1),
            "f32[1,16,9,9]",
            "f32[16,16,3,3]",
        ),
        op_task(Softmax(axis=1), "f32[7,33]"),
        double(),
    ],
    ids=lambda t: t.name,
)
def test_points_of_templates_are_accepted(task):
    space, rng = Space(task), random.Random(3)
    points = [space.default(), *(space.draw(rng) for _ in range(10))]
    points += [space.neighbour(p, rng) for p in points] + [space.cross(points[0], p, rng) for p in points]
    for point in points:
        config = Space.config(point)
        template(task).params(task, config)
        assert point == tuple((knob, plain(answer)) for knob, answer in config.chosen.items())
    assert space.size(20) >= 1


def test_a_seed_repeats():
    first, second = (Space(double()).draw(random.Random(5)) for _ in range(2))
    assert first == second


def test_asking_again_does_not_analyse_again(monkeypatch):
    conv = Conv(strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=1)
    task = op_task(conv, "f32[1,24,11,9]", "f32[8,24,3,3]")
    space, rng = Space(task), random.Random(4)
    first = space.draw(rng)

    def again(task):
        raise AssertionError("the expression was built again")

    monkeypatch.setattr(direct, "expression", again)
    assert task.algorithm == "direct" and any(space.neighbour(first, rng) != first for _ in range(3))
    other = op_task(conv, "f32[1,24,11,9]", "f32[8,24,3,3]")
    assert Space(other).default() == space.default()
    with pytest.raises(AssertionError, match="built again"):
        Space(replace(task, name="another")).default()
