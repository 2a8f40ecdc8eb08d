"""Loop programs that operators give directly: the iterations of a step's outer parallel loops become threads.

    for i parallel: for j parallel: S(i, j)  →  for blocks: for threads: let i, j: S(i, j)

What is scratch memory of a worker becomes a part of a temporary that each thread has for itself. Where that
were much memory, there are fewer threads, which take iterations by turns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from ...ir import loops as L
from ...ir import scalar as s
from ...ir.loops import Alloc, Body, Buffer, For, Program, Stmt, Store
from ...ir.scalar import Expr, Load, Var
from ...kernel_task import Config, KernelTask
from .common import at_item, sequential, spread, threads_of_block

MOST_SCRATCH = 1 << 26
"""Bytes, of all threads together: small devices give no buffer of more than some hundred megabytes."""


SLOT, TURN = "scratch_slot", "scratch_turn"
Axes: TypeAlias = list[tuple[str, int]]


@dataclass(frozen=True)
class Params:
    threads: int


def matches(task: KernelTask) -> bool:
    return task.program is not None and not task.program.gang


def params(task: KernelTask, cfg: Config) -> Params:
    assert task.program is not None
    items = max((math.prod(extents(chain)) for chain, _ in map(outer, task.program.body)), default=1)
    return Params(threads_of_block(cfg, task.target, items))


def schedule(task: KernelTask, p: Params) -> Program:
    assert task.program is not None
    body: list[Stmt] = []
    temps = list(task.program.temps)
    for n, st in enumerate(task.program.body):
        chain, inner = outer(st)
        if 0 in extents(chain):
            continue
        axes = list(zip((loop.var for loop in chain), extents(chain)))
        axes, inner, more = own_scratch(axes, sequential(inner), str(n))
        temps += more
        threads = min(p.threads, math.prod(extent for _, extent in axes))
        body.append(spread(axes, threads, inner))
    return replace(task.program, name=task.name, body=tuple(body), temps=tuple(temps))


def outer(st: Stmt) -> tuple[list[For], Body]:
    """The outermost parallel loops that begin at 0 and what stands inside of them."""
    chain: list[For] = []
    inner: Body = (st,)
    while len(inner) == 1 and isinstance(inner[0], For) and inner[0].kind == "parallel":
        loop = inner[0]
        if loop.extent is None or loop.begin != s.const(0):
            break
        chain.append(loop)
        inner = loop.body
    return chain, inner


def extents(chain: list[For]) -> list[int]:
    return [loop.extent or 0 for loop in chain]


def own_scratch(axes: Axes, body: Body, label: str) -> tuple[Axes, Body, list[Buffer]]:
    """alloc b[…] scratch: S  →  S on b[item, …], of a temporary for all items.

    If that is too large:  for axes: S  →  for slots: for turns: let axes = digits of slot + turn · slots: S
    on b[slot, …].
    """
    scratch = [st.buffer for st in L.walk(body) if isinstance(st, Alloc) and st.buffer.scope == "scratch"]
    if not scratch:
        return axes, body, []
    items = math.prod(extent for _, extent in axes)
    slots = min(items, max(1, MOST_SCRATCH // max(1, sum(b.nbytes for b in scratch))))
    item: Expr = s.const(0)
    for name, extent in axes:
        item = item * extent + Var(name)
    if slots < items:
        item = Var(SLOT) + Var(TURN) * slots
        body = at_item(axes, item, body)
        if items % slots:
            body = (L.If(s.lt(item, items), body),)
        body = (L.loop(TURN, -(-items // slots), *body),)
        axes, item = [(SLOT, slots)], Var(SLOT)
    temps = {b.name: Buffer(f"{b.name}_{label}", b.dtype, (slots, *b.shape), "global") for b in scratch}

    def load(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.tensor in temps:
            return Load(temps[e.tensor].name, (item, *e.index), e.type)
        return None

    def store(st: Store) -> Store:
        return Store(temps[st.buffer].name, (item, *st.index), st.value) if st.buffer in temps else st

    body = L.map_expressions(body, lambda e: s.transform(e, load))
    return axes, map_stores(body, store, lambda b: b.name not in temps), list(temps.values())


def map_stores(body: Body, fn: Callable[[Store], Store], keeps: Callable[[Buffer], bool]) -> Body:
    """Every store st becomes fn(st); buffers that are not kept lose their allocation."""
    found: list[Stmt] = []
    for st in body:
        match st:
            case Store():
                found.append(fn(st))
            case For():
                found.append(replace(st, body=map_stores(st.body, fn, keeps)))
            case Alloc():
                inner = map_stores(st.body, fn, keeps)
                found += [Alloc(st.buffer, inner)] if keeps(st.buffer) else inner
            case L.If():
                then, other = (map_stores(part, fn, keeps) for part in (st.then, st.other))
                found.append(L.If(st.cond, then, other))
            case _:
                found.append(st)
    return tuple(found)
