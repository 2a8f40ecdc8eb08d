"""benchmarks/arm_instructions.py counts: pointwise convolutions take few instructions beside products."""

from __future__ import annotations

import re

import pytest

from .scripts import script


def test_a_pointwise_convolution_is_mostly_products(require_tool, monkeypatch, capsys):
    for tool in ("aarch64-linux-gnu-gcc", "qemu-aarch64"):
        require_tool(tool)
    monkeypatch.setattr("sys.argv", ["arm_instructions.py", "c3", "--target", "cortex-a72"])
    assert script("arm_instructions").main() == 0
    found = re.search(r"c3 +burnish.*: instructions ([\d.]+) M, fmla ([\d.]+) M", capsys.readouterr().out)
    assert found
    instructions, products = map(float, found.groups())
    assert products == pytest.approx(56 * 56 * 64 * 64 / 4e6, rel=0.01)
    assert instructions < 1.5 * products


def test_what_is_missing_is_named(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("sys.argv", ["arm_instructions.py", "c3"])
    assert script("arm_instructions").main() == 1
    assert capsys.readouterr().err == "error: there is no qemu-aarch64 that counts; install qemu-user\n"
