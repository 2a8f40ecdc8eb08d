"""The kernels of recurrent cells.

`Stepwise`, where blocks of threads cannot wait for each other, or weights do not fit:

    state, h, c = their first values
    for t:                                                        each iteration a launch
        for blocks of units, blocks of rows:
            sums[gate, row] += state[row, k] · r[gate, unit, k]   each thread its share of k, in registers
            totals[gate, row, unit] = the shares' sums            by exchanges in warps, through shared memory
            y[t], h, c, state = cell(totals)                      a thread a unit and row

The step's number lies in memory, so that all steps are the same two kernels: even ones read `clock[0]` and
set `clock[1]`, odd ones the other way round. So do they with the two halves of `state`. A GRU whose candidate
needs r·h has two kernels for each.

`Resident`, where they can: a launch for all steps, in which each thread reads its part of the weights once,
into registers, and blocks meet where a kernel would end.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from ...ir import scalar as s
from ...ir.expr import Tensor
from ...ir.loops import Alloc, Barrier, Body, Buffer, If, Intrinsic, Stmt, Store, loop, substitute
from ...ir.scalar import Expr, Load, Var
from ...ir.types import I32, I64
from ...kernel_task import KernelTask
from ...ops.packed_recurrence import PACKED, Packed, Phase
from .common import THREAD, let, over, spread
from .lanes import WARP, joined
from .product import within

BLOCK_THREADS = 256  # of the kernel that sets the first values
TERM, ROW, ITEM, SHARE = Var("of_terms"), Var("of_rows"), Var("of_items"), Var("of_shares")
GATE, LANE = Var("of_gates"), Var("of_lanes")
FIRST = s.const(0)


@dataclass(frozen=True)
class Params:
    units: int  # hidden units of a block
    shares: int  # threads that split each unit's sums
    rows: int  # of the batch, in a block
    lane: int  # neighbouring terms of a thread
    exchange: bool  # whether warps add up their shares before they meet
    resident: bool  # whether one kernel holds the weights and does all steps


@dataclass(frozen=True)
class Sizes:
    steps: int
    batch: int
    hidden: int
    gates: int
    bytes: int  # of an element


class _Cells:
    """What both kinds share: a phase of one step, by the blocks of one kernel."""

    def __init__(self, task: KernelTask, p: Params, n: Sizes):
        op = task.op
        assert op is not None and task.target.gpu is not None
        self.p, self.n = p, n
        self.reverse: bool = op.attributes()["reverse"]
        self.cell: Packed = PACKED[type(op)](**op.attributes())
        self.threads = min(BLOCK_THREADS, task.target.gpu.block_threads)
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
        self.phases = self.cell.phases(self.o)
        self.temps = (*states, self.word)

    @property
    def word(self) -> Buffer:
        """By which kernels, or blocks, know of each other; 0 at first."""
        raise NotImplementedError

    def begin(self) -> Stmt:
        """The kernel that sets the first values."""
        zero = Store(self.word.name, (FIRST,), s.const(0, self.word.dtype))
        first = If(s.both(s.eq(Var("b"), 0), s.eq(Var("j"), 0)), (zero,))
        axes = [("b", self.n.batch), ("j", self.n.hidden)]
        threads = min(self.threads, self.n.batch * self.n.hidden)
        return spread(axes, threads, (*self.cell.initial(self.o), first))

    def over_blocks(self, *body: Stmt) -> Stmt:
        n, p = self.n, self.p
        columns = over("block_x", -(-n.hidden // p.units), "block.x", *body)
        return over("block_y", -(-n.batch // p.rows), "block.y", columns)

    def over_threads(self, *body: Stmt) -> Stmt:
        """Of a block. The threads of a unit have neighbouring numbers, `share`s."""
        inner: Body = (let("share", s.binary("mod", Var(THREAD), self.p.shares), body),)
        inner = (let("local", s.binary("floordiv", Var(THREAD), self.p.shares), inner),)
        return over(THREAD, self.p.units * self.p.shares, "thread.x", *inner)

    def shared(self, phase: Phase) -> tuple[Buffer, Buffer]:
        """The sums of a block, those of its shares and those of all of them."""
        count = len(phase.gates) * self.p.rows * self.p.units
        shape = (self.p.shares // self.together, count | 1)  # odd: in different banks
        shares = Buffer(f"shares{phase.gates[0]}", self.dtype, shape, "shared")
        return shares, Buffer(f"totals{phase.gates[0]}", self.dtype, (count,), "shared")

    def sharing(self, body: Body, *phases: Phase) -> Body:
        """`body` with the shared memory of the phases in it."""
        own = [buffer for phase in phases for buffer in self.shared(phase)]
        for buffer in (*own, *filter(None, (self.meeting,))):
            body = (Alloc(buffer, body),)
        return body

    def phase(self, phase: Phase) -> Body:
        """Sums and what they give, for the threads of a block."""
        shares, totals = self.shared(phase)
        summed = (*self.shares(phase, shares), Barrier(), *self.totals(shares, totals), Barrier())
        return (*summed, self.cells(phase, totals))

    # --- sums -------------------------------------------------------------------------------------------

    def shares(self, phase: Phase, shares: Buffer) -> Body:
        """This thread's part of its unit's sums, into shared memory."""
        p, gates = self.p, len(phase.gates)
        acc = Buffer(f"sums{phase.gates[0]}", self.dtype, (gates, p.rows), "register")
        total = Tensor(acc.name, self.dtype, acc.shape)

        def each(*body: Stmt) -> Stmt:
            return loop("of_gates", gates, loop("of_rows", p.rows, *body, kind="unroll"), kind="unroll")

        at = (GATE, ROW)
        zero = each(Store(acc.name, at, s.const(0, self.dtype)))
        number = (GATE * p.rows + ROW) * p.units + Var("local")
        store: Stmt = Store(shares.name, (Var("share"), number), total[at])
        if self.meeting:
            store = self.stored_together(self.meeting, total[at], shares, number)
        return (Alloc(acc, (zero, *self.sum(phase, acc), each(store))),)

    def stored_together(self, meeting: Buffer, total: Expr, shares: Buffer, number: Expr) -> Stmt:
        """The sum of a few neighbours' shares, into shared memory."""
        mine, other = (Buffer(name, self.dtype, (), "register") for name in ("mine", "other"))
        value = Load(mine.name, (), self.dtype)
        line, place = (s.binary(op, Var("share"), self.together) for op in ("floordiv", "mod"))
        first = If(s.eq(place, 0), (Store(shares.name, (line, number), value),))
        met = joined(value, other, meeting, 1, self.together, partial(s.binary, "add"))
        return Alloc(mine, (Alloc(other, (Store(mine.name, (), total), *met, first)),))

    def sum(self, phase: Phase, acc: Buffer) -> Body:
        """Adds to `acc` what this thread has of the sums."""
        raise NotImplementedError

    def terms(self, body: Body, kind: str = "serial") -> Body:
        """`body` for each group of a thread's terms. Neighbouring threads take neighbouring groups."""
        p = self.p
        whole, rest = divmod(self.n.hidden, p.shares * p.lane)
        terms: Body = (loop("of_terms", whole, *body, kind=kind),) if whole else ()
        if rest:
            first = (TERM * p.shares + Var("share")) * p.lane
            terms += (let("of_terms", s.const(whole), (If(s.lt(first, self.n.hidden), body),)),)
        return terms

    def weights(self, phase: Phase, buffer: Buffer, at: tuple[Expr, ...]) -> Stmt:
        """Those of a group of terms, to a place in registers."""
        n = self.n
        unit = self.clamped(Var("block_x") * self.p.units + Var("local"), n.hidden, self.p.units)
        weight = self.o["r"][(GATE + phase.gates[0]) * n.hidden + unit, self.term]
        return loop("of_gates", len(phase.gates), self.lanes(Store(buffer.name, at, weight)), kind="unroll")

    def products(self, phase: Phase, acc: Buffer, weight: Expr) -> Body:
        """Adds those of a group of terms."""
        n, p = self.n, self.p
        vector = Buffer("vector", self.dtype, (p.rows, p.lane), "register")
        row = self.clamped(Var("block_y") * p.rows + ROW, n.batch, p.rows)
        value = s.substitute(phase.vector(), {"b": row, "k": self.term})
        load = self.lanes(Store(vector.name, (ROW, LANE), value))
        product = Load(vector.name, (ROW, LANE), self.dtype) * weight
        at = (GATE, ROW)
        add = Store(acc.name, at, Load(acc.name, at, self.dtype) + product)
        gates = loop("of_gates", len(phase.gates), loop("of_rows", p.rows, add, kind="unroll"), kind="unroll")
        loads = loop("of_rows", p.rows, load, kind="unroll")
        return (Alloc(vector, (loads, loop("of_lanes", p.lane, gates, kind="unroll"))),)

    @property
    def term(self) -> Expr:
        return (TERM * self.p.shares + Var("share")) * self.p.lane + LANE

    def lanes(self, store: Stmt) -> Stmt:
        return loop("of_lanes", self.p.lane, store, kind="vector" if self.p.lane > 1 else "unroll")

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


class Stepwise(_Cells):
    """A kernel a step."""

    @property
    def word(self) -> Buffer:
        return Buffer("clock", I64, (2,), "global")

    def body(self) -> Body:
        kernels = [self.step(parity) for parity in (0, 1)]
        pairs, odd = divmod(self.n.steps, 2)
        twice = (loop("of_pairs", pairs, *kernels[0], *kernels[1]),) if pairs else ()
        return (self.begin(), *twice, *kernels[0] * odd)

    def step(self, parity: int) -> Body:
        """The kernels of all even or all odd steps."""
        return tuple(self.kernel(phase, parity) for phase in self.phases)

    def kernel(self, phase: Phase, parity: int) -> Stmt:
        last = phase is self.phases[-1]
        thread = self.over_threads(*self.phase(phase), *[self.tick(parity)] * last)
        inner = self.sharing((thread,), phase)
        pair = s.minimum(s.maximum(Load("clock", (s.const(parity),), I64), 0), (self.n.steps - 1) // 2)
        return self.over_blocks(let("pair", pair, substitute(inner, {"t": Var("pair") * 2 + parity})))

    def tick(self, parity: int) -> Stmt:
        first = s.both(*(s.eq(Var(v), 0) for v in ("block_x", "block_y", THREAD)))
        return If(first, (Store("clock", (s.const(1 - parity),), Var("pair") + parity),))

    def sum(self, phase: Phase, acc: Buffer) -> Body:
        shape = (len(phase.gates), self.p.lane)
        weights = Buffer(f"weights{phase.gates[0]}", self.dtype, shape, "register")
        products = self.products(phase, acc, Load(weights.name, (GATE, LANE), self.dtype))
        read = self.weights(phase, weights, (GATE, LANE))
        return self.terms((Alloc(weights, (read, *products)),))


class Resident(_Cells):
    """One kernel for all steps."""

    @property
    def word(self) -> Buffer:
        return Buffer("arrivals", I32, (1,), "global")

    def body(self) -> Body:
        meet = Intrinsic("meet", (Load(self.word.name, (FIRST,), I32),), (Barrier("grid"),))
        steps = [part for phase in self.phases for part in (*self.phase(phase), meet)]
        thread: Body = (loop("t", self.n.steps, *steps),)
        for phase in self.phases:
            held = self.held(phase)
            read = self.weights(phase, held, (GATE, TERM, LANE))
            thread = (Alloc(held, (*self.terms((read,), "unroll"), *thread)),)
        return (self.begin(), self.over_blocks(*self.sharing((self.over_threads(*thread),), *self.phases)))

    def held(self, phase: Phase) -> Buffer:
        """A thread's weights."""
        terms = -(-self.n.hidden // (self.p.shares * self.p.lane))
        shape = (len(phase.gates), terms, self.p.lane)
        return Buffer(f"weights{phase.gates[0]}", self.dtype, shape, "register")

    def sum(self, phase: Phase, acc: Buffer) -> Body:
        weight = Load(self.held(phase).name, (GATE, TERM, LANE), self.dtype)
        return self.terms(self.products(phase, acc, weight), "unroll")
