"""What the C of one kind of device calls things, and the helper functions that all of them share."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..ir.loops import Buffer
from ..ir.types import BF16, BOOL, F16, DType
from .kernel_code import Launch

SHARED_ALIGNMENT = 16


def value_type(dtype: DType) -> str:
    """The C type of a value: f32, i64, …; 16-bit floats are bit patterns, which `lower.narrow` explains."""
    return "u16" if dtype in (F16, BF16) else dtype.name


def memory_type(dtype: DType) -> str:
    return "u8" if dtype is BOOL else value_type(dtype)


def identifier(name: str) -> str:
    """A C name that is no keyword, type or function of any dialect."""
    return "".join(c if c.isalnum() or c == "_" else "_" for c in name) + "_"


@dataclass(frozen=True)
class InstructionOperand:
    """Of an intrinsic: all elements of a register buffer; a pointer to the first element meant of another
    one, whose number there is a multiple of `aligned` (1, 2 or 4), and the condition under which it is there;
    or a value.
    """

    buffer: Buffer | None = None
    elements: tuple[str, ...] = ()
    pointer: str = ""
    guard: str = "true"
    aligned: int = 1
    value: str = ""


@dataclass(frozen=True)
class Instruction:
    """The lines of an intrinsic, and the helper functions that they call, by name."""

    lines: tuple[str, ...]
    helpers: Mapping[str, str]


@dataclass(frozen=True)
class Dialect:
    """The words of a language; `Dialect` subclasses say what words alone cannot."""

    name: str
    prelude: str  # defines i8 … u64 and f32
    fp64: str  # defines f64; only where it is used, since devices may have none
    shared: str  # before the declaration of a shared buffer
    inline: str  # before a helper function
    block_index: tuple[str, str, str]
    thread_index: tuple[str, str, str]
    barrier: str
    conversions: Mapping[str, str] = field(default_factory=dict)
    """Helper functions between f32 and the narrow floats that the device has instructions for, f32_to_f16."""

    def signature(
        self,
        symbol: str,
        buffers: Sequence[Buffer],
        written: frozenset[str],
        launch: Launch,
    ) -> str:
        """The head of a kernel up to its opening brace, and what makes typed pointers of its parameters.

        Where it `reports`, the body may set `*error`.
        """
        raise NotImplementedError

    def shared_arrays(self, buffers: Sequence[Buffer]) -> list[str]:
        """Declarations of a block's shared memory."""
        return [
            f"{self.shared} {memory_type(b.dtype)} {identifier(b.name)}[{max(b.size, 1)}];" for b in buffers
        ]

    def bitcast(self, text: str, source: DType, target: DType) -> str:
        raise NotImplementedError

    def load_vector(self, buffer: Buffer, lanes: int, pointer: str, aligned: bool) -> str:
        """An expression for `lanes` neighbouring elements, aligned as one is, or as all of them are."""
        raise NotImplementedError

    def store_vector(self, buffer: Buffer, pointer: str, values: Sequence[str], aligned: bool) -> str:
        """A statement that stores neighbouring elements, aligned as one is, or as all of them are."""
        raise NotImplementedError

    def instruction(self, name: str, operands: Sequence[InstructionOperand]) -> Instruction | None:
        """What computes an intrinsic; None where its meaning is to be printed."""
        return None

    def vector_type(self, dtype: DType, lanes: int) -> str:
        raise NotImplementedError

    def lane(self, vector: str, n: int) -> str:
        raise NotImplementedError


def shared_bytes(buffer: Buffer) -> int:
    """That an array takes of a block's shared memory, so that the next one is aligned."""
    return -(-max(buffer.nbytes, 1) // SHARED_ALIGNMENT) * SHARED_ALIGNMENT


def module_source(dialect: Dialect, kernels: Sequence[str]) -> str:
    """One program of the sources of all kernels; helper functions that several have stand in it once."""
    helpers, rest = _parted(dialect, kernels)
    return _program(dialect, [*helpers, *rest])


def kernel_programs(dialect: Dialect, source: str) -> list[str]:
    """A program of its own for each kernel of a source, in order."""
    helpers, kernels = _parted(dialect, [source])
    return [_program(dialect, [*helpers, kernel]) for kernel in kernels]


def _parted(dialect: Dialect, sources: Sequence[str]) -> tuple[list[str], list[str]]:
    """Helper functions, each once, and kernels."""
    blocks = [block for part in sources for block in part.strip().split("\n\n") if block]
    helpers = dict.fromkeys(block for block in blocks if block.startswith(dialect.inline))
    return list(helpers), [block for block in blocks if block not in helpers]


def _program(dialect: Dialect, blocks: Sequence[str]) -> str:
    text = "\n\n".join(blocks)
    head = dialect.prelude + (dialect.fp64 if uses_f64(text) else "")
    return f"{head.rstrip()}\n\n{text}\n"


def uses_f64(text: str) -> bool:
    """Whether a source has values of double precision; the letters alone may be part of a kernel's name."""
    return re.search(r"\bf64\b", text) is not None


HELPERS = {
    "least": "{q} {t} least_{t}({t} a, {t} b) {{ return a != a || a < b ? a : b; }}",
    "greatest": "{q} {t} greatest_{t}({t} a, {t} b) {{ return a != a || a > b ? a : b; }}",
    "sign": "{q} {t} sign_{t}({t} a) {{ return a > 0 ? ({t})1 : a < 0 ? ({t})-1 : a; }}",
    "shl": "{q} {t} shl_{t}({t} a, {t} b) "
    "{{ return b >= 0 && b < {bits} ? ({t})(({u})a << ({w})b) : ({t})0; }}",
    "shr": "{q} {t} shr_{t}({t} a, {t} b) {{ return b >= 0 && b < {bits} ? ({t})(a >> ({w})b) : ({t})0; }}",
    "div_int": "{q} {t} div_{t}({t} a, {t} b) "
    "{{ return b == 0 ? ({t})0 : b == -1 ? ({t})(0 - ({u})a) : ({t})(a / b); }}",
    "rem_int": "{q} {t} rem_{t}({t} a, {t} b) {{ return b == 0 || b == -1 ? ({t})0 : ({t})(a % b); }}",
    "floordiv_int": "{q} {t} floordiv_{t}({t} a, {t} b) {{ if (b == 0) return 0; "
    "if (b == -1) return ({t})(0 - ({u})a); {t} d = a / b; "
    "return a % b != 0 && ((a ^ b) < 0) ? ({t})(d - 1) : d; }}",
    "mod_int": "{q} {t} mod_{t}({t} a, {t} b) {{ if (b == 0 || b == -1) return 0; {t} r = a % b; "
    "return r != 0 && ((r ^ b) < 0) ? ({t})(r + b) : r; }}",
    "div_uint": "{q} {t} div_{t}({t} a, {t} b) {{ return b == 0 ? ({t})0 : ({t})(a / b); }}",
    "rem_uint": "{q} {t} rem_{t}({t} a, {t} b) {{ return b == 0 ? ({t})0 : ({t})(a % b); }}",
    "saturate": "{q} {t} {t}_of_{f}({f} a) {{ return a != a ? ({t})0 : a >= {above} ? {most} "
    ": a <= {least} ? {low} : ({t})a; }}",
}
"""By name; {q} qualifiers, {t} the type, {u} the unsigned type of its size, {w} an unsigned shift count."""
