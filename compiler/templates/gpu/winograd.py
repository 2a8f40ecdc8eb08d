"""3×3 convolution of stride 1 by Winograd's minimal filtering F(m×m, 3×3), in three kernels.

    V[point, channel, tile] = Bᵀ d B                  a thread a channel and tile
    M[point, channel, tile] = Σ U[point] · V[point]   one matrix product a point, by tiles (tiles.py)
    y = f(Aᵀ M A)                                     a thread an output channel and tile

U, the transformed weights, is made when compiling. V lies as the image does, M as the result: channels around
the tiles, within them, or both, so that neighbouring threads take what are neighbours in memory.
Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (2016).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np

from ...ir import scalar as s
from ...ir.expr import Axis, Reduce, Stage
from ...ir.loops import Alloc, Body, Buffer, If, Program, Stmt, Store
from ...ir.scalar import Expr, Load, Var
from ...ir.types import F32, Layout
from ...kernel_task import Config, KernelTask
from ...ops.fused import FusedOp
from ...ops.tap_transform import TapTransform
from ..algorithm import Algorithm, Layouts, Pack, Work
from ..conv_parts import Geometry, Operands, convolution, geometry, operands, weights_position
from ..memo import per_task
from ..winograd.combine import combine
from ..winograd.geometry import VARIANTS as CPU_VARIANTS
from ..winograd.geometry import Variant
from . import tiles
from .common import spread, threads_of_block
from .product import Axes, Product, product_of, size, within

VARIANTS = {
    v.name: v for v in (replace(CPU_VARIANTS[n], name=f"gpu_{n}") for n in ("winograd2", "winograd4"))
}
PRODUCT_RATE = 0.5  # of the peak: what products of small matrices reach
POINT, IMAGE, ROW, COLUMN = (Var(n) for n in ("point", "image", "tile_row", "tile_column"))


@dataclass(frozen=True)
class Params:
    threads: int  # of a block of the transforms
    product: tiles.Params


# --- what the planner asks ------------------------------------------------------------------------------


def fits(variant: Variant, op: FusedOp, lanes: int) -> bool:
    g = convolution(op)
    return g is not None and (g.group, g.kernel, g.strides, g.dilations) == (1, (3, 3), (1, 1), (1, 1))


def layouts(op: FusedOp, lanes: int) -> tuple[Layouts, ...]:
    """The same for image and result."""
    g = geometry(op)
    found = [None, Layout((0, 2, 3, 1))]
    if g.channels % lanes == g.out_channels % lanes == 0:
        found.append(Layout.channel_blocked(4, lanes))
    return tuple((layout, layout) for layout in found)


def weights(variant: Variant, op: FusedOp, lanes: int) -> Mapping[int, Pack]:
    """U[point · channels + channel, output channel]."""
    g = variant.transform.g
    coefficients = tuple((tuple(np.outer(a, b).ravel().tolist()),) for a, b in product(g, g))
    return {weights_position(op): TapTransform(coefficients, geometry(op).out_channels)}


def work(variant: Variant, op: FusedOp, lanes: int) -> Work:
    g = geometry(op)
    points = variant.transform.n**2
    matrix = g.channels * g.out_channels
    return Work(points * g.batch * _tiles(g, variant) * matrix, PRODUCT_RATE, points * matrix * 4)


ALGORITHMS = tuple(
    Algorithm(v.name, partial(fits, v), layouts, partial(weights, v), partial(work, v), v.error, "gpu")
    for v in VARIANTS.values()
)


# --- the template ---------------------------------------------------------------------------------------


def matches(task: KernelTask) -> bool:
    return task.transformed in VARIANTS


def params(task: KernelTask, cfg: Config) -> Params:
    b, gpu = builder(task), task.target.gpu
    assert gpu is not None
    items = max(b.g.channels, b.g.out_channels) * b.tiles
    return Params(threads_of_block(cfg, task.target, items), tiles.asked(b.product, gpu, cfg, parts=(1,)))


def schedule(task: KernelTask, p: Params) -> Program:
    b = builder(task)
    kernels = (b.input(p.threads), tiles.tiled(b.product, p.product, b.multiplied), b.output(p.threads))
    return Program(task.name, b.o.params, kernels, (b.v, b.m))


def _tiles(g: Geometry, variant: Variant) -> int:
    """Of an image."""
    return -(-g.out[0] // variant.m) * -(-g.out[1] // variant.m)


@dataclass(frozen=True)
class Channels:
    """Axes of channels around and within the tiles."""

    around: Axes
    within: Axes

    @property
    def axes(self) -> Axes:
        return self.around + self.within

    @property
    def number(self) -> Expr:
        total: Expr = s.const(0)
        for axis in self.axes:
            total = total * axis.extent + Var(axis.name)
        return total

    def order(self, *inside: Axis) -> Axes:
        """All axes as they lie in memory, those of tiles among them."""
        return (*self.around, *inside, *self.within)


def _channels(name: str, extent: int, layout: Layout | None) -> Channels:
    if layout is None:
        return Channels((Axis(name, extent),), ())
    if not layout.blocks:
        return Channels((), (Axis(name, extent),))
    block = layout.block_of(1)
    return Channels((Axis(f"{name}_block", extent // block),), (Axis(f"{name}_inside", block),))


@per_task
def builder(task: KernelTask) -> _Builder:
    assert isinstance(task.op, FusedOp)
    return _Builder(operands(task), geometry(task.op), VARIANTS[task.transformed])


class _Builder:
    """The loops of one task's three kernels."""

    def __init__(self, o: Operands, g: Geometry, variant: Variant):
        self.o, self.g, self.variant = o, g, variant
        self.n = variant.transform.n
        self.grid = tuple(-(-extent // variant.m) for extent in g.out)
        self.tiles = g.batch * self.grid[0] * self.grid[1]
        self.read = _channels("channel", g.channels, o.reads)
        self.written = _channels("out_channel", g.out_channels, o.writes)
        self.v = self._by_point("tiles_in", self.read)
        self.m = self._by_point("tiles_out", self.written)
        self.product = self._product()

    def _by_point(self, name: str, channels: Channels) -> Buffer:
        shape = (a.extent for a in channels.order(Axis("tile", self.tiles)))
        return Buffer(name, F32, (self.n**2, *shape), "global")

    def _product(self) -> Product:
        """M of all points, as a sum of products over them."""
        axes = (Axis("point", self.n**2), *self.written.order(Axis("tile", self.tiles)))
        weight = Load(
            self.o.weights.name, (POINT * self.g.channels + self.read.number, self.written.number), F32
        )
        value = Load(self.v.name, self.place(POINT, self.read, Var("tile")), F32)
        found = product_of([Stage(self.m.name, F32, axes, weight * value, Reduce("sum", self.read.axes))])
        assert found is not None
        return found

    def multiplied(self, total: Expr) -> Body:
        return (Store(self.m.name, self.place(POINT, self.written, Var("tile")), total),)

    @staticmethod
    def place(point: Expr, channels: Channels, tile: Expr) -> tuple[Expr, ...]:
        around, inside = ([Var(a.name) for a in axes] for axes in (channels.around, channels.within))
        return (point, *around, tile, *inside)

    @property
    def tile(self) -> Expr:
        return (IMAGE * self.grid[0] + ROW) * self.grid[1] + COLUMN

    def each(self, channels: Channels, threads: int, body: Sequence[Stmt], *registers: Buffer) -> Stmt:
        """`body` for every tile and channel, a thread each."""
        inner = tuple(body)
        for buffer in registers:
            inner = (Alloc(buffer, inner),)
        extents = zip(("image", "tile_row", "tile_column"), (self.g.batch, *self.grid))
        axes = channels.order(*(Axis(name, extent) for name, extent in extents))
        threads = min(threads, 1 << (size(axes) - 1).bit_length())
        return spread([(a.name, a.extent) for a in axes], threads, inner)

    def input(self, threads: int) -> Stmt:
        column = Buffer("tile_column", F32, (self.n,), "register")
        half = Buffer("tile_half", F32, (self.n, self.n), "register")
        return self.each(self.read, threads, list(self.tile_in(column, half)), column, half)

    def tile_in(self, column: Buffer, half: Buffer) -> Iterator[Stmt]:
        """Bᵀ d B, column after column and then row after row."""
        b, lines = self.variant.transform.b, range(self.n)
        for j in lines:
            for i in lines:
                yield Store(column.name, (s.const(i),), self.pixel(i, j))
            for i, value in enumerate(combine(b, [_at(column, i) for i in lines])):
                yield Store(half.name, (s.const(i), s.const(j)), value)
        for i in lines:
            for j, value in enumerate(combine(b, [_at(half, i, j) for j in lines])):
                yield Store(self.v.name, self.place(s.const(i * self.n + j), self.read, self.tile), value)

    def pixel(self, i: int, j: int) -> Expr:
        g, m = self.g, self.variant.m
        h, w = ROW * m + (i - g.pads[0]), COLUMN * m + (j - g.pads[1])
        return g.guarded(self.o.read(IMAGE, self.read.number, h, w), h, w)

    def output(self, threads: int) -> Stmt:
        m = self.variant.m
        half = Buffer("tile_back", F32, (m, self.n), "register")
        column = Buffer("tile_points", F32, (self.n,), "register")
        result = Buffer("tile_result", F32, (m, m), "register")
        body = self.tile_out(column, half, result)
        return self.each(self.written, threads, list(body), column, half, result)

    def tile_out(self, column: Buffer, half: Buffer, result: Buffer) -> Iterator[Stmt]:
        """Aᵀ M A and what is done with it."""
        a, m = self.variant.transform.a, self.variant.m
        for j in range(self.n):
            for i in range(self.n):
                place = self.place(s.const(i * self.n + j), self.written, self.tile)
                yield Store(column.name, (s.const(i),), Load(self.m.name, place, F32))
            for i, value in enumerate(combine(a, [_at(column, i) for i in range(self.n)])):
                yield Store(half.name, (s.const(i), s.const(j)), value)
        for i in range(m):
            for j, value in enumerate(combine(a, [_at(half, i, j) for j in range(self.n)])):
                yield Store(result.name, (s.const(i), s.const(j)), value)
        for i, j in product(range(m), repeat=2):
            h, w = ROW * m + i, COLUMN * m + j
            body = self.o.write((IMAGE, self.written.number, h, w), _at(result, i, j))
            limits = [(at, extent) for at, extent in ((h, self.g.out[0]), (w, self.g.out[1])) if extent % m]
            yield from (If(within(*limits), body),) if limits else body


def _at(buffer: Buffer, *index: int) -> Load:
    return Load(buffer.name, tuple(map(s.const, index)), F32)
