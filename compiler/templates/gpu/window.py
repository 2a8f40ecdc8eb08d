"""Windows of one channel: depthwise convolution and pooling.

    for blocks of channels, tiles of positions:
        patch = what the tile's windows read, zeros outside of the image      all threads, then a barrier
        for rows of the thread's part of the patch:
            row = patch[row]                                                  in registers
            acc[i, j] += row[j · stride + kw] · taps[kh, kw]                  for all windows with that row
        y[i, j] = f(acc[i, j])

Without `shared` threads read rows from where they are: good where neighbouring threads take neighbouring
channels, since then windows overlap inside of a thread alone. Neighbouring threads take what are neighbours
in memory: channels, if these come last, else columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from ...ir import scalar as s
from ...ir.expr import Axis, Stage
from ...ir.loops import Alloc, Barrier, Body, Buffer, If, Program, Stmt, Store, loop
from ...ir.scalar import Binary, Expr, Load, Var
from ...kernel_task import Config, KernelTask
from ...schedule.nest import combine, identity_of
from ...target import Gpu
from ..memo import per_task
from .common import let, over
from .grid import element, groups_of, kernel, program
from .moving import Pair, by_place, pairs_of
from .product import digits, expression, size, within
from .tiles import Epilogue

THREADS = 256
SIDES = (1, 2, 4, 8, 16, 32, 64)  # threads of a block along one axis
MOST_TAPS = 128
LONGEST = 400  # updates that a thread's code writes out
KEPT = 25  # taps that are kept in registers
MOVED = 8.0  # updates that a unit could do while an element comes from the last cache
WARPS = 8  # that keep a unit busy


@dataclass(frozen=True)
class Window:
    """`group` are the stages of one kernel, the reduction first."""

    group: tuple[Stage, ...]
    data: Expr  # over channels and places
    taps: Expr | None  # the other factor, over channels and taps
    pairs: tuple[Pair, ...]

    @property
    def channels(self) -> tuple[Axis, ...]:
        """The axes along which no window moves."""
        moving = {p.axis.name for p in self.pairs}
        return tuple(a for a in self.group[0].axes if a.name not in moving)

    @property
    def channels_last(self) -> bool:
        return self.group[0].axes[-1] != self.pairs[-1].axis

    @property
    def count(self) -> int:
        """Of taps."""
        return math.prod(p.tap.extent for p in self.pairs)


@dataclass(frozen=True)
class Params:
    elements: tuple[int, ...]  # positions of a thread along each pair
    channels: int  # of a block
    threads: tuple[int, ...]  # of a block along each pair
    shared: bool


def window_of(group: Sequence[Stage]) -> Window | None:
    """None if the group does not begin with a reduction over windows."""
    acc = group[0]
    if acc.reduce is None or acc.reduce.op not in ("sum", "max", "min", "prod") or not acc.type.size:
        return None
    ways: list[tuple[Expr, Expr | None]] = [(acc.body, None)]
    if isinstance(acc.body, Binary) and acc.body.op == "mul":
        ways = [(acc.body.a, acc.body.b), (acc.body.b, acc.body.a)]
    for data, taps in ways:
        pairs = pairs_of(data, acc)
        if pairs and not (taps is not None and s.variables(taps) & {p.axis.name for p in pairs}):
            found = Window(tuple(group), by_place(data, pairs), taps, pairs)
            return found if 2 <= found.count <= MOST_TAPS else None
    return None


@per_task
def main_window(task: KernelTask) -> Window | None:
    """The only reduction over windows; None if there is none or there are several."""
    if task.expr is None:
        return None
    found = [w for w in map(window_of, groups_of(expression(task))) if w]
    return found[0] if len(found) == 1 else None


def matches(task: KernelTask) -> bool:
    return main_window(task) is not None


def params(task: KernelTask, cfg: Config) -> Params:
    w, gpu = main_window(task), task.target.gpu
    assert w is not None and gpu is not None
    able = bool(ranked(task, (1,) * len(w.pairs), True))
    shared = cfg.choose("shared", (True, False) if able else (False,), able and not w.channels_last)
    elements = cfg.choose("elements", *elements_of(task, shared))
    shapes = [(p.channels, p.threads) for p in ranked(task, elements, shared)]
    return Params(elements, *cfg.choose("threads", shapes, shapes[0]), shared)


def schedule(task: KernelTask, p: Params) -> Program:
    window, expr = main_window(task), expression(task)
    assert window is not None and task.target.gpu is not None
    threads = min(THREADS, task.target.gpu.block_threads)

    def kernels(group: list[Stage]) -> list[Stmt]:
        if window_of(group) is None:
            return [kernel(group, expr, threads)]
        return [_Builder(window, p).block(lambda value: element(group, expr, {group[0].name: value}))]

    return program(task.name, expr, kernels)


# --- the choice of a tile -------------------------------------------------------------------------------


@per_task
def elements_of(task: KernelTask, shared: bool) -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
    """How many positions a thread may take along each pair, and the best of these."""
    w, gpu = main_window(task), task.target.gpu
    assert w is not None and gpu is not None
    words = -(-w.group[0].dtype.bytes // 4)
    found = []
    for e in product(*([n for n in (1, 2, 4) if n < 2 * p.axis.extent] for p in w.pairs)):
        registers = math.prod(e) + len(columns(w.pairs[-1], e[-1])) + (w.count if w.count <= KEPT else 0)
        small = registers * words + 16 <= gpu.registers and math.prod(e) * w.count <= LONGEST
        if (small or math.prod(e) == 1) and ranked(task, e, shared):
            found.append(e)
    return found, min(found, key=lambda e: predicted_time(w, ranked(task, e, shared)[0], gpu))


@per_task
def ranked(task: KernelTask, elements: tuple[int, ...], shared: bool) -> list[Params]:
    """The blocks that fit the GPU, those with the least predicted time first."""
    w, gpu = main_window(task), task.target.gpu
    assert w is not None and gpu is not None
    extents = [size(w.channels), *(-(-p.axis.extent // e) for p, e in zip(w.pairs, elements))]
    found = []
    for channels, *threads in product(*([n for n in SIDES if n < 2 * extent] for extent in extents)):
        p = Params(elements, channels, tuple(threads), shared)
        fits = not shared or patch_size(w, p) * w.group[0].dtype.bytes <= gpu.shared
        if fits and channels * math.prod(threads) <= min(gpu.block_threads, THREADS):
            found.append(p)
    return sorted(found, key=lambda p: predicted_time(w, p, gpu))


def columns(pair: Pair, elements: int) -> list[int]:
    """The places along a pair that the windows of so many positions read, in order."""
    return sorted({pair.place(i, n) for i in range(elements) for n in range(pair.tap.extent)})


def patch_size(w: Window, p: Params) -> int:
    """Places of a block's patch."""
    sides = (pair.reach(t * e) for pair, t, e in zip(w.pairs, p.threads, p.elements))
    return p.channels * math.prod(sides)


def predicted_time(w: Window, p: Params, gpu: Gpu) -> float:
    """In updates of a unit: rounds of whole blocks, which update and fetch what their windows read."""
    threads = p.channels * math.prod(p.threads)
    blocks = -(-size(w.channels) // p.channels)
    for pair, t, e in zip(w.pairs, p.threads, p.elements):
        blocks *= -(-pair.axis.extent // (t * e))
    thread = math.prod(len(columns(pair, e)) for pair, e in zip(w.pairs, p.elements))
    together = min(p.channels, w.group[0].axes[-1].extent) if w.channels_last else p.threads[-1]
    apart = 1 + 8 / min(together, gpu.warp)  # of what comes with an element, little is wanted
    if not w.channels_last:
        apart *= 1 if p.shared else p.elements[-1]
    fetched = patch_size(w, p) * MOVED * apart
    if not p.shared:
        fetched = fetched / 2 + threads * thread * apart
    each = threads * (math.prod(p.elements) * w.count + thread) + fetched
    resident = threads * min(4.0, max(1.0, blocks / gpu.units))
    waiting = max(1.0, WARPS * gpu.warp / resident)
    return -(-blocks // gpu.units) * each * waiting * -(-threads // gpu.warp) * gpu.warp / threads


# --- the kernel -----------------------------------------------------------------------------------------


class _Builder:
    """What one block does."""

    def __init__(self, w: Window, p: Params):
        self.w, self.p = w, p
        acc = w.group[0]
        assert acc.reduce is not None
        self.op, self.dtype, self.stage = acc.reduce.op, acc.dtype, acc
        self.threads = p.channels * math.prod(p.threads)
        self.acc = Buffer("window_acc", self.dtype, p.elements, "register")
        self.columns = columns(w.pairs[-1], p.elements[-1])
        self.row = Buffer("window_row", self.dtype, (len(self.columns),), "register")
        self.taps = Buffer("window_taps", self.dtype, tuple(x.tap.extent for x in w.pairs), "register")
        sides = [x.reach(t * e) for x, t, e in zip(w.pairs, p.threads, p.elements)]
        shape = (*sides, p.channels) if w.channels_last else (p.channels, *sides)
        self.patch = Buffer("window_patch", self.dtype, shape, "shared")

    def block(self, epilogue: Epilogue) -> Stmt:
        w, p = self.w, self.p
        thread = self.in_order("thread_", p.channels, p.threads, Var("thread_x"), self.thread(epilogue))
        body: Body = (*self.filled(), Barrier(), *thread) if p.shared else thread
        body = (over("thread_x", self.threads, "thread.x", *body),)
        if p.shared:
            body = (Alloc(self.patch, body),)
        tiles = [-(-x.axis.extent // (t * e)) for x, t, e in zip(w.pairs, p.threads, p.elements)]
        groups = -(-size(w.channels) // p.channels)
        body = digits(self.named("tile_", groups, tiles), Var("block_x"), body)
        return over("block_x", groups * math.prod(tiles), "block.x", *body)

    def named(self, prefix: str, channels: int, rest: Sequence[int]) -> tuple[Axis, ...]:
        pairs = (Axis(f"{prefix}{x.axis.name}", n) for x, n in zip(self.w.pairs, rest))
        return (Axis(f"{prefix}channel", channels), *pairs)

    def in_order(self, prefix: str, channels: int, rest: Sequence[int], number: Expr, body: Body) -> Body:
        """`body` where the named axes are the digits of `number`, neighbours in memory last."""
        first, *others = self.named(prefix, channels, rest)
        return digits((*others, first) if self.w.channels_last else (first, *others), number, body)

    def at_channel(self, local: Expr, body: Body) -> Body:
        """`body` where the channel axes are those of the block's channel; the last instead of none."""
        number: Expr = Var("tile_channel") * self.p.channels + local
        if size(self.w.channels) % self.p.channels:
            number = s.minimum(number, size(self.w.channels) - 1)
        return digits(self.w.channels, number, body)

    # --- the patch --------------------------------------------------------------------------------------

    def first_place(self, n: int) -> Expr:
        """Of the block's patch along pair n."""
        pair = self.w.pairs[n]
        return Var(f"tile_{pair.axis.name}") * (self.p.threads[n] * self.p.elements[n] * pair.stride)

    def read(self, places: Sequence[Expr]) -> Expr:
        """The operand at these places; 0 at those that no position reads."""
        w = self.w
        limits = []
        for n, (pair, place) in enumerate(zip(w.pairs, places)):
            if pair.axis.extent % (self.p.threads[n] * self.p.elements[n]):
                limits.append((place, pair.length))
        value = s.substitute(w.data, {pair.at.name: place for pair, place in zip(w.pairs, places)})
        return s.select(within(*limits), value, s.const(0, self.dtype)) if limits else value

    def filled(self) -> Body:
        """Shared memory gets the block's patch, an element a thread at a time."""
        names = [f"of_{pair.axis.name}" for pair in self.w.pairs]
        sides = [x.reach(t * e) for x, t, e in zip(self.w.pairs, self.p.threads, self.p.elements)]
        local = Var("of_channel")
        inside = [Var(name) for name in names]
        index = (*inside, local) if self.w.channels_last else (local, *inside)
        places = [self.first_place(n) + at for n, at in enumerate(inside)]
        body: Body = self.at_channel(local, (Store(self.patch.name, index, self.read(places)),))
        number = Var("of_items") * self.threads + Var("thread_x")
        body = self.in_order("of_", self.p.channels, sides, number, body)
        if self.patch.size % self.threads:
            body = (If(s.lt(number, self.patch.size), body),)
        return (loop("of_items", -(-self.patch.size // self.threads), *body),)

    # --- a thread ---------------------------------------------------------------------------------------

    def thread(self, epilogue: Epilogue) -> Body:
        body: Body = (*self.begun(), *self.rows(), self.written(epilogue))
        for buffer in (self.acc, self.row, *([self.taps] if self.keeps_taps else [])):
            body = (Alloc(buffer, body),)
        return self.at_channel(Var("thread_channel"), body)

    @property
    def keeps_taps(self) -> bool:
        return self.w.taps is not None and self.w.count <= KEPT

    def tap(self, k: tuple[int, ...]) -> Expr:
        assert self.w.taps is not None
        return s.substitute(self.w.taps, {x.tap.name: s.const(n) for x, n in zip(self.w.pairs, k)})

    def begun(self) -> Iterator[Stmt]:
        assert self.stage.reduce is not None
        for e in product(*map(range, self.p.elements)):
            yield Store(self.acc.name, _const(e), identity_of(self.op, self.stage))
        for k in product(*map(range, self.taps.shape)) if self.keeps_taps else ():
            yield Store(self.taps.name, _const(k), self.tap(k))

    def rows(self) -> Iterator[Stmt]:
        """Row after row of the thread's part of the patch, and what it adds to all sums."""
        *outer, last = self.w.pairs
        counts = self.p.elements[:-1]
        users: dict[tuple[int, ...], list[tuple[tuple[int, ...], tuple[int, ...]]]] = {}
        for e in product(*map(range, counts)):
            for k in product(*(range(pair.tap.extent) for pair in outer)):
                places = tuple(pair.place(i, n) for pair, i, n in zip(outer, e, k))
                users.setdefault(places, []).append((e, k))
        inner = list(product(range(self.p.elements[-1]), range(last.tap.extent)))
        for row in sorted(users):
            for n, column in enumerate(self.columns):
                yield Store(self.row.name, (s.const(n),), self.fetched((*row, column)))
            for e, k in users[row]:
                for i, n in inner:
                    yield self.update((*e, i), (*k, n), self.columns.index(last.place(i, n)))

    def fetched(self, places: tuple[int, ...]) -> Expr:
        """The operand at a place of the thread's part of the patch."""
        w, p = self.w, self.p
        inside = [
            Var(f"thread_{pair.axis.name}") * (e * pair.stride) + place
            for pair, e, place in zip(w.pairs, p.elements, places)
        ]
        if not p.shared:
            return self.read([self.first_place(n) + at for n, at in enumerate(inside)])
        local = Var("thread_channel")
        index = (*inside, local) if w.channels_last else (local, *inside)
        return Load(self.patch.name, tuple(index), self.dtype)

    def update(self, e: tuple[int, ...], k: tuple[int, ...], column: int) -> Stmt:
        value: Expr = Load(self.row.name, (s.const(column),), self.dtype)
        if self.w.taps is not None:
            value = value * (Load(self.taps.name, _const(k), self.dtype) if self.keeps_taps else self.tap(k))
        before = Load(self.acc.name, _const(e), self.dtype)
        return Store(self.acc.name, _const(e), combine(self.op, before, value))

    def written(self, epilogue: Epilogue) -> Stmt:
        """The epilogue for every position that exists."""
        w, p = self.w, self.p
        names = [f"of_{pair.axis.name}" for pair in w.pairs]
        value = Load(self.acc.name, tuple(map(Var, names)), self.dtype)
        channel = Var("tile_channel") * p.channels + Var("thread_channel")
        limits = [(channel, size(w.channels))]
        body: Body = epilogue(value)
        for n, pair in enumerate(w.pairs):
            tile = Var(f"tile_{pair.axis.name}") * p.threads[n] + Var(f"thread_{pair.axis.name}")
            position = tile * p.elements[n] + Var(names[n])
            limits.append((position, pair.axis.extent))
            body = (let(pair.axis.name, position, body),)
        body = (If(within(*limits), body),)
        for name, e in zip(names, p.elements):
            body = (loop(name, e, *body, kind="unroll"),)
        return body[0]


def _const(index: Sequence[int]) -> tuple[Expr, ...]:
    return tuple(map(s.const, index))
