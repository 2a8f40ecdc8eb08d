"""Reductions and what surrounds them, a block of threads a row: softmax, normalisations, matrix times vector.

    for blocks of rows:
        top = max over k of x[row, k]           each thread its share of k, then by halves (met, met_in_warps)
        powers[k] = exp(x[row, k] - top)        each thread its share, then a barrier
        total = sum over k of powers[k]
        y[row, k] = powers[k] / total

All stages that share rows (row_axes.py) are one kernel. Where memory is contiguous along the rows, a block
takes several of them, so that neighbouring threads read neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce

from ...ir import scalar as s
from ...ir.expr import Axis, Stage, TensorExpr
from ...ir.loops import Alloc, Barrier, Body, Buffer, If, Program, Stmt, Store, loop
from ...ir.scalar import Expr, Load, Var
from ...kernel_task import Config, KernelTask
from ...schedule.canonical import canonical
from ...schedule.nest import combine, identity_of
from ...schedule.split_axes import split_divided_axes
from ...target import Gpu
from ..access import shapes_of, stride
from ..common import prepared
from ..memo import per_task
from ..row_axes import Group, groups_of
from ..rows import extremes_for_positions
from .common import THREAD, over
from .grid import kernel
from .lanes import WARP, Join, can_exchange, joined
from .product import digits, size

THREADS = 256
LINE = 8  # neighbouring f32 that one access to memory moves
SHORTEST = 32  # terms of a reduction that are worth a block's meeting


@dataclass(frozen=True)
class Params:
    """By group of stages: rows of a block, threads that share each."""

    rows: tuple[int, ...]
    threads: tuple[int, ...]


def matches(task: KernelTask) -> bool:
    if task.expr is None or not all(st.type.size for st in task.expr.stages):
        return False
    terms = [size(st.reduce.axes) for st in grouped(task)[0].stages if st.reduce]
    return bool(terms) and 0 not in terms and max(terms) >= SHORTEST


def params(task: KernelTask, cfg: Config) -> Params:
    expr, groups = grouped(task)
    gpu = task.target.gpu
    assert gpu is not None
    rows, threads = [], []
    for n, group in enumerate(groups):
        best = best_shape(expr, group, gpu)
        rows.append(
            cfg.choose(f"rows{n}", [r for r in (1, 2, 4, 8, 16, 32) if r <= gpu.block_threads], best[0])
        )
        most = min(gpu.block_threads, THREADS) // rows[-1]
        options = [t for t in (1, 2, 4, 8, 16, 32, 64, 128, 256) if t <= most]
        threads.append(cfg.choose(f"threads{n}", options, min(best[1], most)))
    return Params(tuple(rows), tuple(threads))


@per_task
def grouped(task: KernelTask) -> tuple[TensorExpr, list[Group]]:
    return groups_of(extremes_for_positions(canonical(split_divided_axes(prepared(task)))), 1)


def best_shape(expr: TensorExpr, group: Group, gpu: Gpu) -> tuple[int, int]:
    """(rows, threads of each): several rows where neighbouring rows are neighbours in memory, as few as fill
    a line of the cache while there are fewer blocks than units."""
    stages = [expr.stage(name) for name in group.stages]
    terms = max((size(inner_axes(st, group)) for st in stages), default=1)
    threads = min(THREADS, gpu.block_threads, max(1, 1 << (terms - 1).bit_length()))
    last = group.rows[-1] if group.rows else ""
    if not last or not any(_along(st, last, expr) for st in stages):
        return 1, threads
    extent = next(a.extent for a in stages[0].axes if a.name == last)
    rows = min(32, 1 << (extent - 1).bit_length())
    every = size(tuple(a for a in stages[0].axes if a.name in group.rows))
    while rows > LINE and -(-every // rows) < gpu.units:
        rows //= 2
    return rows, max(1, min(threads, THREADS // rows))


def _along(st: Stage, axis: str, expr: TensorExpr) -> bool:
    """Whether a load of the reduction moves to its neighbour along the axis."""
    shapes = shapes_of(expr)
    extents = {a.name: a.extent for a in st.all_axes}
    loads = s.loads(st.body) if st.reduce else []
    return any(stride(ld.index, shapes[ld.tensor], axis, extents[axis], 2) == 1 for ld in loads)


def inner_axes(st: Stage, group: Group) -> tuple[Axis, ...]:
    """The axes that one row goes through, sums included."""
    return tuple(a for a in st.all_axes if a.name not in group.rows)


def schedule(task: KernelTask, p: Params) -> Program:
    expr, groups = grouped(task)
    assert task.target.gpu is not None
    most = min(THREADS, task.target.gpu.block_threads)
    params = [Buffer(name, type.dtype, type.dims) for name, type in expr.params]
    params += [Buffer(name, expr.stage(name).dtype, expr.stage(name).shape) for name in expr.outputs]
    body: list[Stmt] = []
    temps: list[Buffer] = []
    for group, rows, threads in zip(groups, p.rows, p.threads):
        stages = [expr.stage(name) for name in group.stages]
        block = _Block(expr, group, rows, threads, task.target.gpu)
        if not any(st.reduce for st in stages):
            block.stored = set(group.stages)
            body += [kernel([st], expr, most) for st in stages]
        else:
            body.append(block.statement(stages))
        temps += [
            Buffer(st.name, st.dtype, st.shape, "global")
            for st in stages
            if st.name in block.stored and st.name not in expr.outputs
        ]
    return Program(task.name, tuple(params), tuple(body), tuple(temps))


class _Block:
    """The kernel of one group: `rows` rows, each shared by `threads` threads."""

    def __init__(self, expr: TensorExpr, group: Group, rows: int, threads: int, gpu: Gpu):
        self.expr, self.group, self.rows, self.threads, self.gpu = expr, group, rows, threads, gpu
        self.axes = tuple(a for a in expr.stage(group.stages[0]).axes if a.name in group.rows)
        self.axes = tuple(sorted(self.axes, key=lambda a: group.rows.index(a.name)))
        self.row = s.binary("mod", Var(THREAD), rows)
        self.share = s.binary("floordiv", Var(THREAD), rows)
        self.item = Var("block_x") * rows + self.row
        self.values: dict[str, Load] = {}  # stages of one value a row, in registers
        self.stored: set[str] = set()

    def statement(self, stages: Sequence[Stage]) -> Stmt:
        body: Body = ()
        allocs: list[Buffer] = []
        shared: list[Buffer] = []
        for st in stages:
            if all(a.name in self.group.rows for a in st.axes):
                register = Buffer(f"{st.name}_r", st.dtype, (), "register")
                allocs.append(register)
                body += self.value(st, register, shared)
                self.values[st.name] = Load(register.name, (), st.dtype)
            else:
                body += self.elements(st)
        for buffer in allocs:
            body = (Alloc(buffer, body),)
        body = (over(THREAD, self.rows * self.threads, "thread.x", *body),)
        for buffer in shared:
            body = (Alloc(buffer, body),)
        return over("block_x", -(-size(self.axes) // self.rows), "block.x", *body)

    def at_row(self, body: Body, guarded: bool = True) -> Body:
        """`body` where the row's axes are known; `guarded`: only if there is such a row."""
        ragged = size(self.axes) % self.rows != 0
        item = s.minimum(self.item, size(self.axes) - 1) if ragged and not guarded else self.item
        body = digits(self.axes, item, body)
        return (If(s.lt(self.item, size(self.axes)), body),) if ragged and guarded else body

    def with_values(self, e: Expr) -> Expr:
        """Stages of one value a row read from registers."""

        def put(x: Expr) -> Expr | None:
            return self.values.get(x.tensor) if isinstance(x, Load) else None

        return s.transform(e, put)

    def value(self, st: Stage, register: Buffer, shared: list[Buffer]) -> Body:
        """One value of the row, in all of its threads."""
        result = Load(register.name, (), st.dtype)
        if st.reduce is None:
            body = self.at_row((Store(register.name, (), self.with_values(st.body)),), guarded=False)
        else:
            meeting = Buffer(f"{st.name}_s", st.dtype, (self.threads * self.rows,), "shared")
            op = st.reduce.op
            add = Store(register.name, (), combine(op, result, self.with_values(st.body)))
            body = (Store(register.name, (), identity_of(op, st)),)
            body += self.at_row(self.dealt(st.reduce.axes, (add,)), guarded=False)
            if self.threads > 1:
                shared.append(meeting)
                met = self.met_in_warps if can_exchange(self.gpu, st.dtype) else self.met
                body += met(meeting, result, partial(combine, op))
        if self.leaves(st):
            self.stored.add(st.name)
            store = Store(st.name, tuple(Var(a.name) for a in st.axes), result)
            first: Body = (If(s.eq(self.share, 0), (store,)),) if self.threads > 1 else (store,)
            body += self.at_row(first)
        return body

    def met(self, meeting: Buffer, mine: Load, join: Join) -> Body:
        """The values of a row's threads joined by halves; all of them then have the result."""

        def at(share: Expr) -> Load:
            return Load(meeting.name, (share * self.rows + self.row,), meeting.dtype)

        body: list[Stmt] = [Store(meeting.name, (Var(THREAD),), mine), Barrier()]
        half = self.threads // 2
        while half:
            store = Store(meeting.name, (Var(THREAD),), join(at(self.share), at(self.share + half)))
            body += [If(s.lt(self.share, half), (store,)), Barrier()]
            half //= 2
        return (*body, Store(mine.tensor, (), at(s.const(0))))

    def met_in_warps(self, meeting: Buffer, mine: Load, join: Join) -> Body:
        """As `met`: the threads of a warp take each other's registers, warps meet once."""
        other = Buffer(f"{mine.tensor}_other", mine.dtype, (), "register")
        within = joined(mine, other, meeting, self.rows, min(WARP, meeting.size), join)
        body: list[Stmt] = [Alloc(other, within)]
        warps = meeting.size // WARP
        if warps > 1:
            warp, lane = (s.binary(op, Var(THREAD), WARP) for op in ("floordiv", "mod"))
            first = Store(meeting.name, (warp * self.rows + lane,), mine)
            body += [If(s.lt(lane, self.rows), (first,)), Barrier()]
            places = (self.row + n * self.rows for n in range(warps))
            of_warps: list[Expr] = [Load(meeting.name, (place,), mine.dtype) for place in places]
            body.append(Store(mine.tensor, (), reduce(join, of_warps)))
        return tuple(body)

    def elements(self, st: Stage) -> Body:
        """A stage of several values a row, each thread its share; a barrier, since others may read them."""
        own = tuple(a for a in st.axes if a.name not in self.group.rows)
        self.stored.add(st.name)
        index = tuple(Var(a.name) for a in st.axes)
        if st.reduce is None:
            inner: Body = (Store(st.name, index, self.with_values(st.body)),)
        else:
            register = Buffer(f"{st.name}_r", st.dtype, (), "register")
            result = Load(register.name, (), st.dtype)
            add: Body = (Store(register.name, (), combine(st.reduce.op, result, self.with_values(st.body))),)
            for a in reversed(st.reduce.axes):
                add = (loop(a.name, a.extent, *add),)
            init = Store(register.name, (), identity_of(st.reduce.op, st))
            inner = (Alloc(register, (init, *add, Store(st.name, index, result))),)
        return (*self.at_row(self.dealt(own, inner)), Barrier())

    def dealt(self, axes: tuple[Axis, ...], body: Body) -> Body:
        """`body` for this thread's share of the axes' points."""
        total = size(axes)
        number = Var("of_share") * self.threads + self.share
        body = digits(axes, number, body)
        if total % self.threads:
            body = (If(s.lt(number, total), body),)
        return (loop("of_share", -(-total // self.threads), *body),)

    def leaves(self, st: Stage) -> bool:
        """Whether another kernel, or the caller, needs the stage."""
        others = (x for x in self.expr.stages if x.name not in self.group.stages)
        return st.name in self.expr.outputs or any(
            load.tensor == st.name for x in others for load in s.loads(x.body)
        )
