"""Rules on values that are quantised: what needs no real numbers between, and what needs no division."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..compiler.ir.graph import Node
from ..compiler.ir.types import F32, TensorType
from ..compiler.ops.elementwise import Binary, Cast, Unary
from ..compiler.ops.movement import Concat, Reshape, Slice, Transpose
from ..compiler.ops.pool import MaxPool
from ..compiler.ops.quantize import DequantizeLinear, QuantizeLinear
from .rewrite import Rewriter, rule

ORDERING = (Concat, MaxPool, Reshape, Slice, Transpose)
"""Operators that move or compare elements, bytes as well as the numbers that they stand for."""
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
        at = np.arange(outputs)[:, None] * stride + np.arange(kernel) * dilation - pad
        if not ((at >= 0) & (at < size)).any(1).all():
            return False
    return True


@rule("quantize(x·a + b, s, z) => int(round(x·(a/s) + b/s) + z), x whole", QuantizeLinear)
def quantize_sum(r: Rewriter, node: Node) -> str | None:
    """Of products of quantised operands, perhaps bounded: no division, and x·a has been rounded anyway."""
    step, name = _step_of(r, node), node.outputs[0]
    if step is None or r.type_of(step.value).dtype is not F32:
        return None
    bounds = _function(r, step.value, Unary, "relu", "clip")
    value = step.value if bounds is None else bounds.inputs[0]
    added = _function(r, value, Binary, "add")
    shift = None if added is None else r.const(added.inputs[1])
    scaled = _function(r, value if shift is None or added is None else added.inputs[0], Binary, "mul")
    whole = None if scaled is None else r.made_by(scaled.inputs[0], Cast)
    factor = None if scaled is None else r.const(scaled.inputs[1])
    if whole is None or factor is None or not r.type_of(whole.inputs[0] or "").dtype.is_integer:
        return None
    if not _divides(factor, step.scale) or not _divides(shift, step.scale):
        return None
    result = r.emit(Binary("mul"), whole.outputs[0], r.constant(_over(factor, step.scale), name))
    if shift is not None:
        result = r.emit(Binary("add"), result, r.constant(_over(shift, step.scale), name))
    if bounds is not None and isinstance(bounds.op, Unary):
        with np.errstate(over="ignore"):
            limits = tuple(float(np.float32(limit / np.float64(step.scale))) for limit in bounds.op.params)
        result = r.emit(Unary(bounds.op.fn, limits), result)
    result = r.emit(Unary("round"), result)
    if step.zero:
        result = r.emit(Binary("add"), result, r.constant(np.array(step.zero, np.float32), name))
    return r.emit(Cast(step.dtype), result)


def _function(r: Rewriter, value: str | None, kind: type[Unary | Binary], *names: str) -> Node | None:
    """The node of one of these functions that makes a value which nothing else reads."""
    node = r.only_by(value, kind)
    return node if node is not None and getattr(node.op, "fn", "") in names else None


def _over(array: np.ndarray, scale: float) -> np.ndarray:
    return (array / np.float64(scale)).astype(np.float32)


def _divides(array: np.ndarray | None, scale: float) -> bool:
    """Whether the quotients are normal numbers, or 0 where the dividends are."""
    if array is None:
        return True
    with np.errstate(over="ignore"):
        quotients = np.abs(_over(array, scale))
    return bool((np.isfinite(quotients) & ((quotients >= np.finfo(np.float32).tiny) | (array == 0))).all())


QUANTISED = (quantised_already, move_bytes, quantize_sum)
