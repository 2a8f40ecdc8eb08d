"""Convolutions and products of words of bytes by AMX, whose tiles are matrices of 16 rows of 64 bytes.

    for blocks of columns, blocks of pixels:                         in either order; outer ones are tasks
        sums[I, J, R, 16] = 0                                        I × J tiles of R pixels × 16 channels
        for channels, a tile's words at a time; kernel taps:
            sums += x[I · R pixels, words] · w[words, J · 16 channels]
        y = epilogue(sums)                                           by way of memory

A tile's pixels are neighbours, in a row or in the whole image, which is cut evenly: where its end is no
tile's, the last one begins earlier and computes some pixels again. Words of a pixel must lie side by side:
channels in blocks, or last. A matrix is an image of one row of pixels; where pixels are single words, the
taps of a row are side by side as channels are. Of a core's eight tiles some hold sums, the others factors.
Intel 64 and IA-32 Architectures Optimization Reference Manual, chapter "Intel AMX instructions".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...errors import InternalError
from ..ir import scalar as s
from ..ir.loops import Alloc, Body, Buffer, If, Intrinsic, Program, Stmt, Store, loop
from ..ir.scalar import Expr, Load, Var
from ..ir.types import I32, Layout
from ..kernel_task import Config, KernelTask
from ..ops.byte_products import DotConv
from ..ops.fused import FusedOp
from .algorithm import Algorithm, Layouts, Pack, Work
from .choices import choose, loop_order
from .conv_parts import (
    Geometry,
    operands,
    row_of_matrix,
    weights_position,
    word_convolution,
    word_product,
)

NAME = "amx_i8"
ROWS, WORDS, COLUMNS = 16, 16, 16
"""Of a tile, at most: pixels, words of a pixel, output channels."""
TILES = 8
HALF = WORDS // 2  # words of a pixel below which most of a tile is padding
RATE = 2.5  # of the peak in f32, words by lanes
SUM = 3.0  # multiply-adds of a lane for each sum on its way through memory
MULTIPLY, LOAD = 16.0, 8.0  # cycles of a product of tiles, and of the load of one
TASKS = 4  # for each thread
N, TASK_COLUMNS, TASK_PIXELS, CB, PB, IC, KH, KW = (
    Var(n) for n in ("n", "tc", "tp", "cb", "pb", "ic", "kh", "kw")
)
I, J, ROW, WORD, LANE = (Var(n) for n in ("ti", "tj", "row", "word", "lane"))


@dataclass(frozen=True)
class Params:
    tile: tuple[int, int]  # of tiles: along pixels, along columns
    columns: int  # blocks of columns of one task
    pixels: int  # blocks of pixels of one task
    order: tuple[str, ...]  # of the loops over both


def fits(op: FusedOp, lanes: int) -> bool:
    g = word_convolution(op) or word_product(op)
    if g is None or (g.group, lanes) != (1, COLUMNS) or getattr(op.graph.nodes[0].op, "signed", True):
        return False
    padded = any(getattr(op.graph.nodes[0].op, "pads", ()))
    enough = 2 * _seen(g).channels >= WORDS or g.channels == 1 < _seen(g).channels
    whole = _convolves(op) or g.channels % HALF == 0
    return not padded and enough and whole and 2 * g.out_channels >= COLUMNS


def _convolves(op: FusedOp) -> bool:
    return isinstance(op.graph.nodes[0].op, DotConv)


def _sizes(op: FusedOp) -> Geometry:
    g = word_convolution(op) or word_product(op)
    if g is None:
        raise InternalError(f"{op} begins with no sums of products of words")
    return g


def _seen(g: Geometry) -> Geometry:
    """As tiles see it: the taps of a row are channels where pixels are single words."""
    if g.channels > 1 or g.kernel[1] > WORDS or g.dilations[1] > 1:
        return g
    return replace(g, channels=g.kernel[1], kernel=(g.kernel[0], 1))


def layouts(op: FusedOp, lanes: int) -> tuple[Layouts, ...]:
    if not _convolves(op):
        return ((None, None),)
    blocked, last = Layout.channel_blocked(4, lanes), Layout((0, 2, 3, 1))
    if _sizes(op).channels == 1:
        return ((None, blocked),)
    return ((blocked, blocked), *([(last, last)] if _sizes(op).channels % HALF == 0 else []))


def weights(op: FusedOp, lanes: int) -> Mapping[int, Pack]:
    if not _convolves(op):
        turned = op.graph.nodes[0].op.trans_b  # type: ignore[attr-defined]
        return {weights_position(op): lambda w: pack_tiles((w if turned else w.T)[:, :, None, None])}
    if _seen(_sizes(op)) != _sizes(op):
        return {weights_position(op): lambda w: pack_tiles(w.transpose(0, 3, 2, 1))}
    return {weights_position(op): pack_tiles}


def pack_tiles(w: np.ndarray) -> np.ndarray:
    """(out channels, words, *kernel) → [columns / 16, words / 16, *kernel, 16, 16], filled up with zeros."""
    return Layout((0, 1, 2, 3), ((1, WORDS), (0, COLUMNS))).pack(w)


def work(op: FusedOp, lanes: int) -> Work:
    g = _seen(_sizes(op))
    tiles = g.batch * _Blocks(g).pixels
    words, columns = (-(-n // size) * size for n, size in ((g.channels, WORDS), (g.out_channels, COLUMNS)))
    return Work(
        products=tiles * ROWS * words * g.taps * columns,
        rate=RATE,
        streamed=4.0 * words * g.taps * columns,
        other=g.batch * g.pixels * columns * SUM,
    )


ALGORITHMS = (Algorithm(NAME, fits, layouts, weights, work, 0.0, feature="amx-int8"),)


def matches(task: KernelTask) -> bool:
    return task.transformed == NAME


@dataclass(frozen=True)
class _Blocks:
    """The result in tiles. Neighbours are those of a row, or, where strides allow it and tiles are no more,
    those of the image that is read: from the end of one row to the start of the next nothing is written.
    """

    g: Geometry

    @cached_property
    def flat(self) -> bool:
        return self.g.strides == (1, 1) and -(-self._positions // ROWS) <= self.g.out[0] * self.across

    @property
    def _positions(self) -> int:
        """Of the image that is read, from the first to the last that begins a window."""
        return (self.g.out[0] - 1) * self.g.size[1] + self.g.out[1]

    @property
    def line(self) -> int:
        """Neighbours."""
        return self._positions if self.flat else self.g.out[1]

    @property
    def across(self) -> int:
        """Tiles of a row."""
        return -(-self.g.out[1] // ROWS)

    @property
    def rows(self) -> int:
        """Of a tile."""
        return -(-self.line // -(-self.line // ROWS))

    @property
    def pixels(self) -> int:
        """Tiles of an image."""
        return -(-self.line // ROWS) * (1 if self.flat else self.g.out[0])

    @property
    def columns(self) -> int:
        return -(-self.g.out_channels // COLUMNS)


def params(task: KernelTask, cfg: Config) -> Params:
    assert isinstance(task.op, FusedOp)
    g = _seen(_sizes(task.op))
    blocks = _Blocks(g)

    def cycles(tile: tuple[int, int]) -> float:
        steps = -(-blocks.pixels // tile[0]) * -(-blocks.columns // tile[1])
        return steps * max(MULTIPLY * tile[0] * tile[1], LOAD * sum(tile))

    ranked = sorted(_tiles(blocks), key=lambda t: (cycles(t), sum(t) / (t[0] * t[1])))
    tile = choose(cfg, "tile", ranked, ranked[0])
    pixels, columns = (-(-n // size) for n, size in zip((blocks.pixels, blocks.columns), tile))
    wanted = TASKS * task.threads if task.threads > 1 else 1
    own = choose(cfg, "columns", _shares(columns), 1 if task.threads > 1 else columns)
    parts = -(-wanted // (g.batch * -(-columns // own)))
    share = choose(cfg, "pixels", _shares(pixels), -(-pixels // parts))
    return Params(tile, own, share, loop_order(cfg, "order", ("cb", "pb")))


def _tiles(blocks: _Blocks) -> list[tuple[int, int]]:
    """Those whose sums, one factor as a whole and a tile of the other fit the registers."""
    return [
        (i, j)
        for i in range(1, min(blocks.pixels, TILES) + 1)
        for j in range(1, min(blocks.columns, TILES) + 1)
        if i * j + min(i, j) + 1 <= TILES
    ]


def _shares(extent: int) -> tuple[int, ...]:
    """Sizes of parts of a loop, for each number of parts the least."""
    return tuple(dict.fromkeys(-(-extent // parts) for parts in range(1, extent + 1)))


def schedule(task: KernelTask, p: Params) -> Program:
    return _Builder(task, p).program()


class _Builder:
    def __init__(self, task: KernelTask, p: Params):
        assert isinstance(task.op, FusedOp)
        self.task, self.p, self.o = task, p, operands(task)
        sizes = _sizes(task.op)
        self.g = g = _seen(sizes)
        self.convolves, self.whole = _convolves(task.op), g == sizes
        self.blocks = _Blocks(g)
        self.blocked = self.o.reads is not None and bool(self.o.reads.blocks)
        if not self.whole:
            self.words, self.pixel = g.channels, 1
        else:
            self.words = WORDS if self.blocked or g.channels % WORDS == 0 else HALF
            self.pixel = WORDS if self.blocked else g.channels  # words from one pixel of a line to the next
        self.sums = Buffer("tile_sums", I32, (*p.tile, self.blocks.rows, COLUMNS), "scratch")
        self.sum = Load(self.sums.name, (I, J, ROW, LANE), I32)
        self.first = Load(self.sums.name, (s.const(0),) * 4, I32)

    def program(self) -> Program:
        p, tile = self.p, self.p.tile
        pixels, columns = (-(-n // size) for n, size in zip((self.blocks.pixels, self.blocks.columns), tile))
        body: Body = (Alloc(self.sums, self.block()),)
        for var, extent, share, task in (
            ("cb", columns, p.columns, TASK_COLUMNS), ("pb", pixels, p.pixels, TASK_PIXELS)
        ):  # fmt: skip
            if extent % share:
                body = (If(s.lt(task * share + Var(var), extent), body),)
        extents = {"cb": p.columns, "pb": p.pixels}
        for var in reversed(p.order):
            body = (loop(var, extents[var], *body),)
        shape = map(s.const, (self.blocks.rows, self.words, *tile))
        body = (Intrinsic("amx_begin", tuple(shape), ()), *body, Intrinsic("amx_end", (), ()))
        for var, extent in (
            ("tp", -(-pixels // p.pixels)),
            ("tc", -(-columns // p.columns)),
            ("n", self.g.batch),
        ):
            body = (loop(var, extent, *body, kind="parallel"),)
        return Program(self.task.name, tuple(map(self.as_line, self.o.params)), body)

    def as_line(self, b: Buffer) -> Buffer:
        """The image as [batch, blocks of channels, pixels, words of one]."""
        if b is not self.o.data:
            return b
        g = self.g
        blocks = -(-g.channels // WORDS) if self.blocked else 1
        return replace(b, shape=(g.batch, blocks, g.size[0] * g.size[1], self.pixel))

    def block(self) -> Body:
        """The sums of I × J tiles, and what becomes of them."""
        zero = Intrinsic(
            "amx_zero", (self.first,), self.each(Store(self.sums.name, self.sum.index, s.const(0, I32)))
        )
        step: Stmt = self.multiply()
        depth = -(-self.g.channels // self.words)
        for var, extent in (("kw", self.g.kernel[1]), ("kh", self.g.kernel[0]), ("ic", depth)):
            step = loop(var, extent, step)
        store = Intrinsic("amx_store", (self.first,), ())
        return (zero, step, store, *self.finish())

    def each(self, *body: Stmt, where: Expr | None = None) -> Body:
        """For every sum. What columns need of a pixel is found once; `where` is asked of each pixel."""
        lanes = loop("lane", COLUMNS, *body, kind="vector")
        columns: Stmt = loop("tj", self.p.tile[1], lanes, kind="unroll")
        if where is not None:
            columns = If(where, (columns,))
        return (loop("ti", self.p.tile[0], loop("row", self.blocks.rows, columns)),)

    def place(self, i: Expr) -> tuple[Expr, Expr]:
        """Row of the image (0 where it is flat) and first pixel of a tile; of the last for those behind."""
        tile, blocks = (TASK_PIXELS * self.p.pixels + PB) * self.p.tile[0] + i, self.blocks
        if blocks.pixels % self.p.tile[0]:
            tile = s.minimum(tile, blocks.pixels - 1)
        across = blocks.pixels if blocks.flat else blocks.across
        if across == 1:
            return s.const(0) if blocks.flat else tile, s.const(0)
        first = (s.binary("mod", tile, across) if not blocks.flat else tile) * blocks.rows
        if blocks.line % blocks.rows:
            first = s.minimum(first, blocks.line - blocks.rows)
        return s.const(0) if blocks.flat else s.binary("floordiv", tile, across), first

    def column(self, j: Expr) -> Expr:
        """A block's tile of columns; the last one of all for those behind."""
        tile = (TASK_COLUMNS * self.p.columns + CB) * self.p.tile[1] + j
        return s.minimum(tile, self.blocks.columns - 1) if self.blocks.columns % self.p.tile[1] else tile

    def data(self, i: Expr, row: Expr, word: Expr) -> Load:
        g = self.g
        h, first = self.place(i)
        at = (h * g.strides[0] + KH * g.dilations[0]) * g.size[1]
        at = at + (first + row) * g.strides[1] + KW * g.dilations[1]
        block, inside = (IC, word) if self.blocked else (s.const(0), IC * self.words + word)
        if not self.whole:
            at, inside = at + word, s.const(0)
        return Load(self.o.data.name, (N, block, at, inside), I32)

    def weight(self, j: Expr, word: Expr, lane: Expr) -> Load:
        parts = WORDS // self.words
        block, part = s.binary("floordiv", IC, parts), s.binary("mod", IC, parts)
        place = (self.column(j), block, KH, KW, part * self.words + word, lane)
        return Load(self.o.weights.name, place, I32)

    def multiply(self) -> Intrinsic:
        product = s.call("dot4_u8", self.data(I, ROW, WORD), self.weight(J, WORD, LANE))
        meaning = self.each(Store(self.sums.name, self.sum.index, self.sum + product))
        tiles_i, tiles_j = self.p.tile
        zero = s.const(0)
        factors = [self.data(s.const(i), zero, zero) for i in range(tiles_i)]
        factors += [self.weight(s.const(j), zero, zero) for j in range(tiles_j)]
        step = s.const(self.pixel * self.g.strides[1])
        return Intrinsic("amx_dot_u8", (self.first, step, *factors), (loop("word", self.words, *meaning),))

    def finish(self) -> Body:
        """The epilogue of all sums. Channels behind the last are written where they have a place."""
        g, blocks = self.g, self.blocks
        h, first = self.place(I)
        w, where = first + ROW, None
        if blocks.flat and g.out[0] > 1:
            h, w = s.binary("floordiv", w, g.size[1]), s.binary("mod", w, g.size[1])
            where = s.lt(w, g.out[1]) if g.size[1] > g.out[1] else None
        channel = self.column(J) * COLUMNS + LANE
        place = (N, channel, h, w) if self.convolves else (*row_of_matrix(self.o, w), channel)
        body = self.o.write(place, self.sum)
        room = self.o.written_channels(g.out_channels)
        if blocks.columns * COLUMNS > room:
            body = (If(s.lt(channel, room), body),)
        return self.each(*body, where=where)
