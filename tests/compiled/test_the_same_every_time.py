"""Modules do not depend on where, when and in which process they are made, and ask for nothing but libc."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from burnish.models import zoo

from .quantised import network

NAMES = ("digits", "dqn", "quantised")
WEIGHTS = ("packed", "compact")
MAKE = f"""
import sys, burnish
for name in {NAMES}:
    for weights in {WEIGHTS}:
        module = burnish.compile(name + ".onnx", weights=weights, threads=2, cache=False)
        for suffix in ("so", "a"):
            module.save(f"{{sys.argv[1]}}/{{name}}-{{weights}}.{{suffix}}")
"""
RUNTIME = {"libc", "libm", "libpthread", "ld-linux-x86-64", "ld-linux-aarch64"}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> list[Path]:
    """Two folders of the same modules, from processes with other seeds of hash tables and other folders."""
    folders = []
    for seed in ("1", "2"):
        folder = tmp_path_factory.mktemp(f"made{seed}")
        models, temporary = folder / f"models of {seed}", folder / "temporary"
        for inner in (models, temporary):
            inner.mkdir()
        for name in NAMES:
            onnx.save(network(24) if name == "quantised" else zoo.build(name), models / f"{name}.onnx")
        own = {"PYTHONHASHSEED": seed, "TMPDIR": str(temporary), "BURNISH_CACHE_DIR": str(folder / "cache")}
        command = [sys.executable, "-c", MAKE, str(folder)]
        done = subprocess.run(command, cwd=models, env={**os.environ, **own}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert not list(temporary.iterdir())
        folders.append(folder)
    return folders


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("name", NAMES)
def test_two_processes_make_the_same_files(made, name, weights):
    for suffix in ("so", "a", "h"):
        first, second = ((folder / f"{name}-{weights}.{suffix}").read_bytes() for folder in made)
        assert first == second, suffix
        assert str(made[0]).encode() not in first


@pytest.mark.parametrize("name", NAMES)
def test_modules_need_only_the_system(made, name, require_tool):
    command = [require_tool("readelf"), "-d", made[0] / f"{name}-packed.so"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert {line.split("[")[1].split(".so")[0] for line in text.splitlines() if "(NEEDED)" in line} <= RUNTIME
