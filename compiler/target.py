"""Targets: what a machine can do, as pure data. `host()` reads it off this machine."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from ..errors import InputError
from .cuda_device import find_cuda_device
from .opencl_device import find_device

KIB, MIB = 1024, 1024 * 1024
CPUS, CPU_LIMIT = Path("/sys/devices/system/cpu"), Path("/sys/fs/cgroup/cpu.max")
FAST = 0.85
"""Of the fastest CPU's speed: cores of one kind differ by less, some being allowed more of a boost."""


@dataclass(frozen=True)
class Gpu:
    """What a block of threads may use, and how many blocks run at once."""

    language: str  # opencl or cuda
    units: int  # that each run blocks of their own
    warp: int  # threads that run in step
    block_threads: int  # of one block, at most
    shared: int  # bytes of fast memory that a block may share; 0 where it would be no faster than global
    registers: int  # of 32 bits that one thread may use while enough others run beside it
    fma: bool  # whether a fused multiply-add is as fast as a product
    rate: float  # multiply-adds of f32 that a unit can do in a second
    bandwidth: float  # bytes a second from memory
    launch: float = 5e-6  # seconds from the end of one kernel to the next one's work
    tensor: float = 0.0  # multiply-adds of tensor cores in TF32, times `rate`; twice that in 16 bits; 0: none
    asynchronous: bool = False  # whether threads copy to shared memory without waiting
    exchanges: bool = False  # whether threads of a warp read each other's registers
    together: bool = False  # whether blocks may wait for each other, one for each of the `units`
    overlaps: bool = False  # whether a kernel may begin before the one before it has ended, and wait for it


@dataclass(frozen=True)
class Target:
    """A device that code is generated for. Sizes in bytes; caches per core except l3.

    Of a GPU, a core is one of its units, vectors are what one thread loads at once, and the triple is that of
    the CPU beside it ("": any).
    """

    name: str
    triple: str
    cpu: str  # LLVM's name of the CPU whose scheduling model is used; it may have more than `features`
    features: tuple[str, ...]  # instruction sets, in LLVM's spelling
    vector_bits: int
    vector_registers: int
    l1: int = 32 * KIB
    l2: int = 512 * KIB
    l3: int = 16 * MIB
    kind: str = "cpu"
    multiply_adds: float = 2.0  # of whole vectors that a core starts in a cycle
    gpu: Gpu | None = None

    @property
    def arch(self) -> str:
        """x86_64, aarch64, …"""
        return self.triple.partition("-")[0]

    @property
    def cuda(self) -> bool:
        """Whether it is a GPU whose kernels are written in CUDA."""
        return self.gpu is not None and self.gpu.language == "cuda"

    def lanes(self, bytes: int) -> int:
        """Elements of this size in one vector register."""
        return max(1, self.vector_bits // (8 * bytes))

    @property
    def has_fma(self) -> bool:
        return self.gpu.fma if self.gpu else "fma" in self.features or self.arch == "aarch64"

    @property
    def multiplies_by_lane(self) -> bool:
        """Whether a multiply-add takes one lane of a vector as its factor, and no element of memory."""
        return self.arch == "aarch64"

    @property
    def dot(self) -> str:
        """The scalar function by which four products of bytes cost less here than four of i32; or ""."""
        if self.arch == "x86_64":
            return "dot4_u8"
        return "dot4_i8" if "dotprod" in self.features else ""

    @property
    def fast_dot(self) -> bool:
        """Whether one instruction does it."""
        return bool({*VNNI, "dotprod"} & set(self.features))

    @property
    def least_cpu(self) -> str:
        """LLVM's name of the least CPU of the architecture: what code may assume besides `features`."""
        return "x86-64" if self.arch == "x86_64" else "generic"

    @property
    def llvm_features(self) -> str:
        """For code that runs on any such CPU. A Cortex-A53, which is older than LSE, may multiply and add
        integers wrongly behind some loads (Arm's erratum 835769): these are kept apart."""
        old = self.arch == "aarch64" and "lse" not in self.features
        return ",".join(f"+{f}" for f in (*self.features, *["fix-cortex-a53-835769"] * old))

    def text(self) -> str:
        return "\n".join(f"{f.name}: {_plain(getattr(self, f.name))}" for f in fields(self))


def _plain(value: object) -> str:
    if isinstance(value, Gpu):
        return ", ".join(f"{f.name} {getattr(value, f.name)}" for f in fields(value))
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


_X86 = "x86_64-unknown-linux-gnu"
_V2 = ("sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "cx16")
_V3 = (*_V2, "avx", "avx2", "fma", "bmi", "bmi2", "f16c", "lzcnt", "movbe")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")

VNNI = ("avxvnni", "avx512vnni")
"""Features of x86 that no level has, for sums of products of bytes; used where the host has one."""

AMX = ("amx-tile", "amx-int8")
"""The same for products of tiles of bytes, which the system must permit."""
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18  # Linux, Documentation/arch/x86/xstate.rst

_ARM = "aarch64-unknown-linux-gnu"
_ARMV8 = ("fp-armv8", "neon")
_ARMV82 = (*_ARMV8, "crc", "lse", "rdm", "dotprod", "fullfp16")


def _arm(
    cpu: str, features: tuple[str, ...], l1: int, l2: int, l3: int = 0, multiply_adds: float = 2.0
) -> Target:
    """Caches as in common chips: the last one is l3, also where it is the second."""
    return Target(cpu, _ARM, cpu, features, 128, 32, l1, l2, l3 or l2, multiply_adds=multiply_adds)


def _cuda(name: str, arch: str, units: int, l1: int, l2: int, rate: float, bandwidth: float) -> Target:
    gpu = Gpu("cuda", units, 32, 1024, 96 * KIB, 128, True, rate, bandwidth, 2e-6, 8.0, True, True)
    gpu = replace(gpu, overlaps=int(arch.removeprefix("sm_")) >= 90)
    return Target(name, "", arch, (), 128, gpu.registers, l1, l2, 0, "gpu", gpu=gpu)


_ANY_GPU = Gpu("opencl", 8, 16, 256, 32 * KIB, 64, True, 16 * 1e9, 30e9, 10e-6)
_T860 = Gpu("opencl", 4, 4, 64, 0, 40, False, 8 * 0.65e9, 10e9, 20e-6)
_G76 = Gpu("opencl", 12, 8, 384, 0, 64, True, 24 * 0.72e9, 25e9, 15e-6)
_RDNA3 = Gpu("opencl", 48, 32, 1024, 64 * KIB, 128, True, 128 * 2.3e9, 960e9)
"""Multiply-adds a cycle times the clock, and what the memory of common chips gives.

Midgard (T860) runs 64 threads of a core at once where they use more than 8 of its 16 registers of four lanes.
Single values do not fill all lanes: Mesa's compiler finds room for about 40 of them.
"""


def _opencl(name: str, cpu: str, gpu: Gpu, l1: int, l2: int, triple: str = "") -> Target:
    return Target(name, triple, cpu, (), 128, gpu.registers, l1, l2, 0, "gpu", gpu=gpu)


TARGETS: dict[str, Target] = {
    t.name: t
    for t in (
        Target("x86-64", _X86, "x86-64-v2", _V2, 128, 16),
        Target("x86-64-v3", _X86, "x86-64-v3", _V3, 256, 16),
        Target("x86-64-v4", _X86, "x86-64-v4", _V4, 512, 32, 32 * KIB, 1 * MIB, 32 * MIB),
        _arm("cortex-a53", _ARMV8, 32 * KIB, 512 * KIB, multiply_adds=0.5),
        _arm("cortex-a72", _ARMV8, 32 * KIB, 1 * MIB, multiply_adds=1.0),
        _arm("cortex-a76", _ARMV82, 64 * KIB, 512 * KIB, 2 * MIB),
        _arm("neoverse-n1", _ARMV82, 64 * KIB, 1 * MIB, 32 * MIB),
        _opencl("opencl", "generic", _ANY_GPU, 16 * KIB, 256 * KIB),
        _opencl("mali-t860", "t860", _T860, 16 * KIB, 256 * KIB, _ARM),
        _opencl("mali-g76", "g76", _G76, 16 * KIB, 1 * MIB, _ARM),
        _opencl("amd-rdna3", "gfx1100", _RDNA3, 32 * KIB, 6 * MIB),
        _cuda("cuda-sm80", "sm_80", 108, 192 * KIB, 40 * MIB, 64 * 1.41e9, 1555e9),
        _cuda("cuda-sm90", "sm_90", 132, 256 * KIB, 50 * MIB, 128 * 1.75e9, 3350e9),
    )
}
"""The targets that can be named; `host` is the best of them with this machine's caches, `opencl`
gets the limits of its device, `cuda` is the newest that this machine's GPU runs, for this GPU alone.
"""


def get_target(name: str | Target) -> Target:
    """By name; InputError lists the known names. `cuda-sm90:132` is a GPU elsewhere with so many units, which
    gets what `cuda` makes there."""
    if isinstance(name, Target):
        return name
    if name == "host":
        return host()
    if name == "opencl":
        return this_opencl()
    if name == "cuda":
        return this_cuda()
    known, colon, units = str(name).partition(":")
    if known not in TARGETS or (colon and not _is_count(known, units)):
        raise InputError(
            f"unknown target {name!r}; known: host, cuda, {', '.join(TARGETS)}; "
            "of a CUDA GPU elsewhere also its units: cuda-sm90:132"
        )
    return of_units(TARGETS[known], int(units)) if colon else TARGETS[known]


def _is_count(target: str, units: str) -> bool:
    digits = units.isascii() and units.isdigit() and len(units) <= len(str(MOST_UNITS))
    return TARGETS[target].cuda and digits and 0 < int(units) <= MOST_UNITS


def of_units(target: Target, units: int) -> Target:
    """For a GPU with so many units, so that as many blocks may wait for each other."""
    assert target.gpu is not None
    return replace(target, gpu=replace(target.gpu, units=units, together=True))


@lru_cache(maxsize=1)
def host() -> Target:
    """The widest known target that this CPU runs, with its own scheduling model and cache sizes."""
    fitting = [t for t in TARGETS.values() if runs_here(t)]
    if not fitting:
        raise InputError(
            "this CPU lacks SSE4.2 or NEON: Burnish has no target for it; "
            "compile with --target for another machine"
        )
    cpu = llvm.get_host_cpu_name()
    best = max(fitting, key=lambda t: (t.vector_bits, len(t.features), t.cpu == cpu, t.multiply_adds))
    more = tuple(f for f in (*VNNI, *AMX) if f in _this_cpu()[1] and best.arch == "x86_64")
    if not _may_use_tiles():
        more = tuple(f for f in more if f not in AMX)
    sizes = {c.level: c.size for c in caches_here()}
    caches: dict[str, Any] = {f"l{level}": size for level, size in sizes.items() if level in (1, 2, 3)}
    if best.arch == "aarch64" and "l2" in caches and "l3" not in caches:  # the last one is l3, too
        caches["l3"] = max(best.l3 if best.cpu == cpu else 0, caches["l2"])
    return replace(best, name="host", cpu=cpu, features=(*best.features, *more), **caches)


MOST_UNITS = 4096
LEAST_BLOCK = 32  # threads of the smallest blocks that templates ask for


def this_opencl() -> Target:
    """`opencl` with the limits of this machine's device, if there is one."""
    generic, device = TARGETS["opencl"], find_device()
    if device is None or generic.gpu is None:
        return generic
    if device.block_threads < LEAST_BLOCK:
        raise InputError(
            f"target opencl: {device} runs work-groups of {device.block_threads}; expected {LEAST_BLOCK}"
        )
    threads = 1 << (min(device.block_threads, 256).bit_length() - 1)  # which are halved to add up
    shared = min(device.shared, 64 * KIB)
    gpu = replace(generic.gpu, units=device.units, block_threads=threads, shared=shared)
    return replace(generic, cpu=device.name, gpu=gpu)


def this_cuda() -> Target:
    """The newest CUDA target that this machine's GPU runs, with its units; without one the newest of all."""
    device = find_cuda_device()
    known = {int(t.cpu.removeprefix("sm_")): t for t in TARGETS.values() if t.cuda}
    fitting = [arch for arch in known if device is None or arch <= device.arch]
    if not fitting:
        raise InputError(
            f"target cuda: the GPU of this machine is {device}; expected one from sm_{min(known)} on"
        )
    target = known[max(fitting)]
    return target if device is None else of_units(target, device.units)


def runs_here(target: Target) -> bool:
    """Whether this machine's CPU executes the target's code."""
    arch, present = _this_cpu()
    return target.kind == "cpu" and target.arch == arch and set(target.features) <= present


@lru_cache(maxsize=1)
def _this_cpu() -> tuple[str, frozenset[str]]:
    """Architecture and features, as LLVM calls them."""
    arch = llvm.get_process_triple().partition("-")[0]
    features = {name for name, on in llvm.get_host_cpu_features().items() if on}
    if arch == "aarch64" and sys.platform.startswith("linux"):  # of which LLVM asks for a few only
        library = ctypes.CDLL(None)
        library.getauxval.restype, library.getauxval.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
        features |= _of_hwcaps(library.getauxval(16), library.getauxval(26))
    return arch, frozenset(features)


def host_features() -> frozenset[str]:
    """Of this machine's CPU, as LLVM calls them."""
    return _this_cpu()[1]


def _of_hwcaps(*words: int) -> set[str]:
    """What Linux says of an ARM CPU in AT_HWCAP and AT_HWCAP2 (Documentation/arch/arm64/elf_hwcaps.rst), as
    runtime/src/cpu.h reads it."""
    return {name for name, (word, bit) in _HWCAPS.items() if words[word] >> bit & 1}


_HWCAPS = {
    "fp-armv8": (0, 0), "neon": (0, 1), "aes": (0, 3), "sha2": (0, 6), "crc": (0, 7), "lse": (0, 8),
    "fullfp16": (0, 10), "rdm": (0, 12), "dotprod": (0, 20), "sve": (0, 22), "fp16fml": (0, 23),
    "sve2": (1, 1), "i8mm": (1, 13), "bf16": (1, 14),
}  # fmt: skip


@lru_cache(maxsize=1)
def _may_use_tiles() -> bool:
    """Asks the system whether this process may use the tiles of AMX."""
    if not sys.platform.startswith("linux") or "amx-tile" not in _this_cpu()[1]:
        return False
    return ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0


@dataclass(frozen=True)
class Cache:
    level: int
    kind: str  # Data, Unified
    size: int  # bytes
    shared_by: str  # CPUs; "" where the system does not say


def caches_of(cpu: int) -> list[Cache]:
    """The nearest first, but for those of instructions, from the kernel; empty where it does not say."""
    found = []
    for index in sorted((CPUS / f"cpu{cpu}" / "cache").glob("index*")):
        try:
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
            shared = index / "shared_cpu_list"
            cpus = shared.read_text().strip() if shared.exists() else ""
            unit = {"K": KIB, "M": MIB, "G": 1024 * MIB}.get(size[-1:], 1)
            one = Cache(int(level), kind, int(size.rstrip("KMG")) * unit, cpus)
        except (OSError, ValueError):
            continue
        if kind != "Instruction":
            found.append(one)
    return sorted(found, key=lambda one: one.level)


def caches_here() -> list[Cache]:
    """Those of a CPU that this process may use, a fast one if there are several kinds."""
    fast = fast_cpus()
    order = sorted(allowed_cpus(), key=lambda cpu: (cpu not in fast, cpu))
    return next(filter(None, map(caches_of, order)), [])


def allowed_cpus() -> set[int]:
    """Those that this process may use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def fast_cpus() -> set[int]:
    """Of these all that are not of a much slower kind than others, as far as the kernel says."""
    speeds = {cpu: _speed(cpu) for cpu in allowed_cpus()}
    return {cpu for cpu, speed in speeds.items() if speed >= FAST * max(speeds.values())}


@cache
def _speed(cpu: int) -> int:
    """In the unit of the first file that is there; 0 where there is none."""
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        with suppress(OSError, ValueError):
            return int((CPUS / f"cpu{cpu}" / name).read_text())
    return 0


def host_threads() -> int:
    """Cores that this process may use, as many as the runtime takes threads (`available_cpus` in pool.c)."""
    cores = len(allowed_cpus())
    with suppress(OSError, ValueError):  # no group, or no limit ("max")
        quota, period = map(int, CPU_LIMIT.read_text().split())
        cores = min(cores, max(1, -(-quota // period)))
    return min(cores, 1024)


def workers_of(target: Target, threads: int | None) -> int:
    """Threads that code is made for: those asked for, else all cores; of a GPU one, which calls it."""
    return 1 if target.gpu else threads or host_threads()
