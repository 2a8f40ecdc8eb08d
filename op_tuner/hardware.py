"""The machine that times are true for, and how near another one is."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import llvmlite.binding as llvm

from ..compiler.cuda_device import CudaDevice, find_cuda_device
from ..compiler.opencl_device import OpenCLDevice, find_device
from ..compiler.target import Target, host, host_features, host_threads

_ISA = (
    "sse4.2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512vnni", "avx512bf16",
    "avx512fp16", "avxvnni", "amx-tile", "amx-bf16", "amx-int8", "neon", "dotprod", "fullfp16", "bf16",
    "i8mm", "sve", "sve2",
)  # fmt: skip


@dataclass(frozen=True)
class Hardware:
    """A fingerprint: what must agree for a time to hold. Caches in bytes, as one core sees them."""

    cpu: str  # the system's name of the CPU, or the driver's of the GPU
    core: str  # LLVM's name of it; of a GPU the language
    isa: tuple[str, ...]
    cores: int  # that the process may use; a GPU's units
    l1: int
    l2: int
    l3: int

    def to_json(self) -> dict[str, object]:
        return {**self.__dict__, "isa": list(self.isa)}

    @staticmethod
    def from_json(data: Mapping[str, object]) -> Hardware:
        """KeyError, TypeError or ValueError where a field is missing or of the wrong kind."""
        isa = data["isa"]
        if not isinstance(isa, list):
            raise TypeError("isa is no list")
        sizes = (int(data[k]) for k in ("cores", "l1", "l2", "l3"))  # type: ignore[call-overload]
        return Hardware(str(data["cpu"]), str(data["core"]), tuple(map(str, isa)), *sizes)

    def distance(self, other: Hardware) -> float:
        """0 for the same machine; grows with what differs, instruction sets first, then the core's kind."""
        apart = set(self.isa) ^ set(other.isa)
        total = 4.0 * len(apart) + 2.0 * (self.core != other.core) + 0.5 * (self.cpu != other.cpu)
        for mine, theirs in ((self.l1, other.l1), (self.l2, other.l2), (self.l3, other.l3)):
            total += 0.5 * (mine != theirs)
        return total + 0.1 * (self.cores != other.cores)


@lru_cache(maxsize=1)
def this_hardware() -> Hardware:
    """Read from the system; takes milliseconds."""
    features, target = host_features(), host()
    isa = tuple(name for name in _ISA if name in features)
    return Hardware(
        cpu_model(), llvm.get_host_cpu_name(), isa, host_threads(), target.l1, target.l2, target.l3
    )


def hardware_of(target: Target) -> Hardware:
    """What the target's times are true for here: this machine, or its GPU with the driver's version.

    Without a GPU's driver the target itself.
    """
    if target.gpu is None:
        return this_hardware()
    device: OpenCLDevice | CudaDevice | None
    device = find_cuda_device() if target.cuda else find_device()
    name, units = target.cpu, target.gpu.units
    if device is not None:
        name, units = str(device), device.units
    return Hardware(name, target.gpu.language, (), units, target.l1, target.l2, target.l3)


def cpu_model() -> str:
    """The CPU's name; on ARM, where the system knows none, that of the board, and the kinds of its cores."""
    fields: dict[str, list[str]] = {}
    for line in _text("/proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), []).append(value.strip())
    if "model name" in fields:
        return fields["model name"][0]
    board = next(iter(fields.get("Model", ())), "") or _text("/proc/device-tree/model")
    board = board or _text("/sys/class/dmi/id/product_name") or next(iter(fields.get("Hardware", ())), "")
    kinds = sorted(set(zip(fields.get("CPU implementer", ()), fields.get("CPU part", ()))))
    cores = " ".join(f"{implementer}/{part}" for implementer, part in kinds)
    return f"{board} {cores}".strip() or platform.processor() or platform.machine()


def _text(path: str) -> str:
    """Of a file of the system; empty where it is not there."""
    try:
        return Path(path).read_text(errors="replace").strip("\0\n ")
    except OSError:
        return ""
