"""What products by tiles share: the loops over blocks, factors on their way to shared memory, results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...ir import scalar as s
from ...ir.affine import linear
from ...ir.expr import Axis
from ...ir.loops import Alloc, Barrier, Body, Buffer, If, Intrinsic, Stmt, Store, loop, substitute
from ...ir.scalar import Expr, Load, Select, Var
from ...kernel_task import Config
from ...target import Gpu
from .common import THREAD, let, over
from .product import Axes, Product, digits, size, within

ROW, COLUMN, BATCH = Var("block_y"), Var("block_x"), Var("block_z")
LANE = Var("of_vector")
MOST_BLOCKS = 65_535  # along y and z of CUDA's grids
VECTOR = 4  # elements that one copy moves
MOST_AHEAD = 8  # elements that a thread moves to shared memory at once, each in a register on its way


@dataclass(frozen=True)
class SharedFactor:
    """Where a factor lies in shared memory: `index` of (k, place) within the block's tile.

    `later`: threads do not wait for what they copy there until `wait_for_copies`; `is_copy` holds of it.
    `by_rows`: neighbouring terms lie side by side there, otherwise neighbouring rows or columns.
    """

    buffer: Buffer
    index: Callable[[Expr, Expr], tuple[Expr, ...]]
    convert: Callable[[Expr], Expr] = lambda e: e
    later: bool = False
    by_rows: bool = False

    def store(self, k: Expr, place: Expr, value: Expr, lanes: int = 1) -> Stmt:
        """Of a value, or of as many neighbours by the variable LANE."""
        store: Stmt = Store(self.buffer.name, self.index(k, place), self.convert(value))
        if lanes > 1:
            store = loop(LANE.name, lanes, store, kind="vector")
        if not self.later:
            return store
        to = Load(self.buffer.name, self.index(k, place), self.buffer.dtype)
        first = (s.substitute(e, {LANE.name: s.const(0)}) for e in (to, value))
        return Intrinsic("copy_async", (*first, s.const(lanes)), (store,))


def is_copy(factor: Expr) -> bool:
    """Whether elements are zero or what is in memory, in words that GPUs copy on their own.

    A copy's address, and what decides whether it is zero, are computed for every element, also where zero is
    copied: nothing may be read for them.
    """
    if isinstance(factor, Select):
        zero = factor.other == s.const(0, factor.dtype)
        return zero and not s.touches_memory(factor.cond) and is_copy(factor.then)
    if not isinstance(factor, Load) or factor.dtype.bytes not in (4, 8):
        return False
    return not any(s.touches_memory(e) for e in factor.index)


def lies_along(factor: Expr, axis: Axis) -> bool:
    """Whether neighbours along the axis lie side by side in memory, and are there or zero together."""
    while isinstance(factor, Select):
        if axis.name in s.variables(factor.cond):
            return False
        factor = factor.then
    if not isinstance(factor, Load) or axis.extent % VECTOR:
        return False
    last = linear(factor.index[-1])
    others = [*factor.index[:-1], *(atom for atom, _ in last.terms if not isinstance(atom, Var))]
    return last.coefficient(axis.name) == 1 and not any(axis.name in s.variables(e) for e in others)


def lies_in_vectors(factor: Expr, axes: Axes) -> bool:
    """Whether `read_vector` reads it, four neighbours along the last axis at a time."""
    return factor.dtype.bytes == 4 and is_copy(factor) and lies_along(factor, axes[-1])


def last_in_vectors(axes: Axes, lanes: int = VECTOR) -> tuple[dict[str, Expr], Axes]:
    """The last of these axes by the number of a vector on it and the variable LANE, and the axes with it."""
    axis = Axis(f"{axes[-1].name}_vector", axes[-1].extent // lanes)
    return {axes[-1].name: Var(axis.name) * lanes + LANE}, (*axes[:-1], axis)


def in_vectors(factor: Expr, axes: Axes) -> tuple[Expr, Axes]:
    """A factor that lies along the last of these axes, vector by vector."""
    at, vectors = last_in_vectors(axes)
    return s.substitute(factor, at), vectors


def read_vector(to: str, place: tuple[Expr, ...], factor: Expr) -> Stmt:
    """A vector of a factor that `is_copy` → places by the variable LANE; zero where it is not there."""

    def lanes(value: Expr) -> Stmt:
        return loop(LANE.name, VECTOR, Store(to, place, value), kind="vector")

    if isinstance(factor, Select):
        return If(factor.cond, (read_vector(to, place, factor.then),), (lanes(factor.other),))
    return lanes(factor)


COMMIT = Intrinsic("commit_copies", (), ())
"""What was copied since the last one is a group."""


def wait_for_copies(but: int) -> Intrinsic:
    """Until all groups but the last ones are there, of this thread."""
    return Intrinsic("wait_copies", (s.const(but),), ())


def sums_of_part(p: Product, parts: int) -> int:
    return -(-p.sizes[3] // parts)


def steps_of(p: Product, parts: int, depth: int) -> int:
    """Along the sum of a part."""
    return -(-sums_of_part(p, parts) // depth)


def slot(step: Expr, stages: int) -> tuple[Expr, ...]:
    """Of a step's factors in shared memory that holds those of several."""
    return () if stages == 1 else (s.binary("mod", step, stages),)


def in_steps(steps: int, stages: int, staged: Callable[[Expr], Body], multiply: Body) -> Body:
    """for of_sums < steps: stage the factors, multiply; where there are several stages, those of the next
    steps are copied while one is multiplied.
    """
    step = Var("of_sums")
    if stages == 1:
        return (loop(step.name, steps, *staged(step), Barrier(), *multiply, Barrier()),)
    ahead = stages - 1
    first = tuple(st for n in range(ahead) for st in (*staged(s.const(n)), COMMIT))
    body = (wait_for_copies(ahead - 1), Barrier(), *staged(step + ahead), COMMIT, *multiply)
    return (*first, loop(step.name, steps, *body), wait_for_copies(0))


def line_of_terms(count: int) -> int:
    """Words from one row's terms to the next's in shared memory: 4 mod 8, so that vectors of neighbouring
    rows lie in different banks.
    """
    return count + (4 - count) % 8


def copies_ahead(gpu: Gpu, p: Product) -> bool:
    """Whether threads need not wait for the factors of the next steps."""
    return gpu.asynchronous and all(is_copy(factor) for factor in (p.left, p.right))


def terms_in_vectors(p: Product, factor: Expr, depth: int, parts: int) -> bool:
    """Whether steps of a factor consist of vectors along the sum."""
    whole = depth % VECTOR == sums_of_part(p, parts) % VECTOR == 0
    return whole and lies_in_vectors(factor, p.sums)


def stages_of(cfg: Config, gpu: Gpu, p: Product, most: int, fits: Callable[[int], bool]) -> int:
    """The question for how many steps' factors are in shared memory at once, by default as many as fit."""
    if not copies_ahead(gpu, p):
        return 1
    options = [1, *(n for n in range(2, most + 1) if fits(n))]
    return cfg.choose("stages", options, options[-1])


@dataclass(frozen=True)
class Blocks:
    """Blocks of threads that each take `tile` rows and columns of a product, `depth` terms of the sum at a
    time; `parts` of them split the sum.
    """

    p: Product
    tile: tuple[int, int]
    threads: int
    depth: int
    parts: int

    @property
    def sums_of_part(self) -> int:
        return sums_of_part(self.p, self.parts)

    @property
    def steps(self) -> int:
        return steps_of(self.p, self.parts, self.depth)

    def around(self, shared: Sequence[Buffer], thread: Body) -> Stmt:
        """The loops over blocks and threads."""
        z, m, n, _ = self.p.sizes
        inner: Body = (over(THREAD, self.threads, "thread.x", *thread),)
        for buffer in shared:
            inner = (Alloc(buffer, inner),)
        at = s.binary("floordiv", BATCH, self.parts)
        inner = digits(self.p.batch, at, inner) if z > 1 else _zeros(self.p.batch, inner)
        inner = (let("of_parts", s.binary("mod", BATCH, self.parts), inner),)
        rows, columns, batch = -(-m // self.tile[0]), -(-n // self.tile[1]), z * self.parts
        if max(rows, batch) > MOST_BLOCKS:
            number, slab = Var("of_blocks"), s.binary("floordiv", Var("of_blocks"), columns)
            inner = (let(COLUMN.name, s.binary("mod", number, columns), inner),)
            inner = (let(ROW.name, s.binary("mod", slab, rows), inner),)
            inner = (let(BATCH.name, s.binary("floordiv", slab, rows), inner),)
            return over(number.name, batch * rows * columns, "block.x", *inner)
        inner = (over(COLUMN.name, columns, "block.x", *inner),)
        inner = (over(ROW.name, rows, "block.y", *inner),)
        return over(BATCH.name, batch, "block.z", *inner)

    def stage_rows(self, to: SharedFactor, step: Expr) -> Body:
        """The left factor's values of this block and step → shared memory."""
        return self._stage(to, step, self.p.left, self.p.rows, ROW, self.tile[0], self.p.along[0])

    def stage_columns(self, to: SharedFactor, step: Expr) -> Body:
        return self._stage(to, step, self.p.right, self.p.columns, COLUMN, self.tile[1], self.p.along[1])

    def _stage(
        self, to: SharedFactor, step: Expr, factor: Expr, axes: Axes, block: Expr, width: int, along: bool
    ) -> Body:
        """A thread moves an element at a time, or a vector where it may copy one."""
        depth, sums, part, lanes = self.depth, self.p.sums, self.sums_of_part, 1
        inside, k_inside = Var("inside"), Var("k_inside")
        place: Expr = inside
        k_place: Expr = k_inside
        if to.later and to.by_rows and terms_in_vectors(self.p, factor, depth, self.parts):
            factor, sums = in_vectors(factor, sums)
            depth, part, lanes = depth // VECTOR, part // VECTOR, VECTOR
            k_place = k_inside * VECTOR + LANE
        elif to.later and not to.by_rows and width % VECTOR == 0 and lies_in_vectors(factor, axes):
            factor, axes = in_vectors(factor, axes)
            width, lanes = width // VECTOR, VECTOR
            place = inside * VECTOR + LANE
        total = depth * width
        count = -(-total // self.threads)
        ahead = max(n for n in range(1, MOST_AHEAD + 1) if count % n == 0)
        number = (Var("of_turns") * ahead + Var("of_items")) * self.threads + Var(THREAD)
        if along:
            across, kk = s.binary("floordiv", number, depth), s.binary("mod", number, depth)
        else:
            kk, across = s.binary("floordiv", number, width), s.binary("mod", number, width)
        k, row = step * depth + k_inside, inside + block * width
        limits = [(k, part), (Var("of_parts") * part + k, size(sums)), (row, size(axes))]
        value = s.select(within(*limits), factor, s.const(0, factor.dtype))
        store: Body = (to.store(k_place, place, value, lanes),)
        store = digits(axes, row, _terms(sums, part, depth, step, store))
        store = (let("inside", across, (let("k_inside", kk, store),)),)
        if total % self.threads:
            store = (If(s.lt(number, total), store),)
        turn = loop("of_items", ahead, *store, kind="unroll")
        return (loop("of_turns", count // ahead, turn),)

    def element(self, row: Expr, column: Expr, body: Body) -> Stmt:
        """`body` for one element by its place within the block, if it exists."""
        row, column = ROW * self.tile[0] + row, COLUMN * self.tile[1] + column
        body = digits(self.p.rows, row, digits(self.p.columns, column, body))
        return If(within((row, size(self.p.rows)), (column, size(self.p.columns))), body)

    def vector(self, row: Expr, number: Expr, body: Body, lanes: int = VECTOR) -> Stmt:
        """`body` for neighbouring columns, by the variable LANE, if the vector of this number exists."""
        row = ROW * self.tile[0] + row
        at, axes = last_in_vectors(self.p.columns, lanes)
        each = loop(LANE.name, lanes, *substitute(body, at), kind="vector")
        body = digits(self.p.rows, row, digits(axes, number, (each,)))
        return If(within((row, size(self.p.rows)), (number, size(axes))), body)


def _zeros(axes: Axes, body: Body) -> Body:
    for axis in axes:
        body = (let(axis.name, s.const(0), body),)
    return body


def _terms(sums: Axes, part: int, depth: int, step: Expr, body: Body) -> Body:
    """`body` where the axes of the sum are the digits of `k_inside` in a step of `depth` of a part's terms.

    The inner ones, along which whole steps fit, are counted in the step; others are then the same for all
    threads.
    """
    inner = next((sums[n:] for n in range(1, len(sums)) if size(sums[n:]) % depth == 0), ())
    if not inner or part % depth:
        return digits(sums, Var("of_parts") * part + step * depth + Var("k_inside"), body)
    number, repeat = Var("of_parts") * (part // depth) + step, size(inner) // depth
    inside = s.binary("mod", number, repeat) * depth + Var("k_inside")
    body = digits(inner, inside, body)
    return digits(sums[: -len(inner)], s.binary("floordiv", number, repeat), body)
