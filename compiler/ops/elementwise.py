"""Operators on each element alone: y[i, …] = f(a[i, …], b[i, …], …), with numpy's broadcasting.

Functions are rows of a table: the scalar expression, its numpy meaning and the dtypes that it is defined on.
Narrow floats are computed in f32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..ir import scalar as s
from ..ir.expr import ExprBuilder, Tensor
from ..ir.numpy_scalar import convert, power
from ..ir.scalar import Expr, call, maximum, minimum, select
from ..ir.types import BOOL, DTYPES, F32, DType, TensorType
from .base import Op
from .shapes import broadcast_shape, fail, given, same_dtype, wide, wide_array, widen

FLOATS, NUMBERS, SIGNED, BITS, ANY = (
    "float",
    "float int uint",
    "float int",
    "int uint bool",
    "float int uint bool",
)


@dataclass(frozen=True)
class Function:
    """`body` builds the scalar expression, `numpy` computes arrays, both from operands, then parameters."""

    body: Callable[..., Expr]
    numpy: Callable[..., np.ndarray]
    kinds: str  # the DType kinds that it takes
    to_bool: bool = False
    params: int = 0


def _same(name: str, function: Callable[..., np.ndarray] | None = None, kinds: str = FLOATS) -> Function:
    """A function that scalar expressions have under the same name."""
    return Function(lambda x: call(name, x), function or getattr(np, name), kinds)


def _erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf, otypes=[np.float64])(x.astype(np.float64)).astype(x.dtype)


def _softplus(x: Expr) -> Expr:
    return maximum(x, 0) + call("log1p", call("exp", -call("abs", x)))


def _gelu_tanh(x: Expr) -> Expr:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))
    return 0.5 * x * (1 + call("tanh", inner))


def _infinite(x: Expr, negative: float, positive: float) -> Expr:
    """isinf, of the wanted signs only."""
    zero = s.const(0, x.dtype)
    result = call("isinf", x)
    if not negative:
        result = s.both(result, s.binary("gt", x, zero))
    return result if positive else s.both(result, s.lt(x, zero))


UNARY: dict[str, Function] = {
    **{name: _same(name) for name in ("exp", "log", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh")},
    "floor": _same("floor"),
    "ceil": _same("ceil"),
    "asin": _same("asin", np.arcsin),
    "acos": _same("acos", np.arccos),
    "atan": _same("atan", np.arctan),
    "asinh": _same("asinh", np.arcsinh),
    "acosh": _same("acosh", np.arccosh),
    "atanh": _same("atanh", np.arctanh),
    "erf": _same("erf", _erf),
    "round": _same("round", np.rint),
    "rsqrt": _same("rsqrt", lambda x: 1 / np.sqrt(x)),
    "sigmoid": _same("sigmoid", lambda x: 1 / (1 + np.exp(-x.astype(np.float64)))),
    "abs": _same("abs", kinds=NUMBERS),
    "sign": _same("sign", kinds=NUMBERS),
    "neg": _same("neg", np.negative, SIGNED),
    "not": _same("not", np.invert, BITS),
    "reciprocal": Function(lambda x: 1 / x, lambda x: 1 / x, FLOATS),
    "isnan": Function(lambda x: call("isnan", x), np.isnan, FLOATS, to_bool=True),
    "isinf": Function(
        _infinite,
        lambda x, n, p: np.isin(x, [-np.inf] * bool(n) + [np.inf] * bool(p)),
        FLOATS,
        True,
        params=2,
    ),
    "relu": Function(lambda x: maximum(x, 0), lambda x: np.maximum(x, 0), NUMBERS),
    "clip": Function(
        lambda x, low, high: minimum(maximum(x, low), high),
        lambda x, low, high: np.minimum(np.maximum(x, x.dtype.type(low)), x.dtype.type(high)),
        NUMBERS,
        params=2,
    ),
    "leaky_relu": Function(
        lambda x, a: select(s.lt(x, 0), x * a, x), lambda x, a: np.where(x < 0, x * a, x), FLOATS, params=1
    ),
    "thresholded_relu": Function(
        lambda x, a: select(s.binary("gt", x, a), x, 0), lambda x, a: np.where(x > a, x, 0), FLOATS, params=1
    ),
    "elu": Function(
        lambda x, a: select(s.lt(x, 0), a * call("expm1", x), x),
        lambda x, a: np.where(x < 0, a * np.expm1(x), x),
        FLOATS,
        params=1,
    ),
    "celu": Function(
        lambda x, a: select(s.lt(x, 0), a * call("expm1", x / a), x),
        lambda x, a: np.where(x < 0, a * np.expm1(x / a), x),
        FLOATS,
        params=1,
    ),
    "selu": Function(
        lambda x, a, g: g * select(s.lt(x, 0), a * call("expm1", x), x),
        lambda x, a, g: g * np.where(x < 0, a * np.expm1(x), x),
        FLOATS,
        params=2,
    ),
    "hard_sigmoid": Function(
        lambda x, a, b: maximum(minimum(x * a + b, 1), 0),
        lambda x, a, b: np.clip(x * a + b, 0, 1),
        FLOATS,
        params=2,
    ),
    "hard_swish": Function(
        lambda x: x * maximum(minimum(x * (1 / 6) + 0.5, 1), 0),
        lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
        FLOATS,
    ),
    "softplus": Function(_softplus, lambda x: np.logaddexp(x, x.dtype.type(0)), FLOATS),
    "softsign": Function(lambda x: x / (1 + call("abs", x)), lambda x: x / (1 + np.abs(x)), FLOATS),
    "mish": Function(
        lambda x: x * call("tanh", _softplus(x)),
        lambda x: x * np.tanh(np.logaddexp(x, x.dtype.type(0))),
        FLOATS,
    ),
    "gelu": Function(
        lambda x: 0.5 * x * (1 + call("erf", x * math.sqrt(0.5))),
        lambda x: 0.5 * x * (1 + _erf(x * math.sqrt(0.5))),
        FLOATS,
    ),
    "gelu_tanh": Function(
        _gelu_tanh, lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))), FLOATS
    ),
    "swish": Function(
        lambda x, a: x * call("sigmoid", x * a), lambda x, a: x / (1 + np.exp(-x * a)), FLOATS, params=1
    ),
    "shrink": Function(
        lambda x, bias, lambd: select(
            s.lt(x, -lambd), x + bias, select(s.binary("gt", x, lambd), x - bias, s.const(0, x.dtype))
        ),
        lambda x, bias, lambd: np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0)),
        SIGNED,
        params=2,
    ),
}
"""Functions of one operand."""


def _operator(
    op: str, function: Callable[..., np.ndarray], kinds: str = NUMBERS, to_bool: bool = False
) -> Function:
    return Function(lambda a, b: s.binary(op, a, b), function, kinds, to_bool)


def _truncating_div(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind not in "iu":
        return a / b
    safe = np.where(b == 0, 1, b).astype(a.dtype)
    return np.where(b == 0, 0, (a - np.fmod(a, safe)) // safe)


def _power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind not in "iu":
        return power(a, b)
    inverse = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 0, 1, -1), 0))
    return np.where(b >= 0, np.power(a, np.maximum(b, 0)), inverse.astype(a.dtype))


def _shifted(a: np.ndarray, b: np.ndarray, function: Callable[..., np.ndarray]) -> np.ndarray:
    bits = a.dtype.itemsize * 8
    far = np.where(a < 0, -1, 0).astype(a.dtype) if function is np.right_shift else 0
    return np.where((b >= 0) & (b < bits), function(a, np.clip(b, 0, bits - 1)), far)


def _shift_right(a: Expr, b: Expr) -> Expr:
    if a.dtype.kind == "uint":
        return s.binary("shr", a, b)
    last = a.dtype.bits - 1
    inside = s.both(s.ge(b, 0), s.le(b, last))
    return s.binary("shr", a, select(inside, b, s.const(last, b.dtype)))


def _modulo(a: Expr, b: Expr) -> Expr:
    if a.dtype.is_integer:
        return s.binary("mod", a, b)
    rest = s.binary("rem", a, b)
    zero = s.const(0, a.dtype)
    wrong_sign = s.both(s.binary("ne", rest, zero), s.binary("ne", s.lt(rest, zero), s.lt(b, zero)))
    return select(s.eq(rest, zero), s.call("copysign", zero, b), select(wrong_sign, rest + b, rest))


def _floored_mod(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.mod(a, b) if a.dtype.kind == "f" else np.where(b == 0, 0, np.mod(a, np.where(b == 0, 1, b)))


BINARY: dict[str, Function] = {
    "add": _operator("add", np.add),
    "sub": _operator("sub", np.subtract),
    "mul": _operator("mul", np.multiply),
    "div": _operator("div", _truncating_div),
    "mod": Function(_modulo, _floored_mod, NUMBERS),
    "fmod": _operator("rem", lambda a, b: np.fmod(a, b) if a.dtype.kind == "f" else _integer_fmod(a, b)),
    "pow": _operator("pow", _power),
    "min": _operator("min", np.minimum),
    "max": _operator("max", np.maximum),
    "and": _operator("and", np.bitwise_and, BITS),
    "or": _operator("or", np.bitwise_or, BITS),
    "xor": _operator("xor", np.bitwise_xor, BITS),
    "shl": _operator("shl", lambda a, b: _shifted(a, b, np.left_shift), "int uint"),
    "shr": Function(_shift_right, lambda a, b: _shifted(a, b, np.right_shift), "int uint"),
    "prelu": Function(
        lambda x, slope: select(s.lt(x, s.const(0, x.dtype)), x * slope, x),
        lambda x, slope: np.where(x < 0, x * slope, x),
        NUMBERS,
    ),
    **{
        op: _operator(op, function, ANY, to_bool=True)
        for op, function in (
            ("eq", np.equal),
            ("ne", np.not_equal),
            ("lt", np.less),
            ("le", np.less_equal),
            ("gt", np.greater),
            ("ge", np.greater_equal),
        )
    },
}
"""Functions of two operands of one dtype. Integers wrap around, `div` truncates, x / 0 is 0.

`mod` has the sign of b, `fmod` that of a. Shifts by less than 0 or by all bits shift everything out.
"""


def _integer_fmod(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(b == 0, 0, np.fmod(a, np.where(b == 0, 1, b)))


def _check(table: dict[str, Function], fn: str, dtype: DType, params: tuple[float, ...] = ()) -> Function:
    function = table.get(fn) or fail(f"unknown elementwise function {fn!r}")
    if dtype.kind not in function.kinds.split():
        fail(f"{fn} is not defined on {dtype}; it takes {function.kinds.replace(' ', ', ')} types")
    if len(params) != function.params:
        fail(f"{fn} takes {function.params} parameters, got {params}")
    return function


@dataclass(frozen=True)
class Unary(Op):
    """y = fn(x, *params), `fn` a row of UNARY."""

    fn: str
    params: tuple[float, ...] = ()

    def infer(self, x: TensorType | None) -> tuple[TensorType, ...]:
        x = given(x)
        function = _check(UNARY, self.fn, x.dtype, self.params)
        return (TensorType(BOOL if function.to_bool else x.dtype, x.shape),)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        function = UNARY[self.fn]
        y = np.asarray(function.numpy(wide_array(x), *self.params))
        return (y.astype(np.bool_ if function.to_bool else x.dtype),)

    def compute(self, b: ExprBuilder, x: Tensor) -> tuple[Tensor, ...]:
        function = UNARY[self.fn]
        dtype = BOOL if function.to_bool else x.dtype

        def body(*i: Expr) -> Expr:
            return s.cast(function.body(widen(x[i]), *self.params), dtype)

        return (b.compute(dtype, x.shape, body, f"{self.fn}_"),)


@dataclass(frozen=True)
class Binary(Op):
    """y = fn(a, b), `fn` a row of BINARY; shapes broadcast as in numpy, dtypes are equal."""

    fn: str

    def infer(self, a: TensorType | None, b: TensorType | None) -> tuple[TensorType, ...]:
        a, b = given(a), given(b)
        function = _check(BINARY, self.fn, same_dtype(a, b))
        return (TensorType(BOOL if function.to_bool else a.dtype, broadcast_shape(a.dims, b.dims)),)

    def reference(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, ...]:
        function = BINARY[self.fn]
        y = np.asarray(function.numpy(wide_array(a), wide_array(b)))
        return (y.astype(np.bool_ if function.to_bool else a.dtype),)

    def compute(self, b: ExprBuilder, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        function = BINARY[self.fn]
        dtype = BOOL if function.to_bool else x.dtype

        def body(*i: Expr) -> Expr:
            return s.cast(function.body(widen(x.broadcast(i)), widen(y.broadcast(i))), dtype)

        return (b.compute(dtype, broadcast_shape(x.shape, y.shape), body, f"{self.fn}_"),)


@dataclass(frozen=True)
class Where(Op):
    """y = x where the bool condition holds, else the other; all three broadcast."""

    def infer(
        self, cond: TensorType | None, x: TensorType | None, y: TensorType | None
    ) -> tuple[TensorType, ...]:
        cond, x, y = given(cond), given(x), given(y)
        if cond.dtype is not BOOL:
            fail(f"the condition must be bool, but is {cond.dtype}")
        return (TensorType(same_dtype(x, y), broadcast_shape(cond.dims, x.dims, y.dims)),)

    def reference(self, cond: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
        return (np.asarray(np.where(cond, x, y)),)

    def compute(self, b: ExprBuilder, cond: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        shape = broadcast_shape(cond.shape, x.shape, y.shape)

        def body(*i: Expr) -> Expr:
            return select(cond.broadcast(i), x.broadcast(i), y.broadcast(i))

        return (b.compute(x.dtype, shape, body, "where_"),)


@dataclass(frozen=True)
class Cast(Op):
    """y = x converted to the dtype named `to`: `scalar.Cast` says how."""

    to: str

    def infer(self, x: TensorType | None) -> tuple[TensorType, ...]:
        return (TensorType(DTYPES[self.to], given(x).shape),)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        return (np.asarray(convert(x, DTYPES[self.to])),)

    def compute(self, b: ExprBuilder, x: Tensor) -> tuple[Tensor, ...]:
        dtype = DTYPES[self.to]
        return (b.compute(dtype, x.shape, lambda *i: s.cast(x[i], dtype), "cast_"),)


@dataclass(frozen=True)
class BitCast(Op):
    """y = the bits of x as a number of the dtype named `to`, which takes as many bytes."""

    to: str

    def infer(self, x: TensorType | None) -> tuple[TensorType, ...]:
        x, to = given(x), DTYPES[self.to]
        if x.dtype.bytes != to.bytes:
            fail(f"the bits of {x.dtype} as {to}: expected a type of {x.dtype.bytes} bytes")
        return (TensorType(to, x.shape),)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        if self.to == "bool":
            return (x.view(np.uint8) != 0,)
        return (np.asarray(x).view(DTYPES[self.to].numpy),)

    def compute(self, b: ExprBuilder, x: Tensor) -> tuple[Tensor, ...]:
        to = DTYPES[self.to]
        bits = DTYPES[f"u{8 * to.bytes}"]

        def body(*i: Expr) -> Expr:
            number = call(f"bitcast_{bits.name}", x[i]) if x.dtype.is_float else s.cast(x[i], bits)
            return call(f"bitcast_{to.name}", number) if to.is_float else s.cast(number, to)

        return (b.compute(to, x.shape, body, "bits"),)


@dataclass(frozen=True)
class Rounded(Op):
    """y = x, an f32, rounded to what the narrow float named `to` holds, as an f32."""

    to: str

    def infer(self, x: TensorType | None) -> tuple[TensorType, ...]:
        x = given(x)
        if x.dtype is not F32 or wide(DTYPES[self.to]) is DTYPES[self.to]:
            fail(f"rounding {x.dtype} to {self.to}: expected f32, and a narrow float")
        return (TensorType(F32, x.shape),)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        return (np.asarray(convert(convert(x, DTYPES[self.to]), F32)),)

    def compute(self, b: ExprBuilder, x: Tensor) -> tuple[Tensor, ...]:
        narrow = DTYPES[self.to]
        return (b.compute(F32, x.shape, lambda *i: s.cast(s.cast(x[i], narrow), F32), "rounded_"),)
