"""Rules on elementwise arithmetic with constants, and on functions applied twice."""

from __future__ import annotations

from math import prod

import numpy as np

from ..compiler.ir.graph import Node
from ..compiler.ir.types import dtype_of
from ..compiler.ops.elementwise import BINARY, Binary, Unary
from ..compiler.ops.shapes import wide_array
from .rewrite import Rewriter, rule

COMMUTATIVE = frozenset(("add", "mul", "min", "max", "and", "or", "xor", "eq", "ne"))
NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "div": 1, "pow": 1, "shl": 0, "shr": 0}
"""f(x, neutral) = x."""
IDEMPOTENT = frozenset(("relu", "abs", "floor", "ceil", "round", "sign"))
INVOLUTIONS = frozenset(("neg", "not"))
MODERATE = 2.0**16
"""Factors up to there, and down to one over it, that follow each other are multiplied when compiling, though
one makes good for the other; of 16 bits those to the fourth root."""


@rule("c + x => x + c", Binary)
def constant_right(r: Rewriter, node: Node) -> str | None:
    a, b = node.inputs
    if node.op.fn not in COMMUTATIVE or r.const(a) is None or r.const(b) is not None:
        return None
    return r.emit(node.op, b, a)


@rule("x + 0 => x", Binary)
def neutral(r: Rewriter, node: Node) -> str | None:
    """Of zeros the sign may be another one: -0 + 0 is 0."""
    x, c = node.inputs
    if node.op.fn not in NEUTRAL or r.uniform(c) != NEUTRAL[node.op.fn]:
        return None
    return x if r.type_of(x).shape == r.type_of(node.outputs[0]).shape else None


@rule("x - c => x + (-c)", Binary)
def subtract_constant(r: Rewriter, node: Node) -> str | None:
    """Not of a product: added, it would not be rounded (`contract` in llvm_scalar)."""
    x, c = node.inputs
    array = r.const(c)
    if node.op.fn != "sub" or array is None or r.const(x) is not None:
        return None
    made = r.made_by(x, Binary)
    if made is not None and made.op.fn == "mul" and r.type_of(x).dtype.is_float:
        return None
    return r.emit(Binary("add"), x, r.constant(np.negative(array), c))


@rule("x + (-y) => x - y, x + y * (-z) => x - y * z", Binary)
def subtract_negated(r: Rewriter, node: Node) -> str | None:
    """A difference of products is 0 where they are equal, as it is written: a sum would not be rounded in
    between (`contract` in llvm_scalar)."""
    if node.op.fn != "add":
        return None
    for x, y in (node.inputs, node.inputs[::-1]):
        if (less := _negated(r, y)) is not None:
            return r.emit(Binary("sub"), x, less)
    return None


def _negated(r: Rewriter, value: str) -> str | None:
    """What it is the opposite of; None where that is not at hand."""
    if (made := r.made_by(value, Unary)) is not None:
        return made.inputs[0] if made.op.fn == "neg" else None
    product = r.made_by(value, Binary)
    if product is None or product.op.fn != "mul" or not r.sole(value):
        return None
    for y, z in (product.inputs, product.inputs[::-1]):
        factor = r.made_by(z, Unary)
        if factor is not None and factor.op.fn == "neg":
            return r.emit(Binary("mul"), y, factor.inputs[0])
    return None


@rule("x / c => x * (1 / c), c a power of two", Binary)
def divide_by_power_of_two(r: Rewriter, node: Node) -> str | None:
    x, c = node.inputs
    array = r.const(c)
    if node.op.fn != "div" or array is None or not r.type_of(x).dtype.is_float:
        return None
    mantissa, exponent = np.frexp(wide_array(array))
    if not (np.abs(mantissa) == 0.5).all() or (np.abs(exponent) > 10).any():
        return None
    return r.emit(Binary("mul"), x, r.constant((1 / wide_array(array)).astype(array.dtype), c))


@rule("(x + a) + b => x + (a + b)", Binary)
def combine_constants(r: Rewriter, node: Node) -> str | None:
    value, b = node.inputs
    inner = r.only_by(value, Binary)
    if node.op.fn not in ("add", "mul", "min", "max") or inner is None or inner.op != node.op:
        return None
    left, right = r.const(inner.inputs[1]), r.const(b)
    if left is None or right is None:
        return None
    if prod(np.broadcast_shapes(left.shape, right.shape)) > max(left.size, right.size):
        return None
    with np.errstate(all="ignore"):
        both = BINARY[node.op.fn].numpy(wide_array(left), wide_array(right))
    if not _keeps_range(left, right, both):
        return None
    lost = {"add": _cancels, "mul": _leaves_range}.get(node.op.fn)
    if lost and lost(left, right, both):
        return None
    return r.emit(node.op, inner.inputs[0], r.constant(both.astype(left.dtype), b))


def _cancels(a: np.ndarray, b: np.ndarray, both: np.ndarray) -> bool:
    """Whether a sum of float constants is much smaller than they are: (x + a) + b then rounds x, on purpose
    perhaps."""
    least = np.minimum(np.abs(wide_array(a)), np.abs(wide_array(b)))
    large = np.maximum(np.abs(wide_array(a)), np.abs(wide_array(b)))
    return dtype_of(a).is_float and bool(((least > 0) & (np.abs(both) < large / 4)).any())


def _leaves_range(a: np.ndarray, b: np.ndarray, both: np.ndarray) -> bool:
    """Whether a product of float constants that are not zero is; or one of them is so large, or so small,
    and the other one makes good for it, that x · a may overflow or vanish where x · (a · b) does not."""
    if not dtype_of(a).is_float:
        return False
    sizes = np.abs(wide_array(a)), np.abs(wide_array(b))
    least, large = np.minimum(*sizes), np.maximum(*sizes)
    far = MODERATE ** (0.25 if dtype_of(a).bytes == 2 else 1)
    apart = (large > 1) & (least < 1) & ((large > far) | (least < 1 / far))
    return bool(((least > 0) & ((both == 0) | apart)).any())


def _keeps_range(a: np.ndarray, b: np.ndarray, both: np.ndarray) -> bool:
    """Whether combining two float constants neither overflows nor leaves a number with fewer digits."""
    if not dtype_of(a).is_float:
        return True
    tiny = float(np.finfo(np.float16 if a.dtype.itemsize == 2 else a.dtype).tiny)
    lost = (np.abs(both) < tiny) & (a != 0) & (b != 0) & (both != 0)
    with np.errstate(over="ignore"):
        return bool(np.isfinite(both.astype(a.dtype)).all()) and not lost.any()


@rule("x ** 2 => x * x", Binary)
def square(r: Rewriter, node: Node) -> str | None:
    x, c = node.inputs
    exponent = r.uniform(c)
    dtype = r.type_of(x).dtype
    if node.op.fn != "pow" or exponent not in (2, 3) or not dtype.is_float:
        return None
    if exponent == 3 and dtype.bytes == 2:
        return None  # it would be rounded twice
    if r.type_of(x).shape != r.type_of(node.outputs[0]).shape:
        return None
    squared = r.emit(Binary("mul"), x, x)
    return squared if exponent == 2 else r.emit(Binary("mul"), squared, x)


@rule("max(x, 0) => relu(x)", Binary)
def maximum_with_zero(r: Rewriter, node: Node) -> str | None:
    x, c = node.inputs
    if node.op.fn != "max" or r.uniform(c) != 0 or not r.type_of(x).dtype.is_float:
        return None
    if r.type_of(x).shape != r.type_of(node.outputs[0]).shape:
        return None
    return r.emit(Unary("relu"), x)


@rule("min(max(x, a), b) => clip(x, a, b)", Binary)
def minimum_of_maximum(r: Rewriter, node: Node) -> str | None:
    value, c = node.inputs
    high, bounds = r.uniform(c), _bounds(r, value)
    if node.op.fn != "min" or high is None or bounds is None or high != high:
        return None
    x, low, top = bounds
    if not low <= high or r.type_of(x).shape != r.type_of(node.outputs[0]).shape:
        return None
    return r.emit(Unary("clip", (low, min(top, float(high)))), x)


def _bounds(r: Rewriter, value: str) -> tuple[str, float, float] | None:
    """(x, low, high) where `value`, read only here, is x clipped to that range."""
    made = r.only_by(value, Unary)
    if made is not None and made.op.fn == "relu" and r.type_of(made.inputs[0]).dtype.is_float:
        return made.inputs[0], 0.0, float("inf")
    if made is not None and made.op.fn == "clip" and made.op.params[0] <= made.op.params[1]:
        return made.inputs[0], *made.op.params
    made = r.only_by(value, Binary)
    if made is not None and made.op.fn == "max" and r.type_of(made.inputs[0]).dtype.is_float:
        low = r.uniform(made.inputs[1])
        if low is not None and low == low and r.type_of(made.inputs[0]).shape == r.type_of(value).shape:
            return made.inputs[0], float(low), float("inf")
    return None


@rule("clip(clip(x)) => clip(x)", Unary)
def clip_twice(r: Rewriter, node: Node) -> str | None:
    own = {"relu": (0.0, float("inf")), "clip": node.op.params}.get(node.op.fn)
    bounds = _bounds(r, node.inputs[0])
    if own is None or bounds is None or not r.type_of(node.inputs[0]).dtype.is_float:
        return None
    x, low, high = bounds[0], max(own[0], bounds[1]), min(own[1], bounds[2])
    return r.emit(Unary("clip", (low, high)), x) if low <= high else None


@rule("clip(x, 0, inf) => relu(x)", Unary)
def clip_to_relu(r: Rewriter, node: Node) -> str | None:
    is_relu = node.op.fn == "clip" and node.op.params == (0.0, float("inf"))
    return r.emit(Unary("relu"), node.inputs[0]) if is_relu else None


@rule("clip(x, -inf, inf) => x", Unary)
def clip_nothing(r: Rewriter, node: Node) -> str | None:
    unbounded = node.op.fn == "clip" and node.op.params == (-float("inf"), float("inf"))
    return node.inputs[0] if unbounded else None


@rule("abs(abs(x)) => abs(x)", Unary)
def idempotent(r: Rewriter, node: Node) -> str | None:
    inner = r.made_by(node.inputs[0], Unary)
    same = inner is not None and inner.op == node.op and node.op.fn in IDEMPOTENT
    return node.inputs[0] if same else None


@rule("neg(neg(x)) => x", Unary)
def involution(r: Rewriter, node: Node) -> str | None:
    inner = r.made_by(node.inputs[0], Unary)
    same = inner is not None and inner.op == node.op and node.op.fn in INVOLUTIONS
    return inner.inputs[0] if inner is not None and same else None


ARITHMETIC = (
    constant_right,
    neutral,
    subtract_constant,
    subtract_negated,
    divide_by_power_of_two,
    combine_constants,
    square,
    maximum_with_zero,
    minimum_of_maximum,
    clip_nothing,
    clip_to_relu,
    idempotent,
    clip_twice,
    involution,
)
