"""exp, log, tanh, sigmoid and erf of f32 in f32 arithmetic: branch-free, the fewest operations for 4 ULP.

The coefficients are minimax fits (Remez exchange for polynomials, Lawson's weighting for the rational ones)
of the relative error over the reduced range. All hold whether `fma` rounds once or twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..ir.scalar import Const, Expr, binary, call, cast, const, ge, lt, select
from ..ir.types import F32, I32, DType

LOG2_E = 1.4426950408889634
LN2 = 0.6931471805599453
LN2_HIGH = 0.693359375  # 9 significant bits: its product with an exponent is exact
LN2_LOW = LN2 - LN2_HIGH
ROUND = 12582912.0  # 1.5 * 2**23: adding it rounds to an integer, which then stands in the low bits
MIN_NORMAL = 2.0**-126

EXP = (0.99999970634, 0.49999147834, 0.16667638072, 0.041898160259, 0.0082902749398)  # (exp(r) - 1) / r
LOG = (
    0.33333910691,
    -0.25001336775,
    0.19963065902,
    -0.16577595173,
    0.1491476171,
    -0.14267402968,
    0.087003312930,
)
TANH = (  # numerator and denominator in x² of tanh(x) / x - 1/8
    (0.875, 0.0754109621, 0.000260511268, -2.04578919e-05, -8.37711696e-08),
    (1.0, 0.467136145, 0.0258736983, 0.000328421564, 7.76852744e-07),
)
ERF = (  # of erf(x) / x - 1/4
    (0.878379166, 0.0650130585, 0.0242233202, 2.62776302e-05, -6.06923231e-06, -7.46691558e-06),
    (1.0, 0.502219141, 0.114172503, 0.0149812559, 0.00116368255, 3.80537058e-05),
)


def real(value: float, dtype: DType = F32) -> Const:
    """A constant rounded to its type."""
    return const(float(dtype.numpy.type(value)), dtype)


def fma(a: Expr, b: Expr, c: Expr) -> Expr:
    return call("fma", a, b, c)


def polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Σ coefficients[i] · x**i by Horner's rule."""
    result: Expr = real(coefficients[-1], x.dtype)
    for c in reversed(coefficients[:-1]):
        result = fma(result, x, real(c, x.dtype))
    return result


def at_most(x: Expr, bound: float) -> Expr:
    """min(x, bound), NaN kept; the operands' order makes it one instruction on x86."""
    limit = real(bound, x.dtype)
    return select(lt(limit, x), limit, x)


def at_least(x: Expr, bound: float) -> Expr:
    limit = real(bound, x.dtype)
    return select(lt(x, limit), limit, x)


def _int(value: int) -> Const:
    return const(value, I32)


def _exp_parts(x: Expr, bias: Expr) -> tuple[Expr, Expr]:
    """(exp(r), 2**(n + bias - 127)) with x = n·ln 2 + r, for -104 <= x <= 89; 0 < n + bias < 255."""
    shifted = fma(x, real(LOG2_E), bias)
    n = shifted - bias
    r = fma(n, real(-LN2_LOW), fma(n, real(-LN2_HIGH), x))
    power = call("bitcast_f32", binary("shl", call("bitcast_i32", shifted), _int(23)))
    return polynomial(r, (1.0, *EXP)), power


def exp(x: Expr) -> Expr:
    # The range of n exceeds that of one power of two, so half of the scaling is left to a second one.
    positive = ge(x, real(0.0))
    clamped = at_least(at_most(x, 89.0), -104.0)
    bias = select(positive, real(ROUND + 126), real(ROUND + 127 + 25))
    mantissa, power = _exp_parts(clamped, bias)
    return mantissa * power * select(positive, real(2.0), real(2.0**-25))


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + e) for x >= 0, else e / (1 + e), with e = exp(-|x|)."""
    mantissa, power = _exp_parts(at_least(-call("abs", x), -104.0), real(ROUND + 127 + 25))
    e = mantissa * power * real(2.0**-25)
    return select(lt(x, real(0.0)), e, real(1.0)) / (real(1.0) + e)


def _odd_rational(
    x: Expr, bound: float, slope: float, coefficients: tuple[Sequence[float], Sequence[float]]
) -> Expr:
    """x · (slope + P(x²) / Q(x²)), constant beyond ±bound.

    Where the result nears 1 the slope is most of it, so that the errors of the quotient count less; the
    coefficients are tuned so that the result does not exceed 1.
    """
    c = at_least(at_most(x, bound), -bound)
    square = c * c
    quotient = polynomial(square, coefficients[0]) / polynomial(square, coefficients[1])
    return fma(quotient, c, c * real(slope))


def tanh(x: Expr) -> Expr:
    return _odd_rational(x, 8.8, 0.125, TANH)


def erf(x: Expr) -> Expr:
    return _odd_rational(x, 3.85, 0.25, ERF)


def log(x: Expr) -> Expr:
    subnormal = lt(x, real(MIN_NORMAL))
    normal = select(subnormal, x * real(2.0**23), x)
    half = int(np.float32(0.5**0.5).view(np.int32))
    offset = call("bitcast_i32", normal) - _int(half)
    k = cast(binary("shr", offset, _int(23)), F32) - select(subnormal, real(23.0), real(0.0))
    f = call("bitcast_f32", binary("and", offset, _int(0x7FFFFF)) + _int(half)) - real(1.0)
    square = f * f
    tail = fma(polynomial(f, LOG), f, real(-0.5)) * square
    y = fma(k, real(LN2_HIGH), f + fma(k, real(LN2_LOW), tail))
    finite = select(lt(x, real(np.inf)), y, x)
    zero = binary("eq", x, real(0.0))
    return select(binary("gt", x, real(0.0)), finite, select(zero, real(-np.inf), real(np.nan)))
