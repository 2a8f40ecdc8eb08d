"""Copies to shared memory that threads do not wait for: PTX's cp.async, by groups."""

from __future__ import annotations

from collections.abc import Sequence

from .c_dialect import Instruction, InstructionOperand

_COPY = """static __device__ __forceinline__ void copy_async_{bytes}(
    void *to, const void *from, bool there) {{
  asm volatile("cp.async.ca.shared.global [%0], [%1], {bytes}, %2;"
               ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(there ? {bytes} : 0) : "memory");
}}"""
_COMMIT = """static __device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}"""
_WAIT = """static __device__ __forceinline__ void wait_copies_{but}() {{
  asm volatile("cp.async.wait_group {but};" ::: "memory");
}}"""
SIZES = (4, 8, 16)
"""Bytes of an element that can be copied so."""


def instruction(name: str, operands: Sequence[InstructionOperand]) -> Instruction | None:
    """`copy_async` of an element that is in memory or zero, `commit_copies`, `wait_copies`; else None."""
    match name, operands:
        case "commit_copies", _:
            return Instruction(("commit_copies();",), {name: _COMMIT})
        case "wait_copies", (but,):
            called = f"{name}_{but.value}"
            return Instruction((f"{called}();",), {called: _WAIT.format(but=but.value)})
        case "copy_async", (to, source) if source.buffer and source.buffer.dtype.bytes in SIZES:
            called = f"{name}_{source.buffer.dtype.bytes}"
            line = f"{called}({to.pointer}, {source.pointer}, {source.guard});"
            return Instruction((line,), {called: _COPY.format(bytes=source.buffer.dtype.bytes)})
    return None
