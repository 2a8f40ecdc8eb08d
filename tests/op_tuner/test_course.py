"""Courses of search strategies: all are told the same times, courses repeat, the fastest are sure."""

import math
from collections import Counter
from dataclasses import replace

import pytest
from burnish.compiler.templates import registry
from burnish.errors import InputError
from burnish.op_tuner.course import STRATEGIES, SURE, TOLD, Course, Times, begin, best_so_far, strategy
from burnish.op_tuner.records import Records
from burnish.op_tuner.space import Space
from burnish.op_tuner.tuner import BATCH

from ..conftest import require_module
from .tasks import double
from .test_tuner import Measurer, Questions


@pytest.fixture
def task(monkeypatch):
    monkeypatch.setitem(registry.TEMPLATES, "naive", Questions())
    return double()


def times_of(tmp_path, measure):
    return Times(Records(tmp_path / "records.jsonl", shipped=False), measure=measure)


def run(task, times, name="genetic", seed=0, trials=40):
    course = Course(strategy(name, Space(task), seed))
    while course.advance(times, task, trials):
        pass
    return course


def test_a_config_is_measured_once(tmp_path, task):
    measure = Measurer()
    times = times_of(tmp_path, measure)
    first, second = run(task, times), run(task, times, "random", seed=1)
    assert len(first.times) == len(second.times) == 40
    assert len(measure.seen) == times.measured == len(times.records)
    both = set(first.points) & set(second.points)
    often = Counter(measure.seen)
    assert both and len(often) == 80 - len(both) and set(often.values()) == {1, SURE}
    fastest = min(often, key=lambda seen: abs(seen[1][0] - 5) + abs(seen[1][1] - 3))
    assert often[fastest] == SURE
    told = dict(zip(first.points, first.times))
    assert all(told[p] == dict(zip(second.points, second.times))[p] for p in both)


@pytest.mark.parametrize("name", ["genetic", "random"])
def test_an_interrupted_course_goes_on(tmp_path, task, name):
    whole = run(task, times_of(tmp_path / "whole", Measurer(wrong={(5, 3)})), name)
    before = Measurer(wrong={(5, 3)}, stop_after=13)
    with pytest.raises(KeyboardInterrupt):
        run(task, times_of(tmp_path, before), name)
    rest = Measurer(wrong={(5, 3)})
    resumed = run(task, times_of(tmp_path, rest), name)
    assert (resumed.points, resumed.times) == (whole.points, whole.times)
    assert len(before.seen) == 13 and not set(before.seen) & set(rest.seen)
    assert len(set(before.seen) | set(rest.seen)) == 40


def test_failures_are_trials(tmp_path, task):
    wrong = {(x, y) for x in range(1, 9) for y in range(1, 9) if x > 2}
    course = run(task, times_of(tmp_path, Measurer(wrong)), "random", trials=57)
    assert course.times.count(None) == len({p for p in wrong if p[0] != p[1]})
    assert all(dict(p)["x"] <= 2 for p in course.fastest(3)) and len(course.fastest(100)) == 57 - 42
    assert not course.advance(times_of(tmp_path, Measurer(wrong)), task, 100), "the space has ended"


def test_a_candidate_that_dies_is_found_again(tmp_path, task):
    """Its measurement tells only of the questions that it lived to be asked."""

    class Dying(Measurer):
        def measure(self, task, cfg):
            return replace(super().measure(task, cfg), error="crash", config={})

    point = (("x", 2), ("y", 5))
    assert times_of(tmp_path, Dying()).first(task, point) is None
    again = Measurer()
    assert times_of(tmp_path, again).first(task, point) is None and not again.seen


def test_the_fastest_are_measured_again(tmp_path, task):
    """The time that made a config look fast does not count."""
    measure = Measurer(lucky={(8, 7): 0.5})
    times = times_of(tmp_path, measure)
    points = [(("x", 8), ("y", 7)), (("x", 5), ("y", 3))]
    assert times.first(task, points[0]) == 8e-3, (
        "what seems to be the fastest is measured three times at once"
    )
    assert times.again(task, points, 3) == {points[0]: 8e-3, points[1]: 1e-3}
    seen = [p for _, p in measure.seen]
    assert seen == [(8, 7)] * SURE + [(5, 3)] * SURE + [(8, 7), (5, 3)] * 5
    assert times.again(task, points, 3)[points[0]] == 8e-3 and len(measure.seen) == len(seen)
    assert times_of(tmp_path, measure).again(task, points, 3)[points[1]] == 1e-3
    assert len(measure.seen) == len(seen)


def test_a_lucky_time_does_not_stand_where_a_session_ended(tmp_path, task):
    """Between the first measurement and those that were to follow."""
    lucky = (("x", 8), ("y", 7))
    with pytest.raises(KeyboardInterrupt):
        times_of(tmp_path, Measurer(lucky={(8, 7): 0.5}, stop_after=1)).first(task, lucky)
    assert times_of(tmp_path, Measurer()).first(task, lucky) == 8e-3


def test_who_was_lucky_once_is_told_what_is_usual(tmp_path, task):
    measure = Measurer()
    times = times_of(tmp_path, measure)
    best, lucky, far = ((("x", x), ("y", y)) for x, y in ((5, 3), (6, 3), (8, 7)))
    assert times.first(task, best) == 1e-3
    measure.lucky = {(6, 3): 0.5, (8, 7): 1.5}
    assert times.first(task, lucky) == 2e-3
    assert times.first(task, far) == 1.5e-3, "far from the fastest, it does not matter"
    assert times_of(tmp_path, measure).first(task, lucky) == 2e-3, "as the records have it"


def test_times_of_two_sessions_are_not_compared(tmp_path, task):
    times_of(tmp_path, Measurer()).again(task, [(("x", 8), ("y", 7))], 3)
    slow = times_of(tmp_path, Measurer(scale={task.name: 2e-3}))
    points = [(("x", 8), ("y", 7)), (("x", 5), ("y", 3))]
    assert slow.again(task, points, 3) == {points[0]: 16e-3, points[1]: 2e-3}


def test_turns_with_others_do_not_count(tmp_path, task):
    """All have enough measurements, but of turns at different speeds."""
    a, b, c = ((("x", x), ("y", y)) for x, y in ((8, 7), (5, 3), (5, 4)))
    times_of(tmp_path, Measurer()).again(task, [a, b], 3)
    times_of(tmp_path, Measurer(scale={task.name: 2e-3})).again(task, [b, c], 3)
    last = times_of(tmp_path, Measurer(scale={task.name: 3e-3}))
    assert last.again(task, [c, a], 3) == {c: 6e-3, a: 24e-3}
    count = last.measured
    assert last.again(task, [a, c], 3) == {c: 6e-3, a: 24e-3} and last.measured == count
    assert last.again(task, [], 3) == {}, "where all failed"


def test_a_turn_that_was_interrupted_does_not_count(tmp_path, task):
    """The points' last times are of the same turns."""
    points = [(("x", 8), ("y", 7)), (("x", 5), ("y", 3))]
    sessions = [(1 + SURE + 7, 1.0, 3), (9, 2.0, 7)]  # measurements, slowness, whole turns in all
    for measurements, scale, turns in sessions:
        measure = Measurer(scale={task.name: 1e-3 * scale}, stop_after=measurements)
        with pytest.raises(KeyboardInterrupt):
            times_of(tmp_path, measure).again(task, points, 3)
        kept = times_of(tmp_path, Measurer()).of(task)
        assert [len(kept[p]) for p in points] == [1 + turns, SURE + turns]
    measure = Measurer()
    assert times_of(tmp_path, measure).again(task, points, 3) == {points[0]: 16e-3, points[1]: 2e-3}
    assert not measure.seen


def test_records_of_other_compilers_are_not_told(tmp_path, task, monkeypatch):
    run(task, times_of(tmp_path, Measurer()), trials=8)
    monkeypatch.setattr("burnish.op_tuner.course.made_by", lambda: "another")
    assert not times_of(tmp_path, Measurer()).of(task)


def test_a_model_hears_of_its_trials_sooner_than_other_strategies(tmp_path, task):
    require_module("xgboost")
    times = times_of(tmp_path, Measurer())
    courses = {name: begin(name, Space(task), 0) for name in STRATEGIES}
    assert all(course.advance(times, task, 40) for course in courses.values())
    assert {name: len(course.times) for name, course in courses.items()} == {
        "rank": TOLD, "regression": TOLD, "genetic": BATCH, "random": BATCH,
    }  # fmt: skip
    assert TOLD < BATCH and courses["rank"].points == courses["random"].points[:TOLD], "by chance at first"


def test_curves():
    times = [None, 3.0, 4.0, None, 1.0, 2.0]
    assert best_so_far(times) == [math.inf, 3, 3, 3, 1, 1]


def test_strategies(task):
    require_module("xgboost")
    assert {type(strategy(name, Space(task), 0)).__name__ for name in STRATEGIES} == {
        "Learning",
        "Genetic",
        "Random",
    }
    with pytest.raises(InputError, match="strategy 'luck': expected one of rank"):
        strategy("luck", Space(task), 0)
