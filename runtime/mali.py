"""OpenCL C for ARM Mali, without one: what Mesa's own compiler makes of it.

Mesa's driver runs under an emulator in a root file system of AArch64, on a simulated device of some chip
(`drm-shim`), and prints what it would count for its shader database.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InputError, ToolError
from ..settings import MALI_ROOT, cache_dir
from .build import source_dir
from .toolchain import find_compiler, find_emulator, run_tool
from .whole_file import make_folder

CHIPS = {
    "mali-t760": 0x750,
    "mali-t860": 0x860,
    "mali-t880": 0x880,
    "mali-g31": 0x7093,
    "mali-g52": 0x7212,
    "mali-g57": 0x9093,
    "mali-g72": 0x6221,
    "mali-g76": 0x7211,
}
"""By name: the number by which a chip says what it is."""

ARCH = "aarch64"
OPTIONS = "-cl-std=CL1.2 -w"
_LIBRARIES = "usr/lib/aarch64-linux-gnu"
_NEEDED = {
    "libOpenCL.so.1": "ocl-icd-libopencl1",
    "libRusticlOpenCL.so.1": "mesa-opencl-icd",
    "libpanfrost_noop_drm_shim.so": "mesa-drm-shim",
}
_COUNT = re.compile(r"([\d.]+) (\w+)")
_SPILLS = re.compile(r"(\d+):(\d+) spills:fills")


@dataclass(frozen=True)
class Shader:
    """What Mesa counts in one kernel, loops once. `pipes` are the cycles of each pipe, `cycles` those of the
    busiest; Midgard issues bundles for all pipes at once and has no cycles.

    registers  of a thread; on Midgard of four lanes, at most 16; on others 64, or 32 with twice as many
               threads at once
    """

    instructions: int
    cycles: float | None
    pipes: Mapping[str, float] = field(default_factory=dict)
    registers: int = 64
    spills: int = 0  # stores to memory
    fills: int = 0  # loads back


PIPES = {
    "arith": "arithmetic", "fma": "fma", "cvt": "cvt", "sfu": "sfu", "ldst": "load/store", "ls": "load/store",
    "texture": "texture", "t": "texture", "bundles": "bundles",
}  # fmt: skip


def parse(line: str) -> Shader:
    """Of a line that begins with SHADER-DB. ToolError for one that is none."""
    found = {name: float(number) for number, name in _COUNT.findall(line)}
    spills = _SPILLS.search(line)
    if spills is None or "inst" not in found or "threads" not in found:
        raise ToolError(f"Mesa says something else of a kernel than was expected: {line.strip()!r}")
    pipes = {word: found[name] for name, word in PIPES.items() if name in found}
    registers = int(found.get("registers", 32 if found["threads"] > 1 else 64))
    return Shader(int(found["inst"]), found.get("cycles"), pipes, registers, int(spills[1]), int(spills[2]))


def find_root(given: Path | None) -> Path:
    """`given`, or $BURNISH_MALI_ROOT. InputError if there is neither, ToolError if no compiler is in it."""
    root = given or (Path(MALI_ROOT.value) if MALI_ROOT.value else None)
    if root is None:
        raise InputError(
            f"Mesa's compiler for Mali runs in a root file system of {ARCH}: give --root or {MALI_ROOT.name} "
            "(docs/performance.md says how to make one)"
        )
    for library, package in _NEEDED.items():
        if not (root / _LIBRARIES / library).exists():
            raise ToolError(
                f"{root}: there is no {_LIBRARIES}/{library}; unpack Debian's {package} for arm64 there "
                "(docs/performance.md says how)"
            )
    return root.resolve()


class MaliCompiler:
    """Compiles for one chip. ToolError where a tool is missing."""

    def __init__(self, chip: str, root: Path | None = None):
        self.root = find_root(root)
        try:
            self.emulator = find_emulator(ARCH, "cortex-a72")
        except ToolError:
            raise ToolError(
                f"Mesa's compiler for Mali needs an emulator, and none is found; install qemu-{ARCH} "
                "(Debian: qemu-user-static)"
            ) from None
        self.chip = chip

    def compile(self, programs: Sequence[str]) -> Iterator[Shader]:
        """What each program, which is one kernel, becomes. ToolError with what the compiler says against it.

        A chip's first call takes up to a minute more: then Mesa reads its library of functions, and keeps it.
        """
        known = self._library()
        with tempfile.TemporaryDirectory(prefix="burnish-") as name:
            folder = Path(name)
            shutil.copytree(known, folder / "cache")  # a kernel that is in the cache is not compiled
            files = [folder / f"{n}.cl" for n in range(len(programs))]
            for file, text in zip(files, programs):
                file.write_text(text)
            said: list[str] = []
            for line in self._lines(folder / "cache", files):
                if line.startswith("program ") and said:
                    yield parse(said.pop())
                    said.clear()
                elif line.startswith("SHADER-DB"):
                    said.append(line)  # of several, the one for launches without an offset is the last
            if said:
                yield parse(said.pop())

    def _library(self) -> Path:
        """The folder where Mesa keeps its library of functions for this chip."""
        driver = (self.root / _LIBRARIES / "libRusticlOpenCL.so.1").stat()
        about = repr((self.chip, str(self.root), driver.st_size, driver.st_mtime_ns))
        kept = cache_dir() / "mali" / hashlib.sha256(about.encode()).hexdigest()[:24]

        def make(folder: Path) -> None:
            for _ in self._lines(folder, []):
                pass

        return make_folder(kept, make)

    def _lines(self, cache: Path, files: Sequence[Path]) -> Iterator[str]:
        """Of what is said while `files` are compiled."""
        settings = {
            "LD_PRELOAD": f"/{_LIBRARIES}/libpanfrost_noop_drm_shim.so",
            "OCL_ICD_VENDORS": f"/{_LIBRARIES}/libRusticlOpenCL.so.1",
            "RUSTICL_ENABLE": "panfrost",
            "PAN_GPU_ID": f"{CHIPS[self.chip]:x}",
            "BIFROST_MESA_DEBUG": "shaderdb",
            "MIDGARD_MESA_DEBUG": "shaderdb",
            "MESA_SHADER_CACHE_DIR": str(cache),
        }
        given = [word for key, value in settings.items() for word in ("-E", f"{key}={value}")]
        command = [*self.emulator, "-L", self.root, *given, _program(cache.parent), OPTIONS, *files]
        pipes: dict[str, Any] = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL}
        said = ""
        with subprocess.Popen(list(map(str, command)), **pipes, text=True, errors="replace") as process:
            try:
                for line in process.stderr or ():
                    said = line.strip() or said
                    yield line
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            raise ToolError(f"Mesa's compiler for {self.chip}: {said.removeprefix('error: ')}")


def _program(folder: Path) -> Path:
    """src/mali_compiler.c as a program of AArch64, in `folder`."""
    path, source = folder / "mali_compiler", source_dir() / "mali_compiler.c"
    loader = "-Wl,--dynamic-linker=/usr/lib/ld-linux-aarch64.so.1"
    command = [*find_compiler(ARCH).command, "-std=c11", "-O1", loader, "-o", str(path), str(source), "-ldl"]
    run_tool(command, folder, f"compiling {source.name}")
    return path
