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


def test_what_linux_says_of_a_neoverse_n1_is_enough_for_it():
    """The words of a Graviton 2; LLVM asks for neon, crc and the like alone."""
    found = target._of_hwcaps(0x119FFF, 0)
    assert found >= set(target.TARGETS["neoverse-n1"].features) and not found & {"sve", "i8mm", "bf16"}
    assert target._of_hwcaps(0x3, 0) == {"fp-armv8", "neon"}
