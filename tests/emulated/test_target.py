"""`host` on an ARM machine."""

from __future__ import annotations

import pytest
from burnish.compiler import target
from burnish.errors import InputError


@pytest.mark.parametrize(
    ("features", "name"),
    [({"fp-armv8", "neon", "sve"}, "cortex-a72"), (set(target.TARGETS["cortex-a76"].features), "cortex-a76")],
)
def test_an_arm_machine_finds_what_it_can_run(monkeypatch, features, name):
    monkeypatch.setattr(target, "_this_cpu", lambda: ("aarch64", frozenset(features)))
    monkeypatch.setattr(target.llvm, "get_host_cpu_name", lambda: "cortex-a72")
    found, like = target.host.__wrapped__(), target.TARGETS[name]
    assert (found.name, found.arch, found.features) == ("host", "aarch64", like.features)
    assert (found.vector_bits, found.vector_registers) == (128, 32)
    assert (found.cpu, found.multiply_adds) == ("cortex-a72", like.multiply_adds)
    assert target.runs_here(like) and not target.runs_here(target.TARGETS["x86-64"])


def test_a_machine_without_vectors_is_refused(monkeypatch):
    monkeypatch.setattr(target, "_this_cpu", lambda: ("aarch64", frozenset()))
    with pytest.raises(InputError, match="lacks SSE4\\.2 or NEON"):
        target.host.__wrapped__()
