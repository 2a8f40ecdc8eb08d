"""Reductions and what surrounds them, a row at a time: softmax, normalisations, sums along any axes, argmax.

    for rows:                                   tasks
        top = max over k of x[row, k]           16 lanes · several accumulators, then a tree of halves
        powers[k] = exp(x[row, k] - top)        temporaries of one row stay in the first-level cache
        total = sum over k of powers[k]
        y[row, k] = powers[k] / total

Stages share the axes ("rows") that all of them have and read each other at. Where memory is contiguous along
a row axis (column sums, softmax over channels), vectors hold neighbouring rows; else they run along each
stage's own best axis.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..ir import scalar as s
from ..ir.expr import Reduce, Stage, TensorExpr
from ..ir.loops import Program, Store
from ..ir.scalar import Expr, Load, Var
from ..kernel_task import Config, KernelTask
from ..schedule.canonical import canonical
from ..schedule.nest import Nest, nest_stores
from ..schedule.padding import compute_on_padding
from ..schedule.rewrite_expr import split_reduction
from ..schedule.schedule import Schedule
from ..schedule.split_axes import split_divided_axes
from ..target import Target
from .access import Shapes, operations, shapes_of, stage_cost, width
from .choices import choose, dealt_loops, divisors, whole_order
from .common import prepared
from .memo import per_task
from .products import DOT
from .row_axes import Group, groups_of

ALGORITHMS = (DOT,)
UNROLLS = (1, 2, 4, 8)
SMALL_TASK = 256  # elements below which the innermost row loop is no task of its own


@dataclass(frozen=True)
class GroupParams:
    vector_row: str  # the row axis that fills vectors; "": each stage's own axis does
    unroll: int  # vectors in flight, of a sum: partial results
    flight: int  # vectors in flight where nothing is summed
    order: tuple[str, ...]  # row loops
    together: int  # iterations of the innermost row loop that are computed at once
    dealt: int  # of the row loops, how many are tasks


@dataclass(frozen=True)
class Params:
    """Of each group of stages."""

    groups: tuple[GroupParams, ...]


def matches(task: KernelTask) -> bool:
    if task.expr is None or not any(st.reduce for st in task.expr.stages):
        return False
    types = [type for _, type in task.expr.params] + [st.type for st in task.expr.stages]
    return all(type.size for type in types) and all(a.extent for st in task.expr.stages for a in st.all_axes)


def params(task: KernelTask, cfg: Config) -> Params:
    expr, groups = _grouped(task)
    found = [_group_params(task, expr, group, n, cfg) for n, group in enumerate(groups)]
    return Params(tuple(found))


def _group_params(task: KernelTask, expr: TensorExpr, group: Group, n: int, cfg: Config) -> GroupParams:
    axes, best, heavy, mixed = _options(task)[n]
    row = choose(cfg, f"vector_row{n}", axes, best)
    unroll = choose(cfg, f"unroll{n}", UNROLLS, 2 if heavy else 4)
    flight = choose(cfg, f"flight{n}", UNROLLS if mixed and not row else (unroll,), unroll)
    extents = _row_extents(expr, group, row, unroll, task.target)
    order = whole_order(cfg, f"order{n}", extents)
    together = choose(cfg, f"together{n}", _at_once(extents, order, row, unroll, task.target), 1)
    sizes = [extents[lp] // (together if lp == order[-1] else 1) for lp in order]
    default = _tasks(sizes, sum(_elements(expr.stage(name)) for name in group.stages))
    dealt = dealt_loops(cfg, f"tasks{n}", sizes, default, task.threads)
    return GroupParams(row, unroll, flight, order, together, dealt)


def _at_once(
    extents: Mapping[str, int], order: Sequence[str], row: str, unroll: int, target: Target
) -> list[int]:
    """How many rows may be computed at once: their partial results stay in registers. What all of them read
    is loaded once, and more sums are under way."""
    if row or not order:
        return [1]
    return [d for d in divisors(extents[order[-1]]) if d * unroll <= target.vector_registers // 2 or d == 1]


def _row_extents(expr: TensorExpr, group: Group, row: str, unroll: int, target: Target) -> dict[str, int]:
    """Iterations of the loops over rows; that over vectors of rows is the innermost."""
    axes = {a.name: a.extent for name in group.stages for a in expr.stage(name).axes if a.name in group.rows}
    extents = {r: axes[r] for r in group.rows if r != row}
    if row:
        lanes = min(_group_lanes(expr, group, target), _power_above(axes[row]))
        extents[f"{row}_o"] = -(-axes[row] // (lanes * max(1, min(unroll, axes[row] // lanes))))
    return extents


def _tasks(sizes: Sequence[int], elements: int) -> int:
    """Row loops become tasks, but for the inner ones where rows are short."""
    inside = (elements // max(1, math.prod(sizes[:n])) for n in range(1, len(sizes)))
    return next((n for n, size in enumerate(inside, 1) if size < SMALL_TASK), len(sizes))


def _elements(st: Stage) -> int:
    return math.prod(a.extent for a in st.all_axes)


@per_task
def _options(task: KernelTask) -> list[tuple[tuple[str, ...], str, bool, bool]]:
    """By group: the row axes that may fill vectors, the best of them, whether an element is much work, and
    whether some stages are sums and others none."""
    expr, groups = _grouped(task)
    shapes = shapes_of(expr)
    found = []
    for group in groups:
        costs = {r: _group_cost(expr, group, r, shapes, task.target) for r in ("", *group.rows)}
        heavy = max(operations(expr.stage(name).body) for name in group.stages) > 20
        sums = {expr.stage(name).reduce is not None for name in group.stages}
        found.append((tuple(costs), min(costs, key=lambda r: costs[r]), heavy, len(sums) > 1))
    return found


def schedule(task: KernelTask, p: Params) -> Program:
    expr, groups = _grouped(task)
    shapes = shapes_of(expr)
    vectors: dict[str, tuple[str, int, int]] = {}  # stage → (axis, lanes, vectors in flight)
    parts: dict[str, list[str]] = {}  # stage → the stages that it was split into
    for group, own in zip(groups, p.groups):
        row = own.vector_row
        for name in group.stages:
            st = expr.stage(name)
            parts[name] = [name]
            axis = row or _own_axis(st, group, shapes, task.target)
            if axis is None:
                continue
            lanes = _group_lanes(expr, group, task.target) if row else _stage_lanes(st, task.target)
            extent = next(a.extent for a in st.all_axes if a.name == axis)
            if st.reduce and axis not in [a.name for a in st.axes]:
                known = {x.name for x in expr.stages}
                total, each = _accumulators(extent, lanes, own.unroll)
                if total == 1:
                    continue
                expr = split_reduction(expr, name, axis, total)
                parts[name] = [x.name for x in expr.stages if x.name not in known] + [name]
                for part in parts[name]:
                    vectors[part] = (f"{axis}_l", each, total // each)
            else:
                lanes = min(lanes, _power_above(extent))
                unroll = own.unroll if row or st.reduce else own.flight
                vectors[name] = (axis, lanes, max(1, min(unroll, extent // lanes)))
    sch = Schedule(task.name, expr)
    for group, own in zip(groups, p.groups):
        stages = [x for name in group.stages for x in parts[name]]
        parent = _build(sch, expr, own, stages, vectors)
        for lp in parent.loops[: own.dealt]:
            lp.kind = "parallel"
    return sch.program()


@per_task
def _grouped(task: KernelTask) -> tuple[TensorExpr, list[Group]]:
    expr = extremes_for_positions(canonical(split_divided_axes(prepared(task))))
    return groups_of(expr, task.threads)


def extremes_for_positions(expr: TensorExpr) -> TensorExpr:
    """i = argmax x[k]   →   m = max x[k];  i = min (k where x[k] is m or NaN)      both fill vectors"""
    stages: list[Stage] = []
    for st in expr.stages:
        if st.reduce is None or not st.reduce.op.startswith("arg"):
            stages.append(st)
            continue
        axis = st.reduce.axes[0]
        op = "max" if st.reduce.op.startswith("argmax") else "min"
        last = st.reduce.op.endswith("_last")
        best = Stage(f"{st.name}_value", st.body.dtype, st.axes, st.body, Reduce(op, st.reduce.axes))
        value = Load(best.name, tuple(Var(a.name) for a in st.axes), best.dtype)
        here: Expr = s.eq(st.body, value)
        if best.dtype.is_float:
            here = s.binary("or", here, s.call("isnan", st.body))
        body = s.select(here, Var(axis.name), s.const(-1 if last else axis.extent))
        stages += [best, replace(st, body=body, reduce=Reduce("max" if last else "min", st.reduce.axes))]
    return replace(expr, stages=tuple(stages))


# --- which axis fills vectors ---------------------------------------------------------------------------


def _stage_lanes(st: Stage, target: Target) -> int:
    return target.lanes(max(4, width(st.body, st.dtype.bytes)))


def _group_lanes(expr: TensorExpr, group: Group, target: Target) -> int:
    return min(_stage_lanes(expr.stage(name), target) for name in group.stages)


def _group_cost(expr: TensorExpr, group: Group, row: str, shapes: Shapes, target: Target) -> float:
    if row:
        lanes = _group_lanes(expr, group, target)
        return sum(stage_cost(expr.stage(name), shapes, row, lanes) for name in group.stages)
    total = 0.0
    for name in group.stages:
        st = expr.stage(name)
        total += stage_cost(st, shapes, _own_axis(st, group, shapes, target), _stage_lanes(st, target))
    return total


def _own_axis(st: Stage, group: Group, shapes: Shapes, target: Target) -> str | None:
    """The best axis for vectors that is no row of the group; None where single elements are best."""
    lanes = _stage_lanes(st, target)
    options: list[str | None] = [a.name for a in st.all_axes if a.name not in group.rows and a.extent > 1]
    return min([None, *options], key=lambda a: stage_cost(st, shapes, a, lanes))


def _accumulators(extent: int, lanes: int, unroll: int) -> tuple[int, int]:
    """(partial results in all, lanes of a vector of them): powers of two."""
    while unroll > 1 and extent < unroll * lanes:
        unroll //= 2
    if extent >= lanes:
        return unroll * lanes, lanes
    return _power_above(extent), _power_above(extent)


def _power_above(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


# --- building -------------------------------------------------------------------------------------------


def _build(
    sch: Schedule,
    expr: TensorExpr,
    p: GroupParams,
    stages: Sequence[str],
    vectors: dict[str, tuple[str, int, int]],
) -> Nest:
    """One nest over the rows with the nests of all stages in it."""
    labels: list[str] = []
    inner: dict[str, list[str]] = {}
    for name in stages:
        found = [n.label for n in sch.nests if n.label in (name, f"{name}.init", f"{name}.update")]
        for label in found:
            inner[label] = _vectorise(sch, sch.nest(label), vectors.get(name), p.vector_row)
        labels += found
    rows = list(p.order)
    if p.together > 1:
        last = rows[-1]
        rows[-1], at_once = f"{last}_o", f"{last}_i"
        sch.split(last, p.together, rows[-1], at_once, within=labels)
        sch.annotate("unroll", at_once, within=labels)
        inner = {label: [at_once, *own] for label, own in inner.items()}
    for label in labels:
        others = [v for v in sch.nest(label).vars if v not in rows and v not in inner[label]]
        sch.reorder(label, [*rows, *others, *inner[label]])
    parent = sch.merge(labels, len(rows))
    local = [name for name in stages if name not in expr.outputs and _readers(expr, name) <= set(stages)]
    for nest in parent.children():
        if set(nest_stores(nest)) <= set(local):
            compute_on_padding(sch, nest, parent, local)
    for name in local:
        sch.stage(name, parent, _scope(parent, name))
    return parent


def _readers(expr: TensorExpr, name: str) -> set[str]:
    return {st.name for st in expr.stages if any(ld.tensor == name for ld in s.loads(st.body))}


def _vectorise(sch: Schedule, nest: Nest, plan: tuple[str, int, int] | None, row: str) -> list[str]:
    """Splits the nest's vector axis into (outer,) unrolled and vector loops; names of the inner ones."""
    if plan is None:
        return []
    axis, lanes, unroll = plan
    loop = nest.loop(axis)
    if loop is None:
        return []
    within = [nest.label]
    if axis.endswith("_l") and axis != row:  # the lanes of a split reduction: no outer part
        lanes, inner = min(lanes, loop.extent), []
        unique = f"{nest.label}_l"
        sch.rename(nest.label, {axis: unique})
        axis = unique
        if loop.extent > lanes:
            sch.split(axis, lanes, f"{axis}_u", f"{axis}_v", within=within)
            sch.annotate("unroll", f"{axis}_u", within=within)
            inner, axis = [f"{axis}_u"], f"{axis}_v"
        if lanes > 1:
            sch.annotate("vector", axis, within=within)
        return [*inner, axis]
    sch.split(axis, lanes * unroll, f"{axis}_o", f"{axis}_i", within=within)
    sch.split(f"{axis}_i", lanes, f"{axis}_u", f"{axis}_v", within=within)
    sch.annotate("unroll", f"{axis}_u", within=within)
    sch.annotate("vector", f"{axis}_v", within=within)
    return [f"{axis}_u", f"{axis}_v"]


def _scope(parent: Nest, name: str) -> str:
    """Where a row's temporary lives: in registers unless a loop that stays a loop walks through it."""
    for nest in parent.children():
        serial = {lp.var for lp in nest.loops if lp.kind == "serial"}
        for st in nest.body:
            if not isinstance(st, Store):
                continue
            accesses = [ld.index for ld in s.loads(st.value) if ld.tensor == name]
            accesses += [st.index] if st.buffer == name else []
            if any(s.variables(e) & serial for index in accesses for e in index):
                return "scratch"
    return "register"
