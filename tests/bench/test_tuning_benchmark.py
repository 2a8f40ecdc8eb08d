"""benchmarks/tuning.py with a measurer that knows all times: resuming, replaying, tables, pictures."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from burnish.compiler.templates.registry import template
from burnish.op_tuner.course import SURE
from burnish.op_tuner.hardware import this_hardware
from burnish.op_tuner.isolate import Spans
from burnish.op_tuner.measure import Measurement
from burnish.op_tuner.record import plain

from ..conftest import require_module
from .scripts import script

tuning = script("tuning")


class Measurer:
    """Times that follow from the config alone; ends the process, so to say, after some."""

    def __init__(self, stop_after=None):
        self.stop_after, self.count = stop_after, 0
        self.hardware, self.spans = this_hardware(), Spans()

    def __call__(self, candidates, alone=False):
        for n, candidate in enumerate(candidates):
            yield n, self.measure(candidate.task, candidate.config)

    def measure(self, task, cfg):
        if self.count == self.stop_after:
            raise KeyboardInterrupt
        self.count += 1
        template(task).params(task, cfg)
        config = {k: plain(v) for k, v in cfg.chosen.items()}
        chance = int(hashlib.sha256(repr(config).encode()).hexdigest()[:8], 16) / 2**32
        return Measurement(1e-3 * (1 + chance), 0.0, 5, config=config)


def arguments(folder, *more):
    return ["--workloads", "c3,c11", "--records", str(folder / "t.jsonl"), "--trials", "24", *more]


BLACK_BOXES = ("--strategies", "genetic,random", "--seeds", "2", "--no-transfer")


def test_an_interrupted_run_ends_as_a_whole_one(tmp_path, capsys):
    assert tuning.main(arguments(tmp_path / "whole", *BLACK_BOXES), measure=Measurer()) == 0
    whole = capsys.readouterr().out.partition("\n\n")[2]
    stopped, codes = 0, []
    while 130 in codes or not codes:
        measure = Measurer(stop_after=50)
        codes = [tuning.main(arguments(tmp_path, *BLACK_BOXES), measure=measure)]
        stopped += codes == [130]
    assert stopped > 2
    out = capsys.readouterr().out
    assert out.partition("\n\n")[2] == whole
    again = Measurer()
    assert tuning.main(arguments(tmp_path, *BLACK_BOXES), measure=again) == 0 and not again.count
    tuning.main(arguments(tmp_path, *BLACK_BOXES, "--report"))
    assert capsys.readouterr().out.endswith(whole)


def test_finished_courses_survive_torn_lines(tmp_path, capsys):
    tuning.main(arguments(tmp_path, *BLACK_BOXES), measure=Measurer())
    courses = tmp_path / "t.courses"
    courses.write_text(courses.read_text()[:-30])
    again = Measurer()
    tuning.main(arguments(tmp_path, *BLACK_BOXES), measure=again)
    assert not again.count, "the course is repeated from the records"
    assert len(tuning.Finished(courses).runs) == 8


def test_learned_models_and_transfer(tmp_path, capsys, monkeypatch):
    require_module("xgboost")
    require_module("matplotlib")
    monkeypatch.setattr(tuning, "SOURCES", ("c3",))
    monkeypatch.setattr(tuning, "TARGETS", ("matmul1024",))
    given = ["--workloads", "c3", "--records", str(tmp_path / "t.jsonl"), "--trials", "10"]
    code = tuning.main([*given, "--seeds", "1", "--pictures", str(tmp_path / "new")], measure=Measurer())
    out = capsys.readouterr().out
    assert code == 0
    first, second = out.split("Trained on c3:")
    rows = {line.split(" | ")[0]: line.split(" | ") for line in first.splitlines() if line.startswith("| ")}
    assert set(rows) == {"| workload", "| ---", "| c3", "| geomean"}
    assert all(float(speed) > 0 for speed in rows["| c3"][2:6]) and 0.5 <= float(rows["| c3"][6]) <= 2
    assert all(line in second for line in ("| matmul1024 | 1 |", "| geomean |"))
    assert (tmp_path / "new" / "tuning-curves.png").stat().st_size > 1000
    assert (tmp_path / "new" / "tuning-transfer.png").stat().st_size > 1000
    more = ["--workloads", "c3", "--records", str(tmp_path / "t.jsonl"), "--trials", "10", "--seeds", "2"]
    few = taught(tmp_path / "t.courses", 0)
    monkeypatch.setattr(tuning, "fit", lambda samples, seed: None)  # it takes its time
    tuning.main([*more, "--strategies", "random"], measure=Measurer())
    again, other = taught(tmp_path / "t.courses", 0), taught(tmp_path / "t.courses", 1)
    assert len(few) == 1 and again == other > few, "once more, by a model of all there is"


def taught(courses, seed):
    """How many measurements the models were made of that a search of the product began with."""
    wanted = ("matmul1024", tuning.TRANSFER, seed)
    runs = tuning.Finished(courses).runs.values()
    return [r.taught for r in runs if (r.workload, r.strategy, r.seed) == wanted]


def test_pictures_that_cannot_be_drawn_are_refused_before_anything_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "find_spec", lambda name: None)
    measure = Measurer()
    with pytest.raises(tuning.ToolError, match="needs matplotlib"):
        tuning.main(arguments(tmp_path, *BLACK_BOXES, "--pictures", str(tmp_path)), measure=measure)
    assert not measure.count


def test_transfer_needs_its_sources(tmp_path):
    with pytest.raises(tuning.InputError, match="transfer needs measurements of c1, c2, c4, c5, c6"):
        tuning.main(arguments(tmp_path, *BLACK_BOXES[:-1]), measure=Measurer())


def run(how, times, seed=0, best=1e-3, workload="c3"):
    """Where times again are those that were told."""
    told = tuning.best_so_far(times)
    steps = ((n, now) for n, (now, before) in enumerate(zip(told, [9.0, *told]), 1) if now < before)
    return tuning.Run("d", workload, how, seed, len(times), "v", tuple(times), 0.0, best, tuple(steps))


def test_what_a_course_would_confirm():
    """The three fastest of what is not far from its end, whenever these change."""
    points = [(("x", n),) for n in range(9)]
    course = tuning.Course(None, points=points, times=[5.0, None, 2.2, 3.0, 2.1, 2.1, 2.3, 2.15, 2.0])
    first, second, third, fourth, fifth = (points[n] for n in (2, 4, 5, 7, 8))
    assert tuning.would_confirm(course) == {
        3: (first,),
        5: (second, first),
        6: (second, third, first),
        8: (second, third, fourth),
        9: (fifth, second, third),
    }
    assert tuning.would_confirm(tuning.Course(None, points=points[:2], times=[None, None])) == {}


class Lucky(Measurer):
    """The first config seems to be the fastest, until it is measured again."""

    def __init__(self):
        super().__init__()
        self.runs = {}

    def measure(self, task, cfg):
        found = super().measure(task, cfg)
        config = repr(found.config)
        self.runs[config] = self.runs.get(config, 0) + 1
        if config != next(iter(self.runs)):
            return replace(found, seconds=1.2e-3)
        return replace(found, seconds=1e-3 if self.runs[config] <= SURE else 2e-3)


def test_a_course_returns_what_is_the_fastest_when_its_three_fastest_are_measured_again(tmp_path):
    given = ["--workloads", "c3", "--records", str(tmp_path / "t.jsonl"), "--trials", "24", "--no-transfer"]
    tuning.main([*given, "--strategies", "random", "--seeds", "1"], measure=Lucky())
    (course,) = tuning.Finished(tmp_path / "t.courses").runs.values()
    assert min(course.times) == 1e-3 and course.best == 1.2e-3
    assert course.returned[:2] == ((1, 2e-3), (2, 1.2e-3))


class Faster(Measurer):
    def measure(self, task, cfg):
        found = super().measure(task, cfg)
        return replace(found, seconds=found.seconds / 2)


def test_courses_that_were_finished_before_are_measured_again_with_new_ones(tmp_path):
    """They are the same, by a machine that has become twice as fast."""
    given = ["--workloads", "c3", "--records", str(tmp_path / "t.jsonl"), "--trials", "24", "--no-transfer"]
    given += ["--seeds", "1", "--strategies"]
    tuning.main([*given, "random"], measure=Measurer())
    (first,) = tuning.Finished(tmp_path / "t.courses").runs.values()
    tuning.main([*given, "genetic"], measure=Faster())
    genetic, random = sorted(tuning.Finished(tmp_path / "t.courses").runs.values(), key=lambda r: r.strategy)
    assert (random.strategy, random.times) == ("random", first.times)
    assert random.best == random.returned[-1][1] == pytest.approx(first.best / 2, rel=1e-3)
    assert genetic.best == genetic.returned[-1][1] < 1e-3


def test_a_lucky_time_does_not_count():
    """A config that was told 2, and took 3 when it was measured again."""
    lucky = tuning.Run("d", "c3", "rank", 0, 4, "v", (4.0, 2.0, 1.9, 1.9), 0.0, 1.9, ((2, 3.0), (3, 1.9)))
    assert tuning.needed(lucky, 2.0) == (3, True) and tuning.needed(lucky, 1.5) == (4, False)
    assert tuning.end(lucky) == 1.9
    assert tuning.needed(lucky, 2.0, told=True) == (2, True) and tuning.end(lucky, told=True) == 1.9


def test_the_comparison_counts_trials_to_the_speed_of_random_search():
    runs = [
        run("rank", [4.0, 2.0, 1.0, 1.0], best=1.0),
        run("genetic", [4.0, None, 3.0, 3.0], best=2.0),
        run("random", [4.0, 3.0, 5.0, 2.0], best=4.0),
    ]
    another = run("rank", [9.0, 9.0, 9.0, 9.0], seed=1, best=9.0)
    text = tuning.comparison([*runs, another], ("rank", "genetic", "random"))
    row = next(line for line in text.splitlines() if line.startswith("| c3"))
    columns = row.removesuffix(" |").split(" | ")
    assert columns[5:] == ["2.000", "2", "4", "4", "0.50", "–", "–", "–", "–"], (
        "of the seed that all have run"
    )
    assert "not reached in 1 courses: they count with all trials" in text
    assert tuning.comparison(runs[:2], ("rank", "random")) == "nothing is complete yet"


def test_random_search_is_to_reach_what_another_seed_ended_with():
    """Its own end it reaches in any case."""
    runs = [
        run("rank", [4.0, 2.0, 1.0, 1.0], best=1.0),
        run("random", [2.0, 3.0, 2.5, 2.5]),
        run("random", [4.0, 3.0, 5.0, 1.0], seed=1),
        run("random", [4.0, 4.0, 1.0, 1.0], seed=2),
    ]
    text = tuning.comparison(runs, ("rank", "random"))
    row = next(line for line in text.splitlines() if line.startswith("| c3"))
    assert len({line.count(" | ") for line in text.splitlines()}) == 1, "as many columns everywhere"
    means = [(2 * 3 * 3) ** (1 / 3), ((4 * 3) ** 0.5 * (4 * 3) ** 0.5 * (4 * 4) ** 0.5) ** (1 / 3)]
    other = f"{means[0]:.0f} / {means[1]:.0f}"
    share = f"{means[0] / means[1]:.2f}"
    assert row.removesuffix(" |").split(" | ")[-5:] == ["2.00", other, share, share, share]
    assert text.splitlines()[-1].endswith(f"| 2.00 |  | {share} | {share} | {share} |")


def test_courses_are_also_compared_by_what_can_be_told_apart_and_by_the_times_that_they_were_told():
    """What rank was told of its second config was luck; its third one is as good as the last."""
    steps = ((2, 3.0), (3, 1.001), (4, 1.0))
    runs = [
        tuning.Run("d", "c3", "rank", 0, 4, "v", (4.0, 1.0, 0.9, 0.8), 0.0, 1.0, steps),
        *(run("random", [4.0, 3.0, 2.0, 1.0], seed=seed) for seed in range(2)),
    ]
    row = next(line for line in tuning.comparison(runs, ("rank", "random")).splitlines() if "| c3" in line)
    assert row.removesuffix(" |").split(" | ")[-4:] == ["4 / 4", "1.00", "0.75", "0.50"]


def test_transfer_is_compared_at_shares_of_the_final_speed(monkeypatch):
    monkeypatch.setattr(tuning, "TARGETS", ("c3",))
    slow = run(tuning.SCRATCH, [4.0, 3.0, 2.1, 2.0])
    fast = run(tuning.TRANSFER, [2.1, 2.0, 2.0, 1.9])
    text = tuning.transferred([slow, fast])
    row = next(line for line in text.splitlines() if line.startswith("| c3"))
    near, whole = ["3 → 1", "3.0×"], ["4 → 2", "2.0×"]  # 2.1 is within 5 % of the end, not within 2 %
    assert row.removesuffix(" |").split(" | ")[2:] == [*near * 2, *whole * 4]


@pytest.mark.parametrize("wrong", [("--workloads", "c13"), ("--strategies", "luck")])
def test_unknown_names(wrong, capsys):
    with pytest.raises(SystemExit):
        tuning.main([*wrong])
    assert "expected of" in capsys.readouterr().err
