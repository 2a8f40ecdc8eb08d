"""Which algorithm a convolution gets, by predicted time: arithmetic at the machine's rate against bytes
that must
be read.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..compiler.ir.graph import Graph, Node
from ..compiler.ir.types import F32, Layout
from ..compiler.ops.fused import FusedOp
from ..compiler.target import Target
from ..compiler.templates import winograd

TILES = (2, 4)
PRODUCT_RATE = 0.88  # of the FMA peak: what the micro-kernel reaches
DIRECT_RATE = 0.95
BYTES_PER_FMA = 0.24  # bytes of weights from memory in the time of one FMA of one core
TRANSFORM_COST = {2: 9.0, 4: 14.0, 6: 20.0}  # FMAs a point, channel and tile, both transforms


def choose_tile(graph: Graph, node: Node, layouts: Mapping[str, Layout], target: Target, threads: int) -> int:
    """The output tile of the Winograd transform that is predicted fastest; 0 for the direct algorithm."""
    lanes = target.lanes(4)
    op = node.op
    if not isinstance(op, FusedOp) or not winograd.fits(op, lanes) or node.outputs[0] not in layouts:
        return 0
    inner = op.graph.nodes[0]
    if inner.inputs[0] not in layouts or inner.inputs[1] not in graph.constants:
        return 0
    if graph.types[node.outputs[0]].dtype is not F32:
        return 0
    g = winograd.geometry(op, 2, lanes)
    products = g.batch * g.out_height * g.out_width * g.channels * g.out_channels * 9
    inside = 1 - (g.pad_top > 0) * (1 / g.out_height + 1 / g.out_width) * 2 / 3  # taps that are not padding
    best, best_time = 0, _time(products * inside / DIRECT_RATE, g.channels * g.out_channels * 9 * 4, threads)
    for tile in TILES:
        t = winograd.geometry(op, tile, lanes)
        products = g.batch * t.points * t.tiles * g.channels * g.out_channels
        transforms = g.batch * t.points * t.tiles * (g.channels + g.out_channels) * TRANSFORM_COST[tile]
        weights = t.points * g.channels * g.out_channels * 4
        rate = PRODUCT_RATE * _tile_rate(t.tiles)
        time = _time(products / rate + transforms, weights, threads)
        if time < best_time:
            best, best_time = tile, time
    return best


def _tile_rate(tiles: int) -> float:
    """The micro-kernel's share of its best speed for so few tiles: two FMAs and two loads a cycle, a
    latency of four.
    """
    group = -(-tiles // -(-tiles // 14))
    return group / max(group, (group + 2) / 2, 4.0)


def _time(fmas: float, weights: float, threads: int) -> float:
    """In FMAs of one core (one a lane); weights come from memory while the arithmetic runs."""
    return max(fmas / threads, weights / BYTES_PER_FMA / min(threads, 1.4))
