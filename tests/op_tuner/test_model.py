"""The learned model on costs that are known: it ranks, transfers, repeats, and says what it lacks."""

import signal
import sys

import numpy as np
import pytest
from burnish.compiler.in_child import in_child
from burnish.errors import InputError, ToolError
from burnish.op_tuner.model import CostModel, relative_speeds

from ..conftest import require_module


def synthetic(n, seed, tasks=("a",), shift=0.0):
    """Rows, seconds and tasks: a cost with a product, a step and a task's own scale; 274 columns of which
    four matter."""
    random = np.random.default_rng(seed)
    rows = random.uniform(0, 8, (n * len(tasks), 274)).astype(np.float32)
    names = [task for task in tasks for _ in range(n)]
    scale = np.array([1e-3 * 50.0 ** tasks.index(t) for t in names])
    cost = 2 + rows[:, 3] * 0.5 + (rows[:, 7] > 4) * 3 + 0.1 * rows[:, 11] * rows[:, 3] + shift * rows[:, 20]
    return rows, list(scale * cost), names


def agreement(score, seconds):
    """Kendall's tau of scores and speeds: 1 where every pair is in order, about 0 by chance."""
    a, b = np.asarray(score), -np.asarray(seconds)
    upper = np.triu_indices(len(a), 1)
    return np.mean(np.sign(a[:, None] - a)[upper] * np.sign(b[:, None] - b)[upper])


@pytest.fixture
def xgboost():
    return require_module("xgboost")


@pytest.mark.parametrize("objective", ["rank", "regression"])
def test_it_ranks_what_it_has_not_seen(xgboost, objective):
    model = CostModel(objective)
    rows, seconds, tasks = synthetic(150, 0, ("a", "b"))
    model.fit(rows, seconds, tasks)
    unseen, times, _ = synthetic(200, 1)
    assert agreement(model.predict(unseen), times) > 0.6
    random = np.random.default_rng(2).normal(size=200)
    assert abs(agreement(random, times)) < 0.2


def test_failures_rank_last(xgboost):
    rows, seconds, tasks = synthetic(120, 3)
    broken = rows[:, 30] > 6
    seconds = [None if b else t for b, t in zip(broken, seconds)]
    model = CostModel()
    model.fit(rows, seconds, tasks)
    unseen, _, _ = synthetic(100, 4)
    scores = model.predict(unseen)
    fails = unseen[:, 30] > 6
    assert np.median(scores[fails]) < np.quantile(scores[~fails], 0.25)


@pytest.mark.parametrize("objective", ["rank", "regression"])
def test_a_seed_repeats(xgboost, objective):
    def scores():
        model = CostModel(objective, seed=5)
        model.fit(*synthetic(60, 6, ("a", "b")))
        return model.predict(synthetic(30, 7)[0])

    np.testing.assert_array_equal(scores(), scores())


def test_a_global_model_helps_before_there_is_data(xgboost):
    """Eight measurements of a similar task: with the global model far better than alone."""
    known = CostModel()
    known.fit(*synthetic(200, 8, ("a", "b", "c")))
    few, unseen = synthetic(8, 9, ("new",), shift=0.1), synthetic(200, 10, ("new",), shift=0.1)
    alone, both, nothing = CostModel(), CostModel(base=known), CostModel(base=known)
    alone.fit(*few)
    both.fit(*few)
    found = [agreement(m.predict(unseen[0]), unseen[1]) for m in (alone, both, nothing)]
    assert found[1] > found[0] + 0.15 and found[2] > found[0] + 0.15


def test_a_local_model_learns_what_the_global_one_does_not_know(xgboost):
    known = CostModel()
    known.fit(*synthetic(200, 11, ("a", "b")))
    own, unseen = synthetic(150, 12, ("new",), shift=2.0), synthetic(200, 13, ("new",), shift=2.0)
    both = CostModel(base=known)
    before = agreement(both.predict(unseen[0]), unseen[1])
    both.fit(*own)
    assert agreement(both.predict(unseen[0]), unseen[1]) > before + 0.15


def test_a_model_from_a_file_learns_anew(xgboost):
    rows, times, tasks = synthetic(60, 6, ("a", "b"))
    rows = np.abs(rows)
    model = CostModel()
    model.fit(rows, times, tasks)
    read, same = CostModel.from_bytes(model.to_bytes(), "rank"), model.predict(rows)
    np.testing.assert_array_equal(read.predict(rows), same)
    for each in (read, model):
        each.fit(rows, times[::-1], tasks)
    np.testing.assert_array_equal(read.predict(rows), model.predict(rows))
    assert (model.predict(rows) != same).any()


def test_nothing_to_learn_from(xgboost):
    model = CostModel()
    rows = synthetic(3, 14)[0]
    model.fit(rows[:2], [1.0, 1.0], ["a", "a"])
    model.fit(rows[:2], [1.0, 2.0], ["a", "b"])
    model.fit(rows[:2], [None, None], ["a", "a"])
    assert not model.trained and not model.predict(rows).any()
    model.fit(rows[:2], [None, 1.0], ["a", "a"])
    assert model.trained and len(model.predict(rows[:0])) == 0


def test_speeds_are_relative_to_their_task():
    speeds = relative_speeds([2.0, 1.0, 30.0, None, 10.0], ["a", "a", "b", "b", "b"])
    np.testing.assert_allclose(speeds, [0.5, 1, 1 / 3, 0, 1])


def test_unknown_objective():
    with pytest.raises(InputError, match="'fast': expected one of rank, regression"):
        CostModel("fast")


def test_without_xgboost(monkeypatch):
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(ToolError, match=r"needs xgboost.*burnish\[tune\]"):
        CostModel()


def test_a_forked_process_scores_on_top_of_a_base(xgboost):
    """Threads that this process has had do not exist there: nothing may wait for them."""
    CostModel(threads=4).fit(*synthetic(400, 15, ("a", "b")))
    known = CostModel()
    known.fit(*synthetic(200, 15, ("a", "b")))
    both = CostModel(base=known)
    rows = synthetic(50, 16)[0]

    def scores() -> list[float]:
        signal.alarm(30)
        both.fit(*synthetic(50, 17, ("new",)))
        return both.predict(rows).tolist()

    found = in_child(scores)
    assert found is not None, "it waited for ever"
    both.fit(*synthetic(50, 17, ("new",)))
    np.testing.assert_allclose(found, both.predict(rows), rtol=1e-5, atol=1e-5)
