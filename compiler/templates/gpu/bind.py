"""Loop programs that operators give directly: the iterations of a step's outer parallel loops become threads.

    for i parallel: for j parallel: S(i, j)  →  for blocks: for threads: let i, j: S(i, j)

What is scratch memory of a worker becomes a part of a temporary that each thread has for itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from ...ir import loops as L
from ...ir import scalar as s
from ...ir.loops import Alloc, Body, Buffer, For, Program, Stmt, Store
from ...ir.scalar import Expr, Load, Var
from ...kernel_task import Config, KernelTask
from .common import sequential, spread, threads_of_block


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
        inner, more = own_scratch(sequential(inner), chain, str(n))
        temps += more
        axes = list(zip((loop.var for loop in chain), extents(chain)))
        threads = min(p.threads, max(1, math.prod(extents(chain))))
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


def own_scratch(body: Body, chain: list[For], label: str) -> tuple[Body, list[Buffer]]:
    """alloc b[…] scratch: S  →  S on b[item, …], of a temporary for all items."""
    sizes = extents(chain)
    item: Expr = s.const(0)
    for loop, extent in zip(chain, sizes):
        item = item * extent + Var(loop.var)
    temps: dict[str, Buffer] = {}
    for st in L.walk(body):
        if isinstance(st, Alloc) and st.buffer.scope == "scratch":
            b = st.buffer
            shape = (math.prod(sizes), *b.shape)
            temps[b.name] = Buffer(f"{b.name}_{label}", b.dtype, shape, "global")
    if not temps:
        return body, []

    def load(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.tensor in temps:
            return Load(temps[e.tensor].name, (item, *e.index), e.type)
        return None

    def store(st: Store) -> Store:
        return Store(temps[st.buffer].name, (item, *st.index), st.value) if st.buffer in temps else st

    body = L.map_expressions(body, lambda e: s.transform(e, load))
    return map_stores(body, store, lambda b: b.name not in temps), list(temps.values())


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
