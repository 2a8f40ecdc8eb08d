"""Whether threads have a core each at the moment, and to themselves.

The CPUs of a virtual machine are threads of its host, which now and then runs two of them on one core for
seconds, or another tenant's beside one: kernels of two threads then take up to twice as long, those of one a
quarter more, though each CPU has its usual clock. What tells is independent multiply-adds, of which one
thread's fill a core, beside a chain of dependent ones, which takes as long whoever shares the core.
"""

from __future__ import annotations

import ctypes
import math
import os
import platform
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import llvmlite.binding as llvm

from .cores import divide, pin

T = TypeVar("T")
SHARED = 1.15  # times the usual crowding from which on cores are shared
TRIES = 2
SECONDS = 0.0003  # of one try
PAUSE = 0.01  # seconds


class OwnCores:
    """Work that is done while each of `threads` has a core of its own, or as much of one as it usually has.
    Where there are none (a GPU's), or more than CPUs, nothing is asked.

    usual    the least crowding that was met twice running, since a chain that was disturbed makes one look
             seem too good; nothing is waited for before
    patience seconds that may still be lost by waiting, and by doing work again
    share    of the seconds that work takes, by which patience grows
    shared   how often work counts though they had not, since there was no patience left
    """

    def __init__(self, threads: int, usual: float = math.inf, patience: float = 0.0, share: float = 0.0):
        self.threads = threads if len(divide(threads).measuring) >= threads else 0
        self.usual, self.patience, self.share = usual, patience, share
        self.shared = 0
        self._last = math.inf

    def look(self) -> bool:
        """Whether they have one now."""
        if not self.threads:
            return True
        try:
            found = crowding(self.threads)
        except RuntimeError:  # there may be no more threads
            return True
        self.usual = min(self.usual, max(found, self._last))
        self._last = found
        return found <= SHARED * self.usual

    def during(self, work: Callable[[], T], rest: Callable[[], object] = lambda: None) -> T:
        """What `work` gives; it is done again while cores were shared before or after it, and there is
        patience for as long as it took. `rest` waits until threads that did the work sleep."""
        while True:
            rest()
            apart = self._waits()
            start = time.monotonic()
            result = work()
            took = time.monotonic() - start
            rest()
            apart = self.look() and apart
            if apart or self.patience < took:
                self.shared += not apart
                self.patience += self.share * took
                return result
            self.patience -= took

    def _waits(self) -> bool:
        """Whether each thread has a core in the end."""
        apart = self.look()
        while not apart and self.patience > 0:
            start = time.monotonic()
            time.sleep(PAUSE)
            apart = self.look()
            self.patience -= time.monotonic() - start
        return apart


def crowding(threads: int) -> float:
    """How long independent multiply-adds take in so many threads at once, in multiply-adds of a chain."""
    return _turn(multiply_adds(), threads) / _turn(multiply_adds(chain=True), 1)


def _turn(kernel: MultiplyAdds, threads: int) -> float:
    """Seconds of a turn in the slowest thread. Many threads do not begin at once; that counts for none."""
    turns = max(1, round(SECONDS / _usual(kernel)))
    cpus = sorted(divide(threads).measuring)
    tries = (spans_at_once(lambda _: kernel.run(turns), threads, cpus) for _ in range(TRIES))
    return min(max(end - start for start, end in spans) for spans in tries) / turns


@cache
def _usual(kernel: MultiplyAdds) -> float:
    """Seconds of a turn, about."""
    turns = 10_000
    tries = (spans_at_once(lambda _: kernel.run(turns), 1) for _ in range(TRIES))
    return min(end - start for ((start, end),) in tries) / turns


def seconds_at_once(work: Callable[[int], object], threads: int) -> float:
    """From the first start to the last end of `work(index)` in that many threads."""
    starts, ends = zip(*spans_at_once(work, threads))
    return max(ends) - min(starts)


def spans_at_once(
    work: Callable[[int], object], threads: int, cpus: Sequence[int] = ()
) -> list[tuple[float, float]]:
    """When `work(index)` started and ended in that many threads which begin at once: wherever the system puts
    them, or each on one of these CPUs."""
    barrier = threading.Barrier(threads)
    spans = [(0.0, 0.0)] * threads

    def body(index: int) -> None:
        pin(cpus[index : index + 1])
        barrier.wait()
        start = time.perf_counter()
        work(index)
        spans[index] = (start, time.perf_counter())

    others = [threading.Thread(target=body, args=(index,)) for index in range(1, threads)]
    own = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    try:
        for thread in others:
            thread.start()
        body(0)
    except BaseException:
        barrier.abort()
        raise
    finally:
        pin(own)
    for thread in others:
        thread.join()
    return spans


@dataclass(frozen=True, eq=False)
class MultiplyAdds:
    """A loop over accumulators in registers; `run` takes its turns."""

    run: Callable[[int], float]
    flops: int  # of one turn
    engine: Any  # owns the machine code


@cache
def multiply_adds(chain: bool = False) -> MultiplyAdds:
    """Independent ones, or those of a chain."""
    floats, accumulators, fused = vector_shape()
    accumulators = 1 if chain else accumulators
    adds_to = platform.machine() == "aarch64"
    engine = machine_code(multiply_adds_text(floats, accumulators, fused, adds_to))
    # ctypes releases the interpreter's lock around CFUNCTYPE calls: threads do run at once.
    run = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_int64)(engine.get_function_address("fma"))
    return MultiplyAdds(run, 2 * floats * accumulators, engine)


def machine_code(text: str) -> Any:
    """For this machine, of LLVM's text."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
    engine.finalize_object()
    return engine


def vector_shape() -> tuple[int, int, bool]:
    """Floats per vector, accumulators (with two operands they fit the registers), fused multiply-add."""
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        return 16, 24, True
    if features.get("avx2") and features.get("fma"):
        return 8, 12, True
    if features.get("neon") or features.get("fp-armv8"):
        return 4, 24, True
    return 4, 12, False


def multiply_adds_text(floats: int, accumulators: int, fused: bool, adds_to: bool = False) -> str:
    """`adds_to`: an instruction writes its result over what it adds to (AArch64), not over a factor (x86)."""
    vector = f"<{floats} x float>"
    names = range(accumulators)
    phis = [f"  %a{i} = phi {vector} [ %s{i}, %entry ], [ %n{i}, %loop ]" for i in names]
    # Starting values differ, so that no accumulator is found equal to another.
    starts = []
    for i in names:
        starts.append(f"  %i{i} = insertelement {vector} poison, float {i + 1}.0, i32 0")
        starts.append(
            f"  %s{i} = shufflevector {vector} %i{i}, {vector} poison, <{floats} x i32> zeroinitializer"
        )
    half = ", ".join(["float 0.5"] * floats)
    if adds_to:
        starts += [
            "  %size = uitofp i64 %turns to float",
            "  %small = fmul float %size, 0x3BC79CA100000000",  # unknown to LLVM; sums stay finite
            f"  %one = insertelement {vector} poison, float %small, i32 0",
            f"  %x = shufflevector {vector} %one, {vector} poison, <{floats} x i32> zeroinitializer",
        ]
        call = f"call {vector} @llvm.fma.v{floats}f32({vector} %x, {vector} %x, {vector} %a{{i}})"
        steps = [f"  %n{i} = {call.format(i=i)}" for i in names]
    elif fused:
        call = f"call {vector} @llvm.fma.v{floats}f32({vector} %a{{i}}, {vector} <{half}>, {vector} <{half}>)"
        steps = [f"  %n{i} = {call.format(i=i)}" for i in names]
    else:
        steps = []
        for i in names:
            steps.append(f"  %m{i} = fmul {vector} %a{i}, <{half}>")
            steps.append(f"  %n{i} = fadd {vector} %m{i}, <{half}>")
    sums = [
        f"  %t{i} = fadd {vector} %{f't{i - 1}' if i > 1 else 'n0'}, %n{i}" for i in range(1, accumulators)
    ]
    last = f"t{accumulators - 1}" if sums else "n0"
    return "\n".join(
        [
            f"declare {vector} @llvm.fma.v{floats}f32({vector}, {vector}, {vector})",
            "define float @fma(i64 %turns) {",
            "entry:",
            *starts,
            "  br label %loop",
            "loop:",
            "  %k = phi i64 [ %turns, %entry ], [ %next, %loop ]",
            *phis,
            *steps,
            "  %next = sub i64 %k, 1",
            "  %more = icmp sgt i64 %next, 0",
            "  br i1 %more, label %loop, label %done",
            "done:",
            *sums,
            f"  %r = extractelement {vector} %{last}, i32 0",
            "  ret float %r",
            "}",
        ]
    )
