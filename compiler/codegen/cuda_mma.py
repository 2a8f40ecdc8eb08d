"""Products of matrices by tensor cores: PTX's mma.sync, m16n8k8 for TF32 and m16n8k16 for 16 bits.

    C[i, j, h, l] += Σk A[k, 16·i + row] · B[k, 8·j + column]

by the threads of a warp; what each of them holds of the matrices is in PTX ISA, "Matrix fragments for mma".
A and B lie in shared memory as words of 32 bits, each an f32 or two neighbours along k of 16 bits. Where
words that are neighbours along k lie side by side, ldmatrix loads four parts of fragments at once: each is 8
rows of 4 words, of which thread t gets word t mod 4 of row t / 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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

_LOAD = """static __device__ __forceinline__ void load_matrices(
    u32 &r0, u32 &r1, u32 &r2, u32 &r3, const u32 *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
               : "r"((u32)__cvta_generic_to_shared(row)) : "memory");
}"""
"""Thread t says where row t mod 8 of part t / 8 is."""

_ROUNDED = """static __device__ __forceinline__ u32 rounded_tf32(u32 word) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(word) : "f"(bits<f32>(word)));
  return word;
#else
  return fabs(bits<f32>(word)) < INFINITY ? word + 0x1000 : word;
#endif
}"""
"""To the nearest: in ties away from zero; from sm_90 on, where it is one instruction, to the even one. The
product does not read the last 13 bits."""


def instruction(name: str, operands: Sequence[InstructionOperand]) -> Instruction | None:
    """`mma_tf32`, `mma_f16` … on accumulators, A and B; None for any other name."""
    family, _, how = name.partition("_")
    kind, _, only = how.partition("_")
    if family != "mma" or kind not in _SHAPES:
        return None
    multiply = f"mma_{kind}"
    c, a, a_term, a_row, b, b_term, b_column = operands
    assert c.buffer
    rows, columns = c.buffer.shape[:2]
    factors = (
        _Factor("a", a, int(a_term.value), int(a_row.value), tuple(_left(i) for i in range(rows))),
        _Factor("b", b, int(b_term.value), int(b_column.value), tuple(_right(j) for j in range(columns))),
    )
    lines = ["const int lane = (int)(threadIdx.x & 31);"]
    helpers = {multiply: _HELPER.format(name=multiply, kind=kind, shape=_SHAPES[kind])}
    for factor in factors:
        lines += factor.loaded(helpers)
    if kind == "tf32":
        helpers["rounded_tf32"] = _ROUNDED
        unrounded = [factor for factor in factors if factor.name == only or not only]
        lines += [f"{word} = rounded_tf32({word});" for factor in unrounded for word in factor.words]
    for i in range(rows):
        for j in range(columns):
            first = 4 * (i * columns + j)
            given = [*c.elements[first : first + 4], *factors[0].fragment(i), *factors[1].fragment(j)]
            lines.append(f"{multiply}({', '.join(given)});")
    return Instruction(tuple(lines), helpers)


Part = tuple[int, int]
"""8 rows of 4 words of a factor: the first term, the first row or column."""


def _left(i: int) -> tuple[Part, ...]:
    return tuple((term, 16 * i + row) for term in (0, WORDS // 2) for row in (0, 8))


def _right(j: int) -> tuple[Part, ...]:
    return tuple((term, 8 * j) for term in (0, WORDS // 2))


@dataclass(frozen=True)
class _Factor:
    """A matrix in shared memory and a thread's word of each part of its fragments; strides in words."""

    name: str
    operand: InstructionOperand
    term: int
    across: int
    fragments: tuple[tuple[Part, ...], ...]

    @property
    def words(self) -> list[str]:
        return [word for n in range(len(self.fragments)) for word in self.fragment(n)]

    def fragment(self, n: int) -> list[str]:
        return [f"{self.name}{n}_{part}" for part in range(len(self.fragments[n]))]

    def loaded(self, helpers: dict[str, str]) -> list[str]:
        parts = [part for fragment in self.fragments for part in fragment]
        if self.term == 1 and self.across % 4 == 0 and len(parts) % 4 == 0:
            helpers["load_matrices"] = _LOAD
            return self._by_matrices(parts)
        place = f"(lane & 3) * {self.term} + (lane >> 2) * {self.across}"
        pairs = zip(self.words, parts)
        loads = [f"{word} = {self.name}[{k * self.term + row * self.across}]" for word, (k, row) in pairs]
        return [self._pointer(place), f"u32 {', '.join(loads)};"]

    def _by_matrices(self, parts: Sequence[Part]) -> list[str]:
        """Four parts at a time, whose places relative to the first one's are the same each time."""
        (_, _), (k1, row1), (k2, row2), _ = parts[:4]
        place = (
            f"((lane & 7) + (lane >> 3 & 1) * {row1} + (lane >> 4) * {row2}) * {self.across}"
            f" + (lane >> 3 & 1) * {k1} + (lane >> 4) * {k2}"
        )
        lines = [self._pointer(place), f"u32 {', '.join(self.words)};"]
        for n in range(0, len(parts), 4):
            k, row = parts[n]
            words = ", ".join(self.words[n : n + 4])
            lines.append(f"load_matrices({words}, {self.name} + {k + row * self.across});")
        return lines

    def _pointer(self, place: str) -> str:
        return f"const u32 *{self.name} = reinterpret_cast<const u32 *>({self.operand.pointer}) + {place};"
