"""Recurrent cells, a kernel a step, since blocks of threads cannot wait for each other: LSTM, GRU and RNN.

    state, h, c = their first values
    for t:                                                        each iteration a launch
        for blocks of units, blocks of rows:
            sums[gate, row] += state[row, k] · r[gate, unit, k]   each thread its share of k, in registers
            totals[gate, row, unit] = the shares' sums            by exchanges in warps, through shared memory
            y[t], h, c, state = cell(totals)                      a thread a unit and row

The step's number lies in memory, so that all steps are the same two kernels: even ones read `clock[0]` and
set `clock[1]`, odd ones the other way round. So do they with the two halves of `state`. A GRU whose candidate
needs r·h has two kernels for each.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from ...ir import scalar as s
from ...ir.expr import Tensor
from ...ir.loops import Alloc, Barrier, Body, Buffer, If, Program, Stmt, Store, loop, substitute
from ...ir.scalar import Expr, Load, Var
from ...ir.types import I64
from ...kernel_task import Config, KernelTask
from ...ops.packed_recurrence import PACKED, Packed, Phase
from ...target import Gpu
from .common import THREAD, let, over, spread
from .lanes import WARP, can_exchange, joined
from .product import within

THREADS = 256
FEW = 8  # terms of a sum that are worth a thread of their own
MOST_EXCHANGED = 16  # sums of a thread; more are added up sooner through shared memory
ROWS = 8  # of the batch that share one reading of the weights
TERM, ROW, ITEM, SHARE = Var("of_terms"), Var("of_rows"), Var("of_items"), Var("of_shares")


@dataclass(frozen=True)
class Params:
    units: int  # hidden units of a block
    shares: int  # threads that split each unit's sums
    rows: int  # of the batch, in a block
    lane: int  # neighbouring terms of a thread
    exchange: bool  # whether warps add up their shares before they meet


@dataclass(frozen=True)
class Sizes:
    steps: int
    batch: int
    hidden: int
    gates: int
    bytes: int  # of an element


def matches(task: KernelTask) -> bool:
    return type(task.op) in PACKED and all(t is None or t.size for t in (*task.types, *task.output_types))


def sizes(task: KernelTask) -> Sizes:
    y, r = task.output_types[0], task.types[1]
    assert r is not None
    steps, batch, hidden = y.dims
    return Sizes(steps, batch, hidden, r.dims[0] // hidden, y.dtype.bytes)


def params(task: KernelTask, cfg: Config) -> Params:
    gpu, n = task.target.gpu, sizes(task)
    assert gpu is not None
    lanes = [w for w in (1, 2, 4) if n.hidden % w == 0]
    lane = cfg.choose("lane", lanes, lanes[-1] if gpu.warp < 32 else 1)
    needed = [m for m in (1, 2, 4, 8) if m < 2 * n.batch and _registers(n, m, lane) <= gpu.registers] or [1]
    rows = cfg.choose("rows", needed, needed[-1])
    most = min(gpu.block_threads, THREADS)
    shares = [m for m in (1, 2, 4, 8, 16, 32, 64, 128, 256) if m <= most and _fits(n, 1, m, rows, gpu)]
    wanted = [m for m in shares if m == 1 or m <= gpu.warp or m * lane * FEW <= n.hidden]
    split = cfg.choose("shares", shares, max(m for m in wanted if m == 1 or m * lane < 2 * n.hidden))
    units = [m for m in (1, 2, 4, 8, 16, 32, 64) if m * split <= most and _fits(n, m, split, rows, gpu)]
    blocks = [m for m in units if -(-n.hidden // m) * -(-n.batch // rows) >= gpu.units]
    exchange = can_exchange(gpu, task.output_types[0].dtype) and n.gates * rows <= MOST_EXCHANGED
    return Params(cfg.choose("units", units, max(blocks, default=1)), split, rows, lane, exchange)


def _registers(n: Sizes, rows: int, lane: int) -> int:
    return (n.gates * rows + (n.gates + rows) * lane) * -(-n.bytes // 4) + 16


def _fits(n: Sizes, units: int, shares: int, rows: int, gpu: Gpu) -> bool:
    """Whether the sums of all shares fit into the memory of a block."""
    sums = n.gates * units * rows
    return (shares * (sums | 1) + sums) * n.bytes <= (gpu.shared or 16 * 1024)


def schedule(task: KernelTask, p: Params) -> Program:
    builder = _Builder(task, p)
    return Program(task.name, builder.params, builder.body(), builder.temps)


class _Builder:
    def __init__(self, task: KernelTask, p: Params):
        op = task.op
        assert op is not None and task.target.gpu is not None
        self.p, self.n = p, sizes(task)
        self.reverse: bool = op.attributes()["reverse"]
        self.cell: Packed = PACKED[type(op)](**op.attributes())
        self.threads = min(THREADS, task.target.gpu.block_threads)
        self.together = min(WARP, p.shares) if p.exchange else 1
        named = [*zip(type(op).roles, task.types), *zip(("y", "h", "c"), task.output_types)]  # type: ignore[attr-defined]
        self.o = {role: Tensor(role, t.dtype, t.dims) for role, t in named if t is not None}
        self.params = tuple(Buffer(t.name, t.dtype, t.shape) for t in self.o.values())
        self.dtype = self.o["y"].dtype
        self.meeting: Buffer | None = None
        if self.together > 1:
            self.meeting = Buffer("meeting", self.dtype, (p.units * p.shares,), "shared")
        shape = (2, self.n.batch, self.n.hidden)
        states = tuple(Buffer(name, self.dtype, shape, "global") for name in self.cell.temporaries)
        self.o.update({b.name: Tensor(b.name, b.dtype, b.shape) for b in states})
        self.temps = (*states, Buffer("clock", I64, (2,), "global"))

    def body(self) -> Body:
        kernels = [self.step(parity) for parity in (0, 1)]
        first = If(s.both(s.eq(Var("b"), 0), s.eq(Var("j"), 0)), (Store("clock", (s.const(0),), s.const(0)),))
        axes = [("b", self.n.batch), ("j", self.n.hidden)]
        threads = min(self.threads, self.n.batch * self.n.hidden)
        begin = spread(axes, threads, (*self.cell.initial(self.o), first))
        pairs, odd = divmod(self.n.steps, 2)
        twice = (loop("of_pairs", pairs, *kernels[0], *kernels[1]),) if pairs else ()
        return (begin, *twice, *kernels[0] * odd)

    def step(self, parity: int) -> Body:
        """The kernels of all even or all odd steps."""
        phases = self.cell.phases(self.o)
        return tuple(self.kernel(phase, parity, phase is phases[-1]) for phase in phases)

    def kernel(self, phase: Phase, parity: int, last: bool) -> Stmt:
        n, p = self.n, self.p
        count = len(phase.gates) * p.rows * p.units
        of = phase.gates[0]
        lines = p.shares // self.together
        shares = Buffer(f"shares{of}", self.dtype, (lines, count | 1), "shared")  # odd: in different banks
        totals = Buffer(f"totals{of}", self.dtype, (count,), "shared")
        thread: Body = (*self.shares(phase, shares), Barrier(), *self.totals(shares, totals), Barrier())
        thread += (self.cells(phase, totals),)
        if last:
            thread += (self.tick(parity),)
        inner: Body = (over(THREAD, p.units * p.shares, "thread.x", *thread),)
        for buffer in (totals, shares, *filter(None, (self.meeting,))):
            inner = (Alloc(buffer, inner),)
        pair = s.minimum(s.maximum(Load("clock", (s.const(parity),), I64), 0), (n.steps - 1) // 2)
        inner = (let("pair", pair, substitute(inner, {"t": Var("pair") * 2 + parity})),)
        columns = over("block_x", -(-n.hidden // p.units), "block.x", *inner)
        return over("block_y", -(-n.batch // p.rows), "block.y", columns)

    def tick(self, parity: int) -> Stmt:
        first = s.both(*(s.eq(Var(v), 0) for v in ("block_x", "block_y", THREAD)))
        return If(first, (Store("clock", (s.const(1 - parity),), Var("pair") + parity),))

    # --- sums -------------------------------------------------------------------------------------------

    def shares(self, phase: Phase, shares: Buffer) -> Body:
        """This thread's part of its unit's sums, into shared memory."""
        p, gates = self.p, len(phase.gates)
        acc = Buffer(f"sums{phase.gates[0]}", self.dtype, (gates, p.rows), "register")
        total = Tensor(acc.name, self.dtype, acc.shape)
        local, share = Var("local"), Var("share")

        def each(*body: Stmt) -> Stmt:
            return loop("of_gates", gates, loop("of_rows", p.rows, *body, kind="unroll"), kind="unroll")

        at = (Var("of_gates"), ROW)
        zero = each(Store(acc.name, at, s.const(0, self.dtype)))
        number = (Var("of_gates") * p.rows + ROW) * p.units + local
        store: Stmt = Store(shares.name, (share, number), total[at])
        if self.meeting:
            store = self.stored_together(self.meeting, total[at], shares, number)
        body: Body = (Alloc(acc, (zero, *self.sum(phase, acc), each(store))),)
        body = (let("share", s.binary("mod", Var(THREAD), p.shares), body),)
        return (let("local", s.binary("floordiv", Var(THREAD), p.shares), body),)

    def stored_together(self, meeting: Buffer, total: Expr, shares: Buffer, number: Expr) -> Stmt:
        """The sum of a few neighbours' shares, into shared memory."""
        mine, other = (Buffer(name, self.dtype, (), "register") for name in ("mine", "other"))
        value = Load(mine.name, (), self.dtype)
        line, place = (s.binary(op, Var("share"), self.together) for op in ("floordiv", "mod"))
        first = If(s.eq(place, 0), (Store(shares.name, (line, number), value),))
        met = joined(value, other, meeting, 1, self.together, partial(s.binary, "add"))
        return Alloc(mine, (Alloc(other, (Store(mine.name, (), total), *met, first)),))

    def sum(self, phase: Phase, acc: Buffer) -> Body:
        """Neighbouring threads take neighbouring terms, `lane` at a time."""
        n, p, gates = self.n, self.p, len(phase.gates)
        weights = Buffer(f"weights{phase.gates[0]}", self.dtype, (gates, p.lane), "register")
        vector = Buffer("vector", self.dtype, (p.rows, p.lane), "register")
        lane, gate = Var("of_lanes"), Var("of_gates")
        unit = self.clamped(Var("block_x") * p.units + Var("local"), n.hidden, p.units)
        row = self.clamped(Var("block_y") * p.rows + ROW, n.batch, p.rows)
        k = (TERM * p.shares + Var("share")) * p.lane + lane

        def lanes(store: Stmt) -> Stmt:
            return loop("of_lanes", p.lane, store, kind="vector" if p.lane > 1 else "unroll")

        value = s.substitute(phase.vector(), {"b": row, "k": k})
        weight = self.o["r"][(gate + phase.gates[0]) * n.hidden + unit, k]
        product = Load(vector.name, (ROW, lane), self.dtype) * Load(weights.name, (gate, lane), self.dtype)
        at = (gate, ROW)
        add = Store(acc.name, at, Load(acc.name, at, self.dtype) + product)
        body: Body = (
            loop("of_rows", p.rows, lanes(Store(vector.name, (ROW, lane), value)), kind="unroll"),
            loop("of_gates", gates, lanes(Store(weights.name, (gate, lane), weight)), kind="unroll"),
            loop(
                "of_lanes",
                p.lane,
                loop("of_gates", gates, loop("of_rows", p.rows, add, kind="unroll"), kind="unroll"),
                kind="unroll",
            ),
        )
        body = (Alloc(vector, (Alloc(weights, body),)),)
        whole, rest = divmod(n.hidden, p.shares * p.lane)
        terms: Body = (loop("of_terms", whole, *body),) if whole else ()
        if rest:
            first = (TERM * p.shares + Var("share")) * p.lane
            last = If(s.lt(first, n.hidden), body)
            terms += (let("of_terms", s.const(whole), (last,)),)
        return terms

    @staticmethod
    def clamped(index: Expr, extent: int, block: int) -> Expr:
        """The last one instead of those that do not exist: what comes of them is not used."""
        return s.minimum(index, extent - 1) if extent % block else index

    def totals(self, shares: Buffer, totals: Buffer) -> Body:
        """The shares of each sum added up."""
        total = Buffer("total", self.dtype, (), "register")
        value = Load(total.name, (), self.dtype)
        add = Store(total.name, (), value + Load(shares.name, (SHARE, Var("item")), self.dtype))
        body: Body = (
            Store(total.name, (), s.const(0, self.dtype)),
            loop("of_shares", shares.shape[0], add),
            Store(totals.name, (Var("item"),), value),
        )
        return self.dealt(totals.size, (Alloc(total, body),))

    def dealt(self, count: int, body: Body) -> Body:
        """`body` for each item below `count`, by all threads of the block."""
        threads = self.p.units * self.p.shares
        number = ITEM * threads + Var(THREAD)
        if count % threads:
            body = (If(s.lt(Var("item"), count), body),)
        return (loop("of_items", -(-count // threads), let("item", number, body)),)

    # --- cells ------------------------------------------------------------------------------------------

    def cells(self, phase: Phase, totals: Buffer) -> Stmt:
        """What the sums of a unit and row give, where there are such."""
        n, p, o = self.n, self.p, self.o
        b, unit, t = Var("b"), Var("unit"), Var("t")
        end: Expr = s.const(n.steps)
        if "lengths" in o:
            end = s.maximum(s.minimum(s.cast(o["lengths"][b], I64), n.steps), 0)
        time = end - 1 - t if self.reverse else t

        def sum_of(place: int, gate: int) -> Expr:
            total = Load(totals.name, (place * p.rows * p.units + Var("item"),), self.dtype)
            return phase.start(gate, time, unit) + total

        sums = {gate: sum_of(place, gate) for place, gate in enumerate(phase.gates)}
        body: Body = phase.cell(sums, time, unit)
        if "lengths" in o:
            stores = {st.buffer for st in body if isinstance(st, Store)}
            body = (If(s.lt(t, end), body, self.carried(stores, b, unit, t)),)
        if n.batch % p.rows or n.hidden % p.units:
            body = (If(within((b, n.batch), (unit, n.hidden)), body),)
        body = (let("unit", Var("block_x") * p.units + s.binary("mod", Var("item"), p.units), body),)
        row = Var("block_y") * p.rows + s.binary("floordiv", Var("item"), p.units)
        return self.dealt(p.rows * p.units, (let("b", row, body),))[0]

    def carried(self, stores: Collection[str], b: Expr, unit: Expr, t: Expr) -> Body:
        """A row that has ended keeps its state; whatever else others read is zero."""
        zero, state = s.const(0, self.dtype), self.o["state"]
        between = [name for name in self.cell.temporaries if name in stores and name != "state"]
        body: list[Stmt] = [Store(name, (t % 2, b, unit), zero) for name in between]
        if "state" in stores:
            keep = Store("state", ((t + 1) % 2, b, unit), state[t % 2, b, unit])
            body += [keep, Store("y", (t, b, unit), zero)]
        return tuple(body)
