"""Peers that a test cannot do without."""

from __future__ import annotations

import pytest
from burnish.commands.peers import Peer

from ..conftest import is_required

WITH_TESTS = ("onnxruntime", "litert", "gcc")
"""What comes with the packages for tests, or is among the tools that CI installs."""


def need(peer: Peer) -> None:
    """Skips the test where the peer is missing; fails it where BURNISH_REQUIRE names one that tests bring."""
    reason = peer.available()
    if reason is not None:
        fails = peer.name in WITH_TESTS and is_required(peer.name)
        (pytest.fail if fails else pytest.skip)(f"{peer.name} {reason}")
