"""Products of matrices by tensor cores: PTX's mma.sync, m16n8k8 for TF32 and m16n8k16 for 16 bits.

    C[i, j, h, l] += Σk A[k, 16·i + row] · B[k, 8·j + column]

by the threads of a warp; what each of them holds of the matrices is in PTX ISA, "Matrix fragments for mma".
A and B lie in shared memory as words of 32 bits, each a TF32 or two neighbours along k of 16 bits: [k, row].
"""

from __future__ import annotations

from collections.abc import Sequence

from .c_dialect import Instruction, InstructionOperand

_SHAPES = {"tf32": "m16n8k8", "f16": "m16n8k16", "bf16": "m16n8k16"}
WORDS = 8
"""Along k, of one instruction."""

_HELPER = """static __device__ __forceinline__ void {name}(
    f32 &c0, f32 &c1, f32 &c2, f32 &c3, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {{
  asm volatile(
      "mma.sync.aligned.{shape}.row.col.f32.{kind}.{kind}.f32 "
      "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
      : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}}"""


def instruction(name: str, operands: Sequence[InstructionOperand]) -> Instruction | None:
    """`mma_tf32`, `mma_f16` or `mma_bf16` on accumulators, A and B; None for any other name."""
    kind = name.removeprefix("mma_")
    if kind not in _SHAPES or kind == name:
        return None
    c, *factors = operands
    assert c.buffer
    rows, columns = c.buffer.shape[:2]
    lines = ["const int lane = (int)(threadIdx.x & 31);"]
    for matrix, operand in zip("ab", factors):
        assert operand.buffer
        stride = operand.buffer.strides[0] * operand.buffer.dtype.bytes // 4
        lines.append(
            f"const u32 *{matrix} = reinterpret_cast<const u32 *>({operand.pointer}) "
            f"+ (lane & 3) * {stride} + (lane >> 2);"
        )
        far = WORDS // 2 * stride
        if matrix == "b":
            parts = [f"b{j}_0 = b[{8 * j}], b{j}_1 = b[{8 * j + far}]" for j in range(columns)]
            lines += [f"const u32 {part};" for part in parts]
            continue
        for i in range(rows):
            places = (16 * i, 16 * i + 8, 16 * i + far, 16 * i + 8 + far)
            words = ", ".join(f"a{i}_{n} = a[{place}]" for n, place in enumerate(places))
            lines.append(f"const u32 {words};")
    for i in range(rows):
        for j in range(columns):
            first = 4 * (i * columns + j)
            given = [*c.elements[first : first + 4], *(f"a{i}_{n}" for n in range(4)), f"b{j}_0", f"b{j}_1"]
            lines.append(f"{name}({', '.join(given)});")
    return Instruction(tuple(lines), {name: _HELPER.format(name=name, kind=kind, shape=_SHAPES[kind])})
