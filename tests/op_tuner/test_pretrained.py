"""Pre-trained models: files, versions, what they are for, and how well they rank what they have not seen."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from burnish.compiler.ops.matmul import MatMul
from burnish.compiler.target import get_target, host
from burnish.errors import InputError
from burnish.op_tuner import features, pretrained
from burnish.op_tuner.isolate import Local
from burnish.op_tuner.learner import Learner
from burnish.op_tuner.pretrained import (
    About,
    Samples,
    chosen,
    fit,
    hold_out,
    load,
    origin_of,
    quality,
    read_samples,
    save,
    shipped,
    spread,
)
from burnish.op_tuner.records import Records
from burnish.op_tuner.space import Space
from burnish.op_tuner.tuned_task import Wanted
from burnish.op_tuner.tuner import Tuner

from ..compiled.test_conv_algorithms import CONVOLUTIONS, Case, items_of
from ..compiled.test_drawn_configs import tasks_of
from ..conftest import require_module
from .tasks import op_task

require_module("xgboost")
ABOUT = About(features.FEATURES, len(features.NAMES), "x86_64", 40, 2, ("a CPU",))


@pytest.fixture(autouse=True)
def small_models(monkeypatch):
    monkeypatch.setattr(pretrained, "ROUNDS", 30)


def samples(n, origin="", count=40):
    """The time is that of the first feature; the others are noise."""
    rows = np.random.default_rng(n).random((count, len(features.NAMES)), np.float32)
    return Samples(f"t{n}", origin or f"o{n}", rows, tuple(float(1 + r[0]) for r in rows))


def test_a_file_holds_the_model(tmp_path):
    path, model = tmp_path / "deep" / "x.model", fit([samples(0), samples(1)])
    size = save(path, model, ABOUT)
    again, about = load(path)
    assert size == path.stat().st_size < 500_000 and about == ABOUT
    rows = samples(2).rows
    np.testing.assert_array_equal(again.predict(rows), model.predict(rows))


def test_of_many_samples_those_between_the_fastest_and_what_fails_are_even():
    times = {(("x", n),): None if n % 10 == 9 else float(n) for n in range(100)}
    few = [dict(point)["x"] for point in spread(times, 10)]
    assert few[0] == 0 and few[-1] == 99 and few[:-1] == sorted(few[:-1]) and len(set(few)) == 10
    assert len(spread(times, 200)) == 100


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.replace(b'"features": ', b'"features": 9'), "for features of version 9"),
        (
            lambda d: d.replace(b'"format": 1', b'"format": 7'),
            "expected a model of .*, format 1",
        ),
        (lambda d: b"something else", "expected a model"),
        (lambda d: d[:-50], "the file is damaged"),
        (lambda d: b"", "expected a model"),
    ],
)
def test_files_that_are_of_no_use(tmp_path, change, says):
    path = tmp_path / "x.model"
    save(path, fit([samples(0)]), ABOUT)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(InputError, match=says):
        load(path)


def test_what_ships_is_found_or_its_absence_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path)
    shipped.cache_clear()
    model, says = shipped(host())
    assert model is None and "there is no pre-trained model" in says
    save(tmp_path / "x86_64-256.model", fit([samples(0)]), ABOUT)
    for target in ("x86-64-v3", "x86-64-v4", "x86-64"):
        shipped.cache_clear()
        model, says = shipped(get_target(target))
        assert model is not None and says == "searched from a model of 40 measurements of 2 tasks on a CPU"
    assert shipped(get_target("cortex-a53"))[0] is None
    save(tmp_path / "x86_64-512.model", fit([samples(0)]), replace(ABOUT, tasks=3))
    shipped.cache_clear()
    assert "of 3 tasks" in shipped(get_target("x86-64-v4"))[1]
    assert "of 2 tasks" in shipped(get_target("x86-64-v3"))[1]
    shipped.cache_clear()


def test_nothing_to_learn_from():
    with pytest.raises(InputError, match="no measurements to learn from"):
        fit([])


def test_hold_out_never_shows_an_operator(monkeypatch):
    """Tasks of one operator are in one fold, and no model has seen the tasks that it ranks."""
    seen = []
    monkeypatch.setattr(pretrained, "fit", lambda rest, **_: seen.append(rest) or fit(rest))
    given = [samples(n, origin=f"o{n % 4}") for n in range(8)]
    found = hold_out(given, 3)
    assert sorted(s.name for s, _ in found) == sorted(s.name for s in given) and len(seen) == 3
    for rest in seen:
        out = {s.origin for s in given} - {s.origin for s in rest}
        assert out and len(rest) == sum(s.origin not in out for s in given)
    for s, scores in found:
        got = quality(s, scores)
        assert got.pairs > 0.8 and got.first > 0.8 and got.eighth >= got.first


def test_quality():
    s = Samples("t", "o", np.zeros((4, 1)), (4.0, 2.0, None, 1.0))
    best = quality(s, np.array([1.0, 2.0, 0.0, 3.0]), default=1)
    assert (best.pairs, best.first, best.eighth, best.default, best.ahead) == (1.0, 1.0, 1.0, 0.5, 1.0)
    assert [chosen(best, margin) for margin in (0.0, 0.9, 1.0)] == [1.0, 1.0, 0.5]
    worst = quality(s, np.array([2.0, 1.0, 3.0, 0.0]))
    assert (worst.pairs, worst.first) == (0.0, 0.0) and math.isnan(worst.default)
    assert quality(s, np.zeros(4)).pairs == 0.5


def test_a_search_begins_with_it():
    """The scores of a task without measurements are the model's; measurements add to it."""
    task = op_task(MatMul(), "f32[24,20]", "f32[20,32]")
    space = Space(task)
    points = [space.default(), *(space.draw(random.Random(n)) for n in range(6))]
    points = list(dict.fromkeys(points))
    own = read_samples(task, "t", {p: float(n + 1) for n, p in enumerate(points)})
    prior = fit([own])
    learner = Learner(prior=prior).task(task)
    assert learner.ready() and not Learner().task(task).ready()
    np.testing.assert_allclose(learner.scores(points), prior.predict(own.rows), rtol=1e-6)
    for n, point in enumerate(points):
        learner.tell(point, float(len(points) - n))
    assert np.argmax(learner.scores(points)) != np.argmax(prior.predict(own.rows))


def test_a_tuner_begins_with_it(tmp_path):
    """The first batch is what the model thinks best, not drawn by chance."""
    task = op_task(MatMul(), "f32[24,20]", "f32[20,32]")
    asked = []

    class Prior(type(fit([samples(0)]))):
        trained = True

        def predict(self, rows):
            asked.append(len(rows))
            return np.zeros(len(rows))

    wanted = [Wanted(task, 1, 1)]
    records = Records(tmp_path / "r.jsonl", shipped=False)
    measure = Local(1)
    measure.idle = None  # else another process would be asked
    for prior in (None, Prior()):
        tuner = Tuner(wanted, records, threads=1, prior=prior, measure=measure)
        tuner.tasks[0].strategy.propose(2)
        assert bool(asked) == (prior is not None)


def test_what_a_task_computes_is_one_whatever_computes_it():
    """So that no model is asked of what it has learnt under another algorithm or layout."""
    case = Case(16, 32, (9, 13), pads=(1, 1, 1, 1))
    origins = []
    for c in (case, replace(case, size=(9, 12))):
        tasks = [item.task for algorithm in CONVOLUTIONS for item in items_of(c, host(), algorithm)]
        origins.append({origin_of(task) for task in (*tasks, *tasks_of(c, host()))})
    assert [len(found) for found in origins] == [1, 1] and origins[0] != origins[1]
