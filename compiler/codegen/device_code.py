"""The kernels of a module for a GPU as bytes, as docs/module-format.md describes them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from ...errors import UnsupportedError
from . import opencl
from .c_dialect import module_source
from .kernel_code import Launch

_HEADER = struct.Struct("<8sII3Q4I")
_KERNEL = struct.Struct("<2I6I2I")
_VERSION = 1
_NEEDS_F64, _REPORTS = 1, 1
OPTIONS = {"opencl": "-cl-std=CL1.2 -w"}


def encode(
    language: str, sources: Sequence[str], symbols: Sequence[str], launches: Mapping[str, Launch]
) -> bytes:
    """One program of the kernels' sources; `symbols` are the plan's kernels in order. UnsupportedError for a
    language that the runtime has no device for.
    """
    if language not in OPTIONS:
        raise UnsupportedError(
            f"modules for {language} cannot be made yet; `burnish trace` shows its kernels"
        )
    source = module_source(opencl.DIALECT, sources).encode()
    strings = bytearray(b"\0")

    def add(text: str) -> int:
        strings.extend(text.encode() + b"\0")
        return len(strings) - len(text.encode()) - 1

    options = add(OPTIONS[language])
    table = b"".join(
        _KERNEL.pack(
            add(symbol),
            _REPORTS if launches[symbol].reports else 0,
            *launches[symbol].grid,
            *launches[symbol].block,
            launches[symbol].shared,
            0,
        )
        for symbol in symbols
    )
    size = _HEADER.size + len(table) + len(source) + len(strings)
    needs = _NEEDS_F64 if b"f64" in source else 0
    counts = (len(symbols), needs, options, 0)
    header = _HEADER.pack(b"BURNCODE", _VERSION, _HEADER.size, size, len(source), len(strings), *counts)
    return header + table + source + bytes(strings)
