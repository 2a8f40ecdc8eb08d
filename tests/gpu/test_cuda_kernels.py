"""Kernels by the runtime for CUDA, one by one, on the fake driver; on a GPU the other files run them all."""

from __future__ import annotations

import subprocess
import sys

import pytest
from burnish.compiler.target import TARGETS

from . import sanitizer, test_blocks, test_cells, test_conversions, test_tiles, test_window, test_winograd
from .cases import check_all, gpu_cases
from .on_this_device import small

CHUNKS = 8


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_operators_agree_with_their_references(driver, chunk):
    """Two cases of every operator, by every template."""
    cases = gpu_cases()
    names = sorted({case.op.name for case in cases})[chunk::CHUNKS]
    found = [c for name in names for c in small([case for case in cases if case.op.name == name])]
    check_all(found, TARGETS["cuda-sm80"])
    assert driver.launches and not driver.alive


def test_templates_agree_on_awkward_shapes(driver):
    """Conversions and Winograd's on every layout that they may have."""
    target = TARGETS["cuda-sm80"]
    test_conversions.check_all(test_conversions.TYPES, target)
    test_winograd.check_all(test_winograd.items(test_winograd.CASES[:3], target.name), target.name)
    check_all(test_blocks.CASES, target, only="blocks")
    check_all(test_tiles.CASES, target, only="tiles")
    check_all(test_window.CASES, target, only="window")
    check_all(test_cells.CASES, target, only="cells")
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
