"""What this machine is, and the two limits that a kernel can be held against, measured in under a second.

The peak is that of fused multiply-adds in registers: one loop over independent accumulators in the
widest vectors of the CPU. The bandwidth is that of reading a buffer larger than the last-level cache.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from ..compiler.target import allowed_cpus, caches_here, caches_of, host_features
from ..op_tuner.hardware import cpu_model
from ..op_tuner.own_cores import machine_code, multiply_adds, seconds_at_once, vector_shape

TRIES = 4
PEAK_TRIES = 32  # short ones: where other work interrupts most of them, the best still shows the peak
SECONDS_PER_TRY = 0.0025
LOADS = 8  # vectors read per turn of the bandwidth loop

_ISA = (
    "sse4.2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vnni", "avx512bf16",
    "amx-tile", "amx-bf16", "avxvnni", "neon", "fp-armv8", "dotprod", "fullfp16", "bf16", "i8mm",
    "sve", "sve2",
)  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """By number of threads: float32 multiply-adds in GFLOP/s (two operations each), reads in GB/s."""

    gflops: dict[int, float]
    read_gbs: dict[int, float]


@dataclass(frozen=True)
class Machine:
    cpu: str
    cores: int  # that this process may use
    memory_bytes: int
    caches: dict[str, int]  # bytes, of one core's view: "L1d", "L2", "L3"
    isa: tuple[str, ...]
    system: str
    versions: dict[str, str] = field(default_factory=dict)

    def describe(self) -> str:
        caches = ", ".join(f"{name} {_size(size)}" for name, size in self.caches.items())
        widest = [name for name in ("amx-tile", "avx512f", "avx2", "neon", "sse4.2") if name in self.isa]
        isa = f", {widest[0]}" if widest else ""
        return f"{self.cpu}, {self.cores} cores{isa}, {caches or 'caches unknown'}, {self.system}"


def describe_machine() -> Machine:
    """Read from the system; takes milliseconds and fails on nothing."""
    packages = ("burnish", "llvmlite", "numpy", "onnx")
    versions = {"python": platform.python_version()}
    versions.update({package: found for package in packages if (found := _version(package))})
    versions["llvm"] = ".".join(map(str, llvm.llvm_version_info))
    features = host_features()
    return Machine(
        cpu=f"{cpu_model()} ({llvm.get_host_cpu_name()})",
        cores=len(allowed_cpus()),
        memory_bytes=_memory_bytes(),
        caches=_caches(),
        isa=tuple(name for name in _ISA if name in features),
        system=f"{platform.system()} {platform.release()}",
        versions=versions,
    )


def measure_limits(threads: Sequence[int] = (1,)) -> Limits:
    """The best of a few short tries for each number of threads: what nothing here can exceed."""
    gflops = {count: _peak(count) for count in threads}
    wanted = max(4 * _last_caches(), 64 << 20)
    buffer = np.ones(min(wanted, max(_memory_bytes() // 8, 256 << 20)) // 4, np.float32)
    read_gbs = {count: _bandwidth(buffer, count) for count in threads}
    return Limits(gflops, read_gbs)


@dataclass(frozen=True)
class _Read:
    """A loop over memory; `run` takes an address and turns."""

    run: Callable[[int, int], float]
    floats: int  # of one turn
    engine: Any  # owns the machine code


def _peak(threads: int) -> float:
    kernel = multiply_adds()
    seconds = min(seconds_at_once(lambda _: kernel.run(100_000), 1) for _ in range(2))
    turns = max(1, int(100_000 * SECONDS_PER_TRY / seconds))
    best = min(seconds_at_once(lambda _: kernel.run(turns), threads) for _ in range(PEAK_TRIES))
    return threads * turns * kernel.flops / best / 1e9


def _bandwidth(buffer: np.ndarray, threads: int) -> float:
    kernel = _read()
    turns = buffer.size // threads // kernel.floats
    step = turns * kernel.floats * buffer.itemsize

    def read(index: int) -> None:
        kernel.run(buffer.ctypes.data + index * step, turns)

    best = min(seconds_at_once(read, threads) for _ in range(TRIES))
    return threads * step / best / 1e9


def _read_text(floats: int) -> str:
    vector = f"<{floats} x float>"
    names = range(LOADS)
    phis = [f"  %a{i} = phi {vector} [ zeroinitializer, %entry ], [ %n{i}, %loop ]" for i in names]
    steps = []
    for i in names:
        steps.append(f"  %p{i} = getelementptr float, ptr %at, i64 {i * floats}")
        steps.append(f"  %v{i} = load {vector}, ptr %p{i}, align 4")
        steps.append(f"  %n{i} = fadd {vector} %a{i}, %v{i}")
    sums = [f"  %t{i} = fadd {vector} %{f't{i - 1}' if i > 1 else 'n0'}, %n{i}" for i in range(1, LOADS)]
    return "\n".join(
        [
            "define float @read(ptr %data, i64 %turns) {",
            "entry:",
            "  br label %loop",
            "loop:",
            "  %k = phi i64 [ %turns, %entry ], [ %next, %loop ]",
            "  %at = phi ptr [ %data, %entry ], [ %then, %loop ]",
            *phis,
            *steps,
            f"  %then = getelementptr float, ptr %at, i64 {LOADS * floats}",
            "  %next = sub i64 %k, 1",
            "  %more = icmp sgt i64 %next, 0",
            "  br i1 %more, label %loop, label %done",
            "done:",
            *sums,
            f"  %r = extractelement {vector} %t{LOADS - 1}, i32 0",
            "  ret float %r",
            "}",
        ]
    )


@functools.cache
def _read() -> _Read:
    floats, _, _ = vector_shape()
    engine = machine_code(_read_text(floats))
    run = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_void_p, ctypes.c_int64)(
        engine.get_function_address("read")
    )
    return _Read(run, LOADS * floats, engine)


def _caches() -> dict[str, int]:
    return {f"L{c.level}" + ("d" if c.kind == "Data" else ""): c.size for c in caches_here()}


def _last_caches() -> int:
    """Bytes of the last caches of all CPUs that this process may use: several where there are many cores."""
    last = (cache for cpu in allowed_cpus() for cache in caches_of(cpu)[-1:])
    return sum({cache.shared_by: cache.size for cache in last}.values())


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"
