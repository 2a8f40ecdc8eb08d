"""CUDA C++, for nvcc."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..ir.loops import Buffer
from ..ir.types import DType
from . import cuda_copies, cuda_mma
from .c_dialect import (
    Dialect,
    Instruction,
    InstructionOperand,
    identifier,
    memory_type,
    shared_bytes,
    value_type,
)
from .kernel_code import Launch

_TYPES = {
    "i8": "signed char", "u8": "unsigned char", "i16": "short", "u16": "unsigned short", "i32": "int",
    "u32": "unsigned int", "i64": "long long", "u64": "unsigned long long", "f32": "float", "f64": "double",
}  # fmt: skip

_VECTOR = """
template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) vec { T at[N]; };
template <int N, class T> __device__ __forceinline__ vec<T, N> load_aligned(const T *p) {
  return *reinterpret_cast<const vec<T, N> *>(p);
}
template <int N, class T> __device__ __forceinline__ vec<T, N> load(const T *p) {
  vec<T, N> v;
#pragma unroll
  for (int n = 0; n < N; ++n) v.at[n] = p[n];
  return v;
}
template <class To, class From> __device__ __forceinline__ To bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "of one size");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fc00000)
"""

PRELUDE = "".join(
    f"typedef {word} {name};\n" for name, word in _TYPES.items() if name != "f64"
) + _VECTOR.lstrip("\n")


def _conversion(source: str, target: str, instruction: str) -> tuple[str, str]:
    kinds = {"f32": ("f32", "f"), "f16": ("u16", "h"), "bf16": ("u16", "h")}
    (given, in_register), (made, out_register) = kinds[source], kinds[target]
    text = f"""static __device__ __forceinline__ {made} {source}_to_{target}({given} a) {{
  {made} b;
  asm("{instruction} %0, %1;" : "={out_register}"(b) : "{in_register}"(a));
  return b;
}}"""
    return f"{source}_to_{target}", text


CONVERSIONS = dict(
    _conversion(*words)
    for words in (
        ("f32", "f16", "cvt.rn.f16.f32"),
        ("f16", "f32", "cvt.f32.f16"),
        ("f32", "bf16", "cvt.rn.bf16.f32"),  # sm_80 and later, as all targets here
    )
)
_MEET = """static __device__ __forceinline__ void meet(i32 *arrivals) {
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) {
    const u32 first = 0x80000001u - gridDim.x * gridDim.y * gridDim.z;
    const u32 mine = blockIdx.x || blockIdx.y || blockIdx.z ? 1u : first;
    __threadfence();
    const u32 before = atomicAdd(reinterpret_cast<u32 *>(arrivals), mine);
    while (!((before ^ *reinterpret_cast<volatile u32 *>(arrivals)) >> 31)) {
    }
    __threadfence();
  }
  __syncthreads();
}"""
"""The highest bit changes when all blocks have come; the others are then zero again."""
_FOLLOW = 'asm volatile("griddepcontrol.wait;" ::: "memory");'
"""First thing, since a kernel may be launched before the one before it has ended: until what that has written
is there (PTX ISA, griddepcontrol, sm_90). None lets the next one begin earlier than when its own blocks end:
its blocks would crowd on the units that are free first (docs/performance.md)."""
STATIC_SHARED = 48 * 1024
"""Bytes that a kernel may declare (CUDA C++ Programming Guide, compute capabilities from 7 on); as in
runtime/src/cuda.h."""
OPTIONS = ("-fmad=false",)
"""For the compiler: multiply-adds are fused where the source says so, and nowhere else."""


@dataclass(frozen=True)
class Cuda(Dialect):
    """Kernels take a pointer for each operand, then the errors of all steps and their own number. What blocks
    that run together write is not theirs alone, so no register may keep it."""

    def signature(
        self,
        symbol: str,
        buffers: Sequence[Buffer],
        written: frozenset[str],
        launch: Launch,
    ) -> str:
        threads = math.prod(launch.block)
        own = "" if launch.together else "__restrict__ "
        operands = [
            f"{memory_type(b.dtype)} *{own}{identifier(b.name)}"
            if b.name in written
            else f"const {memory_type(b.dtype)} *__restrict__ {identifier(b.name)}"
            for b in buffers
        ]
        head = f'extern "C" __global__ void __launch_bounds__({threads}, 1) {symbol}'
        lines = [f"{head}({', '.join([*operands, 'int *errors', 'unsigned step'])}) {{"]
        lines += ["  int *error = errors + step;"] * launch.reports + [f"  {_FOLLOW}"] * launch.overlaps
        return "\n".join(lines)

    def shared_arrays(self, buffers: Sequence[Buffer]) -> list[str]:
        """What is more than a kernel may declare comes with its launch (runtime/src/cuda_context.c)."""
        if sum(map(shared_bytes, buffers)) <= STATIC_SHARED:
            return super().shared_arrays(buffers)
        lines, offset = [f"extern {self.shared} unsigned char launched_shared[];"], 0
        for b in buffers:
            pointer = f"{memory_type(b.dtype)} *"
            place = f"reinterpret_cast<{pointer}>(launched_shared + {offset})"
            lines.append(f"{pointer}const {identifier(b.name)} = {place};")
            offset += shared_bytes(b)
        return lines

    def bitcast(self, text: str, source: DType, target: DType) -> str:
        return f"bits<{value_type(target)}>({text})"

    def instruction(self, name: str, operands: Sequence[InstructionOperand]) -> Instruction | None:
        if name == "exchange":
            return _exchange(*operands)
        if name == "meet":
            return Instruction((f"meet({operands[0].pointer});",), {name: _MEET})
        return cuda_mma.instruction(name, operands) or cuda_copies.instruction(name, operands)

    def vector_type(self, dtype: DType, lanes: int) -> str:
        return f"vec<{memory_type(dtype)}, {lanes}>"

    def load_vector(self, buffer: Buffer, lanes: int, pointer: str, aligned: bool) -> str:
        return f"load{'_aligned' * aligned}<{lanes}>({pointer})"

    def store_vector(self, buffer: Buffer, pointer: str, values: Sequence[str], aligned: bool) -> str:
        if aligned:
            type = self.vector_type(buffer.dtype, len(values))
            return f"*reinterpret_cast<{type} *>({pointer}) = {{{', '.join(values)}}};"
        return " ".join(f"({pointer})[{n}] = {value};" for n, value in enumerate(values))

    def lane(self, vector: str, n: int) -> str:
        return f"{vector}.at[{n}]"


def _exchange(
    to: InstructionOperand, of: InstructionOperand, distance: InstructionOperand, threads: InstructionOperand
) -> Instruction:
    mask = (1 << int(threads.value)) - 1
    line = f"{to.elements[0]} = __shfl_xor_sync({mask:#x}u, {of.elements[0]}, {distance.value});"
    return Instruction((line,), {})


DIALECT = Cuda(
    name="cuda",
    prelude=PRELUDE,
    fp64="typedef double f64;\n",
    shared="__shared__ __align__(16)",
    inline="static __device__ __forceinline__",
    block_index=("(int)blockIdx.x", "(int)blockIdx.y", "(int)blockIdx.z"),
    thread_index=("(int)threadIdx.x", "(int)threadIdx.y", "(int)threadIdx.z"),
    barrier="__syncthreads();",
    conversions=CONVERSIONS,
)
