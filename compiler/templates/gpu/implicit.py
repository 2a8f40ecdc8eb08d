"""Convolutions as products with their patches, which are never written (implicit GEMM): what a planner asks.

Weights lie as (height, width, channels, output channels), so that neighbouring threads, which take
neighbouring rows of the product, read neighbours in memory whatever the order of the sum.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...ir.types import Layout
from ...ops.fused import FusedOp
from ..algorithm import Layouts, Work
from ..conv_parts import convolution, geometry, weights_position

LAST = Layout((0, 2, 3, 1))
WEIGHTS = Layout((2, 3, 1, 0))


def fits(op: FusedOp, lanes: int) -> bool:
    g = convolution(op)
    return g is not None and g.group == 1


def layouts(op: FusedOp, lanes: int) -> tuple[Layouts, ...]:
    """Plain or channels last, the same for image and result."""
    return ((None, None), (LAST, LAST))


def weights(op: FusedOp, lanes: int) -> Mapping[int, Layout]:
    return {weights_position(op): WEIGHTS}


def work(op: FusedOp, lanes: int) -> Work:
    g = geometry(op)
    matrix = g.channels * g.taps * g.out_channels
    return Work(g.batch * g.pixels * matrix, 1.0, 4 * matrix)
