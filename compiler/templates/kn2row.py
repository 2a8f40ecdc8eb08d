"""Convolution of stride 1 as one product for all kernel taps, summed by shifts: kn2row, for plain images.

    M[tap, oc, pixel] = Σ ic W[tap, oc, ic] · x[ic, pixel]      vectors of pixels, read where they lie
    y[oc, pixel] = epilogue(Σ tap M[tap, oc, pixel + tap])

A task takes some rows of the image, and the rows that the kernel reaches over, through both steps: M stays in
its cache. The taps stand beside the output channels, so that few of these fill a register tile.
Vasudevan, Anderson and Gregg, Parallel multi channel convolution using general matrix multiplication (2017).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..ir import scalar as s
from ..ir.loops import Alloc, Body, Buffer, If, Program, Stmt, Store, loop
from ..ir.scalar import Expr, Load, Var
from ..ir.types import F32
from ..kernel_task import Config, KernelTask
from ..ops.fused import FusedOp
from .algorithm import Algorithm, Layouts, Pack, Work
from .choices import choose, loop_order, nested, terms
from .conv_parts import (
    DEPTH,
    LANE,
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

CACHE = 256 * 1024  # bytes of M that costs are predicted for
LEAST_ROWS = 8  # of a task, however large M is: the rows around them are computed twice
PANEL = 8  # rows (tap, output channel) of a panel of weights
MOST_TAPS = 256  # which are added up in one expression
N, TH, R, OC, WV, PB, TO, RI = (Var(n) for n in ("n", "th", "r", "oc", "wv", "pb", "to", "pi"))


@dataclass(frozen=True)
class Params:
    rows: int  # of the output image in a task
    tile: int  # rows of the register tile
    vectors: int  # of pixels in it, at most
    together: int  # channels that one iteration takes
    product_order: tuple[
        str, ...
    ]  # loops over register tiles: pixels `to`, panels `pb`, rows of a panel `pi`
    sums_order: tuple[str, ...]  # rows `r` and channels `oc` of the output


def fits(op: FusedOp, lanes: int) -> bool:
    g = convolution(op)
    few = g is not None and 1 < g.taps <= MOST_TAPS
    return g is not None and few and g.group == 1 and g.strides == (1, 1) and flattens(op)


def layouts(op: FusedOp, lanes: int) -> tuple[Layouts, ...]:
    return ((None, None),)


def weights(op: FusedOp, lanes: int) -> Mapping[int, Pack]:
    return {weights_position(op): pack_taps}


def pack_taps(w: np.ndarray) -> np.ndarray:
    """(out channels, channels, *kernel) → [panel, channel, PANEL] of rows (tap, out channel)."""
    out, channels = w.shape[:2]
    matrix = w.reshape(out, channels, -1).transpose(1, 2, 0).reshape(channels, -1)
    panels = -(-matrix.shape[1] // PANEL)
    padded = np.pad(matrix, ((0, 0), (0, panels * PANEL - matrix.shape[1])))
    return np.ascontiguousarray(padded.reshape(channels, panels, PANEL).transpose(1, 0, 2), dtype=np.float32)


def work(op: FusedOp, lanes: int) -> Work:
    g = geometry(op)
    rows = -(-g.taps * g.out_channels // PANEL) * PANEL
    blocks = -(-g.out[0] // _rows(g, CACHE))
    pixels = g.batch * (g.out[0] + blocks * _halo(g)) * g.size[1]
    return Work(
        products=pixels * rows * g.channels,
        rate=PRODUCT_RATE,
        streamed=4.0 * rows * g.channels,
        other=pixels * rows * SHIFT,
    )


PRODUCT_RATE = 0.6  # of the FMA peak
SHIFT = 16.0  # multiply-adds of a lane for each element of M
ALGORITHMS = (Algorithm("kn2row", fits, layouts, weights, work, 4e-6),)


def _halo(g: Geometry) -> int:
    """Rows of the image that the kernel reaches over beyond those of the output."""
    return (g.kernel[0] - 1) * g.dilations[0]


def _rows(g: Geometry, cache: int) -> int:
    """Rows of the output image whose M takes this many bytes."""
    fitting = cache // (4 * g.taps * g.out_channels * g.size[1]) - _halo(g)
    return min(max(fitting, LEAST_ROWS), g.out[0])


def matches(task: KernelTask) -> bool:
    return task.transformed == "kn2row"


def params(task: KernelTask, cfg: Config) -> Params:
    g, target = geometry(task.op), task.target
    share = -(-g.out[0] * g.batch // task.threads)
    rows = choose(cfg, "rows", range(1, g.out[0] + 1), min(_rows(g, target.l2 // 2), share))
    sizes = [n for n in (1, 2, 4, 8) if 3 * n + 4 <= target.vector_registers]
    tile = choose(cfg, "tile", sizes, sizes[-1])
    most = (target.vector_registers - 1) // (tile + 1)
    vectors = choose(cfg, "vectors", range(1, most + 1), min(most, 4))
    together = terms(cfg, g.channels, tile * vectors, steps_of(g.channels))
    product_order = loop_order(cfg, "product_order", ("to", "pb", "pi"), (("pb", "pi"),))
    return Params(rows, tile, vectors, together, product_order, loop_order(cfg, "sums_order", ("r", "oc")))


def schedule(task: KernelTask, p: Params) -> Program:
    return _Builder(task, p).program()


class _Builder:
    def __init__(self, task: KernelTask, p: Params):
        g = geometry(task.op)
        self.task, self.p, self.g = task, p, g
        self.lanes = task.target.lanes(4)
        self.o = operands(task, flat=True)
        self.pixels = (p.rows + _halo(g)) * g.size[1]
        rows = self.o.weights.shape[0] * PANEL
        self.m = Buffer("products", F32, (rows, odd_lines(self.pixels)), "scratch")

    def program(self) -> Program:
        body = Alloc(self.m, (self.product(), self.shifted_sums()))
        blocks = loop("th", -(-self.g.out[0] // self.p.rows), body, kind="parallel")
        return Program(self.task.name, self.o.params, (loop("n", self.g.batch, blocks, kind="parallel"),))

    def product(self) -> Stmt:
        """M for the rows of the image that a task needs; zero for those outside of it."""
        g, p = self.g, self.p
        vectors = -(-self.pixels // self.lanes)
        each = -(-vectors // -(-vectors // p.vectors))
        step = each * self.lanes
        pixel = TO * step + VECTOR * self.lanes + LANE
        place = (TH * p.rows - g.pads[0]) * g.size[1] + pixel
        conditions = [s.within(place, g.size[0] * g.size[1])]
        inside = s.lt(pixel, self.pixels)
        if self.pixels % step:
            conditions.append(inside)
        image = Load(self.o.data.name, (N, DEPTH, place), F32)
        factor = Load(self.o.weights.name, (PB, DEPTH, RI * p.tile + ROW), F32)

        def finish(value: Load) -> Body:
            store = Store("products", (PB * PANEL + RI * p.tile + ROW, pixel), value)
            return (If(inside, (store,)),) if self.pixels % step else (store,)

        vector = s.select(s.both(*conditions), image, s.const(0.0, F32))
        body = tile_product(p.tile, each, self.lanes, g.channels, factor, vector, finish, (), p.together)
        extents = {"to": -(-self.pixels // step), "pb": self.o.weights.shape[0], "pi": PANEL // p.tile}
        return nested(p.product_order, extents, (body,))[0]

    def shifted_sums(self) -> Stmt:
        """One output row of one channel at a time."""
        g = self.g
        w = WV * self.lanes + LANE
        row = TH * self.p.rows + R
        total: Expr = s.const(0.0, F32)
        for tap in range(g.taps):
            kh, kw = divmod(tap, g.kernel[1])
            column = w + kw * g.dilations[1] - g.pads[1]
            at = (OC + tap * g.out_channels, (R + kh * g.dilations[0]) * g.size[1] + column)
            value = Load("products", at, F32)
            total = total + s.select(s.within(column, g.size[1]), value, s.const(0.0, F32))
        sums = Buffer("sums", F32, (self.lanes,), "register")
        body: Body = self.o.write((N, OC, row * g.out[1] + w), Load("sums", (LANE,), F32))
        body = (Store("sums", (LANE,), total), *body)
        if g.out[1] % self.lanes:
            body = (If(s.lt(w, g.out[1]), body),)
        columns = loop(
            "wv", -(-g.out[1] // self.lanes), Alloc(sums, (loop("lane", self.lanes, *body, kind="vector"),))
        )

        def inside(body: Stmt) -> Stmt:
            return If(s.lt(row, g.out[0]), (body,)) if g.out[0] % self.p.rows else body

        if self.p.sums_order == ("r", "oc"):
            return loop("r", self.p.rows, inside(loop("oc", g.out_channels, columns)))
        return loop("oc", g.out_channels, loop("r", self.p.rows, inside(columns)))
