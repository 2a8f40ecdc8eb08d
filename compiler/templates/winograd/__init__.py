"""Convolution by Winograd's minimal filtering F(m×m, r×r), all three stages blocked together.

    winograd2, 4, 6    3×3 of stride 1        winograd2_5x5, winograd4_5x5    5×5 of stride 1
    polyphase2, 3      3×3 of stride 2, as four convolutions of stride 1 with at most 2×2 taps

Either a task takes some rows of tiles through all stages (`fused`: V and M stay in its cache), or all of V is
made first and a task takes a block of output channels for all tiles (few tiles, many channels).
Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (2016).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ...ir.loops import Program
from ...ir.types import Layout
from ...kernel_task import KernelTask
from ...ops.fused import FusedOp
from ...ops.tap_transform import TapTransform
from ..algorithm import Algorithm, Layouts, Pack
from .builder import Builder
from .geometry import VARIANTS, Variant, geometry, suits
from .params import VECTORS, Params, params, work

__all__ = ["ALGORITHMS", "VARIANTS", "Params", "matches", "params", "schedule"]


def fits(variant: Variant, op: FusedOp, lanes: int) -> bool:
    """Whether channels fill half of the vectors and panels at least."""
    if not suits(op, variant):
        return False
    g = geometry(op, variant, lanes)
    _, channels, *_ = op.graph.types[op.graph.nodes[0].inputs[0] or ""].dims
    full = 2 * channels >= g.channels and VECTORS * g.out_vectors * lanes >= g.out_channels
    return full and min(g.channels, g.out_channels, g.tiles, g.batch) > 0


def layouts(op: FusedOp, lanes: int) -> tuple[Layouts, ...]:
    blocked = Layout.channel_blocked(4, lanes)
    return ((blocked, blocked),)


def weights(variant: Variant, op: FusedOp, lanes: int) -> Mapping[int, Pack]:
    position = op.graph.inputs.index(op.graph.nodes[0].inputs[1] or "")
    g = geometry(op, variant, lanes)
    return {position: TapTransform(g.coefficients, VECTORS * lanes, lanes)}


ALGORITHMS = tuple(
    Algorithm(v.name, partial(fits, v), layouts, partial(weights, v), partial(work, v), v.error)
    for v in VARIANTS.values()
)


def matches(task: KernelTask) -> bool:
    return task.transformed in VARIANTS


def schedule(task: KernelTask, p: Params) -> Program:
    return Builder(task, p).program()
