"""benchmarks/search_model.py on records of a measurer that knows all times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from .scripts import script
from .test_tuning_benchmark import Measurer

tuning, search_model = script("tuning"), script("search_model")


def test_searches_are_judged_by_a_model_of_what_was_measured(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(search_model, "LEAST", 40)
    records = tmp_path / "t.jsonl"
    given = ["--workloads", "c11", "--records", str(records), "--trials", "48", "--seeds", "1"]
    tuning.main([*given, "--strategies", "random", "--no-transfer"], measure=Measurer())
    capsys.readouterr()
    given = ["--workloads", "c11", "--records", str(records), "--trials", "24", "--seeds", "1"]
    assert search_model.main([*given, "--strategy", "rank"]) == 0
    *_, own, together = capsys.readouterr().out.splitlines()
    numbers = own.split(" | ")[1:]
    assert own.startswith("| c11 |") and together.split(" | ")[1:] == numbers
    assert 1 <= int(numbers[0]) <= int(numbers[1]) <= int(numbers[2]) <= 36
    kept = search_model.Records(records, shipped=False)
    task = search_model.direct_convolution("c11", search_model.host())
    last = kept.of(task)[-1]
    slower = [replace(r, burnish="0.0.0", seconds=10 * r.seconds) for r in kept.of(task)[::2]]
    kept.add(*slower, last)
    times = search_model.Known("c11", kept).times([tuple(r.config.items()) for r in kept.of(task)])
    assert max(times) < 3 * min(times), "times of another version teach nothing"


def test_a_workload_without_records_is_an_error(tmp_path):
    with pytest.raises(search_model.InputError, match="c3: 0 configs in the records, expected 100"):
        search_model.main(["--workloads", "c3", "--records", str(tmp_path / "none.jsonl")])


def test_trials_to_a_level_and_what_is_short():
    found = search_model.judged([2.0, 1.01, 1.0, 0.5], 1.0)
    assert found[:3] == pytest.approx([search_model.math.log(n) for n in (2, 3, 3)])
    assert found[3:] == pytest.approx([-100.0] * 3)
    never = search_model.judged([2.0, 2.0], 1.0)
    assert never[0] == pytest.approx(search_model.math.log(3.0)) and never[3] == pytest.approx(50.0)
