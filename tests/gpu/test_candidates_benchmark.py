"""benchmarks/candidates.py on the fake driver: what was compiled before is measured in one run."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from burnish.op_tuner.records import read
from burnish.op_tuner.space import Space

from ..bench.scripts import FOLDER, script


@pytest.fixture
def run(fake_gpu):
    def run(*arguments: object) -> str:
        command = [sys.executable, FOLDER / "candidates.py", *arguments]
        done = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, timeout=240, env=fake_gpu
        )
        assert not done.returncode, done.stderr
        return done.stdout

    return run


def test_all_candidates_of_a_network_become_records(run, tmp_path):
    how = ("--target", "cuda-sm80", "--units", 108, "--count", 2, "--jobs", 2)
    said = run("compile", tmp_path, "digits", *how)
    files = sorted(tmp_path.glob("*.candidates"))
    assert files and said.startswith(f"{len(files)} tasks, {len(files)} to be compiled")
    assert f"{len(files)} tasks, 0 to be compiled" in run("compile", tmp_path, "digits", *how)
    said = run("measure", tmp_path, "--records", tmp_path / "records.jsonl")
    assert f"{len(files)} tasks measured: the fastest take" in said
    assert "0 tasks measured" in run("measure", tmp_path, "--records", tmp_path / "records.jsonl")
    found, _ = read(tmp_path / "records.jsonl")
    assert {r.task for r in found} == {file.name.partition("-")[0] for file in files}
    assert all(r.seconds and not r.error and "Fake A100" in r.hardware.cpu for r in found)
    assert len(found) > len(files)


def test_a_fastest_candidate_that_is_wrong_is_told(driver, monkeypatch):
    tool = script("candidates")
    target = tool.target_of("cuda-sm80", 108)
    (w,) = (w for w in tool.workloads("dqn", target) if w.task.name.endswith("add_f32"))
    monkeypatch.setattr(tool.Bench, "times", lambda self: [[3.0] * 8, [1.0] * 8, [2.0] * 8])
    right = tool.compiled(w, 3)
    assert right.points[0] == Space(w.task).default()
    assert [(m.seconds, m.error) for m in tool.measured(right)] == [(3, None), (1, None), (2, None)]
    fastest = right.kernels[1]
    spoilt = replace(fastest, object=fastest.object.replace(b"r_ = 0.0f", b"r_ = 1.0f"))
    assert spoilt != fastest
    others = {"c0": right.kernels[0], "c1": spoilt, "c2": right.kernels[2]}
    monkeypatch.setattr(tool, "build_kernel", lambda task, cfg, name: others[name])
    found = tool.measured(tool.compiled(w, 3))
    assert [m.error for m in found] == [None, "wrong", None] and "of their scale" in found[1].detail
