"""One node on constants, by its operator's reference, and what that takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod

import numpy as np

from ...errors import BurnishError, InternalError
from ..ir.graph import Node
from ..ir.types import TensorType
from .base import Op
from .fused import expression
from .recurrence import Recurrence
from .sorting import Det
from .window import window_limit

MAX_WINDOWS = 512 << 20
"""Bytes that all windows of an operator may take: beyond it, the operator stays in the graph."""
MAX_WORK = 1 << 35
"""`work` of all that is evaluated by one import, or one pass: about a minute."""


def work(node: Node, types: Mapping[str, TensorType]) -> int:
    """How many elements the operator's reference reads, combines and writes, about."""
    inputs = tuple(None if i is None else types[i] for i in node.inputs)
    return _work(node.op, inputs, tuple(types[o] for o in node.outputs))


@lru_cache(maxsize=1 << 12)
def _work(op: Op, inputs: tuple[TensorType | None, ...], outputs: tuple[TensorType, ...]) -> int:
    types = [t for t in (*inputs, *outputs) if t is not None]
    elements = sum(t.size for t in types)
    if isinstance(op, (Recurrence, Det)):  # a whole matrix in each step
        return elements * max(t.dims[-1] for t in types if t.rank)
    if op.has("compute"):
        elements += sum(prod(a.extent for a in st.all_axes) for st in expression(op, inputs).stages)
    return elements


def evaluate(
    node: Node, arrays: Sequence[np.ndarray | None], types: Mapping[str, TensorType]
) -> list[np.ndarray] | None:
    """The outputs, row-major; None if the reference reports an error, which then belongs to the run, or
    takes too much memory."""
    try:
        with np.errstate(all="ignore"), window_limit(MAX_WINDOWS):
            results = node.op.reference(*arrays)
    except (BurnishError, ValueError, IndexError, ArithmeticError, MemoryError):
        return None
    contiguous = [np.asarray(r, order="C") for r in results]
    for name, array in zip(node.outputs, contiguous, strict=True):
        type = types[name]
        if array.dtype != type.dtype.numpy or array.shape != type.dims:
            raise InternalError(
                f"node {node.name!r} ({node.op.name}): the reference gives {array.dtype}{list(array.shape)}, "
                f"but {type} is inferred"
            )
    return contiguous
