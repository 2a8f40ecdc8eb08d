"""ResNet-18 in a C program: no Python, no toolkit, nothing but libc and a driver, here the fake one."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import burnish
import numpy as np
import pytest
from burnish.commands.outputs import reference_outputs
from burnish.commands.peers import Network
from burnish.models import zoo
from burnish.runtime.build import HERE, include_dir, source_dir

from .fake_driver import NVCC, has_real_driver

IMAGE = 16  # pixels: the emulated kernels are slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory, require_tool, driver_file) -> Path:
    """The program, the module and an image."""
    folder = tmp_path_factory.mktemp("program")
    source = HERE.parent / "examples" / "c" / "gpu.c"
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{include_dir()}", f"-I{source_dir()}"]
    command = [require_tool("gcc"), *flags, source, source_dir() / "open.c", "-o", folder / "gpu", "-ldl"]
    subprocess.run(command, check=True)
    model = zoo.build("resnet18", image=IMAGE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDACXX", NVCC)
        burnish.compile(model, target="cuda-sm80").save(folder / "resnet18.so")
    (folder / "image.raw").write_bytes(zoo.random_inputs(model, 0)["x"].tobytes())
    return folder


def libraries(file: Path) -> set[str]:
    done = subprocess.run(["ldd", file], capture_output=True, text=True, check=True)
    return {line.split()[0].rpartition("/")[2].partition(".")[0] for line in done.stdout.splitlines()}


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    command = [folder / "gpu", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_it_needs_libc_alone(folder, require_tool):
    require_tool("ldd")
    allowed = {"linux-vdso", "libc", "libdl", "libpthread", "ld-linux-x86-64", "ld-linux-aarch64"}
    for name in ("gpu", "resnet18.so"):
        assert "libc" in libraries(folder / name) <= allowed


def test_it_classifies_as_onnxruntime_does(folder, driver_file):
    done = run(folder, "resnet18.so", "image.raw", "1", LD_LIBRARY_PATH=str(driver_file.parent))
    assert done.returncode == 0, done.stderr
    found = re.findall(r"class (\d+): (-?[\d.]+)", done.stdout)
    model = zoo.build("resnet18", image=IMAGE)
    expected = reference_outputs(Network("resnet18", model), zoo.random_inputs(model, 0))
    assert expected is not None  # onnxruntime's
    scores = expected["logits"][0]
    assert [int(number) for number, _ in found] == list(np.argsort(-scores)[:5])
    difference = np.abs([float(text) for _, text in found] - np.sort(scores)[:-6:-1])
    assert difference.max() <= 1e-4 * np.abs(scores).max()
    assert "best of 1 runs on the GPU" in done.stdout


@pytest.mark.skipif(has_real_driver(), reason="a driver is here")
def test_what_is_wrong_is_one_line(folder, driver_file, tmp_path):
    here = str(driver_file.parent)
    (tmp_path / "short.raw").write_bytes(b"1234")
    for arguments, environment, message in (
        (("resnet18.so", "image.raw"), {}, "there is no libcuda.so.1 here"),
        (("resnet18.so", str(tmp_path / "short.raw")), {"LD_LIBRARY_PATH": here}, "bytes, read 4"),
        (("nothing.so", "image.raw"), {"LD_LIBRARY_PATH": here}, "nothing.so"),
        (("resnet18.so", "image.raw", "0"), {"LD_LIBRARY_PATH": here}, "usage"),
    ):
        done = run(folder, *arguments, **environment)
        assert done.returncode in (1, 2) and message in done.stderr and done.stderr.count("\n") == 1


def test_modules_for_cpus_are_refused(folder, tmp_path):
    burnish.compile(zoo.build("digits")).save(tmp_path / "digits.so")
    done = run(folder, str(tmp_path / "digits.so"), "image.raw")
    assert done.returncode == 1 and "expected a module for CUDA" in done.stderr
