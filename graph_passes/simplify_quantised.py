"""Rules on values that are quantised: what needs no real numbers between, and what needs no division."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..compiler.ir.graph import Node
from ..compiler.ir.types import DTYPES, F32, TensorType
from ..compiler.ops.elementwise import Binary, Cast, Unary
from ..compiler.ops.movement import Concat, Reshape, Slice, Transpose
from ..compiler.ops.pool import MaxPool
from ..compiler.ops.quantize import DequantizeLinear, QuantizeLinear
from .rewrite import Rewriter, rule

ORDERING = (Concat, MaxPool, Reshape, Slice, Transpose)
"""Operators that move or compare elements, bytes as well as the numbers that they stand for."""
MOST_TERMS = 24
"""Of a sum that is quantised: no kernel takes more nodes."""
_TINY, _HUGE = float(np.finfo(np.float32).tiny), 1e30  # scales between which (q · s) / s rounds to q


@dataclass(frozen=True)
class _Step:
    """What a node quantises or dequantises, in f32, by one scale and zero point; `dtype` are the bytes."""

    value: str
    dtype: str
    scale: float
    zero: float


def _step_of(r: Rewriter, node: Node | None) -> _Step | None:
    if node is None:
        return None
    value, s, z = (node.input(n) for n in range(3))
    scale, zero = r.uniform(s), 0 if z is None else r.uniform(z)
    if value is None or scale is None or zero is None or not _TINY <= scale < _HUGE:
        return None
    if isinstance(node.op, QuantizeLinear) and node.op.precision == "f32":
        return _Step(value, node.op.to, scale, zero)
    if isinstance(node.op, DequantizeLinear) and node.op.to == "f32":
        return _Step(value, r.type_of(value).dtype.name, scale, zero)
    return None


@rule("quantize(dequantize(x, s, z), s, z) => x", QuantizeLinear)
def quantised_already(r: Rewriter, node: Node) -> str | None:
    own, before = _step_of(r, node), _step_of(r, r.made_by(node.inputs[0], DequantizeLinear))
    if own is None or before is None:
        return None
    return before.value if replace(own, value=before.value) == before else None


@rule("move(dequantize(x, s, z)) => dequantize(move(x), s, z)", *ORDERING)
def move_bytes(r: Rewriter, node: Node) -> str | None:
    """There are fewer of them, and what is quantised again may stay as it is."""
    steps = [_step_of(r, r.only_by(v, DequantizeLinear)) for v in dict.fromkeys(node.inputs)]
    first = steps[0]
    if first is None or len(node.outputs) != 1 or len(steps) < len(node.inputs):
        return None
    if any(step is None or replace(step, value=first.value) != first for step in steps):
        return None
    types = r.type_of(first.value), r.type_of(node.outputs[0])
    if isinstance(node.op, MaxPool) and not _meet(node.op, *types):
        return None
    moved = r.emit(node.op, *(step.value for step in steps if step is not None))
    dtype = r.type_of(moved).dtype.numpy
    by = np.array(first.scale, np.float32), np.array(first.zero, dtype)
    return r.emit(DequantizeLinear(), moved, *(r.constant(v, node.outputs[0]) for v in by))


def _meet(op: MaxPool, x: TensorType, y: TensorType) -> bool:
    """Whether every window holds an element: the least byte is not the least float."""
    windows = zip(x.dims[2:], y.dims[2:], op.kernel, op.strides, op.dilations, op.pads)
    for size, outputs, kernel, stride, dilation, pad in windows:
        start = np.arange(outputs) * stride - pad
        tap = np.maximum(-(start // dilation), 0)  # the first at 0 or behind it
        if not ((tap < kernel) & (start + tap * dilation < size)).all():
            return False
    return True


@rule("f(dequantize(int(round(x) + z), s, z), a) => f(clip(round(x), low - z, high - z) · s, a)", Binary)
def quantised_for_a_moment(r: Rewriter, node: Node) -> str | None:
    """Nothing else reads the integer: the numbers that it stands for are as whole without it."""
    reals = [
        _real(r, value) if r.const(other) is not None else None
        for value, other in zip(node.inputs, reversed(node.inputs))
    ]
    if reals == [None, None]:
        return None
    assert isinstance(node.op, Binary)
    if node.op.fn == "pow" or (node.op.fn == "div" and reals[1] is not None):
        return None  # a rounded zero may be negative, which shows where something is divided by it
    return r.emit(node.op, *(value if real is None else real() for value, real in zip(node.inputs, reals)))


def _real(r: Rewriter, value: str | None) -> Callable[[], str] | None:
    """What emits a dequantised value without the integer between."""
    step = _step_of(r, r.made_by(value, DequantizeLinear))
    whole = None if step is None else _whole(r, value, step)
    if step is None or whole is None:
        return None
    return partial(_times, r, whole, np.array(step.scale, np.float32), 1.0)


def _whole(r: Rewriter, value: str | None, step: _Step) -> Callable[[], str] | None:
    """What emits the number that a dequantised value is a multiple of, if nothing else reads the integer."""
    made = _rounded(r, step.value) if value is not None and r.sole(value) else None
    if made is None or made.zero != step.zero:
        return None
    limits = np.iinfo(DTYPES[step.dtype].numpy)
    bounds = float(limits.min - step.zero), float(limits.max - step.zero)
    return partial(r.emit, Unary("clip", bounds), made.value)


@dataclass(frozen=True)
class _Rounded:
    """A rounded value in f32, and what is added to it before it becomes an integer."""

    value: str
    zero: float


def _rounded(r: Rewriter, value: str) -> _Rounded | None:
    """What a value of 8 bits, read only once, is made of."""
    cast = r.only_by(value, Cast)
    if cast is None or r.type_of(value).dtype.bits != 8 or r.type_of(cast.inputs[0] or "").dtype is not F32:
        return None
    added = _function(r, cast.inputs[0], Binary, "add")
    zero = None if added is None else r.uniform(added.inputs[1])
    if added is not None and r.type_of(added.inputs[0] or "").shape != r.type_of(added.outputs[0]).shape:
        return None
    source = cast.inputs[0] if added is None or zero is None else added.inputs[0]
    rounded = _function(r, source, Unary, "round")
    return None if rounded is None else _Rounded(rounded.outputs[0], float(zero or 0))


@rule("quantize(x·a + b, s, z) => int(round(x·(a/s) + b/s) + z), x whole", QuantizeLinear)
def quantize_sum(r: Rewriter, node: Node) -> str | None:
    """Of sums of quantised numbers, perhaps bounded: no division, and x·a has been rounded anyway."""
    step, name = _step_of(r, node), node.outputs[0]
    if step is None or r.type_of(step.value).dtype is not F32:
        return None
    bounds = _function(r, step.value, Unary, "relu", "clip")
    value = step.value if bounds is None else bounds.inputs[0]
    before = _step_of(r, r.made_by(value, DequantizeLinear))
    if value is None or (before is not None and not _same_steps(before, step.scale)):
        return None
    quotient = _quotient(r, value, step.scale)
    if quotient is None:
        return None
    result = quotient()
    if bounds is not None and isinstance(bounds.op, Unary):
        with np.errstate(over="ignore"):
            limits = tuple(float(np.float32(limit / np.float64(step.scale))) for limit in bounds.op.params)
        result = r.emit(Unary(bounds.op.fn, limits), result)
    result = r.emit(Unary("round"), result)
    if step.zero:
        result = r.emit(Binary("add"), result, r.constant(np.array(step.zero, np.float32), name))
    return r.emit(Cast(step.dtype), result)


def _same_steps(before: _Step, scale: float) -> bool:
    """Whether every byte that a value is dequantised from rounds to the same number with a factor as with a
    division. One that lies between two of them would be a whole step off. Wider integers are sums."""
    limits = np.iinfo(DTYPES[before.dtype].numpy)
    if limits.bits > 8:
        return True
    whole = np.arange(limits.min, limits.max + 1) - np.float32(before.zero)
    divided = whole.astype(np.float32) * np.float32(before.scale) / np.float32(scale)
    scaled = whole.astype(np.float32) * _over(np.array(before.scale, np.float32), scale)
    return np.array_equal(np.rint(divided), np.rint(scaled))


def _quotient(r: Rewriter, value: str, scale: float, terms: int = MOST_TERMS) -> Callable[[], str] | None:
    """What emits value / scale without a division: of a sum of constants and of integers times constants."""
    if not terms:
        return None
    step = _step_of(r, r.made_by(value, DequantizeLinear))
    if step is not None:
        factor = np.array(step.scale, np.float32)
        whole = _whole(r, value, step) or partial(_centred, r, step)
        return partial(_times, r, whole, factor, scale) if _divides(factor, scale) else None
    scaled = _function(r, value, Binary, "mul")
    if scaled is not None:
        left, by = scaled.inputs[0] or "", r.const(scaled.inputs[1])
        if by is None or not _is_whole(r, left) or not _divides(by, scale):
            return None
        return partial(_times, r, lambda: left, by, scale)
    added = _function(r, value, Binary, "add")
    if added is None:
        return None
    left, right = (v or "" for v in added.inputs)
    shift = r.const(right)
    first = _quotient(r, left, scale, terms - 1)
    if shift is None:
        second = _quotient(r, right, scale, terms - 1)
    else:
        second = partial(r.constant, _over(shift, scale), right) if _divides(shift, scale) else None
    return None if first is None or second is None else lambda: r.emit(Binary("add"), first(), second())


def _times(r: Rewriter, value: Callable[[], str], factor: np.ndarray, scale: float) -> str:
    """value · (factor / scale)."""
    made = value()
    return r.emit(Binary("mul"), made, r.constant(_over(factor, scale), made))


def _centred(r: Rewriter, step: _Step) -> str:
    """A quantised value less its zero point, in f32."""
    real = r.emit(Cast("f32"), step.value)
    if not step.zero:
        return real
    return r.emit(Binary("add"), real, r.constant(np.array(-step.zero, np.float32), step.value))


def _is_whole(r: Rewriter, value: str | None) -> bool:
    """Whether a value in f32 was an integer, or has been rounded to one."""
    cast, bounded = r.made_by(value, Cast), r.made_by(value, Unary)
    if cast is not None:
        return r.type_of(cast.inputs[0] or "").dtype.is_integer
    if bounded is None or _name(bounded) not in ("clip", "relu"):
        return False
    rounded = r.made_by(bounded.inputs[0], Unary)
    return rounded is not None and _name(rounded) == "round"


def _name(node: Node) -> str:
    """Of the function of an elementwise operator."""
    return getattr(node.op, "fn", "")


def _function(r: Rewriter, value: str | None, kind: type[Unary | Binary], *names: str) -> Node | None:
    """The node of one of these functions that makes a value which nothing else reads."""
    node = r.only_by(value, kind)
    return node if node is not None and _name(node) in names else None


def _over(array: np.ndarray, scale: float) -> np.ndarray:
    return (array / np.float64(scale)).astype(np.float32)


def _divides(array: np.ndarray, scale: float) -> bool:
    """Whether the quotients are normal numbers, or 0 where the dividends are."""
    with np.errstate(over="ignore"):
        quotients = np.abs(_over(array, scale))
    return bool((np.isfinite(quotients) & ((quotients >= np.finfo(np.float32).tiny) | (array == 0))).all())


QUANTISED = (quantised_already, move_bytes, quantised_for_a_moment, quantize_sum)
