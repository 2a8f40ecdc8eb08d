"""The programs of README.md, run as they stand there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import burnish
import numpy as np
import pytest
from burnish.models.digits import WEIGHTS

from ..conftest import require_module

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_python_program(tmp_path):
    require_module("sklearn")
    done = subprocess.run(
        [sys.executable, "-c", block("python")], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    said = re.fullmatch(r"accuracy (0\.\d+)\n", done.stdout)
    assert said is not None and float(said[1]) >= 0.98
    assert burnish.load(tmp_path / "digits.so").inputs[0].shape == (360, 1, 8, 8)


def test_the_c_program(tmp_path, require_tool):
    require_tool("cc")
    module = burnish.compile(WEIGHTS, dims={"batch": 360})
    module.save(tmp_path / "digits.so")
    scores = module.run({"images": np.full((360, 1, 8, 8), 0.5, np.float32)})["logits"]
    (tmp_path / "first.c").write_text(block("c"))
    line = next(line.strip() for line in README.splitlines() if line.strip().startswith("cc "))
    places = {"first.c": tmp_path / "first.c", "first": tmp_path / "first"}
    command = [str(places.get(word, word)) for word in shlex.split(line)]
    subprocess.run(command, cwd=ROOT, check=True)
    done = subprocess.run([tmp_path / "first"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = re.fullmatch(r"the first image scores (\S+) as a zero\n", done.stdout)
    assert said is not None and float(said[1]) == pytest.approx(float(scores[0, 0]), rel=1e-4)
