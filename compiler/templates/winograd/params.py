"""The numbers of one Winograd kernel, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...kernel_task import Config, KernelTask
from ...ops.fused import FusedOp
from ...target import Target
from ..algorithm import Work
from ..choices import choose, divisors, loop_order
from ..register_tiles import most_rows
from .geometry import VARIANTS, VECTORS, Geometry, Variant, geometry

MANY = 64  # tiles of an image that is cut into rows of tiles
ENOUGH = 24  # tiles of a task
EVEN = 1.1  # rows of tiles that a thread may have at most, of what it would have if no task had several
LEAST_PANELS = 2  # of a block of output channels, even if M then leaves L2: each block reads all of V
UNROLLED = 4  # input channels of one iteration
FEW = 4  # passes of the micro-kernel over a panel of weights, in whose time the next panel arrives
FAR_L3 = 2 << 20  # bytes of L2 in cores that reach it late: a line costs less beside the one before
LONGEST_BODY = 256  # updates of registers that a config may write out in one loop body
PRODUCT_RATE = 0.88  # of the FMA peak: what the products reach
TRANSFORM_COST = {
    2: 9.0,
    3: 12.0,
    4: 14.0,
    6: 20.0,
}
"""Multiply-adds a point, channel and tile by output tile, in either transform."""


@dataclass(frozen=True)
class Params:
    fused: bool
    rows: int  # tile rows of a task (fused)
    images: int  # whose tiles are multiplied together (not fused)
    channels: int  # output channels of one block
    group: int  # most tiles of the micro-kernel
    panels: int  # of weights, two vectors each, that it takes at once
    depth: int  # input channels that it adds up at a time
    depth_outer: bool  # whether all panels take a part of the input channels before the next part's turn
    unrolled: int  # most input channels of one iteration
    prefetch: bool  # of the next weights
    input_order: tuple[str, ...]  # loops around the transform of a tile's vector of channels
    output_order: tuple[str, ...]


def variant_of(task: KernelTask) -> Variant:
    return VARIANTS[task.transformed]


def params(task: KernelTask, cfg: Config) -> Params:
    assert isinstance(task.op, FusedOp)
    g = geometry(task.op, variant_of(task), task.target.lanes(4))
    step = VECTORS * g.lanes
    prefetch = choose(cfg, "prefetch", (False, True), True)
    blocks = [c for c in range(step, g.out_channels + 1, step) if g.out_channels % c == 0]
    row_options = range(1, g.tile_rows + 1) if g.tile_rows > 1 else ()
    either = (True, False) if row_options else (False,)
    some = _rows(row_options, g, task)
    fused = choose(
        cfg,
        "fused",
        either,
        bool(row_options) and g.tiles >= MANY and _reuses_weights(g, some, task.target.l2),
    )
    narrow = LEAST_PANELS * step
    if fused:
        rows = choose(cfg, "rows", row_options, some)
        images, tiles = 1, rows * g.tile_columns
        fitting = [c for c in blocks if c <= narrow or _bytes(g, tiles, c) <= task.target.l2 // 2]
    else:
        rows = g.tile_rows
        options = divisors(g.batch)
        together = [n for n in options if _bytes(g, n * g.tiles, blocks[0]) <= task.target.l2]
        images = choose(cfg, "images", options, max(together, default=1))
        tiles = images * g.tiles
        shared = [c for c in blocks if g.out_channels // c >= task.threads]
        fitting = [c for c in shared if c <= narrow or _bytes(g, tiles, c) <= task.target.l2]
        fitting = [c for c in fitting if g.out_channels // c % task.threads == 0] or fitting
    channels = choose(cfg, "channels", blocks, max(fitting, default=blocks[0]))
    several = [n for n in (1, 2) if channels % (n * step) == 0 and most_tiles(task.target, n)]
    panels = choose(cfg, "panels", several, 1)
    most = most_tiles(task.target, panels)
    group = choose(cfg, "group", range(max(1, most // 2), most + 1), most)
    most_depth = min(g.channels, g.variant.depth)
    depths = [d for d in range(g.lanes, most_depth + 1, g.lanes) if g.channels % d == 0]
    few = tiles <= FEW * most_tiles(task.target, 1)
    panel = max(task.target.l1 // 8, 8 * g.lanes * step * 4) if few else task.target.l1 // 2
    depth = choose(cfg, "depth", depths, max((d for d in depths if d * step * 4 <= panel), default=depths[0]))
    both = depth < g.channels and channels > panels * step
    depth_outer = choose(cfg, "depth_outer", (False, True) if both else (False,), False)
    short = [n for n in (1, 2, 4, 8) if n * group * panels * VECTORS <= LONGEST_BODY]
    near = _bytes(g, tiles, g.channels * len(g.variant.phases)) <= task.target.l2 >= FAR_L3
    side_by_side = not fused and near and g.batch * g.tile_rows >= task.threads  # rows are tasks then
    return Params(
        *(fused, rows, images, channels, group, panels, depth, depth_outer),
        choose(cfg, "unrolled", short, UNROLLED),
        prefetch,
        _transform_order(cfg, "input_order", "ib", side_by_side),
        _transform_order(cfg, "output_order", "ov", side_by_side),
    )


def _transform_order(cfg: Config, knob: str, channels: str, side_by_side: bool) -> tuple[str, ...]:
    """Loops around a transform. With those over channels inside, it walks along lines of V or M, else of the
    image."""
    tiles = ("row", "tw")
    return loop_order(cfg, knob, (*tiles, channels) if side_by_side else (channels, *tiles), (tiles,))


def _reuses_weights(g: Geometry, rows: int, l2: int) -> bool:
    """Whether a task of so many tile rows has tiles enough to read all weights again.

    Otherwise V and M of a whole image pass through the last cache, V several times: about four times in all,
    unless they stay in L2, where the weights are not.
    """
    channels, tiles = g.channels * len(g.variant.phases), rows * g.tile_columns
    weights = sum(map(len, g.coefficients)) * g.channels * g.out_channels * 4
    at_once = _bytes(g, g.tiles, channels + LEAST_PANELS * VECTORS * g.lanes)
    if at_once <= l2 < _bytes(g, tiles, channels + g.out_channels) + weights:
        return False
    return channels * g.out_channels <= 4 * tiles * (channels + g.out_channels)


def _bytes(g: Geometry, tiles: int, channels: int) -> int:
    """Of the points of so many tiles."""
    return len(g.points) * tiles * channels * 4


def _rows(options: Sequence[int], g: Geometry, task: KernelTask) -> int:
    """Enough tiles for the micro-kernel, transformed tiles in half of L2, an even share for every thread."""
    channels = g.channels * len(g.variant.phases) + g.out_channels
    small = [r for r in options if _bytes(g, r * g.tile_columns, channels) <= task.target.l2 // 2]
    least = -(-g.batch * g.tile_rows // task.threads)
    share = {r: -(-g.batch * -(-g.tile_rows // r) // task.threads) * r for r in small}
    even = [r for r in small if share[r] <= EVEN * least or task.threads == 1]
    enough = [r for r in (even or small) if r * g.tile_columns >= ENOUGH]
    return min(enough) if enough else max(even or small, default=1)


def most_tiles(target: Target, panels: int) -> int:
    return most_rows(target, panels * VECTORS)


def work(variant: Variant, op: FusedOp, lanes: int) -> Work:
    g = geometry(op, variant, lanes)
    classes = list(g.classes(g.regions(g.batch), g.batch))
    parts = np.array([(len(c.tiles), 1.0) for c in classes]) * [[c.count * len(c.phases)] for c in classes]
    products, weights = parts.sum(0) * g.channels * g.out_channels
    channels = g.channels * len(variant.phases) + g.out_vectors * g.lanes
    transformed = len(g.points) * g.batch * g.tiles * channels
    return Work(
        products=float(products),
        rate=PRODUCT_RATE * _tile_rate([len(c.tiles) for c in classes]),
        streamed=float(weights) * 4,
        other=transformed * TRANSFORM_COST[variant.m],
        parts=tuple((float(p), float(w)) for p, w in parts / parts.sum(0)),
    )


def _tile_rate(tiles: Sequence[int]) -> float:
    """Of the micro-kernel's best speed: less than four tiles do not hide the latency of multiply-adds."""
    return sum(tiles) / sum(max(n, 4 * -(-n // 6)) for n in tiles)
