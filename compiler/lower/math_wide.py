"""f32 functions in f64 arithmetic: for those used too rarely to deserve a form of their own.

Each takes f32 values widened to f64 and is good to about 2**-34, relative, so that rounding to f32 decides
the error. The coefficients are minimax fits (Remez exchange) of the relative error.
"""

from __future__ import annotations

import math

import numpy as np

from ..ir.scalar import Const, Expr, binary, call, cast, const, ge, lt, select
from ..ir.types import F64, U32, U64
from .math_f32 import LN2, LOG2_E, at_least, at_most, fma, polynomial, real

ROUND = 6755399441055744.0  # 1.5 * 2**52: adding it rounds to an integer, which then stands in the low bits
EXPM1 = (  # (exp(r) - 1) / r
    0.99999999999555503, 0.50000000001210603, 0.16666666785705521, 0.041666665948944464,
    0.0083332836525071359, 0.0013888978559239274, 0.00019907517318372032, 2.4801549813847924e-5,
)  # fmt: skip
ATANH = (  # atanh(s) / s in s²
    1.0000000000041979, 0.33333332619262118, 0.20000193142420135, 0.14267480891955947, 0.11808950369918833,
)  # fmt: skip
ATAN = (  # atan(x) / x in x²
    0.99999999999927829, -0.33333333278736914, 0.19999993219803557, -0.14285392274765077, 0.11103550644572265,
    -0.08993341529649516, 0.069774899335909592, -0.037709144576303618,
)  # fmt: skip
SIN = (  # sin(r) / r in r²
    0.99999999999544592, -0.16666666630417826, 0.0083333286874226034, -0.00019839177534812341,
    2.7171452347159457e-6,
)  # fmt: skip
COS = (
    0.99999999994388003, -0.49999999571205241, 0.04166661320066054, -0.0013886528184746262,
    2.4372592151105218e-5,
)  # fmt: skip
HALF_PI_HIGH = 1.5707963267341256  # 33 significant bits: its product with a 20-bit integer is exact
HALF_PI_LOW = 6.077100506506192e-11
TWO_OVER_PI = (
    0x0517CC1B,
    0x727220A9,
    0x4FE13ABE,
    0x8FA9A6EE,
    0x06DB14AC,
    0xC9E21C82,
    0x0FF28B1D,
)  # / 32, as bits


def _real(value: float) -> Const:
    return real(value, F64)


ONE = _real(1.0)
ZERO = _real(0.0)
INFINITY = _real(np.inf)
NAN = _real(np.nan)


# --- exponentials ---------------------------------------------------------------------------------------


def _power_of_two(shifted: Expr) -> Expr:
    """2**n from n + 1023 + ROUND."""
    return call("bitcast_f64", binary("shl", call("bitcast_i64", shifted), const(52)))


def _exp_parts(x: Expr) -> tuple[Expr, Expr]:
    """(exp(r) - 1, 2**n) with x = n·ln 2 + r; x is taken as within ±110, where f32 results saturate."""
    x = at_least(at_most(x, 110.0), -110.0)
    bias = _real(ROUND + 1023)
    shifted = fma(x, _real(LOG2_E), bias)
    r = fma(shifted - bias, _real(-LN2), x)
    return r * polynomial(r, EXPM1), _power_of_two(shifted)


def expm1(x: Expr) -> Expr:
    p, power = _exp_parts(x)
    return call("copysign", fma(power, p, power - ONE), x)


def sinh(x: Expr) -> Expr:
    u = expm1(call("abs", x))
    return call("copysign", _real(0.5) * (u + u / (u + ONE)), x)


def cosh(x: Expr) -> Expr:
    p, power = _exp_parts(call("abs", x))
    e = fma(power, p, power)
    return _real(0.5) * (e + ONE / e)


# --- logarithms -----------------------------------------------------------------------------------------


def _log_parts(x: Expr) -> tuple[Expr, Expr]:
    """(k, log m) with x = 2**k · m, √½ <= m < √2, for positive normal x."""
    half = int(np.float64(0.5**0.5).view(np.int64))
    offset = call("bitcast_i64", x) - const(half)
    k = binary("shr", offset, const(52))
    m = call("bitcast_f64", call("bitcast_i64", x) - binary("shl", k, const(52)))
    s = (m - ONE) / (m + ONE)
    return cast(k, F64), _real(2.0) * s * polynomial(s * s, ATANH)


def _log(x: Expr) -> Expr:
    k, log_m = _log_parts(x)
    return fma(k, _real(LN2), log_m)


def _log1p_finite(z: Expr) -> Expr:
    """For -1 < z < inf; the quotient makes up for what 1 + z lost."""
    u = ONE + z
    return call("copysign", _log(u) + (z - (u - ONE)) / u, z)


def log1p(z: Expr) -> Expr:
    finite = select(lt(z, INFINITY), _log1p_finite(z), z)
    pole = select(binary("eq", z, _real(-1.0)), -INFINITY, NAN)
    return select(binary("gt", z, _real(-1.0)), finite, pole)


def asinh(x: Expr) -> Expr:
    a = call("abs", x)
    square = a * a
    y = _log1p_finite(a + square / (ONE + call("sqrt", ONE + square)))
    return call("copysign", select(lt(a, INFINITY), y, a), x)


def acosh(x: Expr) -> Expr:
    t = x - ONE
    y = log1p(t + call("sqrt", t * (t + _real(2.0))))
    return select(ge(x, ONE), y, NAN)


def atanh(x: Expr) -> Expr:
    a = call("abs", x)
    return call("copysign", _real(0.5) * log1p(_real(2.0) * a / (ONE - a)), x)


# --- inverse trigonometric functions --------------------------------------------------------------------


def atan(x: Expr) -> Expr:
    """By tan(π/8) and tan(3π/8) into three ranges: atan a, π/4 + atan((a-1)/(a+1)), π/2 - atan(1/a)."""
    a = call("abs", x)
    middle, high = binary("gt", a, _real(math.sqrt(2) - 1)), binary("gt", a, _real(math.sqrt(2) + 1))
    top = select(high, _real(-1.0), select(middle, a - ONE, a))
    bottom = select(high, a, select(middle, a + ONE, ONE))
    base = select(high, _real(math.pi / 2), select(middle, _real(math.pi / 4), ZERO))
    y = top / bottom
    return call("copysign", base + y * polynomial(y * y, ATAN), x)


def asin(x: Expr) -> Expr:
    return atan(x / call("sqrt", (ONE - x) * (ONE + x)))


def acos(x: Expr) -> Expr:
    return _real(2.0) * atan(call("sqrt", (ONE - x) / (ONE + x)))


# --- trigonometric functions ----------------------------------------------------------------------------


def _reduce_small(x: Expr) -> tuple[Expr, Expr]:
    """(r, q) with x = q·π/2 + r, |r| <= π/4, q modulo 4 right, for |x| < 2**20 (Cody and Waite)."""
    shifted = fma(x, _real(2 / math.pi), _real(ROUND))
    n = shifted - _real(ROUND)
    r = fma(n, _real(-HALF_PI_LOW), fma(n, _real(-HALF_PI_HIGH), x))
    return r, call("bitcast_i64", shifted)


def _reduce_large(x: Expr) -> tuple[Expr, Expr]:
    """The same for finite |x| >= 2**20, x in f32 (Payne and Hanek).

    x = m · 2**e. Of 2/π only the bits that matter are kept: those further left give multiples of 4 quadrants.
    """
    word = const(0xFFFFFFFF, U64)

    def shift(op: str, a: Expr, b: Expr | int) -> Expr:
        return binary(op, a, b if isinstance(b, Expr) else const(b, U64))

    bits = call("bitcast_u32", x)
    m = cast(binary("or", binary("and", bits, const(0x7FFFFF, U32)), const(0x800000, U32)), U64)
    start = binary("and", binary("shr", bits, const(23, U32)), const(0xFF, U32)) - const(127 + 20, U32)
    first = binary("shr", start, const(5, U32))
    down = const(32, U64) - cast(binary("and", start, const(31, U32)), U64)

    def window(i: int) -> Expr:
        """32 bits of 2/π from bit `start + 32·i`."""
        pairs = [const(TWO_OVER_PI[i + j] << 32 | TWO_OVER_PI[i + j + 1], U64) for j in range(4)]
        pair: Expr = pairs[3]
        for j in (2, 1, 0):
            pair = select(binary("eq", first, const(j, U32)), pairs[j], pair)
        return binary("and", shift("shr", pair, down), word)

    # The fraction of a full turn in units of 2**-64.
    turn = shift("shl", m * window(0), 32) + m * window(1) + shift("shr", m * window(2), 32)
    quadrant = shift("shr", turn + const(1 << 61, U64), 62)
    rest = call("bitcast_i64", turn - shift("shl", quadrant, 62))
    r, q = cast(rest, F64) * _real(math.pi / 2 * 2.0**-62), call("bitcast_i64", quadrant)
    negative = lt(x, 0.0)
    return select(negative, -r, r), select(negative, const(0) - q, q)


def _sin_cos(x: Expr) -> tuple[Expr, Expr, Expr]:
    """(sin r, cos r, q) for x in f32; r is NaN for infinite x."""
    wide = cast(x, F64)
    (small_r, small_q), (large_r, large_q) = _reduce_small(wide), _reduce_large(x)
    a = call("abs", wide)
    small = lt(a, _real(2.0**20))
    r = select(small, small_r, select(lt(a, INFINITY), large_r, NAN))
    square = r * r
    return r * polynomial(square, SIN), polynomial(square, COS), select(small, small_q, large_q)


def _bit(q: Expr, bit: int) -> Expr:
    return binary("ne", binary("and", q, const(bit)), const(0))


def sin(x: Expr) -> Expr:
    """x in f32, the result in f64."""
    s, c, q = _sin_cos(x)
    y = select(_bit(q, 1), c, s)
    return select(_bit(q, 2), -y, y)


def cos(x: Expr) -> Expr:
    """x in f32, the result in f64."""
    s, c, q = _sin_cos(x)
    y = select(_bit(q, 1), s, c)
    return select(_bit(q + const(1), 2), -y, y)


def tan(x: Expr) -> Expr:
    """x in f32, the result in f64."""
    s, c, q = _sin_cos(x)
    odd = _bit(q, 1)
    return select(odd, -c, s) / select(odd, s, c)


# --- power ----------------------------------------------------------------------------------------------


def _is_integer(y: Expr) -> Expr:
    """For |y| <= 2**50."""
    return binary("eq", (y + _real(ROUND)) - _real(ROUND), y)


def power(x: Expr, y: Expr) -> Expr:
    """x**y as IEEE 754 and C say: 1**y = x**0 = 1, and NaN for finite x < 0 with y not an integer."""
    a = call("abs", x)
    k, log_m = _log_parts(a)
    log2 = fma(log_m, _real(LOG2_E), k)
    log2 = select(lt(a, INFINITY), select(binary("eq", a, ZERO), -INFINITY, log2), a)
    w = at_least(at_most(y * log2, 300.0), -300.0)
    bias = _real(ROUND + 1023)
    shifted = w + bias
    r = (w - (shifted - bias)) * _real(LN2)
    scale = _power_of_two(shifted)
    magnitude = fma(scale, r * polynomial(r, EXPM1), scale)
    magnitude = select(binary("eq", a, ONE), select(call("isnan", y), y, ONE), magnitude)
    clamped = at_least(at_most(y, 2.0**30), -(2.0**30))  # f32 beyond are even integers
    whole = _is_integer(clamped)
    odd = binary("and", whole, call("not", _is_integer(clamped * _real(0.5))))
    signed = select(odd, call("copysign", magnitude, x), magnitude)
    invalid = binary("and", call("not", whole), binary("and", lt(x, ZERO), lt(a, INFINITY)))
    one = binary("or", binary("eq", x, ONE), binary("eq", y, ZERO))
    return select(one, ONE, select(invalid, NAN, signed))
