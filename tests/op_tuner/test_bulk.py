"""Features put together from other programs' against those of lowered programs, for every template."""

import random
from dataclasses import replace

import numpy as np
import pytest
from burnish.compiler.lower.lower import scheduled
from burnish.compiler.ops.conv import Conv
from burnish.compiler.ops.matmul import MatMul
from burnish.compiler.ops.reduction import Softmax
from burnish.compiler.target import host
from burnish.compiler.templates.registry import algorithms
from burnish.op_tuner import bulk as bulk_module
from burnish.op_tuner.bulk import Bulk
from burnish.op_tuner.features import NAMES, evaluate
from burnish.op_tuner.learner import Learner
from burnish.op_tuner.model import CostModel
from burnish.op_tuner.numbered import Numbered
from burnish.op_tuner.search import Annealing
from burnish.op_tuner.sketch import sketch
from burnish.op_tuner.space import Space

from ..compiled.test_conv_algorithms import Case, items_of
from .tasks import double, op_task

CONV = Conv(strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=1)
SAME = (1, 1, 1, 1)
CASES = {
    "winograd2": Case(16, 32, (14, 14), pads=SAME),
    "polyphase2": Case(16, 32, (14, 14), strides=(2, 2), pads=SAME),
    "im2row": Case(16, 32, (14, 14), pads=SAME),
    "im2col": Case(16, 32, (14, 14), pads=SAME),
    "kn2row": Case(16, 32, (14, 14), pads=SAME),
    "strassen": Case(64, 64, (24, 24), (1, 1)),
    "fft": Case(16, 16, (17, 15), (7, 7), pads=(3, 3, 3, 3)),
}


def tasks():
    for task in (
        op_task(CONV, "f32[1,32,14,14]", "f32[32,32,3,3]"),
        op_task(MatMul(), "f32[48,64]", "f32[64,96]"),
        op_task(Softmax(axis=1), "f32[7,33]"),
        double(),
    ):
        yield from (replace(task, algorithm=name) for name in algorithms(task))
    for name, case in CASES.items():
        yield items_of(case, host(), name)[0].task


def lowered(task, points):
    return [sketch(scheduled(task, Space.config(p)), task.threads) for p in points]


TASKS = list(tasks())


@pytest.mark.parametrize("task", TASKS, ids=lambda t: t.transformed or f"{t.name}-{t.algorithm}")
def test_told_features_are_those_of_lowered_programs(task):
    """What is sure is right to the last bit, but for what too few examples show. Other rows are finite."""
    space, rng = Space(task), random.Random(0)
    numbered = Numbered(space)
    points = list(dict.fromkeys(space.draw(rng) for _ in range(150)))
    known, held = points[: -len(points) // 3], points[-len(points) // 3 :]
    bulk = Bulk()
    examples = lowered(task, known)
    bulk.add(numbered.rows(known), examples)
    rows, sure = bulk.rows(numbered.rows(held))
    true = evaluate(lowered(task, held))
    wrong = sure & (rows != true).any(axis=1)
    assert wrong.sum() <= max(2, 0.02 * len(held)), [held[n] for n in np.flatnonzero(wrong)]
    assert np.isfinite(rows).all() and (rows >= 0).all() and rows.shape == (len(held), len(NAMES))
    again, certain = bulk.rows(numbered.rows(known))
    np.testing.assert_array_equal(again, evaluate(examples))
    assert certain.all()


def test_most_of_a_space_is_told_from_few():
    task = op_task(CONV, "f32[1,64,28,28]", "f32[64,64,3,3]")
    space, rng = Space(task), random.Random(0)
    numbered, bulk = Numbered(space), Bulk()
    points = [space.draw(rng) for _ in range(150)]
    bulk.add(numbered.rows(points), lowered(task, points))
    _, sure = bulk.rows(numbered.draw(2000, np.random.default_rng(0)))
    assert task.algorithm == "direct" and space.size() > 1000 and sure.mean() > 0.5


def test_features_that_are_kept_are_forgotten_where_there_are_too_many(monkeypatch):
    task = op_task(CONV, "f32[1,64,28,28]", "f32[64,64,3,3]")
    space, rng = Space(task), random.Random(0)
    numbered = Numbered(space)
    points = [space.draw(rng) for _ in range(60)]
    asked = numbered.draw(600, np.random.default_rng(0))
    examples = lowered(task, points)
    many = told(numbered.rows(points), examples)
    expected = many.features(asked)
    monkeypatch.setattr(bulk_module, "_memos", {})
    monkeypatch.setattr(bulk_module, "KEPT", 32)
    few = told(numbered.rows(points), examples)
    parts = [few.features(asked[at : at + 50]) for at in range(0, 600, 50)]
    np.testing.assert_array_equal(np.concatenate(parts), expected)
    few.fit()
    np.testing.assert_array_equal(few.features(asked), expected)


def test_what_is_kept_for_one_task_is_not_told_of_another(monkeypatch):
    """There is one place for all."""
    monkeypatch.setattr(bulk_module, "_memos", {})
    found = []
    for channels in (64, 32):
        task = op_task(CONV, f"f32[1,{channels},28,28]", f"f32[64,{channels},3,3]")
        space, numbered, rng = Space(task), Numbered(Space(task)), random.Random(0)
        points = [space.draw(rng) for _ in range(30)]
        bulk = told(numbered.rows(points), lowered(task, points))
        asked = numbered.draw(100, np.random.default_rng(0))
        found.append((bulk, asked, bulk.features(asked)))
    for bulk, asked, expected in found:
        np.testing.assert_array_equal(bulk.features(asked), expected)
    assert len(bulk_module._memos) == 2


def told(points, sketches):
    found = Bulk()
    found.add(points, sketches)
    return found


def test_drafts_are_those_of_each_model_on_top_of_what_ships():
    """To the last bit, though what they have in common is asked once."""
    task = op_task(MatMul(), "f32[48,64]", "f32[64,96]")
    space, rng = Space(task), random.Random(0)
    prior = CostModel("rank", depth=4)
    rows, times = np.abs(np.random.default_rng(0).standard_normal((40, len(NAMES)))), [*range(1, 41)]
    prior.fit(rows.astype(np.float32), times, ["a"] * 40)
    prior = CostModel.from_bytes(prior.to_bytes(), "rank")
    learner = Learner(prior=prior).task(task)
    search = Annealing(space, learner)
    for n, point in enumerate(dict.fromkeys(space.draw(rng) for _ in range(40))):
        learner.tell(point, 1e-3 * (1 + n % 7))
    asked = search.numbered.rows([space.draw(rng) for _ in range(60)])
    opinions = np.arange(60) % learner.opinions
    drafts = learner.drafts(search.numbered, asked, opinions)
    features = learner.bulk.features(asked)
    models = learner._fitted()
    expected = np.array([models[o].predict(row[None])[0] for o, row in zip(opinions, features)])
    np.testing.assert_array_equal(drafts, expected)
    assert len(np.unique(prior.added(features))) > 1 and len(np.unique(models[0].added(features))) > 1


def test_an_empty_bulk():
    rows, sure = Bulk().rows(np.zeros((3, 2), int))
    assert rows.shape == (3, len(NAMES)) and not sure.any()


def test_drafts_are_scores(monkeypatch):
    """Where features are sure they are the same; points are lowered for scores only where they are not."""
    task = op_task(MatMul(), "f32[48,64]", "f32[64,96]")
    space, rng = Space(task), random.Random(0)
    learner = Learner().task(task)
    search = Annealing(space, learner)
    for n, point in enumerate(dict.fromkeys(space.draw(rng) for _ in range(40))):
        learner.tell(point, 1e-3 * (1 + n % 7))
    points = [space.draw(rng) for _ in range(60)]
    rows = search.numbered.rows(points)
    one = np.ones(len(rows), int)
    drafts = learner.drafts(search.numbered, rows, one)
    _, sure = learner.bulk.rows(rows)
    missing = {p for p, s in zip(points, sure) if not s and p not in learner.times}
    count = len(learner.bulk)
    scores = learner.scores(points, 1)
    assert sure.mean() > 0.5 and count <= len(learner.bulk) <= count + len(missing)
    np.testing.assert_allclose(drafts[sure], scores[sure], rtol=1e-6)
    exact = Learner().task(task)
    for point, seconds in learner.times.items():
        exact.tell(point, seconds)
    np.testing.assert_allclose(scores, exact.scores(points, 1), rtol=1e-6)
