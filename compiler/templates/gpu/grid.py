"""The GPU template of last resort, right for every tensor expression: a thread computes an element.

    for blocks, threads: let i, j:
        acc = 0;  for k: acc += a[i, k] · b[k, j]
        y[i, j] = f(acc)

Stages over the same axes that read each other where they stand share a kernel, their values in registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ...ir import loops as L
from ...ir import scalar as s
from ...ir.expr import Stage, TensorExpr
from ...ir.loops import Alloc, Body, Buffer, Program, Stmt, Store
from ...ir.scalar import Expr, Load, Var
from ...kernel_task import Config, KernelTask
from ...schedule.canonical import canonical
from ...schedule.nest import naive_nests
from ...schedule.rewrite_expr import rename_axes
from ..common import prepared
from .bind import map_stores
from .common import spread, threads_of_block


@dataclass(frozen=True)
class Params:
    threads: int


def matches(task: KernelTask) -> bool:
    return task.expr is not None


def params(task: KernelTask, cfg: Config) -> Params:
    assert task.expr is not None
    items = max((st.type.size for st in task.expr.stages), default=1)
    return Params(threads_of_block(cfg, task.target, items))


def schedule(task: KernelTask, p: Params) -> Program:
    expr = canonical(prepared(task))
    return program(task.name, expr, lambda group: [kernel(group, expr, p.threads)])


def program(
    name: str, expr: TensorExpr, kernels: Callable[[list[Stage]], Sequence[Stmt]], *temps: Buffer
) -> Program:
    """The kernels of all groups in order; `temps` are what they need besides the stages."""
    groups = groups_of(expr)
    params = [Buffer(name, type.dtype, type.dims) for name, type in expr.params]
    params += [Buffer(name, expr.stage(name).dtype, expr.stage(name).shape) for name in expr.outputs]
    between = [
        Buffer(st.name, st.dtype, st.shape, "global")
        for group in groups
        for st in group
        if st.name not in expr.outputs and leaves(st, group, expr)
    ]
    body = [st for group in groups if group[0].type.size for st in kernels(group)]
    return Program(name, tuple(params), tuple(body), (*between, *temps))


def groups_of(expr: TensorExpr) -> list[list[Stage]]:
    """Neighbouring stages over the same axes, under the first one's names of them."""
    groups: list[list[Stage]] = []
    for st in expr.stages:
        if groups and st.shape == groups[-1][0].shape:
            renamed = rename_axes(st, [a.name for a in groups[-1][0].axes])
            own = tuple(Var(a.name) for a in renamed.axes)
            names = {other.name for other in groups[-1]}
            if all(load.index == own for load in s.loads(renamed.body) if load.tensor in names):
                groups[-1].append(renamed)
                continue
        groups.append([st])
    return groups


def leaves(st: Stage, group: Sequence[Stage], expr: TensorExpr) -> bool:
    """Whether anything outside of the group needs the stage."""
    inside = {other.name for other in group}
    readers = (x for x in expr.stages if x.name not in inside)
    return st.name in expr.outputs or any(ld.tensor == st.name for x in readers for ld in s.loads(x.body))


def kernel(group: Sequence[Stage], expr: TensorExpr, threads: int) -> Stmt:
    axes = group[0].axes
    threads = min(threads, max(1, 1 << (math.prod(group[0].shape) - 1).bit_length()))
    return spread([(a.name, a.extent) for a in axes], threads, element(group, expr))


def element(
    group: Sequence[Stage], expr: TensorExpr, known: Mapping[str, Expr] = MappingProxyType({})
) -> Body:
    """What one element of the group's stages is made of, where the variables of its axes are known.

    `known` gives the values of stages that were computed elsewhere.
    """
    index = tuple(Var(a.name) for a in group[0].axes)
    registers: dict[str, Buffer] = {}
    body: list[Stmt] = []
    for n, st in enumerate(group):
        if st.name in known:
            if leaves(st, group, expr):
                body.append(Store(st.name, index, known[st.name]))
            continue
        nests, _, temps = naive_nests(TensorExpr((), (st,), ()))
        needed = any(ld.tensor == st.name for x in group[n + 1 :] for ld in s.loads(x.body))
        if st.reduce or needed:
            registers |= {b.name: Buffer(f"{b.name}_r", b.dtype, (), "register") for b in temps}
        for nest in nests:
            nest.loops = nest.loops[len(index) :]
            body += nest.build()
        if st.name in registers and leaves(st, group, expr):
            body.append(Store(st.name, index, Load(f"{st.name}_r", (), st.dtype)))

    def load(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.tensor in registers:
            return Load(registers[e.tensor].name, (), e.type)
        return known.get(e.tensor) if isinstance(e, Load) else None

    def store(st: Store) -> Store:
        kept = isinstance(st.value, Load) and st.value.tensor == f"{st.buffer}_r"
        return Store(registers[st.buffer].name, (), st.value) if st.buffer in registers and not kept else st

    inner = L.map_expressions(tuple(body), lambda e: s.transform(e, load))
    inner = map_stores(inner, store, lambda b: True)
    for b in reversed(list(registers.values())):
        inner = (Alloc(b, inner),)
    return inner
