"""benchmarks/defaults.py with a measurer that knows all times."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import replace

import pytest
from burnish.op_tuner.records import Records

from .scripts import script
from .test_tuning_benchmark import Measurer

defaults = script("defaults")


class DefaultIs(Measurer):
    """The default config takes `factor` times what the slowest other one takes."""

    def __init__(self, factor, **options):
        super().__init__(**options)
        self.factor = factor

    def measure(self, task, cfg):
        result = super().measure(task, cfg)
        if tuple(result.config.items()) != defaults.Space(task).default():
            return result
        return replace(result, seconds=2e-3 * self.factor)


def arguments(folder, *more):
    given = ["--strategy", "genetic", "--trials", "20", "--records", str(folder / "d.jsonl")]
    return ["c3", "c11", *given, *more]


def shares(out):
    rows = [line.split(" | ") for line in out.splitlines() if line.startswith("| c")]
    return {(row[0], row[2]): float(row[-1].rstrip(" |")) for row in rows}


def test_the_default_is_far_from_the_best(tmp_path, capsys):
    assert defaults.main(arguments(tmp_path), measure=DefaultIs(2)) == 1
    found = shares(capsys.readouterr().out)
    assert ("| c3", "direct") in found and len(found) >= 2
    assert all(0.25 <= share <= 0.5 for share in found.values())


def test_the_default_is_the_best(tmp_path, capsys):
    assert defaults.main(arguments(tmp_path), measure=DefaultIs(0.1)) == 0
    out = capsys.readouterr().out
    assert set(shares(out).values()) == {1.0} and "geometric mean 1.000 (wanted 0.88), least 1.000" in out


def test_an_interrupted_run_goes_on(tmp_path, capsys):
    defaults.main(arguments(tmp_path / "whole"), measure=Measurer())
    whole = capsys.readouterr().out
    for stop in (10, 30, 0, 10_000):
        defaults.main(arguments(tmp_path), measure=Measurer(stop_after=stop))
    assert capsys.readouterr().out.endswith(whole)
    again = Measurer()
    defaults.main(arguments(tmp_path), measure=again)
    assert not again.count


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_searches_at_once(tmp_path, capsys, monkeypatch):
    """Kernels that wait for memory are searched alone, others at once; nobody is left behind."""
    monkeypatch.setattr(defaults, "LIKELY", 2)
    monkeypatch.setattr(defaults, "CANDIDATES", 1)
    monkeypatch.setattr(defaults, "ROUNDS", 1)
    given = ["c11", "--strategy", "random", "--trials", "4", "--jobs", "2"]
    assert defaults.main([*given, "--records", str(tmp_path / "d.jsonl")]) in (0, 1)
    tried = {tuple(r.config.items()) for r in Records(tmp_path / "d.jsonl", shipped=False)}
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| c11 ")]
    assert len(rows) >= 1 and len(tried) >= 4
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("more", [("--jobs", "999"), ("--jobs", "2", "--threads", "2"), ("--jobs", "0")])
def test_more_jobs_than_there_is_room_for(more):
    with pytest.raises(SystemExit):
        defaults.main(["c11", *more])


def test_candidates_of_another_tuning(tmp_path, capsys):
    """A search's result counts only after it was measured again here."""
    defaults.main(arguments(tmp_path), measure=DefaultIs(2))
    capsys.readouterr()
    given = ["c3", "c11", "--trials", "0", "--tuned", str(tmp_path / "d.jsonl")]
    measure = DefaultIs(2)
    defaults.main([*given, "--records", str(tmp_path / "own.jsonl")], measure=measure)
    assert all(share <= 0.5 for share in shares(capsys.readouterr().out).values())
    looks, again = (Records(tmp_path / f"own{kind}.jsonl", shipped=False) for kind in ("", ".again"))
    assert len(looks) + len(again) == measure.count > 0 and len(looks) > 0 < len(again)


def test_failing_defaults(tmp_path):
    w = defaults.planned("c3", defaults.zoo.build("c3"), defaults.host(), 1)[0]
    row = defaults.Row(w, float("inf"), 1e-3, 5)
    assert row.share == 0 and "| fails | 1000.0 | 0.000 |" in defaults.text([row])
    assert defaults.Row(w, 1e-3, 1.1e-3, 5).share == 1.0
    assert defaults.Row(w, float("inf"), float("inf"), 5).share == 0
    assert "nothing has been compared" in defaults.text([])


@pytest.mark.parametrize("wrong", [("c13",), ("c3", "--strategy", "luck")])
def test_wrong_names(wrong, tmp_path):
    with pytest.raises((SystemExit, defaults.BurnishError)):
        defaults.main([*wrong, "--records", str(tmp_path / "d.jsonl")])
