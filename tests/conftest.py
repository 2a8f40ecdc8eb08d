"""Fixtures for all tests."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from burnish.errors import BurnishError
from burnish.runtime.mali import find_root
from burnish.runtime.nvcc import find_nvcc
from burnish.settings import DEBUG, GPU_POISON, OPENCL_CACHE, cache_dir
from hypothesis import settings

if (user := cache_dir()).name != "tests":  # as it is in workers
    os.environ["BURNISH_CACHE_DIR"] = str(user / "tests")  # not the user's own records and pace
for knob in (DEBUG, GPU_POISON, OPENCL_CACHE):
    os.environ.pop(knob.name, None)
# A change that has no part in it breaks no test, nor does a machine that is busy.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
STATES: dict[tuple[str, str], Any] = {}
"""Of modules' random generators, as the first test found them."""


@pytest.fixture(autouse=True)
def own_numbers(request: pytest.FixtureRequest) -> None:
    """A test gets the same numbers alone and behind any others of its module."""
    for name, value in vars(request.module).items():
        if isinstance(value, np.random.Generator):
            state = STATES.setdefault((request.module.__name__, name), deepcopy(value.bit_generator.state))
            value.bit_generator.state = deepcopy(state)


def is_required(name: str) -> bool:
    """Whether BURNISH_REQUIRE says that a test may not be skipped for the want of this."""
    wanted = {w.strip() for w in os.environ.get("BURNISH_REQUIRE", "").split(",")}
    return not wanted.isdisjoint({"all", name})


def require_module(name: str) -> ModuleType:
    """A package that Burnish can do without. Where it is missing it is as with `require_tool`."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if is_required(name):
            pytest.fail(str(error))
        pytest.skip(str(error), allow_module_level=True)


@pytest.fixture(scope="session")
def require_tool() -> Callable[[str], str]:
    """The path of a tool. Without it the test is skipped, or fails where BURNISH_REQUIRE (names separated by
    commas, or "all") names it."""

    def find(name: str) -> str:
        path = shutil.which(name)
        if path is None:
            (pytest.fail if is_required(name) else pytest.skip)(f"{name} is not installed")
        return path

    return find


@pytest.fixture
def nvcc() -> tuple[str, ...]:
    """The command; it may come from a package."""
    try:
        return find_nvcc()
    except BurnishError as error:
        (pytest.fail if is_required("nvcc") else pytest.skip)(str(error))


@pytest.fixture
def mali_root(require_tool: Callable[[str], str]) -> Path:
    """$BURNISH_MALI_ROOT, where Mesa's compiler for Mali and an emulator are."""
    require_tool("qemu-aarch64-static")
    try:
        return find_root(None)
    except BurnishError as error:
        (pytest.fail if is_required("mali") else pytest.skip)(str(error))
