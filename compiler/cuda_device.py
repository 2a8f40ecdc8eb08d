"""The NVIDIA GPU of this machine, as its driver describes it; there need not be one."""

from __future__ import annotations

import ctypes
import os
import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from .in_child import in_child, is_loaded

LIBRARY = "libcuda.so"
# cuda.h, CUdevice_attribute
_CLOCK, _UNITS, _MEMORY_CLOCK, _MAJOR, _MINOR = 13, 16, 36, 75, 76
_VERSION = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class CudaDevice:
    name: str
    driver: str  # its version, and that of CUDA which it is for
    arch: int  # 90: sm_90
    units: int
    clock_mhz: int  # the highest
    memory_mhz: int
    bus: str  # nvidia-smi's name of the device; "" if unknown

    def __str__(self) -> str:
        return f"{self.name}, sm_{self.arch}, driver {self.driver}"


def find_cuda_device() -> CudaDevice | None:
    """The one that the runtime would take: the first of CUDA_VISIBLE_DEVICES; None if there is none."""
    return _ask(os.environ.get("CUDA_VISIBLE_DEVICES", ""))


@cache
def _ask(visible: str) -> CudaDevice | None:
    data = _find() if is_loaded(LIBRARY) else in_child(_find)  # CUDA that is in use does not work in a child
    return CudaDevice(**data) if data else None


def is_usable() -> bool:
    """Whether kernels still run in this process: after an illegal address, for one, a context is lost to all
    that share it."""
    if not is_loaded(LIBRARY):
        return True
    found = _context()
    if found is None:
        return False
    library, device, context = found
    lost = library.cuCtxPushCurrent_v2(context)
    if not lost:
        lost = library.cuCtxSynchronize()
        library.cuCtxPopCurrent_v2(ctypes.byref(context))
    library.cuDevicePrimaryCtxRelease_v2(device)
    return not lost


def keep_context() -> None:
    """From now on modules find the context of the GPU there, which takes some tenths of a second to make."""
    with suppress(OSError):
        _context()


def _context() -> tuple[ctypes.CDLL, ctypes.c_int32, ctypes.c_void_p] | None:
    """The driver, the GPU, and its context, which is kept until it is released; None if there is none."""
    library = ctypes.CDLL(f"{LIBRARY}.1")
    device, context = ctypes.c_int32(), ctypes.c_void_p()
    if library.cuInit(0) or library.cuDeviceGet(ctypes.byref(device), 0):
        return None
    if library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
        return None
    return library, device, context


def _find() -> dict[str, object] | None:
    try:
        library = ctypes.CDLL(f"{LIBRARY}.1")
    except OSError:
        return None
    device, count, version = ctypes.c_int32(), ctypes.c_int32(), ctypes.c_int32()
    if library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return None
    if library.cuDeviceGet(ctypes.byref(device), 0):
        return None
    name, bus = ctypes.create_string_buffer(256), ctypes.create_string_buffer(64)
    library.cuDeviceGetName(name, 255, device)
    library.cuDeviceGetPCIBusId(bus, 63, device)
    library.cuDriverGetVersion(ctypes.byref(version))

    def number(what: int) -> int:
        value = ctypes.c_int32()
        library.cuDeviceGetAttribute(ctypes.byref(value), what, device)
        return value.value

    found = CudaDevice(
        name.value.decode("utf-8", "replace"),
        f"{_kernel_module()}CUDA {version.value // 1000}.{version.value % 1000 // 10}",
        number(_MAJOR) * 10 + number(_MINOR),
        number(_UNITS),
        number(_CLOCK) // 1000,
        number(_MEMORY_CLOCK) // 1000,
        bus.value.decode("ascii", "replace"),
    )
    return asdict(found)


def _kernel_module() -> str:
    """The version of the driver's part in the kernel, which several drivers for one CUDA differ in."""
    with suppress(OSError):
        match = re.search(r"Kernel Module\b.*?\s(\d+(?:\.\d+)+)\s", _VERSION.read_text())
        if match:
            return f"{match[1]}, "
    return ""
