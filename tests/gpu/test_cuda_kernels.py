"""Kernels by the runtime for CUDA, one by one, on the fake driver; on a GPU the other files run them all."""

from __future__ import annotations

import subprocess
import sys

import pytest
from burnish.compiler.target import TARGETS

from . import sanitizer
from .cases import check_all
from .on_this_device import small_cases


def test_operators_agree_with_their_references(driver):
    check_all(small_cases("conv softmax transpose topk lstm".split()), TARGETS["cuda-sm80"])
    assert driver.launches and not driver.alive


@pytest.mark.parametrize("found", [0, 86])
def test_what_compute_sanitizer_says_is_shown(fake_gpu, tmp_path, found):
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(f'#!/bin/sh\necho "$1 $2 $3"\nshift 4\n"$@" || exit\nexit {found}\n')
    tool.chmod(0o755)
    environment = {**fake_gpu, "PATH": f"{tmp_path}:{fake_gpu['PATH']}"}
    command = [sys.executable, "-m", "tests.gpu.sanitizer", "racecheck", "conversions", "digits"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    said = "--tool racecheck --error-exitcode" if found else "clean"
    assert done.returncode == bool(found), done.stdout + done.stderr
    for name in ("conversions", "digits"):
        assert f"racecheck, {name}: {said}" in done.stdout
    assert ("1 passed" in done.stdout) == bool(found)


@pytest.mark.parametrize(
    ("targets", "message"), [([], "no NVIDIA GPU"), (["cuda-sm90"], "compute-sanitizer is not installed")]
)
def test_what_is_missing_is_said(monkeypatch, targets, message):
    monkeypatch.setattr(sanitizer, "cuda_targets", lambda: targets)
    monkeypatch.setattr(sanitizer.shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match=message):
        sanitizer.main()
