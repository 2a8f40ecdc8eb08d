"""Copies to shared memory that threads do not wait for: PTX's cp.async, by groups."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .c_dialect import Instruction, InstructionOperand

_COPY = """static __device__ __forceinline__ void copy_async_{bytes}(
    void *to, const void *from, bool there) {{
  asm volatile("cp.async.{caches}.shared.global [%0], [%1], {bytes}, %2;"
               ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(there ? {bytes} : 0) : "memory");
}}"""
_COMMIT = """static __device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}"""
_WAIT = """static __device__ __forceinline__ void wait_copies_{but}() {{
  asm volatile("cp.async.wait_group {but};" ::: "memory");
}}"""
CACHES = {4: "ca", 8: "ca", 16: "cg"}
"""By the bytes that one instruction copies: in all caches, or in the last one, which whole vectors may."""


def instruction(name: str, operands: Sequence[InstructionOperand]) -> Instruction | None:
    """`copy_async` of what is in memory or zero, `commit_copies`, `wait_copies`; else None."""
    match name, operands:
        case "commit_copies", _:
            return Instruction(("commit_copies();",), {name: _COMMIT})
        case "wait_copies", (but,):
            called = f"{name}_{but.value}"
            return Instruction((f"{called}();",), {called: _WAIT.format(but=but.value)})
        case "copy_async", (to, source, count) if source.buffer and source.buffer.dtype.bytes in CACHES:
            return _copies(to, source, int(count.value), source.buffer.dtype.bytes)
    return None


def _copies(to: InstructionOperand, source: InstructionOperand, count: int, width: int) -> Instruction:
    """As many elements at once as both places allow."""
    at_once = math.gcd(count, to.aligned, source.aligned, max(CACHES) // width)
    size = at_once * width
    called = f"copy_async_{size}"
    lines = []
    for n in range(0, count, at_once):
        to_n, from_n = (f"{x.pointer} + {n}" if n else x.pointer for x in (to, source))
        lines.append(f"{called}({to_n}, {from_n}, {source.guard});")
    return Instruction(tuple(lines), {called: _COPY.format(bytes=size, caches=CACHES[size])})
