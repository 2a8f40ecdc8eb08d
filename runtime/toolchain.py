"""C compilers that also link, for this machine and for others, and emulators that run what they make."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ..errors import ToolError
from ..settings import CROSS_CC, EMULATOR

THIS_ARCH = platform.machine()
"""This machine's architecture: x86_64, aarch64."""


@dataclass(frozen=True)
class Compiler:
    """A C compiler that also links: its command, what it calls itself, and what it has to be told to link."""

    command: tuple[str, ...]
    version: str
    link: tuple[str, ...] = ()


@lru_cache(maxsize=8)
def identify(command: tuple[str, ...]) -> str | None:
    """What a command says of itself; None if it does not run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def run_tool(command: Sequence[str], cwd: Path, what: str) -> None:
    """Runs a compiler or linker. ToolError says `what` failed, and the first error that the tool printed."""
    environment = {**os.environ, "LC_ALL": "C", "SOURCE_DATE_EPOCH": "0"}
    try:
        done = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, errors="replace"
        )
    except OSError as error:
        raise ToolError(f"{what}: cannot start {command[0]}: {error.strerror}") from error
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if re.search("error|fatal|undefined", line, re.IGNORECASE)] or lines
        detail = (errors or [f"exit code {done.returncode}"])[0].strip()
        raise ToolError(f"{what}: {Path(command[0]).name} failed: {detail}")


def split_command(variable: str, text: str) -> tuple[str, ...]:
    """A command as a shell reads it, from a variable of the environment; a relative path of its program is of
    this folder, wherever it runs.

    ToolError if it cannot be read.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ToolError(
            f"the command {text!r} of the variable {variable}: {error}; correct or unset it"
        ) from None
    return tuple(os.path.abspath(w) if n == 0 and os.sep in w else w for n, w in enumerate(words))


def find_compiler(arch: str = THIS_ARCH, static: bool = False) -> Compiler:
    """For this machine: $CC, cc, gcc, clang, or the ziglang package, whichever answers first. For another
    architecture: $BURNISH_CROSS_CC, ARCH-linux-gnu-gcc, or the ziglang package.

    `static` asks for one that links programs without shared libraries. ToolError if there is none.
    """
    knob, value = ("CC", os.environ.get("CC")) if arch == THIS_ARCH else (CROSS_CC.name, CROSS_CC.value)
    if value:
        candidates = [split_command(knob, value)]
    elif arch == THIS_ARCH:
        candidates = [("cc",), ("gcc",), ("clang",), *_zig()]
    else:  # glibc cannot be linked statically by zig
        candidates = [(f"{arch}-linux-gnu-gcc",), *_zig(f"{arch}-linux-{'musl' if static else 'gnu'}")]
    for command in candidates:
        version = identify((*command, "--version"))
        if version:
            zig = "zig" in version.lower() or "ziglang" in command
            if static and value and not _links_statically(command):
                raise ToolError(
                    f"{value!r} of the variable {knob} links no programs without shared libraries, which run "
                    "under an emulator; unset it, or name one that does (zig: -target ARCH-linux-musl)"
                )
            return Compiler((*command, *(() if zig else _BASELINE.get(arch, ()))), version, _link(arch, zig))
    if value:
        raise ToolError(f"the C compiler {value!r} of the variable {knob} does not run; correct or unset it")
    if arch == THIS_ARCH:
        raise ToolError("no C compiler found; install gcc or clang, or run: pip install ziglang")
    raise ToolError(
        f"no C compiler for {arch} found; install {arch}-linux-gnu-gcc (Debian: gcc-{arch.replace('_', '-')}"
        f"-linux-gnu), or run: pip install ziglang"
    )


def _link(arch: str, zig: bool) -> tuple[str, ...]:
    """Addresses that a Cortex-A53 may take wrong are made otherwise (Arm's erratum 843419); zig takes no such
    option."""
    return ("-Wl,--fix-cortex-a53-843419",) if arch == "aarch64" and not zig else ()


@lru_cache(maxsize=8)
def _links_statically(command: tuple[str, ...]) -> bool:
    with tempfile.TemporaryDirectory(prefix="burnish-") as folder:
        source = Path(folder) / "main.c"
        source.write_text("int main(void) { return 0; }\n")
        done = subprocess.run(
            [*command, "-static", "-o", "main", "main.c"], cwd=folder, capture_output=True, check=False
        )
    return done.returncode == 0


_BASELINE = {"x86_64": ("-march=x86-64",), "aarch64": ("-march=armv8-a",)}
"""What the runtime is made of, since it is what checks the CPU: distributions' compilers, and a -march of
$CC, may ask for more. zig asks for no more than the target."""


def _zig(target: str = "") -> list[tuple[str, ...]]:
    """Without a target zig compiles for this very CPU: the runtime goes into modules for others."""
    if not importlib.util.find_spec("ziglang"):
        return []
    given = ("-target", target) if target else ("-mcpu=baseline",)
    return [(sys.executable, "-m", "ziglang", "cc", *given)]


def archive_tools(arch: str) -> tuple[str, str]:
    """objcopy and ar for the architecture. ToolError if one is missing."""
    own = (shutil.which("objcopy"), shutil.which("ar")) if arch == THIS_ARCH else ()
    cross = [shutil.which(f"{arch}-linux-gnu-{tool}") for tool in ("objcopy", "ar")]
    any_arch = [shutil.which(f"llvm-{tool}") for tool in ("objcopy", "ar")]
    for objcopy, archiver in filter(None, (own, cross, any_arch)):
        if objcopy and archiver:
            return objcopy, archiver
    raise ToolError(
        f"linking an archive needs objcopy and ar for {arch}; install binutils or llvm, or ask for a .so"
    )


def find_emulator(arch: str, cpu: str) -> tuple[str, ...]:
    """The command before a program of another CPU: $BURNISH_EMULATOR, or qemu's for the architecture.

    ToolError if there is none.
    """
    if EMULATOR.value:
        return split_command(EMULATOR.name, EMULATOR.value)
    for name in (f"qemu-{arch}-static", f"qemu-{arch}"):
        path = shutil.which(name)
        if path and arch != THIS_ARCH:
            return (path, "-cpu", "max" if arch == "x86_64" else cpu)  # qemu has no x86-64-v3
    if arch == THIS_ARCH:
        raise ToolError(
            f"the code is for {cpu}, and this CPU lacks some of its instructions; run the module on one "
            f"that has them, or name an emulator with {EMULATOR.name}"
        )
    raise ToolError(
        f"the code is for {cpu}, which this machine is not, and no emulator is found; save the module and "
        f"run it there, or install qemu-{arch} (Debian: qemu-user-static)"
    )
