"""One node on constants, by its operator's reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...errors import BurnishError, InternalError
from ..ir.graph import Node
from ..ir.types import TensorType
from .window import window_limit

MAX_WINDOWS = 512 << 20
"""Bytes that all windows of an operator may take: beyond it, the operator stays in the graph."""


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
