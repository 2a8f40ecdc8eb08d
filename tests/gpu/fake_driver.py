"""The fake driver of fake_cuda.c, built once and loaded where the runtime looks for the real one."""

from __future__ import annotations

import ctypes
import gc
import subprocess
from pathlib import Path

from burnish.runtime.build import source_dir

HERE = Path(__file__).parent
NVCC = str(HERE / "emulated_nvcc.py")


def build(folder: Path) -> Path:
    """libcuda.so.1 in the folder."""
    path = folder / "libcuda.so.1"
    flags = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    command = ["gcc", *flags, f"-Wl,-soname,{path.name}", f"-I{source_dir()}", HERE / "fake_cuda.c", "-ldl"]
    subprocess.run([*command, "-o", path], check=True)
    return path


def has_real_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


class FakeDriver:
    def __init__(self, path: Path):
        self.library = ctypes.CDLL(str(path))  # found by its soname from now on
        for name in ("fake_violations", "fake_called", "fake_alive"):
            getattr(self.library, name).restype = ctypes.c_char_p
        self.library.fake_allocate.restype = ctypes.c_void_p
        self.library.fake_allocate.argtypes = [ctypes.c_size_t, ctypes.c_int32]
        self.library.fake_free.argtypes = [ctypes.c_void_p]

    def reset(
        self, call: int = -1, code: int = 0, devices: int = 1, units: int = 108, arch: int = 80
    ) -> None:
        """Forgets calls and violations; the call of that number, counted from now on, fails with the code."""
        if self.library.fake_alive():
            gc.collect()
        self.library.fake_fail(call, code)
        self.library.fake_set_devices(devices)
        self.library.fake_set_units(units)
        self.library.fake_set_arch(arch)

    @property
    def violations(self) -> str:
        return self.library.fake_violations().decode()

    @property
    def alive(self) -> str:
        """Kinds of what was made and not freed, once nothing in Python refers to it."""
        if self.library.fake_alive():
            gc.collect()
        return self.library.fake_alive().decode()

    @property
    def launches(self) -> int:
        """Kernels that ran."""
        return self.library.fake_launches()

    @property
    def overlaps(self) -> int:
        """Those that may begin before the one before has ended."""
        return self.library.fake_overlaps()

    @property
    def calls(self) -> list[str]:
        """Names of the calls that may fail, in order."""
        names: list[str] = []
        while (name := self.library.fake_called(len(names))) is not None:
            names.append(name.decode())
        return names
