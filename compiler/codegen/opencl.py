"""OpenCL C (version 1.2, with f64 where the kernels use it)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..ir.loops import Buffer
from ..ir.types import DType
from .c_dialect import Dialect, identifier, memory_type, value_type
from .kernel_code import Launch

_TYPES = {
    "i8": "char", "u8": "uchar", "i16": "short", "u16": "ushort", "i32": "int", "u32": "uint", "i64": "long",
    "u64": "ulong", "f32": "float", "f64": "double",
}  # fmt: skip

PRELUDE = "#pragma OPENCL FP_CONTRACT OFF\n" + "".join(
    f"typedef {word} {name};\n" for name, word in _TYPES.items() if name != "f64"
)
FP64 = "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\ntypedef double f64;\n"


@dataclass(frozen=True)
class OpenCL(Dialect):
    """Kernels take (buffer, offset in bytes) for each operand, then the errors of all steps and their own."""

    def signature(
        self,
        symbol: str,
        buffers: Sequence[Buffer],
        written: frozenset[str],
        launch: Launch,
    ) -> str:
        names = [identifier(b.name) for b in buffers]
        operands = [f"__global char *{name}p, ulong {name}at" for name in names]
        size = ", ".join(map(str, launch.block))
        head = f"__kernel __attribute__((reqd_work_group_size({size}))) void {symbol}"
        lines = [f"{head}({', '.join([*operands, '__global int *errors', 'uint step'])}) {{"]
        lines += ["  __global int *error = errors + step;"] * launch.reports
        for b, name in zip(buffers, names):
            type = f"__global {'' if b.name in written else 'const '}{memory_type(b.dtype)} *"
            lines.append(f"  {type}restrict {name} = ({type})({name}p + {name}at);")
        return "\n".join(lines)

    def bitcast(self, text: str, source: DType, target: DType) -> str:
        return f"as_{_TYPES[value_type(target)]}({text})"

    def vector_type(self, dtype: DType, lanes: int) -> str:
        return f"{_TYPES[memory_type(dtype)]}{lanes}"

    def load_vector(self, buffer: Buffer, lanes: int, pointer: str, aligned: bool) -> str:
        if aligned and buffer.scope != "shared":  # arrays in local memory are aligned as one element
            return f"*(__global const {self.vector_type(buffer.dtype, lanes)} *)({pointer})"
        return f"vload{lanes}(0, {pointer})"

    def store_vector(self, buffer: Buffer, pointer: str, values: Sequence[str], aligned: bool) -> str:
        type = self.vector_type(buffer.dtype, len(values))
        vector = f"({type})({', '.join(values)})"
        if aligned and buffer.scope != "shared":
            return f"*(__global {type} *)({pointer}) = {vector};"
        return f"vstore{len(values)}({vector}, 0, {pointer});"

    def lane(self, vector: str, n: int) -> str:
        return f"{vector}.s{n:x}"


DIALECT = OpenCL(
    name="opencl",
    prelude=PRELUDE,
    fp64=FP64,
    shared="__local",
    inline="static inline",
    block_index=("(int)get_group_id(0)", "(int)get_group_id(1)", "(int)get_group_id(2)"),
    thread_index=("(int)get_local_id(0)", "(int)get_local_id(1)", "(int)get_local_id(2)"),
    barrier="barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);",
)
