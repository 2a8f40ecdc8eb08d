"""The tools without which nothing here can run."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def aarch64(require_tool) -> None:
    """A compiler for AArch64 and an emulator."""
    require_tool("aarch64-linux-gnu-gcc")
    require_tool("qemu-aarch64-static")
