"""Sums of products by tiles: matrix products, convolutions by their patches (product.py).

    for batch, blocks of rows, blocks of columns:               a block of threads takes BM × BN elements
        for k, BK at a time:
            As[BK, BM], Bs[BK, BN] = the factors                all threads, then a barrier
            for kk < BK: acc[TM, TN] += As[kk, i] · Bs[kk, j]   each thread, in registers, then a barrier
        y[i, j] = f(acc)

Where a GPU copies to shared memory beside its arithmetic, the factors of the next steps are on their way
while one is multiplied, each step's in a place of its own; then one barrier a step is enough.

Neighbouring threads take neighbouring columns, `lane` at a time, of a few rows (place_of_thread); a thread's
rows lie side by side. Where terms of the left factor lie side by side in memory, as the channels of images do
that are stored last, they may do so in shared memory, too, As[BM, BK]: vectors of terms are copied at once,
and a thread's rows are then as many apart as the block has threads along them. Where shared memory is no
faster than other memory, threads read the factors where they are, by vectors of four rows or columns that lie
side by side there too. Where there are too few blocks for the GPU, several of them split the sum, and a
second kernel adds up what they give.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...ir import scalar as s
from ...ir.expr import Axis, Reduce, Stage
from ...ir.loops import Alloc, Body, Buffer, Program, Stmt, Store, loop
from ...ir.scalar import Expr, Load, Var
from ...kernel_task import Config, KernelTask
from ...target import Gpu
from ..algorithm import Algorithm
from . import implicit
from .common import THREAD
from .grid import element, kernel, program
from .product import (
    Axes,
    Product,
    digits,
    expression,
    guarded,
    main_product,
    product_of,
    size,
    within,
)
from .staging import (
    COLUMN,
    LANE,
    ROW,
    VECTOR,
    Blocks,
    SharedFactor,
    copies_ahead,
    in_steps,
    in_vectors,
    lies_in_vectors,
    line_of_terms,
    read_vector,
    slot,
    stages_of,
    steps_of,
    terms_in_vectors,
)

Epilogue = Callable[[Expr], Body]
"""What is done with an element of the sum, where the variables of its axes are known."""

THREADS = 256
SHORTEST_PART = 32  # terms of a sum that is split
MOVED = 8.0  # multiply-adds that a unit could do while an element comes from the last cache
STAGES = 3  # steps that hide how far memory is
WARPS = 8  # that keep a unit busy
GUARDED = 3  # registers of a factor that is read under a guard: its place, what is compared
WARP_ROWS, WARP_COLUMNS = 4, 8  # of the threads that run in step
SMALLEST = 256  # multiply-adds, below which a thread an element is as good
ALGORITHMS = (
    Algorithm("implicit_gemm", implicit.fits, implicit.layouts, implicit.weights, implicit.work, 0.0, "gpu"),
)
_SHAPES = ((8, 8), (8, 4), (4, 8), (4, 4), (4, 2), (2, 4), (2, 2), (1, 4), (4, 1), (1, 2), (1, 1))
_GRIDS = ((16, 16), (8, 32), (8, 16), (16, 8), (4, 32), (8, 8), (4, 16), (2, 32), (4, 8), (2, 16), (1, 32))


@dataclass(frozen=True)
class Tile:
    """A block's threads along rows and columns, and each thread's elements along both."""

    threads: tuple[int, int]
    elements: tuple[int, int]

    @property
    def block(self) -> tuple[int, int]:
        return self.threads[0] * self.elements[0], self.threads[1] * self.elements[1]


@dataclass(frozen=True)
class Params:
    tile: Tile
    shared: bool
    depth: int  # terms of the sum that are in shared memory at once
    lane: int  # neighbouring columns of a thread
    parts: int  # that the sum is split into
    stages: int = 1  # steps whose factors are in shared memory at once
    terms: int = 1  # of the left factor that lie side by side there


def matches(task: KernelTask) -> bool:
    p = main_product(task)
    if p is None:
        return False
    _, m, n, k = p.sizes
    return min(m, n) >= 2 and m * n * k >= SMALLEST


def params(task: KernelTask, cfg: Config) -> Params:
    p, gpu = main_product(task), task.target.gpu
    assert p is not None and gpu is not None
    return asked(p, gpu, cfg, parts_of(p))


def asked(p: Product, gpu: Gpu, cfg: Config, parts: Sequence[int]) -> Params:
    """`parts`: in how many the sum may be split."""
    shared = cfg.choose("shared", (True, False) if gpu.shared else (False,), gpu.shared > 0)
    ranked = ranked_tiles(p, gpu, shared, parts)
    tile = Tile(*cfg.choose("tile", tuple((t.threads, t.elements) for t in ranked), _pair(ranked[0])))
    depths = [d for d in (4, 8, 16, 32) if fits_shared(p, tile, d, gpu)] if shared else [1]
    depth = cfg.choose("depth", depths, max(d for d in depths if d <= 16))
    lanes = [n for n in (1, 2, 4) if tile.elements[1] % n == 0]
    vectors = shared or lies_in_vectors(p.right, p.columns)
    lane = cfg.choose("lane", lanes, lanes[-1] if vectors else 1)
    part = cfg.choose("parts", parts, best_parts(p, tile, gpu, parts))
    if not shared:
        return Params(tile, shared, depth, lane, part)
    terms = terms_of(cfg, p, gpu, tile, depth, part)
    most = min(STAGES, steps_of(p, part, depth))
    stages = stages_of(cfg, gpu, p, most, lambda n: fits_shared(p, tile, depth, gpu, n, terms))
    return Params(tile, shared, depth, lane, part, stages, terms)


def terms_of(cfg: Config, p: Product, gpu: Gpu, tile: Tile, depth: int, parts: int) -> int:
    """How many terms of the left factor lie side by side: a vector, by default, where they are copied so."""
    vectors = copies_ahead(gpu, p) and terms_in_vectors(p, p.left, depth, parts)
    stages = min(2, steps_of(p, parts, depth))
    if not vectors or not fits_shared(p, tile, depth, gpu, stages, VECTOR):
        return 1
    if registers(p, tile, VECTOR) > gpu.registers:
        return 1
    return cfg.choose("terms", (VECTOR, 1), VECTOR)


def _pair(tile: Tile) -> tuple[tuple[int, int], tuple[int, int]]:
    return tile.threads, tile.elements


def schedule(task: KernelTask, p: Params) -> Program:
    return split_sum(task, p.parts, lambda product, epilogue: tiled(product, p, epilogue))


def split_sum(task: KernelTask, parts: int, tiled: Callable[[Product, Epilogue], Stmt]) -> Program:
    """The kernels of a task: its product, as `tiled` computes one, what adds up its parts, and others."""
    product, expr = main_product(task), expression(task)
    assert product is not None and task.target.gpu is not None
    threads = min(THREADS, task.target.gpu.block_threads)
    acc = product.group[0]
    between = Buffer(f"{acc.name}_parts", acc.dtype, (parts, *acc.shape), "global")

    def kernels(group: list[Stage]) -> list[Stmt]:
        if product_of(group) is None:
            return [kernel(group, expr, threads)]
        if parts == 1:
            return [tiled(product, lambda value: element(product.group, expr, {acc.name: value}))]
        place = (Var("of_parts"), *_own(product))
        first = tiled(product, lambda value: (Store(between.name, place, value),))
        return [first, kernel(added_up(product, between), expr, threads)]

    return program(task.name, expr, kernels, *[between] * (parts > 1))


def _own(product: Product) -> tuple[Expr, ...]:
    return tuple(Var(a.name) for a in product.group[0].axes)


def added_up(product: Product, parts: Buffer) -> list[Stage]:
    """The group with its sum taken over the parts."""
    acc = product.group[0]
    part = Axis("of_parts", parts.shape[0])
    load = Load(parts.name, (Var(part.name), *_own(product)), acc.dtype)
    return [replace(acc, body=load, reduce=Reduce("sum", (part,))), *product.group[1:]]


# --- the choice of a tile -------------------------------------------------------------------------------


def ranked_tiles(p: Product, gpu: Gpu, shared: bool, parts: Sequence[int]) -> list[Tile]:
    """The tiles that fit the GPU, those with the least predicted time first."""
    found = [Tile(g, e) for g in _GRIDS for e in _SHAPES if fits(p, Tile(g, e), gpu, shared)]
    return sorted(found, key=lambda t: predicted_time(p, t, gpu, best_parts(p, t, gpu, parts)))


def fits(p: Product, tile: Tile, gpu: Gpu, shared: bool) -> bool:
    rows, columns = tile.elements
    needed = registers(p, tile)
    if not shared:
        needed += GUARDED * (rows * guarded(p.left) + columns * guarded(p.right))
    enough = tile.threads[0] * tile.threads[1] <= min(gpu.block_threads, THREADS)
    return enough and needed <= gpu.registers and (not shared or fits_shared(p, tile, 4, gpu))


def registers(p: Product, tile: Tile, terms: int = 1) -> int:
    rows, columns = tile.elements
    return (rows * columns + rows * terms + columns) * -(-p.group[0].dtype.bytes // 4) + 16


def fits_shared(p: Product, tile: Tile, depth: int, gpu: Gpu, stages: int = 1, terms: int = 1) -> bool:
    threads = tile.threads[0] * tile.threads[1]
    enough = all(b * depth >= threads for b in tile.block)
    size = sum(map(math.prod, shared_shapes(p, tile, depth, terms)))
    return enough and stages * size * p.group[0].dtype.bytes <= gpu.shared


def shared_shapes(p: Product, tile: Tile, depth: int, terms: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Of the factors of a step in shared memory: (terms, rows) and (terms, columns), or (rows, terms).

    Threads that are neighbours along the sum write to different lines, and those of neighbouring rows read
    such, which should not begin in one bank. Vectors stay aligned.
    """
    left, right = (
        (depth, block + max(4, vector) * along)
        for block, vector, along in zip(tile.block, tile.elements, p.along)
    )
    if terms > 1:
        left = (tile.block[0], line_of_terms(depth))
    return left, right


def parts_of(p: Product) -> list[int]:
    """In how many parts the sum may be split."""
    return [n for n in (1, 2, 4, 8, 16, 32) if n == 1 or p.sizes[3] // n >= SHORTEST_PART]


def best_parts(p: Product, tile: Tile, gpu: Gpu, parts: Sequence[int]) -> int:
    return min(parts, key=lambda n: predicted_time(p, tile, gpu, n))


def predicted_time(p: Product, tile: Tile, gpu: Gpu, parts: int) -> float:
    """In multiply-adds of a unit: as many rounds of whole blocks as its share. A block computes, reads shared
    memory, and takes the factors from global memory; parts of sums go there and come back.
    """
    z, m, n, k = p.sizes
    (rows, columns), threads = tile.elements, tile.threads[0] * tile.threads[1]
    area = tile.block[0] * tile.block[1]
    term = area * (1 + 1 / rows + 1 / columns) + MOVED * sum(tile.block)
    each = term * k / parts + (2 * MOVED * area if parts > 1 else 0)
    blocks = z * -(-m // tile.block[0]) * -(-n // tile.block[1]) * parts
    resident = threads * min(4.0, max(1.0, blocks / gpu.units))
    waiting = max(1.0, WARPS * gpu.warp / resident)  # too few threads to hide each other's waits
    return -(-blocks // gpu.units) * each * waiting


# --- the kernel -----------------------------------------------------------------------------------------


def tiled(p: Product, config: Params, epilogue: Epilogue) -> Stmt:
    """The loops over blocks and threads around one tile."""
    builder = _Builder(p, config)
    return builder.blocks.around(builder.shared_buffers(), builder.thread(epilogue))


def place_of_thread(threads: tuple[int, int], shared: bool) -> tuple[Expr, Expr]:
    """A thread's row and column in its block.

    Of shared memory 32 threads take 4 rows and 8 columns: t and t ^ 1 the same column, t and t ^ 2 the same
    row. NVIDIA's GPUs then read vectors of four words for 16 threads at once, otherwise for 8.
    """
    thread, across = Var(THREAD), threads[1]
    if not shared or threads[0] % WARP_ROWS or across % WARP_COLUMNS:
        return s.binary("floordiv", thread, across), s.binary("mod", thread, across)
    warp, abreast = s.binary("floordiv", thread, WARP_ROWS * WARP_COLUMNS), across // WARP_COLUMNS
    half = s.binary("mod", s.binary("floordiv", thread, 2 * WARP_COLUMNS), 2)
    row = s.binary("mod", thread, 2) + half * 2
    column = s.binary("mod", s.binary("floordiv", thread, 2), WARP_COLUMNS)
    row += s.binary("floordiv", warp, abreast) * WARP_ROWS
    return row, column + s.binary("mod", warp, abreast) * WARP_COLUMNS


class _Builder:
    """What one thread does."""

    def __init__(self, product: Product, config: Params):
        self.p, self.c = product, config
        self.dtype = product.group[0].dtype
        self.rows, columns = config.tile.elements
        self.lane, self.vectors = config.lane, columns // config.lane
        threads = config.tile.threads
        thread_row, thread_column = place_of_thread(threads, config.shared)
        self.terms = config.terms
        rows_lie = (self.rows, 1) if self.terms == 1 else (1, threads[0])
        self.row = thread_row * rows_lie[0] + Var("of_rows") * rows_lie[1]
        self.first_row = thread_row * self.rows  # where factors are read from where they are
        self.first_column = (Var("of_vectors") * threads[1] + thread_column) * self.lane
        self.blocks = Blocks(product, config.tile.block, threads[0] * threads[1], config.depth, config.parts)
        self.acc = Buffer("tile_c", self.dtype, (self.rows, self.vectors, self.lane), "register")
        a_shape = (self.rows,) if self.terms == 1 else (self.rows, self.terms)
        self.a = Buffer("tile_a", self.dtype, a_shape, "register")
        self.b = Buffer("tile_b", self.dtype, (self.vectors, self.lane), "register")

    def shared_buffers(self) -> list[Buffer]:
        if not self.c.shared:
            return []
        shapes = shared_shapes(self.p, self.c.tile, self.c.depth, self.terms)
        places = () if self.c.stages == 1 else (self.c.stages,)
        return [
            Buffer(name, self.dtype, (*places, *shape), "shared")
            for name, shape in zip(("shared_a", "shared_b"), shapes)
        ]

    def thread(self, epilogue: Epilogue) -> Body:
        body: Body = (self.each(Store("tile_c", self.place, s.const(0, self.dtype))),)
        body += self.staged_sum() if self.c.shared else self.plain_sum()
        body += (self.written(epilogue),)
        for buffer in (self.b, self.a, self.acc):
            body = (Alloc(buffer, body),)
        return body

    # --- places -----------------------------------------------------------------------------------------

    place = (Var("of_rows"), Var("of_vectors"), Var("of_lanes"))

    def each(self, *body: Stmt) -> Stmt:
        """for i, j: body, over the thread's elements."""
        columns = loop(
            "of_vectors", self.vectors, loop("of_lanes", self.lane, *body, kind="unroll"), kind="unroll"
        )
        return loop("of_rows", self.rows, columns, kind="unroll")

    @property
    def column(self) -> Expr:
        """Of the thread's element (jo, jl), within the block."""
        return self.first_column + Var("of_lanes")

    # --- through shared memory ----------------------------------------------------------------------------

    def staged_sum(self) -> Body:
        multiply = loop("of_depth", self.c.depth // self.terms, *self.multiply())
        return in_steps(self.blocks.steps, self.c.stages, self.staged, (multiply,))

    def staged(self, step: Expr) -> Body:
        """The factors of a step → their place in shared memory."""
        place = slot(step, self.c.stages)

        def factor(buffer: Buffer, by_rows: bool) -> SharedFactor:
            def index(k: Expr, at: Expr) -> tuple[Expr, ...]:
                return (*place, at, k) if by_rows else (*place, k, at)

            return SharedFactor(buffer, index, later=self.c.stages > 1, by_rows=by_rows)

        a, b = self.shared_buffers()
        left, right = factor(a, self.terms > 1), factor(b, False)
        return (*self.blocks.stage_rows(left, step), *self.blocks.stage_columns(right, step))

    def multiply(self) -> Body:
        """One term of the sum for all elements of the thread, or a vector of them."""
        i, jo, jl = self.place
        place, term = slot(Var("of_sums"), self.c.stages), Var("of_terms")
        k: Expr = Var("of_depth")
        if self.terms == 1:
            load = self._load("tile_a", (i,), "shared_a", (*place, k, self.row))
            left = loop("of_rows", self.rows, load, kind=_kind(self.rows))
        else:
            k = k * self.terms + term
            load = self._load("tile_a", (i, term), "shared_a", (*place, self.row, k))
            lanes = loop("of_terms", self.terms, load, kind="vector")
            left = loop("of_rows", self.rows, lanes, kind="unroll")
        load = self._load("tile_b", (jo, jl), "shared_b", (*place, k, self.column))
        lanes = loop("of_lanes", self.lane, load, kind=_kind(self.lane))
        right = loop("of_vectors", self.vectors, lanes, kind="unroll")
        if self.terms == 1:
            return (left, right, self.each(self.add(i)))
        return (left, loop("of_terms", self.terms, right, self.each(self.add(i, term)), kind="unroll"))

    def _load(self, to: str, index: tuple[Expr, ...], source: str, place: tuple[Expr, ...]) -> Stmt:
        return Store(to, index, Load(source, place, self.dtype))

    def add(self, *left: Expr) -> Stmt:
        """The product of a column's factor and the row's, which is where `left` says."""
        _, jo, jl = self.place
        product = Load("tile_a", left, self.dtype) * Load("tile_b", (jo, jl), self.dtype)
        return Store("tile_c", self.place, Load("tile_c", self.place, self.dtype) + product)

    # --- from where the factors are -----------------------------------------------------------------------

    def plain_sum(self) -> Body:
        part = self.blocks.sums_of_part
        k = Var("of_parts") * part + Var("of_sums")
        body = digits(
            self.p.sums, k, (self.plain_rows(k), self.plain_columns(k), self.each(self.add(self.place[0])))
        )
        return (loop("of_sums", part, *body),)

    def plain_rows(self, k: Expr) -> Stmt:
        first = ROW * self.c.tile.block[0] + self.first_row
        return self.read("tile_a", (), self.p.left, self.p.rows, first, self.rows, k)

    def plain_columns(self, k: Expr) -> Stmt:
        jo, p = Var("of_vectors"), self.p
        first = COLUMN * self.c.tile.block[1] + self.first_column
        lanes = self.read("tile_b", (jo,), p.right, p.columns, first, self.lane, k)
        return loop(jo.name, self.vectors, lanes, kind="unroll")

    def read(
        self, to: str, place: tuple[Expr, ...], factor: Expr, axes: Axes, first: Expr, near: int, k: Expr
    ) -> Stmt:
        """Term k of a factor for `near` neighbours, from number `first` on; zero behind the ends."""
        n, step = Var("of_near"), 1
        if near % VECTOR == 0 and lies_in_vectors(factor, axes):
            factor, axes = in_vectors(factor, axes)
            step = VECTOR
        number = s.binary("floordiv", first, step) + n
        limits = [(k, size(self.p.sums))] * (self.blocks.sums_of_part * self.c.parts > size(self.p.sums))
        value = s.select(within(*limits, (number, size(axes))), factor, s.const(0, self.dtype))
        if step == 1:
            store: Stmt = Store(to, (*place, n), value)
        else:
            store = read_vector(to, (*place, n * VECTOR + LANE), value)
        return loop(n.name, near // step, *digits(axes, number, (store,)), kind="unroll")

    # --- results ------------------------------------------------------------------------------------------

    def written(self, epilogue: Epilogue) -> Stmt:
        """The epilogue for every element that exists, by vectors of columns where those are whole."""
        columns = self.p.columns
        if self.lane % VECTOR or columns[-1].extent % VECTOR:
            value = Load("tile_c", self.place, self.dtype)
            return self.each(self.blocks.element(self.row, self.column, epilogue(value)))
        near = Var("of_near")
        value = Load("tile_c", (*self.place[:2], near * VECTOR + LANE), self.dtype)
        number = (
            COLUMN * (self.c.tile.block[1] // VECTOR) + s.binary("floordiv", self.first_column, VECTOR) + near
        )
        stores = self.blocks.vector(self.row, number, epilogue(value))
        vectors = loop(near.name, self.lane // VECTOR, stores, kind="unroll")
        return loop(
            "of_rows", self.rows, loop("of_vectors", self.vectors, vectors, kind="unroll"), kind="unroll"
        )


def _kind(extent: int) -> str:
    return "vector" if extent in (2, 4, 8) else "unroll"
