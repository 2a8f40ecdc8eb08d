"""Scalars that lie side by side in memory, loaded as vectors, for machines whose multiply-add takes a lane of
a vector as its factor: n products of one load, where each would need a load of its own.

    a = load float, p; b = load float, p + 4; …   →   v = load <4 x float>, p; a = extractelement v, 0; …
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ..ir.types import I32, DType
from .llvm_values import FunctionText, memory_type


@dataclass(frozen=True)
class _Scalar:
    offset: int  # elements from the pointer that it is addressed by
    line: int
    name: str


class LaneLoads:
    """Notes the loads of one function; `join` rewrites those of a block that fill whole vectors."""

    def __init__(self, fn: FunctionText, vector_bits: int):
        self.fn = fn
        self.vector_bits = vector_bits
        self._stores: Counter[str] = Counter()
        self._calls = 0
        self._noted: dict[tuple[str, str, tuple[int, int], DType], list[_Scalar]] = {}

    def note(self, buffer: str, pointer: str, offset: int, dtype: DType, name: str) -> None:
        """The last line loads an element of the buffer, `offset` behind the pointer."""
        if (dtype.is_float and dtype.bytes >= 4) or dtype is I32:
            key = self.fn.block, pointer, (self._stores[buffer], self._calls), dtype
            self._noted.setdefault(key, []).append(_Scalar(offset, len(self.fn.lines) - 1, name))

    def stored(self, buffer: str) -> None:
        """What is loaded from here on may be new."""
        self._stores[buffer] += 1

    def called(self) -> None:
        """The same of every buffer."""
        self._calls += 1

    def join(self) -> None:
        for (_, pointer, _, dtype), scalars in self._noted.items():
            width = self.vector_bits // dtype.bits
            done = min(s.offset for s in scalars)
            for first in _whole(sorted({s.offset for s in scalars}), width):
                lanes = [s for s in scalars if max(first, done) <= s.offset < first + width]
                self._join(pointer, first, lanes, memory_type(dtype, width), dtype)
                done = first + width
        self._noted.clear()

    def _join(self, pointer: str, first: int, scalars: list[_Scalar], vector: str, dtype: DType) -> None:
        fn, at, loaded = self.fn, self.fn.fresh("p"), self.fn.fresh()
        load = [
            f"  {at} = getelementptr i8, ptr {pointer}, i64 {first * dtype.bytes}",
            f"  {loaded} = load {vector}, ptr {at}, align {dtype.bytes}",
        ]
        for scalar in scalars:  # in order of their lines
            lane = f"  {scalar.name} = extractelement {vector} {loaded}, i64 {scalar.offset - first}"
            fn.lines[scalar.line] = "\n".join([*load, lane])
            load = []


def _whole(offsets: list[int], width: int) -> list[int]:
    """Where vectors begin that cover runs of at least `width` neighbours; the last of a run may overlap."""
    found: list[int] = []
    n = 0
    while n < len(offsets):
        end = n + 1
        while end < len(offsets) and offsets[end] == offsets[end - 1] + 1:
            end += 1
        if end - n >= width:
            found += [*offsets[n : end - width : width], offsets[end - width]]
        n = end
    return found
