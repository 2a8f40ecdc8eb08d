"""The OpenCL device of this machine, as the driver describes it; there need not be one."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache, partial

from .in_child import in_child, is_loaded

_KINDS = (1 << 2, 1 << 3, 1 << 1)  # GPU, accelerator, CPU: the runtime's order (runtime/src/opencl.c)
_TYPE, _NAME, _DRIVER = 0x1000, 0x102B, 0x102D
_UNITS, _BLOCK, _SHARED, _SHARED_KIND = 0x1002, 0x1004, 0x1023, 0x1022
_AVAILABLE, _HAS_COMPILER = 0x1027, 0x1028
_CPU = 1 << 1
_IN_HARDWARE = 1  # CL_LOCAL: shared memory of its own
_MOST = 32
LIBRARY = "libOpenCL.so"


@dataclass(frozen=True)
class OpenCLDevice:
    name: str
    driver: str  # its version
    units: int
    block_threads: int
    shared: int  # bytes; 0 where it lies in global memory
    is_cpu: bool  # whose times say nothing about GPUs

    def __str__(self) -> str:
        return f"{self.name}, driver {self.driver}{', a CPU' if self.is_cpu else ''}"


def find_device() -> OpenCLDevice | None:
    """The one that the runtime would take; None if there is none."""
    return _ask(os.environ.get("BURNISH_OPENCL_DEVICE", ""))


@cache
def _ask(wanted: str) -> OpenCLDevice | None:
    data = _find(wanted) if is_loaded(LIBRARY) else in_child(partial(_find, wanted))
    return OpenCLDevice(**data) if data else None


def _find(wanted: str) -> dict[str, object] | None:
    library = _library()
    if library is None:
        return None
    for device in _devices(library):
        name = _text(library, device, _NAME)
        usable = _number(library, device, _AVAILABLE) and _number(library, device, _HAS_COMPILER)
        if usable and wanted in name:
            in_hardware = _number(library, device, _SHARED_KIND) == _IN_HARDWARE
            shared = _number(library, device, _SHARED) if in_hardware else 0
            threads = _number(library, device, _BLOCK)
            driver, units = _text(library, device, _DRIVER), _number(library, device, _UNITS)
            is_cpu = bool(_number(library, device, _TYPE) & _CPU)
            return asdict(OpenCLDevice(name, driver, units, threads, shared, is_cpu))
    return None


def _library() -> ctypes.CDLL | None:
    for name in ("libOpenCL.so.1", "libOpenCL.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _devices(library: ctypes.CDLL) -> Iterator[ctypes.c_void_p]:
    count = ctypes.c_uint32()
    platforms = (ctypes.c_void_p * _MOST)()
    if library.clGetPlatformIDs(_MOST, platforms, ctypes.byref(count)):
        return
    for kind in _KINDS:
        for platform in platforms[: min(count.value, _MOST)]:
            found = ctypes.c_uint32()
            devices = (ctypes.c_void_p * _MOST)()
            kind_, of = ctypes.c_uint64(kind), ctypes.c_void_p(platform)
            if not library.clGetDeviceIDs(of, kind_, _MOST, devices, ctypes.byref(found)):
                yield from map(ctypes.c_void_p, devices[: min(found.value, _MOST)])


def _text(library: ctypes.CDLL, device: ctypes.c_void_p, what: int) -> str:
    text = ctypes.create_string_buffer(256)
    library.clGetDeviceInfo(device, ctypes.c_uint32(what), ctypes.c_size_t(255), text, None)
    return text.value.decode("utf-8", "replace")


def _number(library: ctypes.CDLL, device: ctypes.c_void_p, what: int) -> int:
    value = ctypes.c_uint64()
    library.clGetDeviceInfo(device, ctypes.c_uint32(what), ctypes.c_size_t(8), ctypes.byref(value), None)
    return value.value
