#!/usr/bin/env python3
"""In nvcc's place: its "fat binary" is a library for the host, which the fake driver loads.

The last argument is the source, `-o FILE` says where the program goes.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

HERE = Path(__file__).parent
KERNEL = re.compile(r'extern "C" __global__ void __launch_bounds__\((\d+), \d+\) (\w+)\(')

WAITS = re.compile(r"__syncthreads|__shfl|\bmeet\(")
MEETS = re.compile(r"\bmeet\(")
_FUNCTION = r"^static __device__ __forceinline__ \w+"
ASSEMBLY = re.compile(
    rf"{_FUNCTION} (?:\w+\([^{{]*\{{\n(?:  \w+ b;\n)?  asm\b|meet\().*?\n}}\n", re.DOTALL | re.MULTILINE
)
"""Instructions of a GPU, and what waits for other blocks: emulated_cuda.h has others of these names."""

LAUNCHED = re.compile(r"extern (__shared__ .*launched_shared)\[\]")
"""Shared memory whose size comes with the launch."""
MOST_SHARED = 160 * 1024

OVERLAP = re.compile(r"^  asm volatile\(\"griddepcontrol.*\n", re.MULTILINE)
"""Where a kernel waits for the one before it: here that has ended."""

HEADER = "emulated_cuda.h"
THIS_CPU = ["-march=native", *(["-mno-avx512f"] if platform.machine() == "x86_64" else [])]
"""Without the instructions that valgrind does not know."""
FLAGS = ["-std=c++17", "-O1", "-ffp-contract=off", *THIS_CPU, "-w", "-fPIC"]
LIBRARY = ["-shared", "-fno-gnu-unique"]
"""One that goes when it is closed: with unique symbols it would stay, each module of a session."""


def host_source(source: str) -> str:
    source = OVERLAP.sub("", source)
    source = LAUNCHED.sub(rf"\1[{MOST_SHARED}]", ASSEMBLY.sub("", source))
    parts = KERNEL.split(source)[1:]
    table = "".join(
        f'    entry("{name}", {name}, {threads}, {_flag(WAITS, body)}, {_flag(MEETS, body)}),\n'
        for threads, name, body in zip(parts[::3], parts[1::3], parts[2::3])
    )
    end = (HERE / "emulated_cuda_end.h").read_text()
    kernels = f"namespace emulator {{\nstatic const std::vector<Entry> kernels = {{\n{table}}};\n}}\n"
    return "\n".join([f'#include "{HEADER}"', source, kernels, end])


def header() -> Path:
    """The folder of what all programs include, which takes a second, as this g++ keeps it, if it can."""
    version = subprocess.run(["g++", "--version"], capture_output=True, check=True).stdout
    known = (HERE / HEADER).read_bytes() + version + repr(FLAGS).encode()
    name = f"emulated-{sha256(known).hexdigest()[:16]}"
    folder = Path(os.environ.get("BURNISH_CACHE_DIR", tempfile.gettempdir()), name)
    if not (folder / f"{HEADER}.gch").exists():
        folder.mkdir(parents=True, exist_ok=True)
        made = folder / f"{os.getpid()}.gch"
        if not subprocess.run(["g++", *FLAGS, "-x", "c++-header", HERE / HEADER, "-o", made]).returncode:
            os.replace(made, folder / f"{HEADER}.gch")
    return folder


def _flag(pattern: re.Pattern[str], body: str) -> str:
    return str(bool(pattern.search(body))).lower()


def main() -> int:
    arguments = sys.argv[1:]
    if "--version" in arguments:
        print("an emulation of CUDA on the host, 6")
        return 0
    source, out = Path(arguments[-1]), Path(arguments[arguments.index("-o") + 1])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernels.cc")
        path.write_text(host_source(source.read_text()))
        known = [f"-I{header()}", f"-I{HERE}"]
        done = subprocess.run(["g++", *FLAGS, *LIBRARY, *known, path, "-o", f"{folder}/kernels.so"])
        if done.returncode:
            return done.returncode
        library = Path(folder, "kernels.so").read_bytes()
    out.write_bytes(b"EMULATED" + len(library).to_bytes(8, "little") + library)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
