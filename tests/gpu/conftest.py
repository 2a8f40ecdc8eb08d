"""Skips what needs an OpenCL driver where there is none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from burnish.settings import OPENCL_CACHE

from ..conftest import is_required
from .device import queue


@pytest.fixture(scope="session", autouse=True)
def keep_no_programs() -> Iterator[None]:
    """In the user's cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(OPENCL_CACHE.name, "0")
        yield


@pytest.fixture(scope="session")
def opencl() -> str:
    """The name of the OpenCL device that the tests run on."""
    if queue() is None:
        what = "no OpenCL driver or no pyopencl (Debian: pocl-opencl-icd; pip install pyopencl)"
        (pytest.fail if is_required("opencl") else pytest.skip)(what)
    return queue().device.name
