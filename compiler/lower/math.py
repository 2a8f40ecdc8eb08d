"""Elementary functions as arithmetic that vectorises.

f32: within 4 ULP everywhere, exact at ±0, ±inf, NaN. f64: calls of libm. Narrower floats: through f32.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..ir.scalar import Binary, Call, Const, Expr, binary, call, cast, const, ge, lt, select, transform
from ..ir.types import F32, F64, DType
from . import math_f32, math_wide

_F32: dict[str, Callable[[Expr], Expr]] = {
    "exp": math_f32.exp, "log": math_f32.log, "tanh": math_f32.tanh, "sigmoid": math_f32.sigmoid,
    "erf": math_f32.erf, "sin": math_wide.sin, "cos": math_wide.cos, "tan": math_wide.tan,
}  # fmt: skip
_WIDE: dict[str, Callable[[Expr], Expr]] = {
    "expm1": math_wide.expm1, "log1p": math_wide.log1p, "sinh": math_wide.sinh, "cosh": math_wide.cosh,
    "asinh": math_wide.asinh, "acosh": math_wide.acosh, "atanh": math_wide.atanh,
    "asin": math_wide.asin, "acos": math_wide.acos, "atan": math_wide.atan,
}  # fmt: skip


def expand_math(e: Expr) -> Expr:
    """`e` without transcendental functions, rsqrt, pow and float remainders, except calls of `libm.*` on f64.

    What is left is arithmetic, comparisons, selects, sqrt, abs, copysign, isnan, casts and bit operations.
    A value that is used several times is one object.
    """
    return transform(e, _expand)


def _expand(e: Expr) -> Expr | None:
    match e:
        case Call(op=op, args=(x,)):
            return _function(op, x)
        case Binary(op="pow", a=a, b=b):
            return _power(a, b)
        case Binary(op="rem", a=a, b=b) if a.dtype.is_float:
            return cast(call("libm.fmod", cast(a, F64), cast(b, F64)), a.dtype)
    return None


def _function(op: str, x: Expr) -> Expr | None:
    if not (op in _F32 or op in _WIDE or op == "rsqrt"):
        return None
    if x.dtype not in (F32, F64):
        return cast(_required(op, cast(x, F32)), x.dtype)
    return _required(op, x)


def _required(op: str, x: Expr) -> Expr:
    if op == "rsqrt":
        return const(1.0, x.dtype) / call("sqrt", x)
    if x.dtype is F64:
        return _sigmoid_f64(x) if op == "sigmoid" else call(f"libm.{op}", x)
    if op in _WIDE:
        return cast(_WIDE[op](cast(x, F64)), F32)
    return cast(_F32[op](x), F32)


def _sigmoid_f64(x: Expr) -> Expr:
    one = const(1.0, F64)
    e = call("libm.exp", -call("abs", x))
    return select(lt(x, 0.0), e, one) / (one + e)


# --- power ----------------------------------------------------------------------------------------------


def _power(x: Expr, y: Expr) -> Expr:
    if x.dtype.is_integer:
        return _integer_power(x, y, x.dtype)
    if x.dtype not in (F32, F64):
        return cast(_power(cast(x, F32), cast(y, F32)), x.dtype)
    simple = _constant_power(x, float(y.value)) if isinstance(y, Const) else None
    if simple is not None:
        return simple
    if x.dtype is F64:
        return call("libm.pow", x, y)
    return cast(math_wide.power(cast(x, F64), cast(y, F64)), F32)


def _constant_power(x: Expr, y: float) -> Expr | None:
    """Exponents for which products, a quotient or roots are as exact.

    Among them 3/4, that of local response normalisation, so that it needs no f64, which many GPUs lack.
    """
    if y == 0.5 or (y == 0.75 and x.dtype is F32):
        root = call("sqrt", x + 0.0)  # -0 gives 0
        value = root if y == 0.5 else root * call("sqrt", root)
        return select(binary("eq", x, -const(np.inf, x.dtype)), const(np.inf, x.dtype), value)
    if y == -1.0:
        return const(1.0, x.dtype) / x
    if y not in (0.0, 1.0, 2.0, 3.0, 4.0):
        return None
    square = x * x
    return {0.0: const(1.0, x.dtype), 1.0: x, 2.0: square, 3.0: square * x, 4.0: square * square}[y]


def _integer_power(x: Expr, y: Expr, dtype: DType) -> Expr:
    """By squaring, modulo 2**bits; a negative exponent gives the truncated reciprocal, 0 for 0."""
    one, zero = const(1, dtype), const(0, dtype)
    bits = dtype.bits - (dtype.kind == "int")
    if isinstance(y, Const):
        bits = min(bits, int(y.value).bit_length())

    def odd(n: Expr) -> Expr:
        return binary("ne", binary("and", n, one), zero)

    result: Expr = one
    base = x
    for i in range(bits):
        result = result * select(odd(binary("shr", y, const(i, dtype))), base, one)
        base = base * base
    if dtype.kind == "uint":
        return result
    minus_one = const(-1, dtype)
    sign = select(odd(y), minus_one, one)
    reciprocal = select(binary("eq", x, one), one, select(binary("eq", x, minus_one), sign, zero))
    return select(ge(y, zero), result, reciprocal)
