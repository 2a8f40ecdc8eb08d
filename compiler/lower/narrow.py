"""f16 and bf16 as bits: conversions need neither hardware nor library, and arithmetic is done in f32."""

from __future__ import annotations

from collections.abc import Collection

from ..ir.scalar import (
    BITCASTS,
    COMPARISONS,
    Binary,
    Call,
    Cast,
    Expr,
    binary,
    call,
    cast,
    const,
    lt,
    select,
    transform,
)
from ..ir.types import BF16, F16, F32, F64, I32, NARROW, U16, U32, DType

F16_MIN_NORMAL = 0x38800000  # 2**-14
F16_OVERFLOW = 0x47800000  # 2**16
REBIAS = (127 - 15) << 23  # between the exponents of f16 and f32


def expand_narrow(e: Expr, native: Collection[DType] = ()) -> Expr:
    """`e` with f16 and bf16 only in loads, constants, selects and bit casts, every value rounded once.

    Casts from f32 to the `native` types stay, and those from f16, if it is one of them. Arithmetic on narrow
    floats that is left in `e` is done in f32 and rounded.
    """

    def expand(x: Expr) -> Expr | None:
        match x:
            case Cast(value=v, type=t) if v.dtype in NARROW or t in NARROW:
                return _convert(v, t, native)
            case Binary(op=op, a=a, b=b) if a.dtype in NARROW:
                wide = binary(op, _convert(a, F32, native), _convert(b, F32, native))
                return wide if op in COMPARISONS else _convert(wide, a.dtype, native)
            case Call(op=op, args=args) if args[0].dtype in NARROW and op not in BITCASTS:
                wide = call(op, *(_convert(a, F32, native) for a in args))
                return wide if wide.dtype is not F32 else _convert(wide, args[0].dtype, native)
        return None

    return transform(e, expand)


def _convert(x: Expr, to: DType, native: Collection[DType]) -> Expr:
    if x.dtype in NARROW:
        x = _widen(x, native)
    if to not in NARROW:
        return cast(x, to)
    x = _round_to_odd(x) if x.dtype is F64 else cast(x, F32)
    if to in native:
        return cast(x, to)
    return _to_bf16(x) if to is BF16 else _to_f16(x)


def _u32(op: str, a: Expr, b: Expr | int) -> Expr:
    return binary(op, a, b if isinstance(b, Expr) else const(b, U32))


def _widen(x: Expr, native: Collection[DType]) -> Expr:
    simple = cast(x, F32)
    if not isinstance(simple, Cast) or (x.dtype is F16 and F16 in native):
        return simple
    bits = cast(call("bitcast_u16", x), U32)
    return call("bitcast_f32", _u32("shl", bits, 16)) if x.dtype is BF16 else _from_f16(bits)


def _from_f16(bits: Expr) -> Expr:
    magnitude = _u32("shl", _u32("and", bits, 0x7FFF), 13)
    normal = _u32("add", magnitude, REBIAS)
    special = _u32("add", normal, REBIAS)  # the exponent of infinity and NaN becomes that of f32
    # A subnormal's fraction in a number of exponent -14, whose hidden bit is taken away again.
    subnormal = call("bitcast_f32", _u32("add", normal, 1 << 23)) - 2.0**-14
    value = select(lt(magnitude, 0x7C00 << 13), normal, special)
    value = select(lt(magnitude, 0x400 << 13), call("bitcast_u32", subnormal), value)
    sign = _u32("shl", _u32("and", bits, 0x8000), 16)
    return call("bitcast_f32", _u32("or", value, sign))


def _half_up_to_even(bits: Expr, drop: int) -> Expr:
    """bits / 2**drop to the nearest, ties to even, before the final shift."""
    odd = _u32("and", _u32("shr", bits, drop), 1)
    return _u32("add", _u32("add", bits, (1 << (drop - 1)) - 1), odd)


def _to_bf16(x: Expr) -> Expr:
    bits = call("bitcast_u32", x)
    rounded = _u32("shr", _half_up_to_even(bits, 16), 16)
    nan = _u32("or", _u32("shr", bits, 16), 0x40)
    return call("bitcast_bf16", cast(select(call("isnan", x), nan, rounded), U16))


def _to_f16(x: Expr) -> Expr:
    bits = call("bitcast_u32", x)
    magnitude = _u32("and", bits, 0x7FFFFFFF)
    clamped = _u32("min", magnitude, F16_OVERFLOW)
    normal = _u32("shr", _u32("sub", _half_up_to_even(clamped, 13), REBIAS), 13)
    # Adding 1/2, whose last bit is worth f16's least subnormal, rounds to a multiple of it.
    shifted = call("bitcast_u32", call("bitcast_f32", magnitude) + 0.5)
    subnormal = _u32("sub", shifted, 0x3F000000)
    nan = _u32("or", _u32("and", _u32("shr", magnitude, 13), 0x3FF), 0x7E00)
    value = select(lt(magnitude, F16_MIN_NORMAL), subnormal, select(call("isnan", x), nan, normal))
    sign = _u32("and", _u32("shr", bits, 16), 0x8000)
    return call("bitcast_f16", cast(_u32("or", value, sign), U16))


def _round_to_odd(x: Expr) -> Expr:
    """f64 → f32 such that rounding once more, to f16 or bf16, gives what a single rounding would have given.

    Boldo and Melquiond, "When double rounding is odd", 2005.
    """
    near = cast(x, F32)
    bits = call("bitcast_i32", near)
    magnitude, exact = call("abs", cast(near, F64)), call("abs", x)
    zero = const(0, I32)
    step = select(lt(exact, magnitude), const(-1, I32), select(lt(magnitude, exact), const(1, I32), zero))
    even = binary("eq", binary("and", bits, const(1, I32)), zero)
    return call("bitcast_f32", bits + select(even, step, zero))
