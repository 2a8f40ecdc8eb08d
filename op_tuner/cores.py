"""Which cores measure, which are left for everything else, and how processes keep to them."""

from __future__ import annotations

import fcntl
import os
import platform
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TextIO

from ..compiler.target import allowed_cpus, fast_cpus, host_threads
from ..errors import InputError
from ..settings import cache_dir

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
_POLL = 0.005  # seconds
_CAN_PIN = hasattr(os, "sched_setaffinity")


@dataclass(frozen=True)
class Cores:
    """Logical CPUs. The spare ones share no core with those that measure; there may be none."""

    measuring: frozenset[int]
    spare: frozenset[int]


def allowed_cores() -> list[frozenset[int]]:
    """Of these CPUs those of each core, the first core first."""
    allowed = allowed_cpus()
    return sorted({frozenset(_siblings(cpu) & allowed) for cpu in allowed}, key=min)


def divide(threads: int) -> Cores:
    """One CPU of each of as many cores as there are threads: fast ones first, of these the last, since the
    first one serves interrupts. Every CPU where there are too few.

    No more are spare than the limit of a container leaves: what others use up of it, those that measure lack.
    """
    fast = fast_cpus()
    groups = sorted(allowed_cores(), key=lambda group: min(group) in fast)
    if threads > len(groups):
        return Cores(frozenset().union(*groups), frozenset())
    split = len(groups) - threads
    spare = [cpu for group in groups[:split] for cpu in group]
    if (most := host_threads()) < len(allowed_cpus()):
        spare = spare[: max(0, most - threads)]
    return Cores(frozenset(min(group) for group in groups[split:]), frozenset(spare))


@cache
def _siblings(cpu: int) -> frozenset[int]:
    """The CPUs of one core; itself where the system does not say."""
    try:
        parts = Path(_TOPOLOGY.format(cpu)).read_text().strip().split(",")
        ends = [[int(n) for n in part.split("-")] for part in parts]
    except (OSError, ValueError):
        return frozenset({cpu})
    return frozenset({cpu, *(n for end in ends for n in range(end[0], end[-1] + 1))})


def pin(cpus: Collection[int], thread: int = 0) -> None:
    """This thread, or another of this process, and what it starts from now on run there only. Nothing happens
    where the system cannot do that."""
    if _CAN_PIN and cpus:
        with suppress(OSError):
            os.sched_setaffinity(thread, cpus)


@contextmanager
def reserved(cpus: Collection[int], patience: float) -> Iterator[None]:
    """Meanwhile no other process of this user that asks for one of these CPUs here measures there: two tuners
    take turns. Nobody is waited for longer than `patience` seconds."""
    end = time.monotonic() + patience
    with ExitStack() as held:
        with suppress(OSError, InputError):  # where nothing can be kept, nothing is waited for
            folder = cache_dir() / "measuring" / _this_boot()
            folder.mkdir(parents=True, exist_ok=True)
            for cpu in sorted(cpus):  # all in the same order, so that nobody waits for who waits for it
                _lock(held.enter_context((folder / f"cpu{cpu}").open("a")), end)
        yield


@cache
def _this_boot() -> str:
    """Names the machine for containers on it, and no other one that has the same folders."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return platform.node()


def _lock(file: TextIO, end: float) -> None:
    """Until it is closed."""
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return
            time.sleep(_POLL)
        else:
            return


def one_blas_thread() -> None:
    """Products of matrices in this process (numpy's, scipy's) are computed by one thread from now on. Several
    would wait for each other where the process keeps to one core, and take those of others where it does not.

    Nothing happens without threadpoolctl, which `burnish[tune]` installs."""
    with suppress(ImportError):
        from threadpoolctl import threadpool_limits

        threadpool_limits(1, user_api="blas")


@contextmanager
def keeping_to(cpus: Collection[int]) -> Iterator[None]:
    """All threads of this process keep to these CPUs, if any, and return to their own afterwards."""
    if not (_CAN_PIN and cpus):
        yield
        return
    own, before = os.sched_getaffinity(0), {}
    for thread in _threads():
        with suppress(OSError):  # it has ended
            before[thread] = os.sched_getaffinity(thread)
            pin(cpus, thread)
    try:
        yield
    finally:
        for thread in _threads():
            pin(before.get(thread, own), thread)


def _threads() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc/self/task")]
    except OSError:
        return [os.getpid()]
