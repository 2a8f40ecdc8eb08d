"""Products with constant weights by seven products of halves instead of eight: pointwise convolutions and
matrices.

    S1 = A21 + A22, S2 = S1 - A11, S3 = A11 - A21, S4 = A12 - S2    A, C: by pixels
    U = A11·B11,       C11 = U + A12·B21
    U += S2·(B22 - B12 + B11),   V = U + S3·(B22 - B12),   C21 = V - A22·(B22 - B12 + B11 - B21)
    W = S1·(B12 - B11),   C22 = V + W,   C12 = U + W + S4·B22

A register tile has a place in all four quarters of the result: its seven sums follow each other, and what
several results share (U, V, W) waits beside them in the first cache. So only the four sums of the data are
ever written, those of the weights are made when compiling. Either a task takes some rows of an image through
both steps (`fused`), or the sums of all are made first and a task takes panels of weights.
Strassen, Gaussian elimination is not optimal (1969), in Winograd's form (1971).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..ir import scalar as s
from ..ir.loops import Alloc, Body, Buffer, If, Prefetch, Program, Stmt, Store, loop
from ..ir.scalar import Expr, Load, Var
from ..ir.types import F32, Layout
from ..kernel_task import Config, KernelTask
from ..ops.fused import FusedOp
from ..ops.matmul import MatMul
from ..ops.quarter_sums import FACTORS, QuarterSums
from .algorithm import Algorithm, Layouts, Pack, Work
from .choices import LONGEST_BODY, choose, divisors
from .conv_parts import (
    LANE,
    LINE,
    ROW,
    VECTOR,
    Geometry,
    convolution,
    matrix_product,
    odd_lines,
    operands,
    row_of_matrix,
    weights_position,
)
from .register_tiles import most_rows

NAME = "strassen"
LEAST_ROWS = 40  # fewer wait for their weights, which are seven quarters of what they were
LEAST_TASK = 16  # pixels
MOST_TERMS = 1536  # errors grow with the root of their number
N, TH, PB, TO, KB, KT, KI, P = (Var(n) for n in ("n", "th", "pb", "to", "kb", "kt", "ki", "p"))
SUMS = 4  # of the data
WIDE = 16  # lanes of targets that have 32 registers
LOAD = 0.1  # cost of a load beside that of a multiply-add
SHORT = 128  # terms, up to which half of the registers are as fast, and more read in turns
LATENCY = 12  # sums in registers that hide it
SIDE_BY_SIDE, LEAST_SIDE_BY_SIDE = 32, 4  # terms of an inner loop over those of a matrix: a divisor of theirs
NEAR = 0.8  # of L2: data and sums of an image that stay there while all weights pass


@dataclass(frozen=True)
class Params:
    fused: bool
    rows: int  # of pixels in a task, all if not fused
    tile: int  # rows of the register tile in each quarter
    together: int  # terms that one iteration takes
    prefetch: bool  # of the next panel of weights


def _sizes(op: FusedOp) -> Geometry | None:
    """A matrix is an image of one row of pixels."""
    g = convolution(op)
    if g is not None:
        return g if g.pointwise and g.group == 1 else None
    return matrix_product(op)


def _geometry(op: object) -> Geometry:
    assert isinstance(op, FusedOp)
    g = _sizes(op)
    assert g is not None
    return g


def _convolves(op: FusedOp) -> bool:
    return not isinstance(op.graph.nodes[0].op, MatMul)


def vectors_of(g: Geometry, lanes: int) -> int:
    """Vectors of columns in a panel: little of the last one of a half is empty, registers are full, and two
    threads have as many panels each."""
    columns, half = -(-g.out_channels // (2 * lanes)), -(-g.pixels // 2)
    registers = 28 if lanes >= WIDE else 12  # for sums

    def cost(vectors: int) -> float:
        rows = -(-half // -(-half * vectors // registers))
        loads = (rows + vectors) / (rows * vectors)  # for each product
        return _dealt(g, -(-columns // vectors)) * vectors * (1 + LOAD * loads)

    return min((2, 3, 1), key=cost)


def _cuts(g: Geometry) -> list[int]:
    """Rows of an image that may be a task."""
    return [r for r in divisors(g.out[0]) if r * g.out[1] >= LEAST_TASK]


def _dealt(g: Geometry, panels: int) -> int:
    """Panels, of which one is as good as two where they are all that threads can share."""
    return panels if len(_cuts(g)) > 1 or g.batch > 1 else panels + panels % 2


def _depth(op: FusedOp, lanes: int) -> int:
    """Terms of the inner loop, which lie side by side."""
    half = _geometry(op).channels // 2
    return lanes if _convolves(op) else max(n for n in divisors(half) if n <= SIDE_BY_SIDE)


def fits(op: FusedOp, lanes: int) -> bool:
    g = _sizes(op)
    if g is None or g.pixels < LEAST_ROWS or g.batch == 0:
        return False
    data = op.graph.nodes[0].inputs[0]
    if sum(n.reads.count(data or "") for n in op.graph.nodes) > 1:
        return False  # the data is one line of pixels to this template
    step = 2 * (lanes if _convolves(op) else 1)
    width = vectors_of(g, lanes) * lanes
    filled = -(-g.out_channels // (2 * width)) * width < g.out_channels  # something of the second half
    whole = g.channels % step == 0 and 2 * lanes <= g.channels <= MOST_TERMS
    return whole and filled and _depth(op, lanes) >= LEAST_SIDE_BY_SIDE


def layouts(op: FusedOp, lanes: int) -> tuple[Layouts, ...]:
    if not _convolves(op):
        return ((None, None),)
    blocked = Layout.channel_blocked(4, lanes)
    return ((blocked, blocked),)


def weights(op: FusedOp, lanes: int) -> Mapping[int, Pack]:
    product = op.graph.nodes[0].op
    turned = product.trans_b if isinstance(product, MatMul) else True
    width = vectors_of(_geometry(op), lanes) * lanes
    return {weights_position(op): QuarterSums(width, turned)}


def work(op: FusedOp, lanes: int) -> Work:
    g = _geometry(op)
    width = 2 * vectors_of(g, lanes) * lanes
    columns = _dealt(g, -(-g.out_channels // width)) * width
    pixels = g.batch * (g.pixels + g.pixels % 2)
    share = len(FACTORS) / 8
    return Work(
        products=share * pixels * g.channels * columns,
        rate=PRODUCT_RATE if lanes >= WIDE else NARROW_RATE,
        streamed=2 * share * 4 * g.channels * columns,
        other=pixels * (g.channels * SUM + columns * TURN),
    )


ERROR = 4.8e-6  # about twice that of a plain sum of as many terms; that of 2,048 is 5.1e-6 now and then
PRODUCT_RATE, NARROW_RATE = 0.88, 0.75  # of the FMA peak; the second with a tile of twelve sums, which asks
# the second cache for four times the weights a cycle, of seven quarters as many
SUM, TURN = 6.0, 6.0  # multiply-adds of a lane for each element of the data, and of the result
ALGORITHMS = (Algorithm(NAME, fits, layouts, weights, work, ERROR, feature="fma"),)


def matches(task: KernelTask) -> bool:
    return task.transformed == NAME


def params(task: KernelTask, cfg: Config) -> Params:
    g, target = _geometry(task.op), task.target
    assert isinstance(task.op, FusedOp)
    lanes = target.lanes(4)
    vectors = vectors_of(g, lanes)
    options, registers = _cuts(g), most_rows(target, vectors)
    row_bytes = 4 * 2 * g.channels * g.out[1]  # of the data and its sums
    alone = task.threads == 1 and g.out[0] * row_bytes <= target.l2 * NEAR
    fused = cfg.choose("fused", (True, False), not alone) if len(options) > 1 else False
    small = [r for r in options if r * row_bytes <= target.l2 // 2]
    share = [r for r in small if (g.out[0] // r * g.batch) % task.threads == 0]
    rows = choose(cfg, "rows", options, max(share or small, default=options[0])) if fused else g.out[0]
    half = -(-rows * g.out[1] // 2)
    sizes = list(dict.fromkeys(-(-half // n) for n in range(-(-half // registers), half + 1)))
    few = g.channels <= SHORT and registers // 2 * vectors >= LATENCY
    wanted = registers // 2 if few else registers
    even = next(n for n in sizes if n <= wanted)
    tile = choose(cfg, "tile", [n for n in sizes if 2 * n >= min(registers, half)], even)
    short = [n for n in divisors(_depth(task.op, lanes)) if n <= lanes and n * tile * vectors <= LONGEST_BODY]
    together = choose(
        cfg, "together", short, max(n for n in short if n * tile * vectors <= LONGEST_BODY // 2)
    )
    return Params(fused, rows, tile, together, choose(cfg, "prefetch", (False, True), True))


def schedule(task: KernelTask, p: Params) -> Program:
    return _Builder(task, p).program()


class _Builder:
    def __init__(self, task: KernelTask, p: Params):
        assert isinstance(task.op, FusedOp)
        self.task, self.p, self.g = task, p, _geometry(task.op)
        self.convolves = _convolves(task.op)
        self.lanes = task.target.lanes(4)
        self.depth = _depth(task.op, self.lanes)
        self.o = operands(task)
        self.panels, _, self.terms, self.width = self.o.weights.shape
        self.pixels = p.rows * self.g.out[1]
        self.half = -(-self.pixels // 2)
        self.vectors = self.width // self.lanes
        shape: tuple[int, ...] = (SUMS, self.half, odd_lines(self.terms))
        if self.convolves:
            shape = (SUMS, self.terms // self.lanes, self.half, self.lanes)
        self.sums = Buffer("data_sums", F32, shape, "scratch")
        if not p.fused:
            self.sums = Buffer("data_sums", F32, (self.g.batch, *shape), "global")
        self.tiles = -(-self.half // p.tile)
        self.most = -(-self.half // self.tiles)  # rows of one: the others have one less
        self.shared = Buffer("shared_sums", F32, (3, self.most, self.width), "scratch")
        self.here = Load("tile_acc", (ROW, VECTOR, LANE), F32)

    def program(self) -> Program:
        g, p = self.g, self.p
        params = tuple(map(self.as_line, self.o.params))
        if p.fused:
            inside = (*self.sum_data(), loop("pb", self.panels, *self.products()))
            body = Alloc(self.sums, (Alloc(self.shared, inside),))
            chunks = loop("th", g.out[0] // p.rows, body, kind="parallel")
            return Program(self.task.name, params, (loop("n", g.batch, chunks, kind="parallel"),))
        first = loop("n", g.batch, *self.sum_data("parallel"), kind="parallel")
        body = Alloc(self.shared, self.products())
        images = loop("n", g.batch, body, kind="parallel")
        second = loop("pb", self.panels, images, kind="parallel")
        return Program(self.task.name, params, (first, second), (self.sums,))

    def as_line(self, b: Buffer) -> Buffer:
        """The data with all pixels of an image as one axis."""
        if b is not self.o.data:
            return b
        g = self.g
        if self.convolves:
            return replace(b, shape=(g.batch, g.channels // self.lanes, g.pixels, self.lanes))
        return replace(b, shape=(g.pixels, g.channels))

    # --- data -------------------------------------------------------------------------------------------

    def first_pixel(self) -> Expr:
        return TH * self.pixels if self.p.fused else s.const(0)

    def data(self, rows: int, terms: int, pixel: Expr, block: Expr, term: Expr) -> Load:
        """An element of a quarter of the data. Halves of an odd number of pixels share one."""
        pixel = self.first_pixel() + pixel + rows * (self.pixels - self.half)
        if self.convolves:
            place: tuple[Expr, ...] = (N, block + terms * (self.terms // self.lanes), pixel, term)
        else:
            place = (pixel, block * self.depth + term + terms * self.terms)
        return Load(self.o.data.name, place, F32)

    def sum_place(self, which: int, pixel: Expr, block: Expr, term: Expr) -> tuple[Expr, ...]:
        inside = (block, pixel, term) if self.convolves else (pixel, block * self.depth + term)
        place = (s.const(which), *inside)
        return place if self.p.fused else (N, *place)

    def sum_data(self, kind: str = "serial") -> Body:
        """S1 to S4, a vector of terms at a time."""
        block, term = (KB, LANE) if self.convolves else (s.const(0), KT * self.lanes + LANE)
        kept = Buffer("sum", F32, (2, self.lanes), "register")

        def quarter(rows: int, terms: int) -> Expr:
            return self.data(rows, terms, P, block, term)

        def first(n: int) -> Load:
            return Load(kept.name, (s.const(n), LANE), F32)

        values = (first(0), first(1), quarter(0, 0) - quarter(1, 0), quarter(0, 1) - first(1))
        stores: Body = (
            Store(kept.name, (s.const(0), LANE), quarter(1, 0) + quarter(1, 1)),
            Store(kept.name, (s.const(1), LANE), first(0) - quarter(0, 0)),
            *(Store("data_sums", self.sum_place(n, P, block, term), v) for n, v in enumerate(values)),
        )
        if not self.convolves and self.terms % self.lanes:
            stores = (If(s.lt(term, self.terms), stores),)
        body: Stmt = Alloc(kept, (loop("lane", self.lanes, *stores, kind="vector"),))
        if self.convolves:
            return (loop("kb", self.terms // self.lanes, loop("p", self.half, body), kind=kind),)
        return (loop("p", self.half, loop("kt", -(-self.terms // self.lanes), body), kind=kind),)

    # --- products ---------------------------------------------------------------------------------------

    def products(self) -> Body:
        """All register tiles of a panel, in two sizes at most."""
        larger = self.half - self.tiles * (self.most - 1)
        parts = ((larger, self.most, 0), (self.tiles - larger, self.most - 1, larger))
        return tuple(loop("to", n, self.tile(rows, before)) for n, rows, before in parts if n)

    def tile(self, rows: int, before: int) -> Stmt:
        """All that belongs to so many rows of a half, behind `before` tiles that have one more."""
        acc = Buffer("tile_acc", F32, (rows, self.vectors, self.lanes), "register")
        zero, number = s.const(0.0, F32), TO + before
        pixel = TO * rows + before * (rows + 1) + ROW
        u, v, w = (Load("shared_sums", (s.const(n), ROW, VECTOR * self.lanes + LANE), F32) for n in range(3))

        def over(*body: Stmt) -> Stmt:
            inner = loop("vi", self.vectors, loop("lane", self.lanes, *body, kind="vector"), kind="unroll")
            return loop("ri", rows, inner, kind="unroll")

        def begin(value: Expr) -> Stmt:
            return over(Store("tile_acc", self.here.index, value))

        def keep(at: Load) -> Stmt:
            return over(Store("shared_sums", at.index, self.here))

        def multiply(product: int, factor: tuple[int, int] | int) -> Stmt:
            """Adds the product of a quarter of the data (row, column), or of a sum, by its weights."""
            update = over(
                Store("tile_acc", self.here.index, self.here + self.product(product, factor, pixel))
            )
            turn = loop("ki", self.p.together, update, kind="unroll")
            ahead = self.ahead(product, number) if self.p.prefetch else ()
            turns = loop("kt", self.depth // self.p.together, *ahead, turn)
            return loop("kb", self.terms // self.depth, turns)

        def finish(rows: int, columns: int) -> Stmt:
            return over(*self.finish(rows, columns, pixel))

        steps = (
            *(begin(zero), multiply(0, (0, 0)), keep(u), multiply(1, (0, 1)), finish(0, 0)),
            *(begin(u), multiply(2, 1), keep(u), multiply(3, 2), keep(v), multiply(4, (1, 1)), finish(1, 0)),
            *(begin(zero), multiply(5, 0), keep(w), begin(self.here + v), finish(1, 1)),
            *(begin(u + w), multiply(6, 3), finish(0, 1)),
        )
        return Alloc(acc, steps)

    def product(self, product: int, factor: tuple[int, int] | int, pixel: Expr) -> Expr:
        term = KT * self.p.together + KI
        if isinstance(factor, tuple):
            data: Expr = self.data(*factor, pixel, KB, term)
        else:
            data = Load("data_sums", self.sum_place(factor, pixel, KB, term), F32)
        index = (PB, s.const(product), KB * self.depth + term, VECTOR * self.lanes + LANE)
        return data * Load(self.o.weights.name, index, F32)

    def ahead(self, product: int, tile: Expr) -> Body:
        """A share of the next panel of weights: of the lines of each KB those of the tile, some a turn."""
        lines = self.depth * self.width // LINE
        each = -(-lines // (self.tiles * (self.depth // self.p.together)))
        row = (product * self.terms + KB * self.depth) * self.width
        first = s.binary("floordiv", tile * lines, self.tiles) + KT * each
        zero = s.const(0)
        return tuple(
            Prefetch(self.o.weights.name, (PB + 1, zero, zero, row + (first + n) * LINE)) for n in range(each)
        )

    def finish(self, rows: int, columns: int, pixel: Expr) -> Body:
        """The epilogue of a quarter's sums."""
        g = self.g
        pixel = self.first_pixel() + pixel + rows * (self.pixels - self.half)
        channel = PB * self.width + VECTOR * self.lanes + LANE + columns * self.panels * self.width
        if self.convolves:
            at = (s.binary("floordiv", pixel, g.out[1]), s.binary("mod", pixel, g.out[1]))
            place: tuple[Expr, ...] = (N, channel, *at)
        else:
            place = (*row_of_matrix(self.o, pixel), channel)
        body = self.o.write(place, self.here)
        room = self.o.written_channels(g.out_channels)
        if columns and 2 * self.panels * self.width > room:
            body = (If(s.lt(channel, room), body),)
        return body
