"""Which values narrower floats hold: rounding f32 to them, as units of a GPU do, changes nothing then."""

from __future__ import annotations

import numpy as np

from ..compiler.ir.graph import Graph
from ..compiler.ir.types import BF16, DTYPES, F16, F32, DType
from ..compiler.ops.elementwise import Cast, Rounded
from ..compiler.ops.fused import FusedOp
from .widen import only_picks

HOLD = {"f16": (F16,), "bf16": (BF16,), "tf32": (F16, BF16)}
"""What a precision holds; TF32 has the mantissa of one and the exponents of the other."""


def is_held(graph: Graph, value: str, precision: str) -> bool:
    """Whether a precision holds a value, whatever the network's inputs are."""
    return any(_unsure(graph, value, dtype) == set() for dtype in HOLD.get(precision, ()))


def _unsure(graph: Graph, value: str, dtype: DType) -> set[str] | None:
    """The inputs that `dtype` must hold so that it holds `value`; None where that is not enough."""
    makers, waiting, seen = graph.makers, [value], set[str]()
    inputs = set()
    while waiting:
        here = waiting.pop()
        if here in seen:
            continue
        seen.add(here)
        if graph.types[here].dtype is dtype:
            continue
        if here in graph.constants:
            if not _holds(dtype, graph.constants[here]):
                return None
        elif here not in makers:
            inputs.add(here)
        else:
            node = makers[here]
            match node.op:
                case Rounded(to=to) if DTYPES[to] is dtype:
                    pass
                case Cast() if graph.types[node.reads[0]].dtype is dtype:
                    pass
                case FusedOp(graph=inner):
                    within = _unsure(inner, inner.outputs[node.outputs.index(here)], dtype)
                    if within is None:
                        return None
                    waiting += [v for v, name in zip(node.reads, inner.inputs) if name in within]
                case op if only_picks(op):
                    waiting += [v for v in node.reads if graph.types[v].dtype is F32]
                case _:
                    return None
    return inputs


def _holds(dtype: DType, array: np.ndarray) -> bool:
    with np.errstate(over="ignore"):
        return bool((array.astype(dtype.numpy).astype(array.dtype) == array).all())
