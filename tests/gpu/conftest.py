"""Skips what needs an OpenCL driver where there is none; the fake driver of CUDA."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import burnish
import pytest
from burnish.compiler.target import TARGETS, Target, get_target
from burnish.settings import GPU_POISON, OPENCL_CACHE

from ..conftest import is_required
from .cuda_model import gather
from .device import cuda_targets, queue
from .fake_driver import NVCC, FakeDriver, build, has_real_driver


@pytest.fixture(scope="module", autouse=True)
def settings() -> Iterator[None]:
    """No programs in the user's cache folder, and memory of GPUs that is not zero at first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(OPENCL_CACHE.name, "0")
        patch.setenv(GPU_POISON.name, "1")
        yield


@pytest.fixture(scope="session")
def opencl() -> str:
    """The name of the OpenCL device that the tests run on."""
    if queue() is None:
        what = "no OpenCL driver or no pyopencl (Debian: pocl-opencl-icd; pip install pyopencl)"
        (pytest.fail if is_required("opencl") else pytest.skip)(what)
    return queue().device.name


ON_OPENCL, ON_CUDA = ["opencl"], cuda_targets()


@pytest.fixture(scope="session", params=[*ON_OPENCL, *ON_CUDA])
def device(request) -> Target:
    """What kernels run on here: an OpenCL driver, and an NVIDIA GPU if there is one."""
    return _runnable(request)


@pytest.fixture(scope="session", params=[*ON_OPENCL, "mali-t860", *ON_CUDA])
def every_device(request) -> Target:
    """The same, and a chip without memory that threads share, whose kernels an OpenCL driver runs, too."""
    return _runnable(request)


def _runnable(request) -> Target:
    target = get_target("cuda") if request.param in ON_CUDA else TARGETS[request.param]
    assert target.gpu is not None
    if target.gpu.language == "opencl":
        request.getfixturevalue("opencl")
    return target


@pytest.fixture(scope="session")
def driver_file(tmp_path_factory, require_tool) -> Path:
    require_tool("gcc")
    require_tool("g++")
    return build(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def fake_gpu(driver_file) -> dict[str, str]:
    """The environment of processes that find the fake driver."""
    return {**os.environ, "LD_LIBRARY_PATH": str(driver_file.parent), "CUDACXX": NVCC}


@pytest.fixture(scope="session")
def loaded(driver_file) -> FakeDriver:
    if has_real_driver():
        pytest.skip("a real driver is here")
    return FakeDriver(driver_file)


@pytest.fixture
def driver(loaded, monkeypatch) -> Iterator[FakeDriver]:
    """Whatever a test does: nothing is used wrongly, and nothing stays alive."""
    monkeypatch.setenv("CUDACXX", NVCC)
    loaded.reset()
    yield loaded
    assert not loaded.violations


@pytest.fixture(scope="session")
def saved(tmp_path_factory) -> Path:
    """A module for the fake driver."""
    path = tmp_path_factory.mktemp("modules") / "gather.so"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDACXX", NVCC)
        burnish.compile(gather(), target="cuda-sm80").save(path)
    return path
