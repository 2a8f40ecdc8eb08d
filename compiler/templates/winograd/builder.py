"""The loop program of a Winograd convolution.

V[point, tile, phase · channels + ic] = Bᵀ d B      input tiles
M[point, tile, oc] = Σ V · U                        one matrix product a point
y = epilogue(Aᵀ M A)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...ir import scalar as s
from ...ir.expr import Stage
from ...ir.loops import Alloc, Barrier, Body, Buffer, If, Prefetch, Program, Stmt, Store, loop
from ...ir.scalar import Expr, Load, Var
from ...ir.types import F32, Layout
from ...kernel_task import KernelTask
from ...ops.fused import FusedOp
from ...ops.toom_cook import Band
from ...schedule.relayout import relayout
from ..choices import divisors, nested
from ..common import inline_cheap
from ..conv_parts import LINE, odd_lines, with_copy
from .combine import combine
from .geometry import PointClass, Region, Strip, geometry
from .params import VECTORS, Params, variant_of

N, NB, NI, TH, TW, IB, OB, OG, P, KB, TO, TI, OV, LANE, ROW = (
    Var(n) for n in "n nb ni th tw ib ob og p kb to ti ov lane row".split()
)


@dataclass(frozen=True)
class Stream:
    """The weights of some panels: their first row, that of the next ones, and the number of this pass over
    them. `panel` rows after a panel's row stands that of the panel beside it.
    """

    row: Expr
    following: Expr
    number: Expr
    passes: int
    panel: int


class Builder:
    def __init__(self, task: KernelTask, p: Params):
        assert isinstance(task.op, FusedOp) and task.expr is not None
        self.task, self.p = task, p
        self.made = 0
        self.g = g = geometry(task.op, variant_of(task), task.target.lanes(4))
        self.x, self.u, self.epilogues, self.params = self._operands(task)
        rows = (Strip(g.strips(g.out_height)[0].band, 0, p.rows), Strip(g.strips(0)[0].band, 0, 0))
        self.regions = g.regions(p.images, rows if p.fused else None)
        self.classes = list(g.classes(self.regions, p.images))
        self.position = {point: n for n, point in enumerate(g.points)}
        self.panel = VECTORS * g.lanes
        tiles = p.images * sum(r.count for r in self.regions)
        v_shape = (len(g.points), tiles, odd_lines(g.channels * len(g.variant.phases)))
        self.v = Buffer("tiles_in", F32, v_shape, "scratch")
        if not p.fused:
            self.v = Buffer("tiles_in", F32, (g.batch // p.images, *v_shape), "global")
        self.m = Buffer("tiles_out", F32, (len(g.points), tiles, odd_lines(p.channels)), "scratch")

    def _operands(self, task: KernelTask) -> tuple[Buffer, Buffer, tuple[Stage, ...], tuple[Buffer, ...]]:
        """(input, weights, epilogue stages over physical axes, all params)."""
        assert task.expr is not None
        expr = with_copy(inline_cheap(task.expr))
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
        if p.fused:
            tiles = self.input_rows(p.rows, self.input_row(self.regions, s.const(0), ROW))
            inside = (tiles, loop("ob", g.out_channels // p.channels, *self.block(OB)))
            body = Alloc(self.v, (Alloc(self.m, inside),))
            blocks = -(-g.tile_rows // p.rows)
            step = loop("n", g.batch, loop("th", blocks, body, kind="parallel"), kind="parallel")
            return Program(self.task.name, self.params, (step,))
        edge = [r for r in self.regions if r.rows.first]
        main = [r for r in self.regions if not r.rows.first]
        ni = s.binary("mod", N, p.images) if p.images > 1 else s.const(0)
        row = self.input_row(main, ni, ROW)
        if edge and main:
            row = (If(s.lt(ROW, main[0].rows.count), row, self.input_row(edge, ni, s.const(0))),)
        elif edge:
            row = self.input_row(edge, ni, s.const(0))
        first = loop("n", g.batch, self.input_rows(g.tile_rows, row, "parallel"), kind="parallel")
        body = Alloc(self.m, self.block(OB))
        images = loop("nb", g.batch // p.images, body, kind="parallel")
        second = loop("ob", g.out_channels // p.channels, images, kind="parallel")
        return Program(self.task.name, self.params, (first, second), (self.v,))

    def registers(self, name: str, *shape: int) -> Buffer:
        """A buffer of vectors with a name of its own."""
        self.made += 1
        return Buffer(f"{name}{self.made}", F32, (*shape, self.g.lanes), "register")

    # --- input ------------------------------------------------------------------------------------------

    def image(self) -> Expr:
        return N if self.p.fused else NB * self.p.images + NI

    def tile_row(self, strip: Strip, row: Expr) -> Expr:
        """Position of a strip's row of tiles in the image."""
        return Var("th") * self.p.rows + row if self.p.fused else strip.first + row

    def input_rows(self, rows: int, body: Body, kind: str = "serial") -> Stmt:
        """All rows, around or within the loop over vectors of channels unless a tile takes these at once."""
        extents = {"ib": self.g.channels // self.g.lanes, "row": rows}
        order = [var for var in self.p.input_order if var in extents]
        if self.tile_takes_channels:
            order.remove("ib")
        return nested(order, extents, body, kind)[0]

    @property
    def tile_takes_channels(self) -> bool:
        return self.p.input_order.index("tw") < self.p.input_order.index("ib")

    def input_row(self, regions: Sequence[Region], image: Expr, row: Expr) -> Body:
        """V of one row of tiles and one vector of channels, or all of them."""
        body: Body = ()
        for region in regions:
            tile = region.base + (image * region.rows.count + row) * region.columns.count + TW
            for f in range(len(self.g.variant.phases)):
                inner = self.input_tile(region, f, tile, self.tile_row(region.rows, row))
                if self.tile_takes_channels:
                    inner = (loop("ib", self.g.channels // self.g.lanes, *inner),)
                body += (loop("tw", region.columns.count, *inner),)
        if self.p.fused and self.g.tile_rows % self.p.rows:
            return (If(s.lt(self.tile_row(regions[0].rows, row), self.g.tile_rows), body),)
        return body

    def input_tile(self, region: Region, phase: int, tile: Expr, tile_row: Expr) -> Body:
        """V of one tile, one phase and one vector of channels."""
        g, v = self.g, self.g.variant
        row, column = v.phases[phase]
        rows, columns = self.phase_band(region.rows.band, row), self.phase_band(region.columns.band, column)
        top = tile_row * (v.m * v.stride) + (row - g.pad_top)
        left = (region.columns.first + TW) * (v.m * v.stride) + (column - g.pad_left)
        half = self.registers("tile_half", len(rows.points), columns.b.shape[1])

        def pixel(i: int, j: int) -> Expr:
            h, w = top + i * v.stride, left + j * v.stride
            guard = s.both(s.within(h, g.height), s.within(w, g.width))
            if g.given_channels < g.channels:  # what lies behind them is finite, but sums of it may not be
                guard = s.both(guard, s.lt(IB * g.lanes + LANE, g.given_channels))
            return s.select(guard, Load(self.x.name, (N, IB, h, w, LANE), F32), 0.0)

        stores: list[Stmt] = []
        for j in range(columns.b.shape[1]):
            column_values = [pixel(i, j) for i in range(rows.b.shape[1])]
            for i, value in enumerate(combine(rows.b, column_values)):
                stores.append(Store(half.name, (s.const(i), s.const(j), LANE), value))
        for i, point in enumerate(rows.points):
            values = [Load(half.name, (s.const(i), s.const(j), LANE), F32) for j in range(columns.b.shape[1])]
            for other, value in zip(columns.points, combine(columns.b, values)):
                at = s.const(self.position[point, other])
                index = (at, tile, phase * g.channels + IB * g.lanes + LANE)
                block = s.binary("floordiv", N, self.p.images)
                stores.append(Store("tiles_in", self.v_index(index, block), value))
        return (Alloc(half, (loop("lane", g.lanes, *stores, kind="vector"),)),)

    def phase_band(self, band: Band, offset: int) -> Band:
        """Odd phases have a tap less: neither the point at infinity nor the last input."""
        if offset == 0:
            return band
        return Band(band.m, band.points[:-1], band.a, band.b[:-1, :-1])

    def v_index(self, index: tuple[Expr, ...], block: Expr) -> tuple[Expr, ...]:
        return index if self.p.fused else (block, *index)

    # --- products ---------------------------------------------------------------------------------------

    def block(self, block: Expr) -> Body:
        """Products and outputs of one block of output channels for all tiles in V."""
        groups = self.p.channels // (self.panel * self.p.panels)
        products = tuple(loop("p", c.count, self.point_products(c, block, groups)) for c in self.classes)
        return (*products, *(self.output(r, block) for r in self.regions))

    def point_products(self, c: PointClass, block: Expr, groups: int) -> Stmt:
        """M of one point, `depth` rows of weights after the other."""
        blocks = len(c.phases) * self.g.channels // self.p.depth
        body = self.panel_products(c, block, groups, blocks)
        if self.p.depth_outer:
            return loop("kb", blocks, loop("og", groups, *body))
        return loop("og", groups, loop("kb", blocks, *body))

    def panel_products(self, c: PointClass, block: Expr, groups: int, blocks: int) -> Body:
        """Adds `depth` products to M of one point and the panels of one group."""
        g, p = self.g, self.p
        k = len(c.phases) * g.channels
        of_point = g.out_channels // self.panel
        first = OG * p.panels if p.panels > 1 else OG
        at = c.weights // self.panel + ((P * of_point + block * groups * p.panels + first) * k)
        row = at + KB * p.depth
        following = self.next_row(row, groups, blocks, k)
        count = -(-len(c.tiles) // p.group)
        most = -(-len(c.tiles) // count)
        large = len(c.tiles) - count * (most - 1)
        body: list[Stmt] = []
        for tiles, before, n in ((most, 0, large), (most - 1, large, count - large)):
            if n:
                tile = c.tiles.start + before * most + TO * tiles
                stream = Stream(row, following, before + TO, count, k)
                body.append(loop("to", n, *self.product(c, tiles, tile, stream, blocks)))
        return tuple(body)

    def next_row(self, row: Expr, groups: int, blocks: int, k: int) -> Expr:
        """Of the weights that are needed after these."""
        p = self.p
        here, every = groups * p.panels, self.g.out_channels // self.panel
        last_group, last_part = s.eq(OG, groups - 1), s.eq(KB, blocks - 1)
        if p.depth_outer:
            point = s.const((every - here + p.panels - 1) * k + p.depth)
            part = s.const((p.panels - here) * k + p.depth)
            return row + s.select(last_group, s.select(last_part, point, part), s.const(p.panels * k))
        row = row + p.depth
        if p.panels > 1:
            row = row + s.select(last_part, s.const((p.panels - 1) * k), s.const(0))
        if here < every:
            row = row + s.select(s.both(last_group, last_part), s.const((every - here) * k), s.const(0))
        return row

    def product(self, c: PointClass, tiles: int, tile: Expr, stream: Stream, blocks: int) -> Body:
        """Adds `depth` products to M of `tiles` tiles."""
        g, p = self.g, self.p
        width = VECTORS * p.panels
        acc = self.registers("tile_acc", tiles, width)
        point, here = c.first + P, (TI, OV, LANE)
        out = (point, tile + TI, (OG * width + OV) * g.lanes + LANE)

        def over(body: Stmt) -> Stmt:
            vectors = loop("ov", width, loop("lane", g.lanes, body, kind="vector"), kind="unroll")
            return loop("ti", tiles, vectors, kind="unroll")

        def update(k: Expr) -> Stmt:
            channel = c.phases.start * g.channels + KB * p.depth + k
            value = Load("tiles_in", self.v_index((point, tile + TI, channel), NB), F32)
            row: Expr = stream.row + k
            vector: Expr = OV
            if p.panels > 1:
                row, vector = row + OV // VECTORS * stream.panel, OV % VECTORS
            weight = Load(self.u.name, (row, vector * g.lanes + LANE), F32)
            return over(Store(acc.name, here, Load(acc.name, here, F32) + value * weight))

        def total(value: Expr) -> Stmt:
            return over(Store("tiles_out", out, value))

        result = Load(acc.name, here, F32)
        end: Stmt = total(result)
        if blocks > 1:
            end = If(s.eq(KB, 0), (end,), (total(Load("tiles_out", out, F32) + result),))
        ahead = self.next_tiles(c, tiles, tile) if p.prefetch else ()
        inner = (over(Store(acc.name, here, s.const(0.0, F32))), *ahead, *self.streamed(update, stream), end)
        return (Alloc(acc, inner),)

    def next_tiles(self, c: PointClass, tiles: int, tile: Expr) -> Body:
        """Prefetches V of the next point, each group of panels its share."""
        p = self.p
        groups = p.channels // (self.panel * p.panels)
        lines = max(1, -(-p.depth // (LINE * groups)))
        channel = c.phases.start * self.g.channels + KB * p.depth + OG * (lines * LINE)
        return tuple(
            Prefetch("tiles_in", self.v_index((c.first + P + 1, tile + n, channel + at * LINE), NB))
            for n in range(tiles)
            for at in range(lines)
        )

    def streamed(self, update: Callable[[Expr], Stmt], stream: Stream) -> Body:
        """All updates of one pass over a panel, and its share of the next panel's prefetches between them."""
        terms = self.g.lanes if self.task.target.multiplies_by_lane else 1  # of one load of an input
        depth, most = self.p.depth // terms, max(1, self.p.unrolled // terms)

        def updates(k: Expr) -> Body:
            return tuple(update(k * terms + n if terms > 1 else k) for n in range(terms))

        def prefetch(row: Expr) -> Body:
            first = row * terms if terms > 1 else row
            rows = [stream.following + n * stream.panel + first for n in range(self.p.panels)]
            lines = [divmod(at, self.panel) for at in range(0, terms * self.panel, LINE)]
            return tuple(
                Prefetch(self.u.name, (r + n if n else r, s.const(at))) for r in rows for n, at in lines
            )

        if not self.p.prefetch:
            return self.in_turn("ic", depth, most, updates)
        share = next(n for n in divisors(depth) if n * stream.passes >= depth)
        every = depth // share

        def turn(n: Expr) -> Body:
            between = self.in_turn("ik", every, most, lambda k: updates(n * every + k))
            row = stream.number * share + n
            if share * stream.passes > depth:
                row = s.binary("min", row, s.const(depth - 1))
            return (*prefetch(row), *between)

        return self.in_turn("ic", share, max(1, most // every), turn)

    def in_turn(self, name: str, count: int, most: int, body: Callable[[Expr], Body]) -> Body:
        """The body `count` times, at most `most` of them in one iteration."""
        some = max(n for n in divisors(count) if n <= most)
        first = Var(name) * some if some < count else s.const(0)
        inner = body(first)
        if some > 1:
            several = (*body(first + Var(f"{name}_i")), Barrier("order"))
            inner = (loop(f"{name}_i", some, *several, kind="unroll"),)
        return inner if some == count else (loop(name, count // some, *inner),)

    # --- output -----------------------------------------------------------------------------------------

    def output(self, region: Region, block: Expr) -> Stmt:
        extents = {
            "ov": self.p.channels // self.g.lanes,
            "row": region.rows.count,
            "tw": region.columns.count,
        }
        tiles = nested(self.p.output_order, extents, self.output_tile(region, block))
        return loop("ni", self.p.images, *tiles)

    def output_tile(self, region: Region, block: Expr) -> Body:
        """Aᵀ M A and the epilogue for one tile and one vector of output channels."""
        g, m = self.g, self.g.variant.m
        rows, columns = region.rows.band, region.columns.band
        half = self.registers("tile_back", rows.m, len(columns.points))
        result = self.registers("tile_result", rows.m, columns.m)
        tile = region.base + (NI * region.rows.count + ROW) * region.columns.count + TW
        stores: list[Stmt] = []
        for j, other in enumerate(columns.points):
            column = [
                Load("tiles_out", (s.const(self.position[point, other]), tile, OV * g.lanes + LANE), F32)
                for point in rows.points
            ]
            for i, value in enumerate(combine(rows.a, column)):
                stores.append(Store(half.name, (s.const(i), s.const(j), LANE), value))
        for i in range(rows.m):
            row = [Load(half.name, (s.const(i), s.const(j), LANE), F32) for j in range(len(columns.points))]
            for j, value in enumerate(combine(columns.a, row)):
                stores.append(Store(result.name, (s.const(i), s.const(j), LANE), value))
        y, x = Var("yi"), Var("xi")
        h, w = self.tile_row(region.rows, ROW) * m + y, (region.columns.first + TW) * m + x
        oc = block * (self.p.channels // g.lanes) + OV
        writes = tuple(
            self.epilogue(st, (self.image(), oc, h, w, LANE), Load(result.name, (y, x, LANE), F32))
            for st in self.epilogues
        )
        write: Body = (loop("lane", g.lanes, *writes, kind="vector"),)
        if self.p.fused and (g.out_height % m or g.tile_rows % self.p.rows):
            write = (If(s.lt(h, g.out_height), write),)
        pixels = loop("yi", rows.m, loop("xi", columns.m, *write, kind="unroll"), kind="unroll")
        inner = Alloc(result, (loop("lane", g.lanes, *stores, kind="vector"), pixels))
        body: Body = (Alloc(half, (inner,)),)
        return body if g.out_vectors * g.lanes == g.out_channels else (If(s.lt(oc, g.out_vectors), body),)

    def epilogue(self, st: Stage, index: tuple[Expr, ...], total: Expr) -> Stmt:
        """The output stage with the convolution's sum in place of it."""
        values = {a.name: e for a, e in zip(st.axes, index)}

        def read(e: Expr) -> Expr | None:
            return total if isinstance(e, Load) and e.tensor == self.anchor else None

        return Store(st.name, index, s.substitute(s.transform(st.body, read), values))


def _weights_param(anchor: Stage) -> str:
    """The operand that is not guarded: indexed by the output channel itself."""
    channel = Var(anchor.axes[1].name)
    return next(ld.tensor for ld in s.loads(anchor.body) if ld.index[0] == channel)
