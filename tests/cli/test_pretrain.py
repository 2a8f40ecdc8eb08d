"""`burnish pretrain` on a single convolution, and what its output is good for."""

from __future__ import annotations

import pytest
from burnish.commands import pretrain
from burnish.op_tuner import pretrained
from burnish.op_tuner.pretrained import load
from burnish.op_tuner.records import read
from burnish.workloads import planned

from ..conftest import require_module

require_module("xgboost")
SMALL = ("c3", "c11", "--threads", 1, "--folds", 2)


@pytest.fixture
def files(tmp_path):
    return ("--records", tmp_path / "r.jsonl", "-o", tmp_path / "x.model")


def test_pretrain(burnish, files, tmp_path, monkeypatch):
    monkeypatch.setattr(pretrain, "LEAST", 2)
    monkeypatch.setattr(pretrained, "ROUNDS", 20)
    monkeypatch.setattr(pretrain, "choices", planned)  # fewer
    out = burnish("pretrain", *SMALL, *files, "--samples", 2).output
    count = len(read(tmp_path / "r.jsonl")[0])
    row = next(line.split() for line in out.splitlines() if line.split()[:1] == ["direct"])
    assert int(row[1]) >= 1 and all(0 <= float(share) <= 1 for share in row[2:])
    _, about = load(tmp_path / "x.model")
    assert f"wrote {tmp_path / 'x.model'}" in out and 2 * int(row[1]) <= about.samples <= count
    before = (tmp_path / "x.model").read_bytes()
    burnish("pretrain", *SMALL, *files, "--no-measure")
    assert (tmp_path / "x.model").read_bytes() == before and len(read(tmp_path / "r.jsonl")[0]) == count


def test_nothing_to_learn_from(error, files):
    assert "has no measurements of these networks' tasks" in error("pretrain", *SMALL, *files, "--no-measure")
    assert "no network named 'nothing' in the zoo" in error("pretrain", "nothing", *files)
