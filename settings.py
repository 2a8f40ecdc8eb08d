"""Burnish's own environment variables, in one place. `burnish settings` lists them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from .errors import InputError

DEBUG_LEVELS = (
    "nothing",
    "graph passes with their times",
    "and kernels",
    "and their chosen configs",
    "and their loop programs and LLVM IR",
)


@dataclass(frozen=True)
class Knob:
    """An environment variable, what it stands at when unset, and what it does."""

    name: str
    default: str
    meaning: str

    @property
    def value(self) -> str | None:
        """As set by the user; None where it is unset or empty."""
        return os.environ.get(self.name) or None


def _user_cache() -> str:
    try:
        found = str(platformdirs.user_cache_path("burnish"))
    except RuntimeError:  # the user has no home
        return ""
    return "" if found.startswith("~") else found  # which older versions say then


CACHE_DIR = Knob(
    "BURNISH_CACHE_DIR",
    _user_cache(),
    "folder for compiled kernels and the compiled runtime, which `burnish cache` shows and deletes, and for "
    "records.jsonl, what `burnish tune` has measured, and pace.jsonl, the pace that its times are given at",
)
DEBUG = Knob(
    "BURNISH_DEBUG",
    "0",
    "what compiling says on standard error: "
    + ", ".join(f"{level} {what}" for level, what in enumerate(DEBUG_LEVELS))
    + "; from 1 on, internal errors show their traceback",
)
CC = Knob(
    "CC", "the first of cc, gcc, clang, ziglang", "the C compiler that builds the runtime and links modules"
)
CROSS_CC = Knob(
    "BURNISH_CROSS_CC",
    "the first of ARCH-linux-gnu-gcc, ziglang",
    "the same for targets of another architecture",
)
EMULATOR = Knob(
    "BURNISH_EMULATOR",
    "qemu-ARCH-static or qemu-ARCH, with the target's CPU",
    "the command that runs programs for CPUs that this machine is not",
)
EMULATOR_ROOT = Knob(
    "BURNISH_EMULATOR_ROOT",
    "none",
    "a root file system for that CPU, with the libraries that `burnish bench` counts there",
)
MALI_ROOT = Knob(
    "BURNISH_MALI_ROOT",
    "none",
    "a root file system of aarch64 with Mesa's compiler for Mali, which `burnish profile --offline` asks",
)
OPENCL_DEVICE = Knob(
    "BURNISH_OPENCL_DEVICE",
    "the first GPU, else the first device",
    "a part of the name of the OpenCL device that modules for OpenCL run on",
)
OPENCL_CACHE = Knob(
    "BURNISH_OPENCL_CACHE",
    "1",
    "whether what an OpenCL driver has built is kept in the cache folder for later processes; 0 for no",
)
GPU_POISON = Knob(
    "BURNISH_GPU_POISON",
    "0",
    "whether a module's memory on a GPU begins as NaN, so that what kernels leave out shows",
)
CUDACXX = Knob(
    "CUDACXX",
    "nvcc, /usr/local/cuda/bin/nvcc, that of `pip install burnish[cuda]`",
    "the CUDA compiler for modules for NVIDIA GPUs",
)

KNOBS = (
    CACHE_DIR,
    DEBUG,
    CC,
    CROSS_CC,
    EMULATOR,
    EMULATOR_ROOT,
    MALI_ROOT,
    OPENCL_DEVICE,
    OPENCL_CACHE,
    GPU_POISON,
    CUDACXX,
)


def cache_dir() -> Path:
    """The folder that compiled kernels and the runtime are kept in; it may not exist yet. InputError if there
    is none."""
    text = CACHE_DIR.value or CACHE_DIR.default
    if not text:
        raise InputError(f"the user has no home for a cache: set {CACHE_DIR.name} to a folder")
    return Path(text).absolute()


def debug_level() -> int:
    """0 to 4; InputError for anything else."""
    text = DEBUG.value or DEBUG.default
    if text not in map(str, range(len(DEBUG_LEVELS))):
        raise InputError(f"BURNISH_DEBUG={text!r}: expected a number from 0 to {len(DEBUG_LEVELS) - 1}")
    return int(text)
