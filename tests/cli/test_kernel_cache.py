"""Kernels on disk: whole or not there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from burnish import kernel_cache, pipeline
from burnish.compiler.kernel_task import DefaultConfig
from burnish.compiler.target import host


@pytest.fixture
def compiled(two_layers, tmp_path, monkeypatch):
    """Compiles with a cache of its own and returns what the module computes; and the cache's folder."""
    runtime = pipeline.compile(two_layers, dims={"batch": 3})  # built where it is found again
    assert runtime.inputs
    monkeypatch.setenv("BURNISH_CACHE_DIR", str(tmp_path))
    x = np.random.default_rng(0).standard_normal((3, 4), np.float32)

    def run() -> list:
        module = pipeline.compile(two_layers, dims={"batch": 3}, threads=2)
        return [(s.kernel, s.tasks) for s in module.steps] + module.run({"x": x})["y"].ravel().tolist()

    return run, tmp_path / "kernels"


@pytest.mark.parametrize("other", [{"features": host().features[:-1]}, {"l2": 2 * host().l2}], ids=str)
def test_a_cpu_of_the_same_name_with_other_features_has_its_own(compiled, monkeypatch, other):
    """A hypervisor may hide half of a CPU's vectors."""
    run, folder = compiled
    run()
    before = set(folder.iterdir())
    monkeypatch.setattr(pipeline, "get_target", lambda target: replace(host(), **other))
    run()
    assert before and not before & (set(folder.iterdir()) - before)
    assert len(set(folder.iterdir())) == 2 * len(before)


@pytest.mark.parametrize("change", ["code_version", "llvmlite"])
def test_another_burnish_or_llvm_has_its_own(compiled, monkeypatch, change):
    run, folder = compiled
    expected = run()
    before = set(folder.iterdir())
    if change == "llvmlite":
        monkeypatch.setattr(kernel_cache.llvmlite, "__version__", "0.0")
    else:
        monkeypatch.setattr(kernel_cache, "code_version", lambda: "other")
    assert run() == expected
    assert before and len(set(folder.iterdir())) == 2 * len(before)


class Own:
    def choose(self, knob, options, default):
        return options[-1]

    def require(self, condition, reason=""):
        assert condition


class Derived(DefaultConfig):
    """Whose answers are empty, as those of the default rule."""

    def choose(self, knob, options, default):
        return options[-1]


@pytest.mark.parametrize("Own", [Own, Derived])
def test_what_a_callers_own_config_gives_is_not_kept(compiled, two_layers, Own):
    run, folder = compiled
    pipeline.compile(two_layers, dims={"batch": 3}, threads=2, pick_config=lambda task: Own())
    assert not folder.exists() or not list(folder.iterdir())
    run()
    assert list(folder.iterdir())


def damage(path: Path, how: int) -> None:
    data = bytearray(path.read_bytes())
    if how < 0:
        data = data[:how]
    else:
        data[how] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("how", [0, 31, 32, 70, 90, 120, 600, -1, -100, -10_000])
def test_damaged_entries_are_made_again(compiled, how):
    run, folder = compiled
    expected = run()
    entries = {path: path.read_bytes() for path in folder.iterdir()}
    assert len(entries) >= 2 and all(len(path.name) == 64 for path in entries)
    for path in entries:
        damage(path, how)
    assert run() == expected
    assert {path: path.read_bytes() for path in folder.iterdir()} == entries


def test_a_full_disk_is_no_error_and_leaves_nothing(compiled, monkeypatch):
    run, folder = compiled
    expected = run()
    for path in folder.iterdir():
        path.unlink()

    def full(*names):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    assert run() == expected
    assert list(folder.iterdir()) == []
