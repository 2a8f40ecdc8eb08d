"""Collecting samples with a measurer that knows the costs."""

from dataclasses import replace

import pytest
from burnish.compiler.templates import registry
from burnish.op_tuner.collect import BATCH, FASTEST, Collector, samples_of
from burnish.op_tuner.measure import Measurement
from burnish.op_tuner.records import Records

from .tasks import double
from .test_tuner import Measurer, Questions


@pytest.fixture
def tasks(monkeypatch):
    monkeypatch.setitem(registry.TEMPLATES, "naive", Questions())
    return [(double(), 1), (double(), 0), (replace(double(), name="other"), 1)]


def by(measurer):
    return lambda threads, evict: measurer


def records_of(tmp_path):
    return Records(tmp_path / "records.jsonl", shipped=False)


def collected(tmp_path):
    return {kind: set(own) for kind, own in samples_of(records_of(tmp_path)).items()}


def test_each_task_gets_its_samples_in_turn(tmp_path, tasks):
    measure = Measurer()
    Collector(tasks, records_of(tmp_path), 12, measurer=by(measure)).run()
    names = [name for name, _ in measure.seen]
    assert names == ["double"] * 2 * BATCH + ["other"] * BATCH + ["double"] * 8 + ["other"] * 4
    assert [measure.seen[n][1] for n in (0, BATCH, 2 * BATCH)] == [(1, 1)] * 3
    found = collected(tmp_path)
    assert set(found) == {(t.digest, evict) for t, evict in tasks}
    assert all(len(points) == 12 for points in found.values()) and len(measure.seen) == 36


def test_an_interrupted_collection_goes_on(tmp_path, tasks):
    with pytest.raises(KeyboardInterrupt):
        stopping = Measurer(wrong={(5, 3)}, stop_after=17)
        Collector(tasks, records_of(tmp_path), 12, measurer=by(stopping)).run()
    rest = Measurer(wrong={(5, 3)})
    Collector(tasks, records_of(tmp_path), 12, measurer=by(rest)).run()
    assert len(rest.seen) == 36 - 17 and {len(points) for points in collected(tmp_path).values()} == {12}


def test_a_space_ends_before_there_are_enough(tmp_path, tasks):
    Collector(tasks[:1], records_of(tmp_path), 1000, measurer=by(Measurer())).run()
    assert {len(points) for points in collected(tmp_path).values()} == {57}


class ManyQuestions:
    def params(self, task, cfg):
        return tuple(cfg.choose(f"q{n}", range(6), 5) for n in range(5))


class Sums(Measurer):
    def measure(self, task, cfg):
        answers = ManyQuestions().params(task, cfg)
        self.seen.append(answers)
        return Measurement(1e-3 * (1 + sum(answers)), 0.0, 5, config=dict(cfg.chosen))


def test_every_second_one_is_a_neighbour_of_the_fastest(tmp_path, monkeypatch):
    """Neighbours of four points are 100 of 7,776."""
    monkeypatch.setitem(registry.TEMPLATES, "naive", ManyQuestions())
    measure = Sums()
    Collector([(double(), 1)], records_of(tmp_path), 6 * BATCH, measurer=by(measure)).run()
    near = 0
    for start in range(BATCH, len(measure.seen), BATCH):
        fastest = sorted(measure.seen[:start], key=sum)[:FASTEST]
        for point in measure.seen[start : start + BATCH]:
            near += any(sum(a != b for a, b in zip(point, fast)) == 1 for fast in fastest)
    assert 12 <= near <= 28, "of 40"


def test_a_budget_ends_it(tmp_path, tasks, monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr("burnish.op_tuner.collect.time.monotonic", lambda: next(clock))
    told = []
    collector = Collector(
        tasks, records_of(tmp_path), 12, measurer=by(Measurer()), progress=lambda *w: told.append(w)
    )
    collector.run(budget=3)
    assert collector.measured == 2 * BATCH and told[-1] == ("measuring double", 2 * BATCH, 36)


def test_the_median_time_of_a_config_counts(tmp_path, tasks):
    measure = Measurer(lucky={(1, 1): 2.0})
    for _ in range(3):
        collector = Collector(tasks[:1], records_of(tmp_path), 1, measurer=by(measure))
        collector.known = {}
        collector.run()
    assert samples_of(records_of(tmp_path)) == {(tasks[0][0].digest, 1): {(("x", 1), ("y", 1)): 7e-3}}
