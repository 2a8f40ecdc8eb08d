"""Points as rows of numbers: there and back, every one reached, what is rejected never."""

import random
from itertools import product

import numpy as np
import pytest
from burnish.compiler.ops.conv import Conv
from burnish.compiler.templates import registry
from burnish.op_tuner.numbered import Numbered
from burnish.op_tuner.space import Space

from .tasks import double, op_task


class Questions:
    """The second question depends on the first, the last is asked of some, and some answers contradict."""

    def params(self, task, cfg):
        rows = cfg.choose("rows", (1, 2, 3), 1)
        columns = cfg.choose("columns", range(1, rows + 1), 1)
        order = cfg.choose("order", ("ab", "ba"), "ab")
        cfg.require(not (rows == 3 and order == "ba"))
        return rows, columns, order, cfg.choose("deep", (8, 16), 8) if columns == 2 else 0


ALL = {
    (r, c, o, d)
    for r, o in product((1, 2, 3), ("ab", "ba"))
    for c in range(1, r + 1)
    for d in ((8, 16) if c == 2 else (0,))
    if (r, o) != (3, "ba")
}


@pytest.fixture
def numbered(monkeypatch):
    monkeypatch.setitem(registry.TEMPLATES, "naive", Questions())
    return Numbered(Space(double()))


def values(point):
    answers = dict(point)
    return tuple(answers.get(knob, 0) for knob in ("rows", "columns", "order", "deep"))


def test_there_and_back(numbered):
    rng = random.Random(0)
    points = [numbered.space.draw(rng) for _ in range(100)]
    assert numbered.points(numbered.rows(points)) == points
    assert (numbered.rows([(("rows", 9),), (("what", 1),)]) == -1).all()


def test_every_point_is_drawn(numbered):
    points = numbered.points(numbered.draw(500, np.random.default_rng(0)))
    assert len(points) == 500 and {values(p) for p in points} == ALL


def test_all_points_of_a_small_space(numbered):
    rows = numbered.every(len(ALL) + 8)
    points = numbered.points(rows)
    assert len(points) == len(ALL) and {values(p) for p in points} == ALL
    assert numbered.every(len(ALL) - 1) is None


def test_neighbours(numbered):
    """One answer is changed, those that follow from it too; steps lead everywhere."""
    rng = np.random.default_rng(1)
    rows = np.repeat(numbered.rows([numbered.space.default()]), 20, axis=0)
    seen, moved = set(), 0
    for _ in range(100):
        found = numbered.neighbours(rows, rng)
        before, after = (numbered.points(r) for r in (rows, found))
        assert None not in after
        seen |= {values(p) for p in after}
        for a, b in zip(before, after):
            differ = [knob for knob, _ in b if dict(a).get(knob) != dict(b)[knob]]
            assert len(differ) <= 1 or differ[0] in ("rows", "columns")
            moved += a != b
        rows = found
    assert seen == ALL and moved > 1400


def test_rows_that_are_no_points(numbered):
    good = numbered.rows([numbered.space.default()])
    bad = good.copy()
    bad[0, list(numbered.knobs).index("columns")] = numbered.knobs["columns"].answers[3]
    unasked = good.copy()
    unasked[0, list(numbered.knobs).index("deep")] = 1
    assert numbered.points(np.concatenate([good, bad, unasked])) == [numbered.space.default(), None, None]


def test_a_seed_repeats(numbered):
    rows = numbered.draw(50, np.random.default_rng(3))
    again = Numbered(numbered.space)
    np.testing.assert_array_equal(rows, again.draw(50, np.random.default_rng(3)))
    moved = [n.neighbours(rows, np.random.default_rng(4)) for n in (numbered, again)]
    np.testing.assert_array_equal(*moved)


def test_without_questions(monkeypatch):
    class Silent:
        def params(self, task, cfg):
            return ()

    monkeypatch.setitem(registry.TEMPLATES, "naive", Silent())
    numbered = Numbered(Space(double()))
    rows = numbered.draw(3, np.random.default_rng(0))
    assert rows.shape == (3, 0) and numbered.points(rows) == [()] * 3
    assert numbered.neighbours(rows, np.random.default_rng(0)).shape == (3, 0)


def test_where_everything_is_rejected(monkeypatch):
    class Never:
        def params(self, task, cfg):
            cfg.choose("x", (1, 2), 1)
            cfg.require(False)

    monkeypatch.setitem(registry.TEMPLATES, "naive", Never())
    numbered = Numbered(Space(double()))
    assert numbered.draw(3, np.random.default_rng(0)).shape == (0, 1)


def test_of_a_template():
    """Few rows are no points: what was learnt from some hundred points is nearly right."""
    conv = Conv(strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=1)
    numbered = Numbered(Space(op_task(conv, "f32[1,16,9,9]", "f32[16,16,3,3]")))
    rng = np.random.default_rng(0)
    rows = numbered.draw(100, rng)
    for _ in range(5):
        assert numbered.points(rows).count(None) <= 5
        rows = numbered.neighbours(rows, rng)
