"""Convolution as a matrix product of its patches: im2row and im2col.

    im2row  P[pixel, k] = x[pixel + tap, ic]     y[pixel, oc] = epilogue(Σ k P · W[k, oc])
            vectors of channels, in blocks or last
    im2col  P[k, pixel] = x[pixel + tap, ic]     y[oc, pixel] = epilogue(Σ k W[oc, k] · P)
            vectors of pixels, across the ends of rows; plain

Either a task gathers the patches of some rows of the image and multiplies them (`fused`: they stay in its
cache), or all patches are gathered first and a task takes a panel of weights for all of them (few pixels,
many weights).
Chellapilla, Puri and Simard, High performance convolutional neural networks for document processing (2006).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..ir import scalar as s
from ..ir.loops import Alloc, Body, Buffer, For, If, Prefetch, Program, Stmt, Store, loop, substitute
from ..ir.scalar import Expr, Load, Var
from ..ir.types import F32, Layout
from ..kernel_task import Config, KernelTask
from ..ops.fused import FusedOp
from .algorithm import Algorithm, Layouts, Pack, Work
from .choices import PREFETCHES, choose, divisors, nested, terms, whole_order
from .conv_parts import (
    DEPTH,
    LANE,
    LINE,
    ROW,
    VECTOR,
    Geometry,
    convolution,
    flattens,
    geometry,
    odd_lines,
    operands,
    steps_of,
    tile_product,
    weights_position,
)
from .register_tiles import most_rows

PANEL = 8  # output channels of a panel of weights for im2col
ENOUGH = 96  # pixels of a block that use a panel of weights well
PREFETCH = 64  # k ahead of the arithmetic where weights come from memory
N, G, TH, R, W, KH, KW, IC, IB, WV, PB, TO = (
    Var(n) for n in ("n", "g", "th", "r", "w", "kh", "kw", "ic", "ib", "wv", "pb", "to")
)


@dataclass(frozen=True)
class Params:
    fused: bool
    rows: int  # of the output image in one block of patches
    tile: int  # rows of the register tile: pixels (im2row) or output channels (im2col)
    vectors: int  # in it, at most
    together: int  # k that one iteration takes
    prefetch: int  # k ahead of the arithmetic; 0: none
    panels: int  # of weights that a tile of pixels meets before the next tile's turn
    gather: tuple[str, ...]  # loops of the copy, outermost first


def vectors_of(out_channels: int, lanes: int) -> int:
    """Vectors of output channels in a panel of weights for im2row, so that little of the last is empty."""
    vectors = -(-out_channels // lanes)
    return next((v for v in (2, 3) if vectors % v == 0), 2 if vectors > 4 else 1)


def fits(by: str, op: FusedOp, lanes: int) -> bool:
    """What is no plain product already; on plain layouts groups of any size, else whole vectors."""
    g = convolution(op)
    if g is None or g.pointwise or (g.group > 1 and g.channels == 1):
        return False
    if by == "im2col":
        return flattens(op)
    whole = g.group == 1 or (g.channels % lanes == 0 and g.out_channels % lanes == 0)
    return whole and 2 * g.group * min(g.channels, g.out_channels) >= lanes


def layouts(by: str, op: FusedOp, lanes: int) -> tuple[Layouts, ...]:
    if by == "im2col":
        return ((None, None),)
    blocked, last = Layout.channel_blocked(4, lanes), Layout((0, 2, 3, 1))
    return ((blocked, blocked), (last, last))


def weights(by: str, op: FusedOp, lanes: int) -> Mapping[int, Pack]:
    g = geometry(op)
    width = PANEL if by == "im2col" else lanes * vectors_of(g.out_channels, lanes)
    return {weights_position(op): lambda w: pack_panels(w, g.group, width, taps_first=by == "im2row")}


def pack_panels(w: np.ndarray, group: int, width: int, taps_first: bool) -> np.ndarray:
    """(out channels, channels, *kernel) → [group, panel, k, width], zeros behind the last output channel.

    k counts (tap, channel) if `taps_first`, else (channel, tap).
    """
    out, channels = w.shape[0] // group, w.shape[1]
    order = (0, 3, 2, 1) if taps_first else (0, 2, 3, 1)
    matrix = w.reshape(group, out, channels, -1).transpose(order).reshape(group, -1, out)
    panels = -(-out // width)
    padded = np.pad(matrix, ((0, 0), (0, 0), (0, panels * width - out)))
    split = padded.reshape(group, matrix.shape[1], panels, width)
    return np.ascontiguousarray(split.transpose(0, 2, 1, 3), dtype=np.float32)


def work(by: str, op: FusedOp, lanes: int) -> Work:
    g = geometry(op)
    width = PANEL if by == "im2col" else lanes * vectors_of(g.out_channels, lanes)
    panels = -(-g.out_channels // width)
    depth = g.channels * g.taps
    pixels = g.batch * g.group * g.pixels
    return Work(
        products=pixels * depth * panels * width,
        rate=PRODUCT_RATE if by == "im2row" else _plain_rate(g),
        streamed=4.0 * g.group * depth * panels * width,
        other=pixels * depth * (GATHER if g.strides[1] == 1 else STRIDED_GATHER),
    )


def _plain_rate(g: Geometry) -> float:
    """Vectors go along a row, whose ends cost more the more taps are gathered."""
    width = g.out[1]
    return WINDOW_RATE * width / (width + 4) if g.taps > 1 else PRODUCT_RATE * width / (width + 1.5)


PRODUCT_RATE = 0.85  # of the FMA peak
WINDOW_RATE = 0.75
GATHER = 3.0  # multiply-adds of a lane for each element of the patches
STRIDED_GATHER = 6.0
ERROR = 4e-6
ALGORITHMS = tuple(
    Algorithm(by, partial(fits, by), partial(layouts, by), partial(weights, by), partial(work, by), ERROR)
    for by in ("im2row", "im2col")
)


def matches(task: KernelTask) -> bool:
    return task.transformed in ("im2row", "im2col")


def params(task: KernelTask, cfg: Config) -> Params:
    g, target = geometry(task.op), task.target
    lanes = target.lanes(4)
    depth = g.channels * g.taps
    row_bytes = 4 * depth * g.out[1]
    options = [r for r in range(1, g.out[0] + 1) if r == 1 or r * row_bytes <= target.l2 // 2]
    whole_weights = 4 * depth * g.out_channels * g.group
    few = g.batch * g.group * g.out[0] < task.threads or g.pixels < 64
    fused = cfg.choose("fused", (True, False), not (few and whole_weights > target.l2))
    step = 1 if task.transformed == "im2row" else lanes
    rows = choose(cfg, "rows", options, _rows(options, g, task.threads, step)) if fused else g.out[0]
    pixels = rows * g.out[1]
    inside: tuple[tuple[str, str], ...] = (("kh", "kw"),)
    if task.transformed == "im2row":
        vectors = vectors_of(g.out_channels, lanes)
        most = most_rows(target, vectors)
        sizes = list(range(1, min(most, 14, pixels) + 1))
        tile = choose(cfg, "tile", sizes, _even(pixels, sizes[-1]))
        panels = -(-g.out_channels // (vectors * lanes))
        loops = {"w": g.out[1], "kh": g.kernel[0], "kw": g.kernel[1], "ib": -(-g.channels // lanes)}
        if g.channels % lanes:  # a vector's rest behind a tap's channels is overwritten by the next tap
            inside = (*inside, ("kh", "ib"), ("kw", "ib"))
    else:
        sizes = [n for n in (1, 2, 4, 8) if 3 * n + 4 <= target.vector_registers]
        tile = choose(cfg, "tile", sizes, sizes[-1])
        most = (target.vector_registers - 1) // (tile + 1)
        vectors = choose(cfg, "vectors", range(1, most + 1), min(most, 4))
        panels = -(-g.out_channels // PANEL)
        loops = {"kh": g.kernel[0], "r": rows}
    far = PREFETCH if whole_weights > target.l1 else 0  # the next weights come from L2 or memory
    stay = fused and task.transformed == "im2col" and whole_weights <= target.l2 // 2
    return Params(
        *(fused, rows, tile, vectors, terms(cfg, depth, tile * vectors, steps_of(depth))),
        choose(cfg, "prefetch", PREFETCHES, far),
        choose(cfg, "panels", divisors(panels) if fused else (1,), panels if stay else 1),
        whole_order(cfg, "gather", loops, inside),
    )


def _rows(options: list[int], g: Geometry, threads: int, step: int) -> int:
    """Of the larger blocks, the one that leaves an even share for every thread and fills its vectors."""

    def waste(rows: int) -> float:
        blocks = -(-g.out[0] // rows)
        tasks = g.batch * g.group * blocks
        vectors = -(-rows * g.out[1] // step)
        return blocks * vectors * (-(-tasks // threads) * threads / tasks)

    large = [r for r in options if 2 * r >= options[-1] or r * g.out[1] >= ENOUGH]
    return min(large, key=lambda r: (round(waste(r), 6), -r))


def _even(extent: int, most: int) -> int:
    """The size of equal pieces, none larger than `most`."""
    return -(-extent // -(-extent // most))


def schedule(task: KernelTask, p: Params) -> Program:
    return _Builder(task, p).program()


class _Builder:
    def __init__(self, task: KernelTask, p: Params):
        g = geometry(task.op)
        self.task, self.p, self.g = task, p, g
        self.lanes = task.target.lanes(4)
        self.by_pixels = task.transformed == "im2col"  # vectors of pixels, not of channels
        self.o = operands(task, flat=self.by_pixels)
        self.depth = g.channels * g.taps
        self.pixels = p.rows * g.out[1]
        rows, row = (self.depth, self.pixels) if self.by_pixels else (self.pixels, self.depth)
        shape = (rows, odd_lines(row + self.lanes))  # room for the rest of a last vector
        self.patches = Buffer("patches", F32, shape, "scratch")
        if not p.fused:
            self.patches = Buffer("patches", F32, (g.batch, g.group, *shape), "global")

    def program(self) -> Program:
        g, p = self.g, self.p
        if p.fused:
            body = Alloc(self.patches, (self.gather(), *self.product()))
            step = loop("th", -(-g.out[0] // p.rows), body, kind="parallel")
            return Program(self.task.name, self.o.params, (self.every_group(step),))
        first = self.every_group(self.gather(kind="parallel"))
        second = self.every_group(*self.product("parallel"))
        return Program(self.task.name, self.o.params, (first, second), (self.patches,))

    def every_group(self, *body: Stmt) -> Stmt:
        return loop("n", self.g.batch, loop("g", self.g.group, *body, kind="parallel"), kind="parallel")

    # --- patches ----------------------------------------------------------------------------------------

    def top(self) -> Expr:
        """The first row of the block."""
        return TH * self.p.rows if self.p.fused else s.const(0)

    def place(self, k: Expr, pixel: Expr) -> tuple[Expr, ...]:
        index = (k, pixel) if self.by_pixels else (pixel, k)
        return index if self.p.fused else (N, G, *index)

    def image(self, channel: Expr, w: Expr) -> Expr:
        """What the tap (KH, KW) of an output pixel of row R reads."""
        g = self.g
        h = (self.top() + R) * g.strides[0] + KH * g.dilations[0] - g.pads[0]
        w = w * g.strides[1] + KW * g.dilations[1] - g.pads[1]
        return g.guarded(self.o.read(N, G * g.channels + channel, h, w), h, w)

    def gather(self, kind: str = "serial") -> Stmt:
        """The patches of the block. A vector's rest behind the end of a row is overwritten by the next."""
        return self.gather_columns(kind) if self.by_pixels else self.gather_rows(kind)

    def gather_rows(self, kind: str) -> Stmt:
        """All taps of a pixel, vectors of channels."""
        g = self.g
        channel = IB * self.lanes + LANE
        tap = KH * g.kernel[1] + KW
        value = self.image(channel, W)
        if g.channels % self.lanes and not (self.o.reads and self.o.reads.blocks):
            value = s.select(s.lt(channel, g.channels), value, s.const(0.0, F32))
        copy: Stmt = Store("patches", self.place(tap * g.channels + channel, R * g.out[1] + W), value)
        copy = loop("lane", self.lanes, copy, kind="vector")
        extents = {"w": g.out[1], "kh": g.kernel[0], "kw": g.kernel[1], "ib": -(-g.channels // self.lanes)}
        taps = nested(self.p.gather, extents, (copy,))
        return loop("r", self.p.rows, *self.inside_image(*taps), kind=kind)

    def gather_columns(self, kind: str) -> Stmt:
        """All pixels of a tap, vectors of pixels."""
        g = self.g
        tap = KH * g.kernel[1] + KW
        k = IC * g.taps + tap
        w = WV * self.lanes + LANE
        store = Store("patches", self.place(k, R * g.out[1] + w), self.image(IC, w))
        copy = loop("wv", -(-g.out[1] // self.lanes), loop("lane", self.lanes, store, kind="vector"))

        def rows(body: Stmt) -> Stmt:
            return loop("r", self.p.rows, *self.inside_image(body))

        def columns(body: Stmt) -> Stmt:
            return loop("kw", g.kernel[1], body, kind="unroll")

        if self.p.gather == ("kh", "r"):
            return loop("ic", g.channels, loop("kh", g.kernel[0], columns(rows(copy))), kind=kind)
        return loop("ic", g.channels, rows(loop("kh", g.kernel[0], columns(copy))), kind=kind)

    def inside_image(self, *body: Stmt) -> Body:
        """Where the last block of rows reaches beyond the image, only what is inside."""
        if self.p.fused and self.g.out[0] % self.p.rows:
            return (If(s.lt(self.top() + R, self.g.out[0]), body),)
        return body

    # --- product ----------------------------------------------------------------------------------------

    def product(self, kind: str = "serial") -> Body:
        """All panels of output channels, in a loop of this kind, for all pixels of the block."""
        tiles = self.product_of_pixels() if self.by_pixels else self.product_of_channels()
        panels, some = self.o.weights.shape[1], self.p.panels
        if some == 1:
            return (loop("pb", panels, *tiles, kind=kind),)
        if some == panels:
            return tuple(replace(t, body=(loop("pb", panels, *t.body, kind=kind),)) for t in tiles)
        moved = (substitute(t.body, {"pb": Var("pq") * some + PB}) for t in tiles)
        inner = (replace(t, body=(loop("pb", some, *body),)) for t, body in zip(tiles, moved))
        return (loop("pq", panels // some, *inner, kind=kind),)

    def patch(self, pixel: Expr, step: int) -> Expr:
        """An element of the patches; zero behind the last pixel."""
        value = Load("patches", self.place(DEPTH, pixel), F32)
        return s.select(self.inside(pixel), value, s.const(0.0, F32)) if self.ragged(step) else value

    def ragged(self, step: int) -> bool:
        return self.pixels % step != 0 or self.g.pixels % self.pixels != 0

    def inside(self, pixel: Expr) -> Expr:
        conditions = [s.lt(pixel, self.pixels)]
        if self.g.pixels % self.pixels:
            conditions.append(s.lt(self.top() * self.g.out[1] + pixel, self.g.pixels))
        return s.both(*conditions)

    def product_of_channels(self) -> tuple[For, ...]:
        g, p = self.g, self.p
        width = self.o.weights.shape[-1]
        pixel = TO * p.tile + ROW
        channel = PB * width + VECTOR * self.lanes + LANE
        weight = Load(self.o.weights.name, (G, PB, DEPTH, VECTOR * self.lanes + LANE), F32)
        place = self.top() * g.out[1] + pixel
        at = (
            s.binary("floordiv", place, g.out[1]),
            s.binary("mod", place, g.out[1]),
        )

        def finish(value: Load) -> Body:
            body = self.o.write((N, G * g.out_channels + channel, *at), value)
            room = self.o.written_channels(g.out_channels)
            if width * self.o.weights.shape[1] > room:
                body = (If(s.lt(channel, room), body),)
            return (If(self.inside(pixel), body),) if self.ragged(p.tile) else body

        tile = tile_product(
            p.tile,
            width // self.lanes,
            self.lanes,
            self.depth,
            self.patch(pixel, p.tile),
            weight,
            finish,
            self.ahead(width),
            p.together,
        )
        return (loop("to", -(-self.pixels // p.tile), tile),)

    def product_of_pixels(self) -> tuple[For, ...]:
        """Tiles of nearly the same number of vectors, none of which is empty; the larger ones first."""
        vectors = -(-self.pixels // self.lanes)
        tiles = -(-vectors // self.p.vectors)
        fewer, larger = divmod(vectors, tiles)
        whole = larger * (fewer + 1) * self.lanes
        first = loop("to", larger, *self.tiles_of_pixels(fewer + 1, 0))
        return (first, loop("to", tiles - larger, *self.tiles_of_pixels(fewer, whole)))

    def tiles_of_pixels(self, vectors: int, start: int) -> Body:
        """The panel's output channels for so many vectors of pixels, tile TO behind pixel `start`."""
        g, p = self.g, self.p
        pixel = start + TO * (vectors * self.lanes) + VECTOR * self.lanes + LANE
        within = Var("oi") * p.tile + ROW
        channel = PB * PANEL + within
        weight = Load(self.o.weights.name, (G, PB, DEPTH, within), F32)

        def finish(value: Load) -> Body:
            body = self.o.write((N, G * g.out_channels + channel, self.top() * g.out[1] + pixel), value)
            if self.ragged(self.lanes):
                body = (If(self.inside(pixel), body),)
            return (If(s.lt(channel, g.out_channels), body),) if g.out_channels % PANEL else body

        patch = self.patch(pixel, self.lanes)
        ahead = self.ahead(PANEL)
        tile = tile_product(p.tile, vectors, self.lanes, self.depth, weight, patch, finish, ahead, p.together)
        return (loop("oi", PANEL // p.tile, tile),)

    def ahead(self, width: int) -> Body:
        if not self.p.prefetch:
            return ()
        at = DEPTH + self.p.prefetch
        starts = (divmod(n, width) for n in range(0, self.p.together * width, LINE))
        return tuple(Prefetch(self.o.weights.name, (G, PB, at + k, s.const(c))) for k, c in starts)
