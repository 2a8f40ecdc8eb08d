"""LLVM values as text: types, constants, and one function under construction."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..ir.types import BOOL, I64, DType, wrapped

_SCALAR_TYPES = {
    "f32": "float", "f64": "double", "f16": "i16", "bf16": "i16", "bool": "i1", "i8": "i8", "u8": "i8",
    "i16": "i16", "u16": "i16", "i32": "i32", "u32": "i32", "i64": "i64", "u64": "i64",
}  # fmt: skip
_INTRINSIC_SUFFIX = {"float": "f32", "double": "f64"}


def value_type(dtype: DType, lanes: int = 1) -> str:
    """The type of a value in a register. 16-bit floats are bit patterns: `lower.narrow` does the rest."""
    scalar = _SCALAR_TYPES[dtype.name]
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


def memory_type(dtype: DType, lanes: int = 1) -> str:
    scalar = "i8" if dtype is BOOL else _SCALAR_TYPES[dtype.name]
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


def suffix(dtype: DType, lanes: int = 1) -> str:
    """As in llvm.fma.v16f32."""
    scalar = _SCALAR_TYPES[dtype.name]
    scalar = _INTRINSIC_SUFFIX.get(scalar, scalar)
    return scalar if lanes == 1 else f"v{lanes}{scalar}"


@dataclass(frozen=True)
class Value:
    """An SSA name or a constant. `const` holds the Python value of a constant scalar, `flags` those of a mask
    that is known when compiling.
    """

    text: str
    dtype: DType
    lanes: int = 1
    const: int | float | bool | None = None
    flags: tuple[bool, ...] | None = None

    @property
    def type(self) -> str:
        return value_type(self.dtype, self.lanes)

    @property
    def typed(self) -> str:
        return f"{self.type} {self.text}"


def constant(value: int | float | bool, dtype: DType) -> Value:
    held = wrapped(int(value), dtype) if dtype.is_integer else value
    return Value(constant_text(value, dtype), dtype, 1, held)


def constant_text(value: int | float | bool, dtype: DType) -> str:
    if dtype is BOOL:
        return "true" if value else "false"
    if dtype.name in ("f16", "bf16"):
        return str(int(np.asarray(value, dtype.numpy).view(np.uint16)))
    if dtype.is_float:
        rounded = float(np.asarray(value, dtype.numpy))
        return "0x" + struct.pack(">d", rounded).hex().upper()
    return str(wrapped(int(value), dtype))


def mask_of(flags: Sequence[bool]) -> Value:
    """One flag a lane."""
    if len(set(flags)) == 1:
        return constant(flags[0], BOOL)
    text = ", ".join("i1 true" if f else "i1 false" for f in flags)
    return Value(f"<{text}>", BOOL, len(flags), None, tuple(flags))


def flags_of(v: Value, lanes: int) -> tuple[bool, ...] | None:
    """The flags of a mask if they are known when compiling."""
    return v.flags if v.const is None else (bool(v.const),) * lanes


def index(value: int) -> Value:
    return constant(value, I64)


class FunctionText:
    """Lines of one LLVM function: blocks in order of creation, allocas collected for the entry."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.allocas: list[str] = []
        self.declarations: set[str] = set()
        self.block = "entry"
        self._count = 0

    def fresh(self, hint: str = "v") -> str:
        self._count += 1
        return f"%{hint}{self._count}"

    def emit(self, line: str) -> None:
        self.lines.append("  " + line)

    def assign(self, line: str, dtype: DType, lanes: int = 1) -> Value:
        name = self.fresh()
        self.lines.append(f"  {name} = {line}")
        return Value(name, dtype, lanes)

    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label

    def label(self, hint: str) -> str:
        self._count += 1
        return f"{hint}{self._count}"

    def branch(self, label: str) -> None:
        self.emit(f"br label %{label}")

    def alloca(self, type: str, align: int) -> str:
        name = self.fresh("slot")
        self.allocas.append(f"  {name} = alloca {type}, align {align}")
        return name

    def intrinsic(self, name: str, result: str, args: list[str]) -> str:
        """The text of a call; remembers the declaration. `args` are typed values' types and texts joined."""
        types = ", ".join(_type_of(a) for a in args)
        self.declarations.add(f"declare {result} @{name}({types})")
        return f"call {result} @{name}({', '.join(args)})"


def _type_of(typed: str) -> str:
    if typed.startswith("<"):
        return typed[: typed.index(">") + 1]
    return typed.split(" ", 1)[0]


def broadcast(fn: FunctionText, v: Value, lanes: int) -> Value:
    """The same scalar in every lane."""
    if v.lanes == lanes:
        return v
    if v.const is not None:
        return Value(f"splat ({value_type(v.dtype)} {v.text})", v.dtype, lanes)
    one = fn.assign(f"insertelement {value_type(v.dtype, lanes)} poison, {v.typed}, i64 0", v.dtype, lanes)
    zeros = f"<{lanes} x i32> zeroinitializer"
    return fn.assign(f"shufflevector {one.typed}, {one.type} poison, {zeros}", v.dtype, lanes)
