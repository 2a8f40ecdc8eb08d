"""Sums of products, windows and other reductions whose outputs fill vector registers: convolution, matrix
product, pooling.

    for columns, rows, pixels (outer):          tasks
        acc[rows, pixels, columns] = 0          a register tile
        for reduction (outer):
            for taps: acc += x[…] · w[…]        one broadcast of x serves all columns, one vector of w all
            pixels
        out = epilogue(acc)

The innermost output axis is the vector; its loads must have stride 0 or 1 there (a packed copy is made
where not).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from ..ir import affine
from ..ir import scalar as s
from ..ir.expr import Axis, Stage, TensorExpr
from ..ir.loops import Barrier, Program, Store
from ..ir.scalar import Binary, Expr, Load, Var
from ..kernel_task import Config, KernelTask
from ..schedule.canonical import canonical
from ..schedule.nest import Nest
from ..schedule.relayout import relayout
from ..schedule.rewrite_expr import rename_axes
from ..schedule.schedule import Schedule
from ..schedule.split_axes import split_divided_axes
from ..target import Target
from .common import inline_cheap
from .memo import per_task
from .prefetch import (
    blocks_ahead,
    input_prefetches,
    panel_bytes,
    panel_prefetches,
    weight_bytes,
    weight_prefetches,
)
from .products import PACKED
from .register_tiles import ACC, MAX_UNROLLED, Params, Roles, lanes_of, rank_tiles, roles_of, slides_with

ALGORITHMS = (PACKED,)


@dataclass(frozen=True)
class Subject:
    """An expression in the form that `expression` gives, and what every choice about it starts from."""

    task: KernelTask
    expr: TensorExpr
    roles: Roles

    @cached_property
    def acc(self) -> Stage:
        return self.expr.stage(ACC)

    @cached_property
    def extents(self) -> dict[str, int]:
        return {a.name: a.extent for a in self.acc.all_axes}

    @cached_property
    def tiles(self) -> list[tuple[tuple[str, int], ...]]:
        """Register tiles to choose from, the best first."""
        return rank_tiles(self.acc, self.roles, self.extents, self.task.target)[:64]

    @cached_property
    def block(self) -> tuple[tuple[str, int], ...]:
        """Reduction axes split by the input's channel block."""
        return tuple((a, b) for a in self.roles.sums if (b := _channel_block(self.acc, a)) > 1)

    @cached_property
    def slides(self) -> frozenset[tuple[str, str]]:
        """(tap, pixel axis) that an index mixes."""
        pairs = product(self.roles.taps, self.roles.pixels)
        return frozenset(pair for pair in pairs if slides_with(self.acc, *pair))

    @cached_property
    def weight_bytes(self) -> int:
        return weight_bytes(self.task, self.expr)


@per_task
def subject(task: KernelTask) -> Subject | None:
    """None if the task is none for this template."""
    expr = expression(task)
    roles = None if expr is None else roles_of(expr, task.target)
    return None if expr is None or roles is None else Subject(task, expr, roles)


def matches(task: KernelTask) -> bool:
    return subject(task) is not None


def params(task: KernelTask, cfg: Config) -> Params:
    found = subject(task)
    assert found is not None
    return params_of(found, cfg)


def params_of(subject: Subject, cfg: Config) -> Params:
    task, expr, roles = subject.task, subject.expr, subject.roles
    extents, block = subject.extents, subject.block
    tile = cfg.choose("tile", subject.tiles, subject.tiles[0])
    reduction, unrolled = _reduction_order(subject, dict(tile))
    plain_sum = len(reduction) == 1 and not roles.taps and not block  # of a matrix product
    reused = any(dict(tile).get(axis, 1) > 1 for axis in roles.pixels)  # weights, else memory is the limit
    together = cfg.choose("together", (1, 2, 4, 8), 4 if reused else 1) if plain_sum else 1
    outer = {axis: -(-extents[axis] // size) for axis, size in tile}
    tasks = math.prod(outer.get(a, 1) for a in (roles.column, *roles.pixels[1:]) if a)
    tasks *= math.prod(extents[a] for a in roles.batch)
    cold = subject.weight_bytes > task.target.l2
    streamed = block or plain_sum
    in_order = bool(streamed and roles.column and roles.pixels) and not roles.batch
    # In the second-level cache beside its successor: what prefetches every line twice would only take slots.
    fits = in_order and not roles.taps and panel_bytes(task, expr, roles, dict(tile)) * 2 <= task.target.l2
    tasks_inner = bool(roles.pixels) and tasks < 8 * task.threads
    return Params(
        tile=tile,
        reduction=reduction,
        unrolled=unrolled,
        block=block,
        together=together,
        columns_outer=cfg.choose("columns_outer", (True, False), True),
        prefetch=cfg.choose("prefetch", (0, 32, 64, 128), 32 if cold and not fits else 0),
        ahead=cfg.choose("ahead", (0, 1, 2, 4), blocks_ahead(roles, extents, block)),
        panel=cfg.choose("panel", (True, False) if in_order else (False,), cold and in_order),
        tasks_inner=cfg.choose("tasks_inner", (True, False), tasks_inner),
    )


def schedule(task: KernelTask, p: Params) -> Program:
    found = subject(task)
    assert found is not None
    sch = tiled(found, p)
    _parallel(sch.nests[-1], found.roles, p)
    return sch.program()


def tiled(subject: Subject, p: Params) -> Schedule:
    """The register tiles of the expression as the last nest, its loops all serial: batch, columns, pixels."""
    task, expr, roles = subject.task, subject.expr, subject.roles
    sch = Schedule(task.name, expr)
    acc = expr.stage(ACC)
    outs = [st.name for st in expr.stages if st.name in expr.outputs]
    parts = [f"{ACC}.init", f"{ACC}.update", *outs]
    for nest in sch.nests:
        if nest.label not in parts:
            _pack_nest(sch, nest, task.target)
    inner: list[str] = []
    outer: dict[str, str] = {}
    vector = roles.vector
    for axis, size in p.tile:
        sch.split(axis, size, f"{axis}_o", f"{axis}_i", within=parts)
        outer[axis] = f"{axis}_o"
        if axis == roles.vector:
            vector = f"{axis}_v"
            sch.split(f"{axis}_i", lanes_of(acc, task.target), f"{axis}_c", vector, within=parts)
            inner.append(f"{axis}_c")
        else:
            inner.append(f"{axis}_i")
    for axis, size in p.block:
        sch.split(axis, size, f"{axis}_o", f"{axis}_i", within=[f"{ACC}.update"])
    reduction, unrolled = p.reduction, p.unrolled
    if p.together > 1:
        (axis,) = p.reduction
        sch.split(axis, p.together, f"{axis}_o", f"{axis}_i", within=[f"{ACC}.update"])
        reduction, unrolled = (f"{axis}_o", f"{axis}_i"), (f"{axis}_i",)
    _guard_loads(sch, acc)
    inner.sort(
        key=lambda name: name[:-2] in (roles.column, roles.vector)
    )  # one broadcast serves all columns at once
    order = _outer_order(roles, outer, p)
    sch.reorder(f"{ACC}.init", [*order, *inner, vector])
    sch.reorder(f"{ACC}.update", [*order, *reduction, *inner, vector])
    for out in outs:
        sch.reorder(out, [*order, *inner, vector])
    parent = sch.merge(parts, len(order)) if order else _wrap(sch, parts)
    sch.stage(ACC, parent, "register")
    if inner:
        sch.annotate("unroll", *inner)
    sch.annotate("vector", vector, within=parts)
    for axis in unrolled:
        sch.annotate("unroll", axis)
    innermost = reduction[-1] if reduction else None
    if p.prefetch and innermost:
        sch.append(f"{ACC}.update", innermost, *weight_prefetches(sch, task, roles, p))
    if p.ahead and p.block:
        step = f"{p.block[0][0]}_o"
        sch.append(f"{ACC}.update", step, *input_prefetches(sch, task, roles, p, step))
    if p.panel and p.columns_outer:
        step = f"{p.block[0][0]}_o" if p.block else reduction[0]
        sch.append(f"{ACC}.update", step, *panel_prefetches(sch, task, roles, p, parent, step))
    if unrolled:  # taps that share loads would keep them all in registers, and spill
        sch.append(f"{ACC}.update", unrolled[-1], Barrier("order"))
    return sch


# --- the expression that the template works on -----------------------------------------------------------


def expression(task: KernelTask) -> TensorExpr | None:
    """One reduction `acc` and epilogues on the same axes, over physical arrays; None if the task is not
    like that.
    """
    if task.expr is None or task.transformed not in ("", PACKED.name):
        return None
    expr = inline_cheap(task.expr)
    reduces = [st for st in expr.stages if st.reduce]
    others = [st for st in expr.stages if not st.reduce]
    if len(reduces) != 1 or reduces[0].reduce.op.startswith("arg"):  # type: ignore[union-attr]
        return None
    anchor = reduces[0]
    if any(a.extent == 0 for a in anchor.all_axes):
        return None
    if any(st.name not in expr.outputs or st.shape != anchor.shape for st in others):
        return None
    names = [a.name for a in anchor.axes]
    if not all(_reads_at(st.body, anchor.name, st) for st in others):
        return None
    expr = _with_epilogue(expr, anchor.name)
    layouts = dict(task.layouts)
    of_output = {layouts.get(name) for name in expr.outputs}
    if len(of_output) != 1:
        return None
    layout = of_output.pop()
    if layout is not None:
        layouts[ACC] = layout
    expr = canonical(split_divided_axes(relayout(expr, layouts), reductions=False))  # groups of channels
    acc = expr.stage(ACC)
    if acc.reduce is None or not acc.axes:
        return None
    names = [a.name for a in acc.axes]
    stages = [st if st.name == ACC else rename_axes(st, names) for st in expr.stages]
    expr = replace(expr, stages=tuple(stages))
    return _vectorisable(expr, task.target)


def _reads_at(body: Expr, tensor: str, st: Stage) -> bool:
    """Every read of the anchor is at the stage's own position."""

    def here(load: Load) -> bool:
        return all(e == Var(a.name) or a.extent == 1 for e, a in zip(load.index, st.axes))

    return all(here(load) for load in s.loads(body) if load.tensor == tensor)


def _with_epilogue(expr: TensorExpr, anchor: str) -> TensorExpr:
    """The anchor becomes a temporary named acc; where it was an output, a copy of it is."""

    def renamed(e: Expr) -> Expr | None:
        return Load(ACC, e.index, e.type) if isinstance(e, Load) and e.tensor == anchor else None

    stages: list[Stage] = []
    for st in expr.stages:
        if st.name == anchor:
            stages.append(replace(st, name=ACC))
            if anchor in expr.outputs:
                index = tuple(Var(a.name) for a in st.axes)
                stages.append(Stage(anchor, st.dtype, st.axes, Load(ACC, index, st.dtype)))
        else:
            stages.append(replace(st, body=s.transform(st.body, renamed)))
    return replace(expr, stages=tuple(stages))


def _vectorisable(expr: TensorExpr, target: Target) -> TensorExpr | None:
    """Splits the innermost axis into vectors if it is not one already; packs operands that stride over it."""
    acc = expr.stage(ACC)
    vector = acc.axes[-1]
    lanes = lanes_of(acc, target)
    if vector.extent < 2:
        return None
    dims = {name: type.dims for name, type in expr.params}
    packs: list[Stage] = []

    ranges = {a.name: (0, a.extent - 1) for a in acc.all_axes}

    def repack(e: Expr) -> Expr | None:
        if not isinstance(e, Load) or vector.name not in s.variables(e):
            return None
        if _stride(e, dims[e.tensor], vector, lanes) in (0, 1):
            return None
        packed = _packed(e, acc, vector.name, dims[e.tensor], len(packs))
        if packed is not None:
            packs.append(packed)
            return Load(packed.name, tuple(Var(a.name) for a in packed.axes), e.type)
        step = affine.linear(e.index[-1]).coefficient(vector.name)
        if step < 2 or any(vector.name in s.variables(i) for i in e.index[:-1]):
            return None
        packs.append(_by_phase(e, dims[e.tensor], step, len(packs)))
        last = e.index[-1]
        index = (*e.index[:-1], s.binary("mod", last, step), s.binary("floordiv", last, step))
        return affine.simplify(Load(packs[-1].name, index, e.type), ranges)

    body = s.transform(acc.body, repack)
    dims.update({p.name: p.shape for p in packs})
    for load in s.loads(body):
        if _stride(load, dims[load.tensor], vector, lanes) not in (0, 1):
            return None
    stages = [*packs, *(replace(st, body=body) if st.name == ACC else st for st in expr.stages)]
    return replace(expr, stages=tuple(stages))


def _stride(load: Load, shape: tuple[int, ...], axis: Axis, lanes: int) -> int | None:
    """Elements between neighbours along the axis within one vector; None if not constant."""
    var = "lane"
    position = Var("vectors") * lanes + Var(var) if axis.extent > lanes else Var(var)
    ranges = {var: (0, lanes - 1), "vectors": (0, axis.extent // lanes)}
    stride, step = 0, 1
    for e, extent in zip(reversed(load.index), reversed(shape)):
        form = affine.linear(affine.simplify(s.substitute(e, {axis.name: position}), ranges))
        if any(var in s.variables(a) and a != Var(var) for a, _ in form.terms):
            return None
        stride += form.coefficient(var) * step
        step *= extent
    return stride


def _packed(load: Load, acc: Stage, vector: str, shape: tuple[int, ...], n: int) -> Stage | None:
    """A copy of the operand with the vector axis innermost."""
    names = [e.name for e in load.index if isinstance(e, Var)]
    if len(names) != len(load.index) or len(set(names)) != len(names) or vector not in names:
        return None
    extents = {a.name: a.extent for a in acc.all_axes}
    if any(extents[name] != d for name, d in zip(names, shape)):
        return None
    order = [name for name in names if name != vector] + [vector]
    axes = tuple(Axis(name, extents[name]) for name in order)
    return Stage(f"packed{n}", load.type, axes, load)


def _by_phase(load: Load, shape: tuple[int, ...], step: int, n: int) -> Stage:
    """p[…, r, q] = x[…, step·q + r]: what a strided window reads side by side stands side by side."""
    axes = tuple(Axis(f"d{i}", d) for i, d in enumerate(shape[:-1]))
    axes += (Axis("r", step), Axis("q", -(-shape[-1] // step)))
    place = Var("q") * step + Var("r")
    body: Expr = Load(load.tensor, (*(Var(a.name) for a in axes[:-2]), place), load.type)
    if shape[-1] % step:
        body = s.select(s.lt(place, shape[-1]), body, s.const(0, load.type))
    return Stage(f"packed{n}", load.type, axes, body)


# --- reduction -------------------------------------------------------------------------------------


def _channel_block(acc: Stage, axis: str) -> int:
    """d where an index reads axis // d: the block of the operand's layout."""
    for e in s.walk(acc.body):
        if (
            isinstance(e, Binary)
            and e.op == "floordiv"
            and s.variables(e.a) == {axis}
            and isinstance(e.b, s.Const)
        ):
            return int(e.b.value)
    return 1


def _reduction_order(subject: Subject, tile: dict[str, int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Channel blocks, kernel rows, channels of a block, kernel columns; taps over tiled pixels are
    unrolled.
    """
    roles, extents, block = subject.roles, subject.extents, dict(subject.block)
    sums_outer = [f"{a}_o" if a in block else a for a in roles.sums if a in block]
    sums_inner = [f"{a}_i" if a in block else a for a in roles.sums]
    taps = list(roles.taps)
    tiled = [t for t in taps if any(tile.get(p, 1) > 1 and (t, p) in subject.slides for p in roles.pixels)]
    serial = [t for t in taps if t not in tiled]
    count = math.prod(n for _, n in tile.items() if _ != roles.vector)
    unrolled = list(tiled)
    if not roles.sums:  # depthwise, pooling: nothing but taps
        unrolled = [
            t for t in taps if count * math.prod(extents[u] for u in taps) <= MAX_UNROLLED or t in tiled
        ]
        serial = [t for t in taps if t not in unrolled]
        return (*serial, *unrolled), tuple(unrolled)
    return (*sums_outer, *serial, *sums_inner, *tiled), tuple(unrolled)


# --- building --------------------------------------------------------------------------------------------


def _guard_loads(sch: Schedule, acc: Stage) -> None:
    """Tails of the register tile compute on zeros: guards move from the update onto the loads that could
    leave their tensor.
    """
    sch.nest(f"{ACC}.init").guards = []
    update = sch.nest(f"{ACC}.update")
    guards, update.guards = update.guards, []
    if not guards:
        return
    shapes = {b.name: b.shape for b in (*sch.params, *sch.temps)}
    ranges = {lp.var: (0, lp.extent - 1) for lp in update.loops}
    reduction_guards = [g for g in guards if not s.variables(g) & set(_data_vars(sch))]
    data_guards = [g for g in guards if g not in reduction_guards]
    update.guards = reduction_guards

    def guard(e: Expr) -> Expr | None:
        if not isinstance(e, Load) or e.tensor == ACC:
            return None
        needed = [
            g
            for g in data_guards
            if s.variables(g) & s.variables(e) and _may_leave(e, shapes[e.tensor], ranges)
        ]
        return s.select(s.both(*needed), e, s.const(0, e.type)) if needed else None

    store = update.body[0]
    assert isinstance(store, Store) and isinstance(store.value, Binary)
    value = Binary(store.value.op, store.value.a, s.transform(store.value.b, guard))
    update.body = [Store(store.buffer, store.index, value)]


def _data_vars(sch: Schedule) -> list[str]:
    return sch.nest(f"{ACC}.init").vars


def _may_leave(load: Load, shape: tuple[int, ...], ranges: dict[str, affine.Range]) -> bool:
    return any(
        affine.bounds(e, ranges)[0] < 0 or affine.bounds(e, ranges)[1] >= d for e, d in zip(load.index, shape)
    )


def _outer_order(roles: Roles, outer: dict[str, str], p: Params) -> list[str]:
    column = [f"{roles.vector}_o"] if roles.vector in outer else []
    column += [outer[roles.column]] if roles.column else []
    pixels = [outer.get(axis, axis) for axis in reversed(roles.pixels)]
    batch = list(roles.batch)
    return batch + (column + pixels if p.columns_outer else pixels + column)


def _wrap(sch: Schedule, parts: list[str]) -> Nest:
    return sch.merge(parts, 0)


def _parallel(parent: Nest, roles: Roles, p: Params) -> None:
    innermost = roles.pixels[0] if roles.pixels else None
    if innermost in dict(p.tile):
        innermost = f"{innermost}_o"
    for lp in parent.loops:
        if lp.var == innermost and not p.tasks_inner:
            break
        lp.kind = "parallel"


def _pack_nest(sch: Schedule, nest: Nest, target: Target) -> None:
    """The copy of an operand: parallel over all but the two innermost axes."""
    for lp in nest.loops[: max(1, len(nest.loops) - 1)]:
        lp.kind = "parallel"
