"""Sums of four products of bytes, lane by lane: c + dot4(a, b), of vectors of i32 of any length.

x86 with VNNI: vpdpbusd; other x86: two products of pairs; AArch64 with dot products: sdot.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.types import I32
from ..target import VNNI, Target
from .llvm_values import FunctionText, Value, value_type


def dot4(fn: FunctionText, target: Target, a: Value, b: Value, c: Value) -> Value:
    """Bytes of `b` are signed, those of `a` as `target.dot` says. All have the same lanes."""
    lanes = c.lanes
    widths = [n for n in (4, 8, 16) if 32 * n <= target.vector_bits]
    if lanes > widths[-1]:
        first = widths[-1]
        low = dot4(fn, target, *(lanes_of(fn, v, 0, first) for v in (a, b, c)))
        high = dot4(fn, target, *(lanes_of(fn, v, first, lanes - first) for v in (a, b, c)))
        order = (*range(first), *range(lanes, 2 * lanes - first))
        return shuffled(fn, lanes_of(fn, low, 0, lanes), lanes_of(fn, high, 0, lanes), order)
    width = next(n for n in widths if n >= lanes)
    if lanes < width:
        whole = dot4(fn, target, *(lanes_of(fn, v, 0, width) for v in (a, b, c)))
        return lanes_of(fn, whole, 0, lanes)
    if target.arch == "aarch64":
        return _byte_dot(fn, f"llvm.aarch64.neon.sdot.v{lanes}i32.v{4 * lanes}i8", b, a, c)
    if any(name in target.features for name in VNNI):
        return _byte_dot(fn, f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", a, b, c)
    return _by_pairs(fn, a, b, c)


def _byte_dot(fn: FunctionText, name: str, a: Value, b: Value, c: Value) -> Value:
    type = f"<{4 * c.lanes} x i8>"
    bytes = [f"{type} {_named(fn, f'bitcast {v.typed} to {type}')}" for v in (a, b)]
    return fn.assign(fn.intrinsic(name, c.type, [c.typed, *bytes]), I32, c.lanes)


def _by_pairs(fn: FunctionText, a: Value, b: Value, c: Value) -> Value:
    """Even and odd bytes as i16, unsigned those of `a`; products of neighbours are added as i32."""
    type = f"<{2 * c.lanes} x i16>"
    eight, low = "splat (i16 8)", "splat (i16 255)"
    x, y = (_named(fn, f"bitcast {v.typed} to {type}") for v in (a, b))
    shifted = _named(fn, f"shl {type} {y}, {eight}")
    even = _named(fn, f"and {type} {x}, {low}"), _named(fn, f"ashr {type} {shifted}, {eight}")
    odd = _named(fn, f"lshr {type} {x}, {eight}"), _named(fn, f"ashr {type} {y}, {eight}")
    name = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}[c.lanes]
    for pair in (even, odd):
        call = fn.intrinsic(f"llvm.x86.{name}", c.type, [f"{type} {v}" for v in pair])
        c = fn.assign(f"add {c.typed}, {fn.assign(call, I32, c.lanes).text}", I32, c.lanes)
    return c


def interleaved(fn: FunctionText, bytes: Sequence[Value]) -> Value | None:
    """Words of four vectors of bytes, of four lanes each, as AArch64 zips them; None of others.

    They are made wide first: LLVM would extend four bytes to halves.
    """
    if bytes[0].lanes != 4:
        return None

    def wide(v: Value) -> str:
        whole = _named(fn, f"bitcast {v.typed} to i32")
        held = _named(fn, f"insertelement <4 x i32> poison, i32 {whole}, i64 0")
        return _named(fn, f"bitcast <4 x i32> {held} to <16 x i8>")

    def zipped(lanes: int, a: str, b: str) -> str:
        type = f"<{lanes} x i{128 // lanes}>"
        order = ", ".join(f"i32 {n + half * lanes}" for n in range(lanes // 2) for half in (0, 1))
        return _named(fn, f"shufflevector {type} {a}, {type} {b}, <{lanes} x i32> <{order}>")

    a, b, c, d = map(wide, bytes)
    low, high = (
        _named(fn, f"bitcast <16 x i8> {zipped(16, *pair)} to <8 x i16>") for pair in ((a, b), (c, d))
    )
    return fn.assign(f"bitcast <8 x i16> {zipped(8, low, high)} to <4 x i32>", I32, 4)


def _named(fn: FunctionText, line: str) -> str:
    """The name of a vector of a type that no expression has."""
    return fn.assign(line, I32).text


def lanes_of(fn: FunctionText, v: Value, first: int, lanes: int) -> Value:
    """Lanes [first, first + lanes); those that `v` does not have hold anything."""
    if v.lanes == lanes:
        return v
    if lanes == 1:
        return fn.assign(f"extractelement {v.typed}, i64 {first}", v.dtype)
    if v.lanes == 1:
        type = value_type(v.dtype, lanes)
        return fn.assign(f"insertelement {type} poison, {v.typed}, i64 0", v.dtype, lanes)
    return shuffled(fn, v, v, [n if n < v.lanes else -1 for n in range(first, first + lanes)])


def shuffled(fn: FunctionText, a: Value, b: Value, order: Sequence[int]) -> Value:
    """Lanes of two vectors, one behind the other, by their numbers; -1: anything."""
    lanes = len(order)
    places = ", ".join(f"i32 {n}" if n >= 0 else "i32 poison" for n in order)
    return fn.assign(f"shufflevector {a.typed}, {b.typed}, <{lanes} x i32> <{places}>", a.dtype, lanes)
