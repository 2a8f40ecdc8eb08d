"""The numpy meaning of scalar expressions: the oracle of tests and of the two IRs built on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import InternalError, RunError
from .scalar import BITCASTS, COMPARE, DOTS, Binary, Call, Cast, Const, Expr, Load, Select, Var, children
from .types import BF16, BOOL, DType

Array = np.ndarray


@dataclass(frozen=True)
class _Scope:
    """Where a value is needed: `mask` (None: everywhere), which implies the masks of the `outer` scopes."""

    mask: Array | None
    outer: _Scope | None = None


class _Evaluator:
    """Evaluates each object of an expression once in a scope; what an outer scope knows serves inner ones."""

    def __init__(self, variables: Mapping[str, Array], tensors: Mapping[str, Array]):
        self.variables, self.tensors = variables, tensors
        self.known: dict[tuple[int, int], Array] = {}
        self.scopes: list[_Scope] = []  # alive, so that their ids stay theirs

    def __call__(self, e: Expr, scope: _Scope) -> Array:
        value = self.look_up(e, scope)
        if value is None:
            value = self.known[id(e), id(scope)] = self.compute(e, scope)
        return value

    def look_up(self, e: Expr, scope: _Scope) -> Array | None:
        at: _Scope | None = scope
        while at is not None:
            value = self.known.get((id(e), id(at)))
            if value is not None:
                return value
            at = at.outer
        return None

    def needs_mask(self, e: Expr, scope: _Scope) -> bool:
        """Whether `e` has a load or a check that is not known yet."""
        seen: set[int] = set()
        stack = [e]
        while stack:
            top = stack.pop()
            if id(top) in seen or self.look_up(top, scope) is not None:
                continue
            if isinstance(top, Load) or (isinstance(top, Call) and top.op == "checked"):
                return True
            seen.add(id(top))
            stack.extend(children(top))
        return False

    def compute(self, e: Expr, scope: _Scope) -> Array:
        match e:
            case Const(value=v, type=t):
                return np.asarray(v, dtype=t.numpy)
            case Var(name=n):
                return np.asarray(self.variables[n])
            case Load(tensor=t, index=index):
                return _load(self.tensors[t], [self(i, scope) for i in index], scope.mask)
            case Binary(op=op, a=a, b=b):
                return apply_binary(op, self(a, scope), self(b, scope))
            case Call(op=op, args=args):
                return apply_call(op, [self(a, scope) for a in args], scope.mask)
            case Select():
                return self.select(e, scope)
            case Cast(value=v, type=t):
                return convert(self(v, scope), t)
        raise InternalError(f"not a scalar expression: {e!r}")

    def select(self, e: Select, scope: _Scope) -> Array:
        cond = self(e.cond, scope)
        return np.where(cond, self.branch(e.then, cond, scope), self.branch(e.other, ~cond, scope))

    def branch(self, e: Expr, cond: Array, scope: _Scope) -> Array:
        if not self.needs_mask(e, scope):
            return self(e, scope)
        inner = _Scope(cond if scope.mask is None else cond & scope.mask, scope)
        self.scopes.append(inner)
        return self(e, inner)


def evaluate(
    e: Expr, variables: Mapping[str, Array], tensors: Mapping[str, Array], mask: Array | None = None
) -> Array:
    """The value of `e` over broadcastable arrays of index values; `mask` marks where it is needed at all."""
    return _Evaluator(variables, tensors)(e, _Scope(mask))


def _load(array: Array, index: list[Array], mask: Array | None) -> Array:
    if not index:
        return array[()]
    if array.size == 0:
        shapes = [i.shape for i in index] + ([] if mask is None else [mask.shape])
        return np.zeros(np.broadcast_shapes(*shapes), array.dtype)
    if mask is None:
        if any(i.size and (i.min() < 0 or i.max() >= d) for i, d in zip(index, array.shape)):
            raise InternalError("a load outside its tensor, without a guard")
        return _gather(array, index)
    if isinstance(array, np.ndarray):
        return _gather(array, [np.clip(i, 0, d - 1) for i, d in zip(index, array.shape)])
    return array[tuple(np.clip(np.where(mask, i, 0), 0, d - 1) for i, d in zip(index, array.shape))]


def _gather(array: Array, index: list[Array]) -> Array:
    """array[index]: by flat positions, which broadcast late, in a third of the time."""
    if not isinstance(array, np.ndarray):
        return array[tuple(index)]
    flat, stride = np.zeros((), np.int64), 1
    for i, extent in zip(reversed(index), reversed(array.shape)):
        flat, stride = flat + i.astype(np.int64, copy=False) * stride, stride * extent
    return array.reshape(-1).take(flat)


@np.errstate(all="ignore")
def convert(x: Array, dtype: DType) -> Array:
    """Cast as `scalar.Cast` says: floats saturate into integers, NaN gives 0."""
    if dtype is BOOL:
        return np.asarray(x != 0)
    if dtype is BF16 and x.dtype == np.float64:
        x = _round_to_odd(x)
    if dtype.is_integer and x.dtype.kind not in "iub":
        wide = np.nan_to_num(np.trunc(x.astype(np.float64)), nan=0.0, posinf=np.inf, neginf=-np.inf)
        info = np.iinfo(dtype.numpy)
        low, high = float(info.min), float(info.max)
        inside = np.where((wide > low) & (wide < high), wide, 0.0).astype(dtype.numpy)
        return np.where(wide >= high, info.max, np.where(wide <= low, info.min, inside)).astype(dtype.numpy)
    return x.astype(dtype.numpy)


def _round_to_odd(x: Array) -> Array:
    """f64 → f32 such that a second rounding, to a narrower type, gives what one rounding would have given."""
    near = x.astype(np.float32)
    bits = near.view(np.int32)
    wide = near.astype(np.float64)
    step = np.where(np.abs(wide) > np.abs(x), -1, np.where(np.abs(wide) < np.abs(x), 1, 0))
    return np.where(bits % 2 == 0, bits + step, bits).astype(np.int32).view(np.float32)


def apply_binary(op: str, a: Array, b: Array) -> Array:
    if op in COMPARE:
        return np.asarray(COMPARE[op](a, b))
    is_float = a.dtype.kind not in "iub"
    with np.errstate(all="ignore"):
        match op:
            case "add":
                return a | b if a.dtype == np.bool_ else a + b
            case "sub":
                return a - b
            case "mul":
                return a & b if a.dtype == np.bool_ else a * b
            case "div" if is_float:
                return a / b
            case "rem" if is_float:
                return np.fmod(a, b)
            case "div" | "rem":
                return _truncated(op, a, b)
            case "floordiv":
                return np.floor_divide(a, b)
            case "mod":
                return np.where(b == 0, 0, np.mod(a, b)).astype(a.dtype) if not is_float else np.mod(a, b)
            case "min":
                return np.minimum(a, b)
            case "max":
                return np.maximum(a, b)
            case "pow":
                return power(a, b) if is_float else _integer_power(a, b)
            case "and":
                return a & b
            case "or":
                return a | b
            case "xor":
                return a ^ b
            case "shl":
                return np.where(b.astype(np.uint64) < a.dtype.itemsize * 8, np.left_shift(a, b), 0).astype(
                    a.dtype
                )
            case "shr":
                return np.where(b.astype(np.uint64) < a.dtype.itemsize * 8, np.right_shift(a, b), 0).astype(
                    a.dtype
                )
    raise InternalError(f"unknown scalar operator {op!r}")


def _truncated(op: str, a: Array, b: Array) -> Array:
    safe = np.where(b == 0, 1, b).astype(a.dtype)
    remainder = np.fmod(a, safe)
    value = remainder if op == "rem" else np.floor_divide(a - remainder, safe)
    return np.where(b == 0, 0, value).astype(a.dtype)


def _integer_power(a: Array, b: Array) -> Array:
    result = np.power(a, np.maximum(b, 0))
    negative = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 0, 1, -1), 0))
    return np.where(b >= 0, result, negative).astype(a.dtype) if a.dtype.kind == "i" else result


def word(*bytes: Any) -> Any:
    """The i32 of four bytes, as integers or arrays of i32, the first the lowest."""
    a, b, c, d = (x & 0xFF for x in bytes)
    return a | b << 8 | c << 16 | ((d ^ 0x80) - 0x80) << 24


def dot4(a: Any, b: Any, signed: bool) -> Any:
    """Σ of four products: of the bytes of two i32, or of arrays of them; `signed`: those of `a`."""
    total = 0
    for shift in range(0, 32, 8):
        x, y = (a >> shift) & 0xFF, (((b >> shift) & 0xFF) ^ 0x80) - 0x80
        total = total + ((x ^ 0x80) - 0x80 if signed else x) * y
    return total


def _erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[np.float64])(x.astype(np.float64)).astype(x.dtype)


def power(a: Array, b: Array) -> Array:
    """Of floats, as C has it: for a lone exponent of 1/2 numpy takes roots, which differ for -inf and -0."""
    shape = np.broadcast_shapes(np.shape(a), np.shape(b))
    each = np.array(np.broadcast_to(b, shape), ndmin=1)
    return np.power(a, each).reshape(shape)


def _sigmoid(x: Array) -> Array:
    wide = x.astype(np.float64)
    return (1.0 / (1.0 + np.exp(-wide))).astype(x.dtype)


_CALLS: dict[str, Callable[..., Array]] = {
    "rsqrt": lambda x: (1 / np.sqrt(x)).astype(x.dtype),
    "neg": np.negative, "not": lambda x: ~x, "round": np.rint, "erf": _erf, "sigmoid": _sigmoid,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "sign": np.sign, "abs": np.abs, "pow": power,
}  # fmt: skip


def apply_call(op: str, args: list[Array], mask: Array | None) -> Array:
    with np.errstate(all="ignore"):
        if op == "fma":
            a, b, c = args
            return (a.astype(np.float64) * b + c).astype(a.dtype) if a.dtype.kind == "f" else a * b + c
        if op == "checked":
            index, extent = args
            bad = (index < 0) | (index >= extent)
            if np.any(bad if mask is None else bad & mask):
                raise RunError("index out of range")
            return np.where(bad, 0, index)
        if op == "word":
            return np.asarray(word(*(a.astype(np.int32) for a in args)))
        if op in DOTS:
            return np.asarray(dot4(args[0], args[1], DOTS[op]))
        if op in BITCASTS:
            return np.asarray(args[0]).view(BITCASTS[op].numpy)
        op = op.removeprefix("libm.")
        if op in _CALLS:
            return np.asarray(_CALLS[op](*args))
        return np.asarray(getattr(np, op)(*args))
