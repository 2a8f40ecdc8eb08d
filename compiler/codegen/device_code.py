"""The kernels of a module for a GPU as bytes, as docs/module-format.md describes them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence

from . import cuda, opencl
from .c_dialect import module_source, uses_f64
from .kernel_code import Launch

_HEADER = struct.Struct("<8sII3Q4I")
_KERNEL = struct.Struct("<2I6I2I")
_VERSION = 1
_NEEDS_F64, _REPORTS, _TOGETHER, _OVERLAPS = 1, 1, 2, 4
_DIALECTS = {"opencl": opencl.DIALECT, "cuda": cuda.DIALECT}
OPTIONS = {"opencl": "-cl-std=CL1.2 -w"}


def encode(
    language: str,
    sources: Sequence[str],
    symbols: Sequence[str],
    launches: Mapping[str, Launch],
    options: str = OPTIONS["opencl"],
    build: Callable[[str], bytes] = str.encode,
) -> bytes:
    """One program of the kernels' sources; `symbols` are the plan's kernels in order.

    options  for OpenCL those of the driver's compiler, for CUDA the architecture (sm_80, …)
    build    makes what the module holds of the program's text: the text itself, or code
    """
    text = module_source(_DIALECTS[language], sources)
    program = build(text)
    strings = bytearray(b"\0")

    def add(text: str) -> int:
        strings.extend(text.encode() + b"\0")
        return len(strings) - len(text.encode()) - 1

    flags = add(options)
    table = b""
    for symbol in symbols:
        launch = launches[symbol]
        kinds = _REPORTS * launch.reports | _TOGETHER * launch.together | _OVERLAPS * launch.overlaps
        table += _KERNEL.pack(add(symbol), kinds, *launch.grid, *launch.block, launch.shared, 0)
    size = _HEADER.size + len(table) + len(program) + len(strings)
    needs = _NEEDS_F64 if uses_f64(text) else 0
    counts = (len(symbols), needs, flags, 0)
    header = _HEADER.pack(b"BURNCODE", _VERSION, _HEADER.size, size, len(program), len(strings), *counts)
    return header + table + program + bytes(strings)
