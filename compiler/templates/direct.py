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

from dataclasses import replace
from math import prod

from ..ir import affine
from ..ir import scalar as s
from ..ir.expr import Axis, Stage, TensorExpr
from ..ir.loops import Barrier, Program, Store
from ..ir.scalar import Expr, Load, Var
from ..kernel_task import Config, KernelTask
from ..schedule.canonical import canonical
from ..schedule.nest import Nest
from ..schedule.padding import may_leave
from ..schedule.relayout import relayout
from ..schedule.rewrite_expr import rename_axes
from ..schedule.schedule import Schedule
from ..schedule.split_axes import split_as_divided
from ..target import Target
from .common import inline_cheap
from .direct_params import Subject, params_of
from .memo import per_task
from .prefetch import input_prefetches, panel_prefetches, weight_prefetches
from .products import PACKED, PACKED_BLOCKS
from .register_tiles import ACC, Params, lanes_of, makes_words, roles_of, shares_vectors

ALGORITHMS = (PACKED, PACKED_BLOCKS)


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


def schedule(task: KernelTask, p: Params) -> Program:
    found = subject(task)
    assert found is not None
    sch = tiled(found, p)
    for lp in sch.nests[-1].loops[: p.dealt]:
        lp.kind = "parallel"
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
    inner, vector = _split_tile(sch, subject, p, parts)
    for axis, size in p.block:
        sch.split(axis, size, f"{axis}_o", f"{axis}_i", within=[f"{ACC}.update"])
    reduction, unrolled = _split_sum(sch, subject, p)
    _guard_loads(sch, acc)
    for lp, size in p.cuts:
        sch.split(lp, size, f"{lp}_b", lp, within=parts)
    sch.reorder(f"{ACC}.init", [*p.order, *inner, vector])
    sch.reorder(f"{ACC}.update", [*p.order, *reduction, *inner, vector])
    for out in outs:
        sch.reorder(out, [*p.order, *inner, vector])
    parent = sch.merge(parts, len(p.order))
    sch.stage(ACC, parent, "register")
    if inner:
        sch.annotate("unroll", *inner)
    sch.annotate("vector", vector, within=parts)
    for axis in unrolled:
        sch.annotate("unroll", axis)
    if p.prefetch and reduction:
        tile = [lp for lp in sch.nest(f"{ACC}.update").loops if lp.var in (*inner, vector)]
        sch.append(f"{ACC}.update", reduction[-1], *weight_prefetches(sch, task, roles, p, tile))
    if p.ahead and p.block:
        step = f"{p.block[0][0]}_o"
        sch.append(f"{ACC}.update", step, *input_prefetches(sch, task, roles, p, step))
    if p.panel:
        step = f"{p.block[0][0]}_o" if p.block else reduction[0]
        sch.append(f"{ACC}.update", step, *panel_prefetches(sch, task, roles, p, parent, step))
    together = _of_one_load(subject, p)
    apart = [axis for axis in unrolled if axis != together]
    if apart and not makes_words(acc):  # taps that share loads would keep them all in registers, and spill
        sch.append(f"{ACC}.update", apart[-1], Barrier("order"))
    return sch


def _of_one_load(subject: Subject, p: Params) -> str | None:
    """The loop over what one vector holds: numbers that share bytes, or lanes by which machines multiply."""
    axis, terms = p.together
    if terms > 1 and shares_vectors(subject.acc, subject.roles, axis):
        return f"{axis}_i"
    if not subject.task.target.multiplies_by_lane:
        return None
    tap = subject.row.tap if subject.row else None
    return tap or f"{p.together[0]}_i"


def _split_sum(sch: Schedule, subject: Subject, p: Params) -> tuple[list[str], list[str]]:
    """(loops of the reduction, those of them that are written out): terms of a sum outside of its taps, or
    inside where they are lanes of one vector.
    """
    lp, terms = p.together
    if terms == 1:
        return list(p.reduction), list(p.unrolled)
    sch.split(lp, terms, f"{lp}_o", f"{lp}_i", within=[f"{ACC}.update"])
    serial = [f"{lp}_o" if var == lp else var for var in p.reduction if var not in p.unrolled]
    inside = _of_one_load(subject, p) == f"{lp}_i"
    written = [*p.unrolled, f"{lp}_i"] if inside else [f"{lp}_i", *p.unrolled]
    return [*serial, *written], written


def _split_tile(sch: Schedule, subject: Subject, p: Params, parts: list[str]) -> tuple[list[str], str]:
    """Splits the tile's axes; (loops of a tile from the outside in, loop over a vector's lanes)."""
    roles, lanes = subject.roles, lanes_of(subject.acc, subject.task.target)
    inner: list[str] = []
    vector = roles.vector
    for axis, size in p.tile:
        sch.split(axis, size, f"{axis}_o", f"{axis}_i", within=parts)
        if axis == roles.vector:
            vector = f"{axis}_v"
            sch.split(f"{axis}_i", lanes, f"{axis}_c", vector, within=parts)
            inner.append(f"{axis}_c")
        else:
            inner.append(f"{axis}_i")
    inner.sort(key=lambda name: name[:-2] in (roles.column, roles.vector))  # one broadcast serves all columns
    return inner, vector


# --- the expression that the template works on -----------------------------------------------------------


def expression(task: KernelTask) -> TensorExpr | None:
    """One reduction `acc` and epilogues on the same axes, over physical arrays; None if the task is not
    like that.
    """
    if task.expr is None or task.transformed not in ("", *(a.name for a in ALGORITHMS)):
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
    expr = canonical(split_as_divided(relayout(expr, layouts), ACC))  # groups of channels
    acc = expr.stage(ACC)
    if acc.reduce is None or not acc.axes or any(st.shape != acc.shape for st in expr.stages):
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
    alone, extents = len(s.loads(acc.body)) == 1, {a.name: a.extent for a in acc.all_axes}

    def runs_along_a_sum(e: Load) -> bool:
        """Whether `rows` reads vectors of it, of which each element is used once."""
        others = prod(n for name, n in extents.items() if name not in s.variables(e))
        return (alone or others == 1) and extents.get(_name(e.index[-1]), 0) >= lanes

    ranges = {a.name: (0, a.extent - 1) for a in acc.all_axes}

    def repack(e: Expr) -> Expr | None:
        if not isinstance(e, Load) or vector.name not in s.variables(e):
            return None
        if _stride(e, dims[e.tensor], vector, lanes) in (0, 1):
            return None
        packed = _packed(e, acc, vector.name, dims[e.tensor], len(packs))
        if packed is not None and runs_along_a_sum(e):
            return None  # a copy would cost more than all else
        if packed is not None:
            packs.append(packed)
            return Load(packed.name, tuple(Var(a.name) for a in packed.axes), e.type)
        step = affine.linear(e.index[-1]).coefficient(vector.name)
        if step < 2 or any(vector.name in s.variables(i) for i in e.index[:-1]):
            return None
        if step > dims[e.tensor][-1]:  # phases would be mostly empty
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


def _name(e: Expr) -> str:
    return e.name if isinstance(e, Var) else ""


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
            if s.variables(g) & s.variables(e) and may_leave(e, shapes[e.tensor], ranges)
        ]
        return s.select(s.both(*needed), e, s.const(0, e.type)) if needed else None

    store = update.body[0]
    assert isinstance(store, Store)
    update.body = [Store(store.buffer, store.index, s.transform(store.value, guard))]


def _data_vars(sch: Schedule) -> list[str]:
    return sch.nest(f"{ACC}.init").vars


def _pack_nest(sch: Schedule, nest: Nest, target: Target) -> None:
    """The copy of an operand: parallel over all but the two innermost axes."""
    for lp in nest.loops[: max(1, len(nest.loops) - 1)]:
        lp.kind = "parallel"
