"""3×3 convolution of stride 1 by Winograd's minimal filtering F(m×m, 3×3), all three stages blocked together.

    V[p, tile, ic] = Bᵀ d B        input tiles of (m + 2)², p counts the points
    M[p, tile, oc] = Σ ic V · U    one matrix product a point; U is transformed when compiling
    y = epilogue(Aᵀ M A)           m² outputs a tile

Either a task takes some rows of tiles through all stages (`fused`: V and M stay in its cache), or all of V
is made
first and a task takes a block of output channels for all tiles (few tiles, many channels).
Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (2016).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..ir import scalar as s
from ..ir.expr import Stage, TensorExpr
from ..ir.loops import Alloc, Body, Buffer, If, Prefetch, Program, Stmt, Store, loop
from ..ir.scalar import Expr, Load, Var
from ..ir.types import F32, Layout
from ..kernel_task import Config, KernelTask
from ..ops.conv import Conv
from ..ops.fused import FusedOp
from ..ops.toom_cook import Transform, transform, transform_weights
from ..schedule.relayout import relayout
from .algorithm import Algorithm, Layouts, Pack, Work
from .common import inline_cheap

LINE = 16  # f32 in a cache line
PREFETCH = 64  # input channels: 8 KB of weights, about the latency of memory
VECTORS = 2  # output-channel vectors of the micro-kernel
PRODUCT_RATE = 0.88  # of the FMA peak: what the products reach
TRANSFORM_COST = {2: 9.0, 4: 14.0, 6: 20.0}  # multiply-adds a point, channel and tile, both transforms
N, TH, TW, IB, OB, OG, P, IC, TO, TI, OV, LANE, ROW = (
    Var(n) for n in ("n", "th", "tw", "ib", "ob", "og", "p", "ic", "to", "ti", "ov", "lane", "row")
)


@dataclass(frozen=True)
class Geometry:
    """Sizes of one convolution; channels in vectors of `lanes`."""

    t: Transform
    lanes: int
    batch: int
    channels: int
    out_channels: int
    height: int
    width: int
    out_height: int
    out_width: int
    pad_top: int
    pad_left: int

    @property
    def points(self) -> int:
        return self.t.n**2

    @property
    def tile_rows(self) -> int:
        return -(-self.out_height // self.t.m)

    @property
    def tile_columns(self) -> int:
        return -(-self.out_width // self.t.m)

    @property
    def tiles(self) -> int:
        return self.tile_rows * self.tile_columns


@dataclass(frozen=True)
class Params:
    fused: bool
    rows: int  # tile rows of a task (fused)
    channels: int  # output channels of one block
    group: int  # tiles of the micro-kernel
    prefetch: int  # input channels ahead of the arithmetic; 0: none


def convolution(op: object, data_type: object = None) -> Conv | None:
    """The 3×3 convolution of stride 1 that a fused operator is built on; None if it has no such."""
    if not isinstance(op, FusedOp):
        return None
    first = op.graph.nodes[0]
    conv = first.op
    if (
        not isinstance(conv, Conv)
        or conv.group != 1
        or set(conv.strides) != {1}
        or set(conv.dilations) != {1}
    ):
        return None
    kernel = op.graph.types[first.inputs[1] or ""].dims[2:]
    return conv if kernel == (3, 3) else None


def geometry(op: FusedOp, m: int, lanes: int) -> Geometry:
    conv = convolution(op)
    assert conv is not None
    node = op.graph.nodes[0]
    batch, channels, height, width = op.graph.types[node.inputs[0] or ""].dims
    out = op.graph.types[node.outputs[0]].dims
    return Geometry(
        transform(m),
        lanes,
        batch,
        channels,
        out[1],
        height,
        width,
        out[2],
        out[3],
        conv.pads[0],
        conv.pads[1],
    )


def fits(op: FusedOp, lanes: int) -> bool:
    """Whether all channels are whole vectors; the micro-kernel takes two."""
    if convolution(op) is None:
        return False
    g = geometry(op, 2, lanes)
    return g.channels % lanes == 0 and g.out_channels % (VECTORS * lanes) == 0 and g.tiles > 0 and g.batch > 0


def layouts(op: FusedOp, lanes: int) -> tuple[Layouts, ...]:
    blocked = Layout.channel_blocked(4, lanes)
    return ((blocked, blocked),)


def weights(m: int, op: FusedOp, lanes: int) -> Mapping[int, Pack]:
    position = op.graph.inputs.index(op.graph.nodes[0].inputs[1] or "")
    return {position: lambda w: transform_weights(w, m, lanes, VECTORS)}


def work(m: int, op: FusedOp, lanes: int) -> Work:
    g = geometry(op, m, lanes)
    points = g.batch * g.points * g.tiles
    return Work(
        products=points * g.channels * g.out_channels,
        rate=PRODUCT_RATE * _tile_rate(g.tiles),
        streamed=g.points * g.channels * g.out_channels * 4,
        other=points * (g.channels + g.out_channels) * TRANSFORM_COST[m],
    )


def _tile_rate(tiles: int) -> float:
    """The micro-kernel's share of its best speed for few tiles: two FMAs and two loads a cycle, latency 4."""
    group = -(-tiles // -(-tiles // 14))
    return group / max(group, (group + 2) / 2, 4.0)


TILES = {"winograd2": 2, "winograd4": 4, "winograd6": 6}
"""Algorithm → output tile."""
ERRORS = {2: 2e-6, 4: 4e-6, 6: 2e-5}
ALGORITHMS = tuple(
    Algorithm(name, fits, layouts, partial(weights, m), partial(work, m), ERRORS[m])
    for name, m in TILES.items()
)


def matches(task: KernelTask) -> bool:
    return task.transformed in TILES


def tile_of(task: KernelTask) -> int:
    return TILES[task.transformed]


def params(task: KernelTask, cfg: Config) -> Params:
    assert isinstance(task.op, FusedOp)
    g = geometry(task.op, tile_of(task), task.target.lanes(4))
    step = VECTORS * g.lanes
    blocks = [c for c in range(step, g.out_channels + 1, step) if g.out_channels % c == 0]
    budget = task.target.l2 // 2

    def bytes_of(rows: int, channels: int) -> int:
        return g.points * rows * g.tile_columns * (g.channels + channels) * 4

    row_options = [r for r in range(1, g.tile_rows + 1) if bytes_of(r, g.out_channels) <= budget]
    whole_weights = g.points * g.channels * g.out_channels * 4
    default_fused = bool(row_options) and g.tiles >= 64 and whole_weights <= task.target.l2
    fused = cfg.choose("fused", (True, False) if row_options else (False,), default_fused)
    if fused:
        rows = cfg.choose("rows", row_options, _balanced_rows(row_options, g, task.threads))
        channels = g.out_channels
        tiles = rows * g.tile_columns
    else:
        rows, tiles = g.tile_rows, g.tiles
        fitting = [
            c for c in blocks if g.points * tiles * c * 4 <= budget and g.out_channels // c >= task.threads
        ]
        channels = cfg.choose("channels", blocks, fitting[-1] if fitting else blocks[0])
    most = min(14 if task.target.vector_registers >= 32 else 5, tiles)
    groups = -(-tiles // most)
    group = cfg.choose("group", range(1, most + 1), -(-tiles // groups))
    return Params(fused, rows, channels, group, cfg.choose("prefetch", (0, 32, 64, 128, 256), PREFETCH))


def _balanced_rows(options: Sequence[int], g: Geometry, threads: int) -> int:
    """Enough tiles for the micro-kernel, an even share for every thread."""
    good = [r for r in options if -(-g.tile_rows // r) % threads == 0 or g.batch % threads == 0]
    enough = [r for r in (good or options) if r * g.tile_columns >= 24]
    return min(enough) if enough else max(good or options)


def schedule(task: KernelTask, p: Params) -> Program:
    return _Builder(task, p).program()


class _Builder:
    def __init__(self, task: KernelTask, p: Params):
        assert isinstance(task.op, FusedOp) and task.expr is not None
        self.task, self.p = task, p
        self.g = geometry(task.op, tile_of(task), task.target.lanes(4))
        self.x, self.u, self.epilogues, self.params = self._operands(task)
        tiles = (p.rows if p.fused else self.g.tile_rows) * self.g.tile_columns
        self.row = _odd_lines(self.g.channels)
        self.m_row = _odd_lines(p.channels)
        self.v = Buffer("tiles_in", F32, (self.g.points, tiles, self.row), "scratch" if p.fused else "global")
        if not p.fused:
            self.v = replace(self.v, shape=(self.g.batch, *self.v.shape))
        self.m = Buffer("tiles_out", F32, (self.g.points, tiles, self.m_row), "scratch")

    def _operands(self, task: KernelTask) -> tuple[Buffer, Buffer, tuple[Stage, ...], tuple[Buffer, ...]]:
        """(input, weights, epilogue stages over physical axes, all params)."""
        assert task.expr is not None
        expr = inline_cheap(task.expr)
        anchor = next(st for st in expr.stages if st.reduce)
        expr = _with_copy(expr, anchor)
        anchor = next(st for st in expr.stages if st.reduce)
        layouts = {**dict(task.layouts), anchor.name: Layout.channel_blocked(4, self.g.lanes)}
        weights = _weights_param(anchor)
        layouts.pop(weights, None)
        physical = relayout(expr, layouts)
        data = next(ld.tensor for ld in s.loads(anchor.body) if ld.tensor != weights)
        buffers: list[Buffer] = []
        for name, type in physical.params:
            shape = task.types[[n for n, _ in expr.params].index(name)] if name == weights else type
            assert shape is not None
            buffers.append(Buffer(name, type.dtype, shape.dims))
        outs = tuple(st for st in physical.stages if st.name in physical.outputs)
        buffers += [Buffer(st.name, st.dtype, st.shape) for st in outs]
        self.anchor = anchor.name
        by_name = {b.name: b for b in buffers}
        return by_name[data], by_name[weights], outs, tuple(buffers)

    def program(self) -> Program:
        g, p = self.g, self.p
        blocks = -(-g.out_channels // p.channels)
        if p.fused:
            tile_blocks = -(-g.tile_rows // p.rows)
            inside = (
                loop(
                    "ib",
                    g.channels // g.lanes,
                    loop("row", p.rows, loop("tw", g.tile_columns, *self.input_tile())),
                ),
                *self.block(s.const(0)),
            )
            body = Alloc(self.v, (Alloc(self.m, inside),))
            step = loop("n", g.batch, loop("th", tile_blocks, body, kind="parallel"), kind="parallel")
            return Program(self.task.name, self.params, (step,))
        tiles = loop("row", g.tile_rows, loop("tw", g.tile_columns, *self.input_tile()), kind="parallel")
        first = loop("n", g.batch, loop("ib", g.channels // g.lanes, tiles, kind="parallel"), kind="parallel")
        body = Alloc(self.m, self.block(Var("ob")))
        second = loop("n", g.batch, loop("ob", blocks, body, kind="parallel"), kind="parallel")
        return Program(self.task.name, self.params, (first, second), (self.v,))

    # --- stages -----------------------------------------------------------------------------------------

    def tile_row(self) -> Expr:
        """The row of tiles in the image."""
        return Var("th") * self.p.rows + ROW if self.p.fused else ROW

    def v_index(self, point: Expr, tile: Expr, channel: Expr) -> tuple[Expr, ...]:
        return (point, tile, channel) if self.p.fused else (N, point, tile, channel)

    def input_tile(self) -> Body:
        """V of one tile and one vector of channels."""
        g, t = self.g, self.g.t
        top, left = self.tile_row() * t.m - g.pad_top, TW * t.m - g.pad_left
        half = Buffer("tile_half", F32, (t.n, t.n, g.lanes), "register")

        def pixel(i: int, j: int) -> Expr:
            h, w = top + i, left + j
            guard = s.both(s.within(h, g.height), s.within(w, g.width))
            return s.select(guard, Load(self.x.name, (N, IB, h, w, LANE), F32), 0.0)

        stores: list[Stmt] = []
        for j in range(t.n):
            column = [pixel(i, j) for i in range(t.n)]
            for i, value in enumerate(combine(t.b, column)):
                stores.append(Store("tile_half", (s.const(i), s.const(j), LANE), value))
        tile = ROW * g.tile_columns + TW
        for i in range(t.n):
            row = [Load("tile_half", (s.const(i), s.const(j), LANE), F32) for j in range(t.n)]
            for j, value in enumerate(combine(t.b, row)):
                index = self.v_index(s.const(i * t.n + j), tile, IB * g.lanes + LANE)
                stores.append(Store("tiles_in", index, value))
        body: Body = (Alloc(half, (loop("lane", g.lanes, *stores, kind="vector"),)),)
        if self.p.fused and g.tile_rows % self.p.rows:
            return (If(s.lt(self.tile_row(), g.tile_rows), body),)
        return body

    def block(self, block: Expr) -> Body:
        """Products and outputs of one block of output channels for all tiles in V."""
        g, p = self.g, self.p
        groups = p.channels // (VECTORS * g.lanes)
        tiles = self.v.shape[-2]
        product = loop(
            "p", g.points, loop("og", groups, loop("to", -(-tiles // p.group), *self.product(block, groups)))
        )
        rows = p.rows if p.fused else g.tile_rows
        vectors = p.channels // g.lanes
        output = loop("row", rows, loop("tw", g.tile_columns, loop("ov", vectors, *self.output_tile(block))))
        return (product, output)

    def product(self, block: Expr, groups: int) -> Body:
        """M of one point for `group` tiles and two vectors of output channels."""
        g, p = self.g, self.p
        tiles = self.v.shape[-2]
        acc = Buffer("tile_acc", F32, (p.group, VECTORS, g.lanes), "register")
        tile = TO * p.group + TI
        here = (TI, OV, LANE)
        panel = block * groups + OG

        def over(body: Stmt) -> Stmt:
            return loop(
                "ti",
                p.group,
                loop("ov", VECTORS, loop("lane", g.lanes, body, kind="vector"), kind="unroll"),
                kind="unroll",
            )

        value: Expr = Load("tiles_in", self.v_index(P, tile, IC), F32)
        inside = s.lt(tile, tiles)
        if tiles % p.group:
            value = s.select(inside, value, 0.0)
        weight = Load(self.u.name, (P, panel, IC, OV * g.lanes + LANE), F32)
        update = Store("tile_acc", here, Load("tile_acc", here, F32) + value * weight)
        out: Stmt = Store(
            "tiles_out", (P, tile, (OG * VECTORS + OV) * g.lanes + LANE), Load("tile_acc", here, F32)
        )
        if tiles % p.group:
            out = If(inside, (out,))
        ahead: Body = ()
        if p.prefetch:
            ahead = tuple(
                Prefetch(self.u.name, (P, panel, IC + p.prefetch, s.const(v * LINE)))
                for v in range(VECTORS * g.lanes // LINE)
            )
        inner = (
            over(Store("tile_acc", here, s.const(0.0, F32))),
            loop("ic", g.channels, over(update), *ahead),
            over(out),
        )
        return (Alloc(acc, inner),)

    def output_tile(self, block: Expr) -> Body:
        """Aᵀ M A and the epilogue for one tile and one vector of output channels."""
        g, t = self.g, self.g.t
        half = Buffer("tile_back", F32, (t.m, t.n, g.lanes), "register")
        result = Buffer("tile_result", F32, (t.m, t.m, g.lanes), "register")
        tile = ROW * g.tile_columns + TW
        stores: list[Stmt] = []
        for j in range(t.n):
            column = [
                Load("tiles_out", (s.const(i * t.n + j), tile, OV * g.lanes + LANE), F32) for i in range(t.n)
            ]
            for i, value in enumerate(combine(t.a, column)):
                stores.append(Store("tile_back", (s.const(i), s.const(j), LANE), value))
        for i in range(t.m):
            row = [Load("tile_back", (s.const(i), s.const(j), LANE), F32) for j in range(t.n)]
            for j, value in enumerate(combine(t.a, row)):
                stores.append(Store("tile_result", (s.const(i), s.const(j), LANE), value))
        y, x = Var("yi"), Var("xi")
        h, w = self.tile_row() * t.m + y, TW * t.m + x
        oc = block * (self.p.channels // g.lanes) + OV
        writes = tuple(self.epilogue(st, (N, oc, h, w, LANE), (y, x, LANE)) for st in self.epilogues)
        write: Body = (loop("lane", g.lanes, *writes, kind="vector"),)
        guards = []
        if g.out_height % t.m or (self.p.fused and g.tile_rows % self.p.rows):
            guards.append(s.lt(h, g.out_height))
        if g.out_width % t.m:
            guards.append(s.lt(w, g.out_width))
        if guards:
            write = (If(s.both(*guards), write),)
        pixels = loop("yi", t.m, loop("xi", t.m, *write, kind="unroll"), kind="unroll")
        body = (loop("lane", g.lanes, *stores, kind="vector"), pixels)
        return (Alloc(half, (Alloc(result, body),)),)

    def epilogue(self, st: Stage, index: tuple[Expr, ...], here: tuple[Expr, ...]) -> Stmt:
        """The output stage with the convolution's sum read from the tile's registers."""
        values = {a.name: e for a, e in zip(st.axes, index)}

        def read(e: Expr) -> Expr | None:
            if isinstance(e, Load) and e.tensor == self.anchor:
                return Load("tile_result", here, F32)
            return None

        return Store(st.name, index, s.substitute(s.transform(st.body, read), values))


def combine(matrix: np.ndarray, values: Sequence[Expr]) -> list[Expr]:
    """matrix · values, rows that differ only in signs of every other term sharing their halves."""
    rows = [[float(np.float32(c)) for c in row] for row in matrix]
    result: list[Expr | None] = [None] * len(rows)
    for i, row in enumerate(rows):
        if result[i] is not None:
            continue
        twin = next((k for k in range(i + 1, len(rows)) if _mirrored(row, rows[k])), None)
        if twin is None:
            result[i] = _sum(row, values)
            continue
        same = [c if c == d else 0.0 for c, d in zip(row, rows[twin])]
        other = [c if c != d else 0.0 for c, d in zip(row, rows[twin])]
        even, odd = _sum(same, values), _sum(other, values)
        result[i], result[twin] = even + odd, even - odd
    return [r for r in result if r is not None]


def _mirrored(a: list[float], b: list[float]) -> bool:
    if any(abs(x) != abs(y) for x, y in zip(a, b)):
        return False
    same = [x for x, y in zip(a, b) if x == y and x]
    return bool(same) and any(x != y for x, y in zip(a, b))


def _sum(coefficients: Sequence[float], values: Sequence[Expr]) -> Expr:
    """Σ c · v without products by 0, 1 and -1."""
    total: Expr | None = None
    for c, v in sorted(zip(coefficients, values), key=lambda pair: pair[0] not in (1.0,)):
        if c == 0.0:
            continue
        if total is None:
            total = v if c == 1.0 else v * s.const(c, F32)
        elif c == 1.0:
            total = total + v
        elif c == -1.0:
            total = total - v
        else:
            total = total + v * s.const(c, F32)
    return total if total is not None else s.const(0.0, F32)


def _odd_lines(elements: int) -> int:
    """Elements of a row padded to an odd number of cache lines: neighbouring rows fall into different
    sets.
    """
    lines = -(-elements // LINE)
    return (lines | 1) * LINE


def _weights_param(anchor: Stage) -> str:
    """The operand that is not guarded: indexed by the output channel itself."""
    channel = Var(anchor.axes[1].name)
    return next(ld.tensor for ld in s.loads(anchor.body) if ld.index[0] == channel)


def _with_copy(expr: TensorExpr, anchor: Stage) -> TensorExpr:
    """Where the sum itself is an output, a copy of it is."""
    if anchor.name not in expr.outputs:
        return expr
    inner = replace(anchor, name=f"{anchor.name}_sum")
    index = tuple(Var(a.name) for a in anchor.axes)
    copy = Stage(anchor.name, anchor.dtype, anchor.axes, Load(inner.name, index, anchor.dtype))
    stages = []
    for st in expr.stages:
        stages += [inner, copy] if st is anchor else [st]
    return replace(expr, stages=tuple(stages))
