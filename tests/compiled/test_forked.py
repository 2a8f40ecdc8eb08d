"""What crashes in a child process is a message, and the items after it still run."""

import ctypes
import os

import pytest

from .forked import run_forked
from .guarded import GuardedMemory


def work(item: str) -> str | None:
    if item == "crash":
        ctypes.string_at(0)
    if item == "raise":
        raise ValueError("no good")
    if item == "exit":
        os._exit(3)
    return "failed" if item == "fail" else None


@pytest.mark.parametrize("processes", [1, 2])
def test_every_item_has_its_result(processes: int) -> None:
    items = ["pass", "crash", "raise", "pass", "exit", "fail", "crash"]
    found = run_forked(items, work, processes)
    assert [m and m.strip().splitlines()[-1] for m in found] == [
        None,
        "the process died: SIGSEGV",
        "ValueError: no good",
        None,
        "the process died: exit 3",
        "failed",
        "the process died: SIGSEGV",
    ]


@pytest.mark.parametrize("nbytes", [1, 24, 4096, 5000])
@pytest.mark.parametrize("offset", [-1, 0])
def test_guard_pages_stand_at_either_side(nbytes: int, offset: int) -> None:
    def touch(delta: int) -> None:
        memory = GuardedMemory(nbytes, at_end=offset == 0)
        ctypes.c_ubyte.from_address(memory.address + delta).value = 7

    inside, outside = (nbytes - 1, nbytes) if offset == 0 else (0, -1)
    assert run_forked([inside, outside], touch) == [None, "the process died: SIGSEGV"]


def test_a_write_beside_the_memory_is_seen() -> None:
    memory = GuardedMemory(24, at_end=True, align=64)
    assert memory.slack_is_untouched()
    ctypes.c_ubyte.from_address(memory.address + 24).value = 0
    assert not memory.slack_is_untouched()
    memory.close()
