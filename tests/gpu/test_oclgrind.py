"""Kernels under oclgrind: no races, no access outside of a buffer."""

from __future__ import annotations

from pathlib import Path

import pytest

from .oclgrind import report

MODULE = "-m", "tests.gpu.on_this_device"


@pytest.fixture
def oclgrind(opencl, require_tool) -> Path:
    return Path(require_tool("oclgrind"))


def test_it_finds_a_stray_access(oclgrind, tmp_path):
    assert "Invalid read of size 4" in report(oclgrind, tmp_path, *MODULE, "stray")


def test_operators_are_clean(oclgrind, tmp_path):
    words = "conv softmax transpose gather scatter topk lstm pool".split()
    assert report(oclgrind, tmp_path, *MODULE, *words) == ""


def test_a_module_is_clean(oclgrind, tmp_path):
    assert report(oclgrind, tmp_path, "-m", "burnish", "run", "digits", "--target", "opencl") == ""
