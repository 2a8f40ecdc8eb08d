"""Rules on values that are quantised: what needs no real numbers between, and what needs no division."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..compiler.ir.graph import Node
from ..compiler.ir.types import F32
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
    """value = (bytes - zero) · scale, of one scale and zero point, in f32."""

    bytes: str
    dtype: str
    scale: float
    zero: float


def _step_of(r: Rewriter, node: Node | None) -> _Step | None:
    """Of a node that quantises or dequantises."""
    if node is None or not isinstance(node.op, (QuantizeLinear, DequantizeLinear)):
        return None
    value, s, z = (*node.inputs, None)[:3]
    scale, zero = r.uniform(s), 0 if z is None else r.uniform(z)
    back = isinstance(node.op, DequantizeLinear)
    in_f32 = node.op.to == "f32" if back else node.op.precision == "f32"
    if value is None or scale is None or zero is None or not (in_f32 and _TINY <= scale < _HUGE):
        return None
    return _Step(value, r.type_of(value).dtype.name if back else node.op.to, scale, zero)


@rule("quantize(dequantize(x, s, z), s, z) => x", QuantizeLinear)
def quantised_already(r: Rewriter, node: Node) -> str | None:
    own, before = _step_of(r, node), _step_of(r, r.made_by(node.inputs[0], DequantizeLinear))
    same = own is not None and before is not None and replace(own, bytes=before.bytes) == before
    return before.bytes if same and before is not None else None


@rule("move(dequantize(x, s, z)) => dequantize(move(x), s, z)", *ORDERING)
def move_bytes(r: Rewriter, node: Node) -> str | None:
    """There are fewer of them, and what is quantised again may stay as it is."""
    steps = [_step_of(r, r.only_by(v, DequantizeLinear)) for v in dict.fromkeys(node.inputs)]
    first = steps[0]
    if first is None or len(node.outputs) != 1 or len(steps) < len(node.inputs):
        return None
    if any(step is None or replace(step, bytes=first.bytes) != first for step in steps):
        return None
    moved = r.emit(node.op, *(step.bytes for step in steps if step is not None))
    dtype = r.type_of(moved).dtype.numpy
    by = np.array(first.scale, np.float32), np.array(first.zero, dtype)
    return r.emit(DequantizeLinear(), moved, *(r.constant(v, node.outputs[0]) for v in by))


@rule("quantize(x·a + b, s, z) => int(round(x·(a/s) + b/s) + z), x whole", QuantizeLinear)
def quantize_sum(r: Rewriter, node: Node) -> str | None:
    """Of products of quantised operands, perhaps bounded: no division, and x·a has been rounded anyway."""
    value, s, z = (*node.inputs, None)[:3]
    scale, zero = r.uniform(s), 0 if z is None else r.uniform(z)
    bounded = r.only_by(value, Unary)
    if bounded is not None and (bounded.op.fn == "relu" or bounded.op.fn == "clip"):
        value = bounded.inputs[0]
    made = r.only_by(value, Binary)
    shift = r.const(made.inputs[1]) if made is not None and made.op.fn == "add" else None
    scaled = made if shift is None or made is None else r.only_by(made.inputs[0], Binary)
    positive = scale is not None and scale > 0
    if scaled is None or scaled.op.fn != "mul" or not positive or zero is None or node.op.precision != "f32":
        return None
    whole, factor = r.made_by(scaled.inputs[0], Cast), r.const(scaled.inputs[1])
    if whole is None or factor is None or not r.type_of(whole.inputs[0]).dtype.is_integer:
        return None
    if r.type_of(value).dtype is not F32 or not _divides(factor, scale) or not _divides(shift, scale):
        return None
    result = r.emit(Binary("mul"), scaled.inputs[0], r.constant(_over(factor, scale), s))
    if shift is not None:
        result = r.emit(Binary("add"), result, r.constant(_over(shift, scale), s))
    if value != node.inputs[0]:
        params = tuple(float(np.float32(p) / np.float64(scale)) for p in bounded.op.params)
        result = r.emit(Unary(bounded.op.fn, params), result)
    result = r.emit(Unary("round"), result)
    if zero:
        result = r.emit(Binary("add"), result, r.constant(np.array(zero, np.float32), s))
    return r.emit(Cast(node.op.to), result)


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
