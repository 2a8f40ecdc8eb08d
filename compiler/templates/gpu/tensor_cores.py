"""Sums of products by tensor cores: as tiles.py, but that a warp multiplies its tile by one instruction.

    for batch, blocks of rows, blocks of columns:                    a block of warps takes BM × BN elements
        for k, BK at a time:
            As[BK, BM], Bs[BK, BN] = the factors                     all threads, then a barrier
            for kk < BK, 8 words at a time:
                acc[I, J, 2, 2] += As[kk…, rows] · Bs[kk…, columns]  each warp, 16·I × 8·J, then a barrier
        y[i, j] = f(acc)

Factors are rounded to TF32 (10 bits of fraction), f16 or bf16; sums are kept in f32. Words of shared memory
hold one f32 or two 16-bit values that are neighbours along k. A factor whose terms lie side by side in memory
lies so there, too, As[BM, BK], and whole fragments are loaded at once. Lines of words are 8 mod 32 banks
apart, those of terms 4 mod 8, so that the loads of a warp's fragments do not meet in their banks. Factors for
TF32 are copied as they are, those of the next steps while one is multiplied, and rounded on their way from
shared memory, but for a convolution's weights, which are constants and were rounded when compiling.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...ir import scalar as s
from ...ir.loops import Alloc, Body, Buffer, Intrinsic, Program, Stmt, Store, loop
from ...ir.scalar import Expr, Load, Var
from ...ir.types import BF16, F16, F32, U32, DType, Layout
from ...kernel_task import Config, KernelTask
from ...ops.fused import FusedOp
from ...ops.matmul import MatMul
from ...target import Gpu
from ..algorithm import Algorithm, Layouts, Rounding, Work
from ..conv_parts import geometry, weights_position
from . import implicit
from .common import THREAD
from .product import Product, main_product
from .staging import (
    COLUMN,
    LANE,
    Blocks,
    SharedFactor,
    in_steps,
    is_copy,
    line_of_terms,
    slot,
    stages_of,
    steps_of,
)
from .tiles import MOVED, THREADS, WARPS, Epilogue, parts_of, split_sum

ROWS, COLUMNS, WORDS = 16, 8, 8
"""Of one instruction: C is 16 × 8, the words along k are 8."""
PAIR = 2  # columns side by side of which a thread holds the sums
BANKS = LANES = 32  # of shared memory; of a warp
LEAST = 8  # rows, columns and terms of a product below which most of an instruction is padding
STAGES = 4  # as in tiles.py; a warp is done with a step sooner
REGISTERS = 224
"""Of a thread: fewer warps than elsewhere keep tensor cores busy, and more sums of each read factors less
often."""
PRODUCT_RATE = 4.0  # of the peak in f32
_WARPS = ((2, 2), (1, 4), (4, 1), (2, 4), (4, 2), (1, 2), (2, 1), (1, 1))
_FRAGMENTS = ((4, 4), (2, 8), (4, 8), (2, 4), (4, 2), (2, 2), (1, 4), (1, 8), (1, 2), (1, 1))


@dataclass(frozen=True)
class Precision:
    """What factors are rounded to. `error`: of a sum of products, over the largest."""

    name: str
    dtype: DType
    error: float

    @property
    def packed(self) -> int:
        """Values in a word."""
        return 4 // self.dtype.bytes

    def stored(self, value: Expr) -> Expr:
        """As it lies in shared memory: TF32 is rounded where it is multiplied."""
        return s.cast(value, self.dtype)

    def multiplied(self, stored: Expr, rounded: bool = False) -> Expr:
        if self.dtype is F32:
            return stored if rounded else tf32(stored)
        return s.cast(stored, F32)


PRECISIONS = {
    p.name: p
    for p in (Precision("tf32", F32, 1e-3), Precision("f16", F16, 1e-3), Precision("bf16", BF16, 8e-3))
}


def tf32(value: Expr) -> Expr:
    """Rounded to the nearest TF32, away from zero in ties, as PTX's cvt.rna.tf32.f32 does; from sm_90 on to
    the even one. What is no number stays none in the bits that are left of it."""
    bits = s.call("bitcast_u32", value)
    rounded = s.binary("and", s.binary("add", bits, s.const(0x1000, U32)), s.const(0xFFFFE000, U32))
    none = s.binary("or", bits, s.const(0x00400000, U32))
    return s.call("bitcast_f32", s.select(s.call("isnan", value), none, rounded))


# --- what the planner asks ------------------------------------------------------------------------------


def fits(op: FusedOp, lanes: int) -> bool:
    if implicit.fits(op, lanes):
        g = geometry(op)
        return min(g.out_channels, g.batch * g.pixels, g.channels * g.taps) >= LEAST
    return _products(op) > 0


def _products(op: FusedOp) -> int:
    """Multiply-adds of matrices of f32 that are large enough."""
    total = 0
    for node in op.graph.nodes:
        types = [op.graph.types[v] for v in node.reads[:2]]
        if not isinstance(node.op, MatMul) or any(t.dtype is not F32 or t.rank < 2 for t in types):
            continue
        data, other = (t.dims[-2:] for t in types)
        terms, rows = data if node.op.trans_a else data[::-1]
        columns = other[0 if node.op.trans_b else 1]
        if min(rows, columns, terms) >= LEAST:
            total += op.graph.types[node.outputs[0]].size * terms
    return total


def layouts(op: FusedOp, lanes: int) -> tuple[Layouts, ...]:
    return implicit.layouts(op, lanes) if implicit.fits(op, lanes) else ((None, None),)


def weights(op: FusedOp, lanes: int) -> Mapping[int, Layout]:
    """Those of a convolution lie with their channels last, as terms of the sum; matrices as they are."""
    return {weights_position(op): implicit.LAST} if implicit.fits(op, lanes) else {}


def rounded_weights(op: FusedOp, lanes: int) -> Mapping[int, Rounding]:
    return {position: Rounding(layout, rounded) for position, layout in weights(op, lanes).items()}


def rounded(array: np.ndarray) -> np.ndarray:
    """As `tf32`."""
    bits = array.view(np.uint32)
    nearest = (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.where(np.isnan(array), bits | np.uint32(0x00400000), nearest).view(np.float32)


def work(op: FusedOp, lanes: int) -> Work:
    if implicit.fits(op, lanes):
        return replace(implicit.work(op, lanes), rate=PRODUCT_RATE)
    return Work(_products(op), PRODUCT_RATE, 0.0)


def _algorithm(p: Precision) -> Algorithm:
    packs = rounded_weights if p.dtype is F32 else weights
    return Algorithm(f"tensor_{p.name}", fits, layouts, packs, work, p.error, "gpu", p.name)


ALGORITHMS = tuple(map(_algorithm, PRECISIONS.values()))


# --- the template ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tile:
    """A block's warps along rows and columns, and how often each repeats its instruction along both."""

    warps: tuple[int, int]
    fragments: tuple[int, int]

    @property
    def block(self) -> tuple[int, int]:
        return self.warps[0] * self.fragments[0] * ROWS, self.warps[1] * self.fragments[1] * COLUMNS

    @property
    def warp_count(self) -> int:
        return self.warps[0] * self.warps[1]


@dataclass(frozen=True)
class Words:
    """Those of a factor in shared memory: `terms` along the sum of each of `width` rows or columns."""

    width: int
    terms: int
    by_rows: bool  # terms lie side by side, otherwise rows or columns do

    @property
    def shape(self) -> tuple[int, int]:
        """With what keeps lines in different banks."""
        if self.by_rows:
            return self.width, line_of_terms(self.terms)
        return self.terms, self.width + (WORDS - self.width) % BANKS

    @property
    def strides(self) -> tuple[int, int]:
        """From one term to the next, from one row or column to the next."""
        return (1, self.shape[1]) if self.by_rows else (self.shape[1], 1)

    def place(self, term: Expr, across: Expr) -> tuple[Expr, Expr]:
        return (across, term) if self.by_rows else (term, across)


def words_of(p: Product, tile: Tile, depth: int, precision: Precision) -> tuple[Words, Words]:
    """Of both factors in one step."""
    left, right = (
        Words(width, depth // precision.packed, along) for width, along in zip(tile.block, p.along)
    )
    return left, right


@dataclass(frozen=True)
class Params:
    tile: Tile
    depth: int  # terms of the sum that are in shared memory at once
    parts: int  # that the sum is split into
    stages: int  # steps whose factors are in shared memory at once


def matches(task: KernelTask) -> bool:
    p, gpu = main_product(task), task.target.gpu
    if p is None or gpu is None or not gpu.tensor or _precision(task) is None:
        return False
    return p.group[0].dtype is F32 and all(factor.dtype is F32 for factor in (p.left, p.right))


def _precision(task: KernelTask) -> Precision | None:
    return PRECISIONS.get(task.transformed.removeprefix("tensor_"))


def params(task: KernelTask, cfg: Config) -> Params:
    p, gpu, precision = main_product(task), task.target.gpu, _precision(task)
    assert p is not None and gpu is not None and precision is not None
    parts = parts_of(p)
    ranked = ranked_tiles(p, gpu, precision, parts)
    options = tuple((t.warps, t.fragments) for t in ranked)
    tile = Tile(*cfg.choose("tile", options, options[0]))
    depths = [d for d in (8, 16, 32, 64) if _fits_shared(p, tile, d, gpu, precision)]
    depth = cfg.choose("depth", depths, max(d for d in depths if d <= 16 * precision.packed))
    part = cfg.choose("parts", parts, _best_parts(p, tile, gpu, precision, parts))
    stages = 1
    if precision.dtype is F32:
        most = min(STAGES, steps_of(p, part, depth))
        stages = stages_of(cfg, gpu, p, most, lambda n: _fits_shared(p, tile, depth, gpu, precision, n))
    return Params(tile, depth, part, stages)


def schedule(task: KernelTask, p: Params) -> Program:
    precision = _precision(task)
    assert precision is not None

    def tiled(product: Product, epilogue: Epilogue) -> Stmt:
        rounded = _rounded_before(task, product) if precision.dtype is F32 else (False, False)
        builder = _Builder(product, p, precision, rounded)
        return builder.blocks.around((builder.a, builder.b), builder.thread(epilogue))

    return split_sum(task, p.parts, tiled)


def _rounded_before(task: KernelTask, p: Product) -> tuple[bool, bool]:
    """Which of the factors `rounded_weights` has rounded, of a product in TF32."""
    assert isinstance(task.op, FusedOp) and task.expr is not None
    names = {task.expr.params[n][0] for n in weights(task.op, task.target.lanes(4))}
    left, right = (is_copy(f) and {x.tensor for x in s.loads(f)} <= names for f in (p.left, p.right))
    return left, right


def ranked_tiles(p: Product, gpu: Gpu, precision: Precision, parts: Sequence[int]) -> list[Tile]:
    """The tiles that fit the GPU, those with the least predicted time first."""
    tiles = (Tile(w, f) for w in _WARPS for f in _FRAGMENTS)
    fitting = [t for t in tiles if _fits(p, t, gpu, precision)]
    time = {t: min(predicted_time(p, t, gpu, precision, n) for n in parts) for t in fitting}
    return sorted(fitting, key=time.__getitem__)


def _fits(p: Product, tile: Tile, gpu: Gpu, precision: Precision) -> bool:
    i, j = tile.fragments
    enough = tile.warp_count * LANES <= min(gpu.block_threads, THREADS)
    least = WORDS * precision.packed
    return (
        enough
        and 4 * i * j + 4 * i + 2 * j + 32 <= REGISTERS
        and _fits_shared(p, tile, least, gpu, precision)
    )


def _fits_shared(p: Product, tile: Tile, depth: int, gpu: Gpu, precision: Precision, stages: int = 1) -> bool:
    if depth % (WORDS * precision.packed):
        return False
    words = sum(math.prod(w.shape) for w in words_of(p, tile, depth, precision))
    return 4 * words * stages <= gpu.shared


def _best_parts(p: Product, tile: Tile, gpu: Gpu, precision: Precision, parts: Sequence[int]) -> int:
    return min(parts, key=lambda n: predicted_time(p, tile, gpu, precision, n))


def predicted_time(p: Product, tile: Tile, gpu: Gpu, precision: Precision, parts: int) -> float:
    """As that of tiles.py, in multiply-adds of a unit's f32 arithmetic; fragments are what a warp reads."""
    z, m, n, k = p.sizes
    (i, j), area = tile.fragments, tile.block[0] * tile.block[1]
    fragments = (1 / (i * ROWS) + 1 / (j * COLUMNS)) / precision.packed
    term = area * (1 / (gpu.tensor * precision.packed) + fragments) + MOVED * sum(tile.block)
    each = term * k / parts + (2 * MOVED * area if parts > 1 else 0)
    blocks = z * -(-m // tile.block[0]) * -(-n // tile.block[1]) * parts
    resident = tile.warp_count * min(4.0, max(1.0, blocks / gpu.units))
    return -(-blocks // gpu.units) * each * max(1.0, WARPS / resident)


class _Builder:
    """What one thread does."""

    place = (Var("of_rows"), Var("of_columns"), Var("of_halves"), Var("of_pairs"))

    def __init__(self, product: Product, config: Params, precision: Precision, rounded: tuple[bool, bool]):
        self.config, self.precision, self.rounded = config, precision, rounded
        tile = config.tile
        self.blocks = Blocks(product, tile.block, tile.warp_count * LANES, config.depth, config.parts)
        self.words = words_of(product, tile, config.depth, precision)
        places = () if config.stages == 1 else (config.stages,)
        self.a, self.b = (
            Buffer(name, precision.dtype, (*places, *words.shape, precision.packed), "shared")
            for name, words in zip(("shared_a", "shared_b"), self.words)
        )
        self.acc = Buffer("tile_c", F32, (*tile.fragments, 2, 2), "register")
        lane, warp = (s.binary(op, Var(THREAD), LANES) for op in ("mod", "floordiv"))
        i, j, half, pair = self.place
        self.first_row = s.binary("floordiv", warp, tile.warps[1]) * (tile.fragments[0] * ROWS)
        self.first_column = s.binary("mod", warp, tile.warps[1]) * (tile.fragments[1] * COLUMNS)
        self.row = self.first_row + i * ROWS + half * 8 + s.binary("floordiv", lane, 4)
        self.column = self.first_column + j * COLUMNS + s.binary("mod", lane, 4) * 2 + pair

    def thread(self, epilogue: Epilogue) -> Body:
        body: Body = (
            self.each(Store("tile_c", self.place, s.const(0, F32))),
            *self.sum(),
            self.written(epilogue),
        )
        return (Alloc(self.acc, body),)

    def each(self, body: Stmt, axes: int = 4) -> Stmt:
        """For every element of the thread, or every pair, where `axes` are three."""
        for var, extent in reversed(list(zip(self.place, self.acc.shape))[:axes]):
            body = loop(var.name, extent, body, kind="unroll")
        return body

    def written(self, epilogue: Epilogue) -> Stmt:
        """The epilogue for every element that exists, by pairs of columns where those are whole."""
        if self.blocks.p.columns[-1].extent % PAIR:
            value = Load("tile_c", self.place, F32)
            return self.each(self.blocks.element(self.row, self.column, epilogue(value)))
        first = s.substitute(self.column, {self.place[-1].name: s.const(0)})
        number = COLUMN * (self.config.tile.block[1] // PAIR) + s.binary("floordiv", first, PAIR)
        value = Load("tile_c", (*self.place[:-1], LANE), F32)
        return self.each(self.blocks.vector(self.row, number, epilogue(value), PAIR), axes=3)

    def sum(self) -> Body:
        multiply = loop("of_depth", self.words[0].terms // WORDS, self.multiply())
        return in_steps(self.blocks.steps, self.config.stages, self.staged, (multiply,))

    def staged(self, step: Expr) -> Body:
        """The factors of a step → their place in shared memory; TF32 as they are."""
        near, place = self.precision.packed, slot(step, self.config.stages)

        def factor(buffer: Buffer, words: Words) -> SharedFactor:
            def index(k: Expr, at: Expr) -> tuple[Expr, ...]:
                return *place, *words.place(s.binary("floordiv", k, near), at), s.binary("mod", k, near)

            return SharedFactor(buffer, index, self.precision.stored, self.config.stages > 1, words.by_rows)

        a, b = self.words
        return (
            *self.blocks.stage_rows(factor(self.a, a), step),
            *self.blocks.stage_columns(factor(self.b, b), step),
        )

    def multiply(self) -> Intrinsic:
        first, zero = Var("of_depth") * WORDS, s.const(0)
        place = slot(Var("of_sums"), self.config.stages)
        word, value = first + Var("of_words"), Var("of_values")
        a, b = self.words
        left, right = (
            self.precision.multiplied(Load(f.name, (*place, *words.place(word, at), value), f.dtype), before)
            for f, words, at, before in zip((self.a, self.b), (a, b), (self.row, self.column), self.rounded)
        )
        total = Load("tile_c", self.place, F32) + left * right
        terms = loop("of_values", self.precision.packed, self.each(Store("tile_c", self.place, total)))
        operands = (
            Load("tile_c", (zero,) * 4, F32),
            Load(self.a.name, (*place, *a.place(first, self.first_row), zero), self.a.dtype),
            *map(s.const, a.strides),
            Load(self.b.name, (*place, *b.place(first, self.first_column), zero), self.b.dtype),
            *map(s.const, b.strides),
        )
        only = {(True, False): "_b", (False, True): "_a"}.get(self.rounded, "")
        return Intrinsic(f"mma_{self.precision.name}{only}", operands, (loop("of_words", WORDS, terms),))
