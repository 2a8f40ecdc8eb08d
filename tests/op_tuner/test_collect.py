"""Collecting samples with a measurer that knows the costs."""

from dataclasses import replace

import pytest
from burnish.compiler.templates import registry
from burnish.op_tuner.collect import Collector, samples_of
from burnish.op_tuner.records import Records

from .tasks import double
from .test_tuner import Measurer, Questions


@pytest.fixture
def tasks(monkeypatch):
    monkeypatch.setitem(registry.TEMPLATES, "naive", Questions())
    return [(double(), True), (double(), False), (replace(double(), name="other"), True)]


def records_of(tmp_path):
    return Records(tmp_path / "records.jsonl", shipped=False)


def collected(tmp_path):
    return {kind: set(own) for kind, own in samples_of(records_of(tmp_path)).items()}


def test_each_task_gets_its_samples_in_turn(tmp_path, tasks):
    measure = Measurer()
    Collector(tasks, records_of(tmp_path), 12, measure=measure).run()
    assert measure.seen[:3] == [("double", (1, 1)), ("double", (1, 1)), ("other", (1, 1))]
    assert [name for name, _ in measure.seen[3:9]] == ["double", "double", "other"] * 2
    found = collected(tmp_path)
    assert set(found) == {(t.digest, cold) for t, cold in tasks}
    assert all(len(points) == 12 for points in found.values()) and len(measure.seen) == 36


def test_an_interrupted_collection_ends_as_a_whole_one(tmp_path, tasks):
    Collector(tasks, records_of(tmp_path / "whole"), 12, measure=Measurer(wrong={(5, 3)})).run()
    with pytest.raises(KeyboardInterrupt):
        Collector(tasks, records_of(tmp_path), 12, measure=Measurer(wrong={(5, 3)}, stop_after=17)).run()
    rest = Measurer(wrong={(5, 3)})
    Collector(tasks, records_of(tmp_path), 12, measure=rest).run()
    assert len(rest.seen) == 36 - 17 and collected(tmp_path) == collected(tmp_path / "whole")


def test_a_space_ends_before_there_are_enough(tmp_path, tasks):
    Collector(tasks[:1], records_of(tmp_path), 1000, measure=Measurer()).run()
    assert {len(points) for points in collected(tmp_path).values()} == {57}


def test_neighbours_of_the_fastest_are_among_them(tmp_path, tasks):
    """Half of the samples crowd around what is fast."""
    Collector(tasks[:1], records_of(tmp_path), 24, measure=Measurer()).run()
    ((kind, points),) = samples_of(records_of(tmp_path)).items()
    near = [p for p in points if abs(dict(p)["x"] - 5) <= 1 or abs(dict(p)["y"] - 3) <= 1]
    assert len(near) > 12 and kind[1]


def test_a_budget_ends_it(tmp_path, tasks, monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr("burnish.op_tuner.collect.time.monotonic", lambda: next(clock))
    told = []
    collector = Collector(
        tasks, records_of(tmp_path), 12, measure=Measurer(), progress=lambda *w: told.append(w)
    )
    collector.run(budget=8)
    assert collector.measured == 7 and told[-1] == ("measuring double", 7, 36)


def test_the_fastest_time_of_a_config_counts(tmp_path, tasks):
    measure = Measurer(lucky={(1, 1): 2.0})
    for _ in range(2):
        collector = Collector(tasks[:1], records_of(tmp_path), 1, measure=measure)
        collector.known = {}
        collector.run()
    assert samples_of(records_of(tmp_path)) == {(tasks[0][0].digest, True): {(("x", 1), ("y", 1)): 2e-3}}
