"""Products of matrices by tensor cores: PTX's mma.sync, m16n8k8 for TF32 and m16n8k16 for 16 bits.

    C[i, j, h, l] += Σk A[k, 16·i + row] · B[k, 8·j + column]

by the threads of a warp; what each of them holds of the matrices is in PTX ISA, "Matrix fragments for mma".
A and B lie in shared memory as words of 32 bits, each an f32 or two neighbours along k of 16 bits: [k, row].
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

_ROUNDED = """static __device__ __forceinline__ u32 rounded_tf32(u32 word) {
  return fabs(bits<f32>(word)) < INFINITY ? word + 0x1000 : word;
}"""
"""To the nearest, away from zero in ties; the instruction does not read the last 13 bits."""


def instruction(name: str, operands: Sequence[InstructionOperand]) -> Instruction | None:
    """`mma_tf32`, `mma_f16` or `mma_bf16` on accumulators, A and B; None for any other name."""
    kind = name.removeprefix("mma_")
    if kind not in _SHAPES or kind == name:
        return None
    places: list[tuple[int, ...]]
    c, *factors = operands
    assert c.buffer
    rows, columns = c.buffer.shape[:2]
    lines = ["const int lane = (int)(threadIdx.x & 31);"]
    helpers = {name: _HELPER.format(name=name, kind=kind, shape=_SHAPES[kind])}
    read = "{}"
    if kind == "tf32":
        helpers["rounded_tf32"], read = _ROUNDED, "rounded_tf32({})"
    for matrix, operand in zip("ab", factors):
        assert operand.buffer
        stride = operand.buffer.strides[-3] * operand.buffer.dtype.bytes // 4
        lines.append(
            f"const u32 *{matrix} = reinterpret_cast<const u32 *>({operand.pointer}) "
            f"+ (lane & 3) * {stride} + (lane >> 2);"
        )
        far = WORDS // 2 * stride
        if matrix == "a":
            places = [(16 * i, 16 * i + 8, 16 * i + far, 16 * i + 8 + far) for i in range(rows)]
        else:
            places = [(8 * j, 8 * j + far) for j in range(columns)]
        for part, words in enumerate(places):
            named = (f"{matrix}{part}_{n} = {read.format(f'{matrix}[{at}]')}" for n, at in enumerate(words))
            lines.append(f"const u32 {', '.join(named)};")
    for i in range(rows):
        for j in range(columns):
            first = 4 * (i * columns + j)
            given = [*c.elements[first : first + 4], *(f"a{i}_{n}" for n in range(4)), f"b{j}_0", f"b{j}_1"]
            lines.append(f"{name}({', '.join(given)});")
    return Instruction(tuple(lines), helpers)
