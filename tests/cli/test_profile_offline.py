"""`burnish profile --offline`: what a GPU's compiler says of every kernel."""

from __future__ import annotations

import pytest
from burnish.runtime.mali import Shader

SHADER = Shader(1161, 72, {"arithmetic": 38.0417, "load/store": 72}, 64, 8, 9)


class Said:
    """A compiler that says the same of every kernel, and remembers what it was asked."""

    programs: tuple[str, ...] = ()

    def __init__(self, chip, root):
        self.chip = chip

    def compile(self, programs):
        Said.programs = tuple(programs)
        return (SHADER for _ in programs)


def test_every_kernel_is_listed_with_its_counts(burnish, monkeypatch):
    monkeypatch.setattr("burnish.commands.profile_offline.MaliCompiler", Said)
    said = burnish("profile", "digits", "--offline", "mali-g52", "--target", "mali-t860").stdout
    rows = [line for line in said.splitlines() if "1161" in line]
    assert rows and len(rows) == len(Said.programs) and all(p.count("__kernel") == 1 for p in Said.programs)
    assert all(row.split()[2:] == ["1161", "72", "38.04", "72", "64", "8", "9"] for row in rows)
    assert f"{len(rows)} kernels for mali-t860, compiled for mali-g52" in said
    assert f"at most 64 registers a thread, {len(rows)} with spills" in said


@pytest.mark.parametrize(("chip", "target"), [("mali-g31", "mali-g76"), ("mali-t880", "mali-t860")])
def test_code_is_for_the_nearest_target(burnish, monkeypatch, chip, target):
    monkeypatch.setattr("burnish.commands.profile_offline.MaliCompiler", Said)
    said = burnish("profile", "digits", "--offline", chip).stdout
    assert f"kernels for {target}, compiled for {chip}" in said


def test_mesa_says_it(burnish, mali_root):
    said = burnish("profile", "digits", "--offline", "mali-g76", "--root", mali_root).stdout
    assert "load/store" in said and "conv_relu" in said and "none with spills" in said


def test_what_is_asked_must_fit(burnish, error, monkeypatch, tmp_path):
    monkeypatch.delenv("BURNISH_MALI_ROOT", raising=False)
    offline = ("profile", "digits", "--offline", "mali-g76")
    assert "give --root or BURNISH_MALI_ROOT" in error(*offline)
    assert "unpack Debian's ocl-icd-libopencl1 for arm64 there" in error(*offline, "--root", tmp_path)
    assert "target x86-64 is something else" in error(*offline, "--target", "x86-64")
    assert "has no times" in error(*offline, "--sort", "time")
    assert "give both" in error("profile", "digits", "--root", tmp_path)
    assert "'mali-x1' is not one of" in burnish("profile", "digits", "--offline", "mali-x1", code=2).stderr
