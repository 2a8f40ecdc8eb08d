"""Axes that are only ever used divided become two axes, so that indices are linear.

y[n, c] = x[n, c // 16, c % 16]  →  y[n, c0, c1] = x[n, c0, c1]     where c = 16·c0 + c1; same memory
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ..ir import affine
from ..ir import scalar as s
from ..ir.expr import Axis, Reduce, Stage, TensorExpr
from ..ir.scalar import Binary, Const, Expr, Load, Var

SHORTEST = 8  # elements of an innermost axis


def split_divided_axes(expr: TensorExpr, reductions: bool = True) -> TensorExpr:
    """The same computation with every axis split that some index divides by a factor of its extent.

    Axes that are summed over stay as they are unless `reductions`.
    """
    while True:
        for st in expr.stages:
            found = _divided(st, reductions)
            if found is not None:
                expr = _split(expr, st, *found)
                break
        else:
            return expr


def split_as_divided(expr: TensorExpr, name: str) -> TensorExpr:
    """The same computation with every axis split that some index of one stage divides, in all stages: they
    have the same axes. Sums stay as they are, and so do axes that the others alone divide."""
    while (found := _divided(expr.stage(name), reductions=False)) is not None:
        at = [a.name for a in expr.stage(name).axes].index(found[0])
        for label in [st.name for st in expr.stages]:
            st = expr.stage(label)
            expr = _split(expr, st, st.axes[at].name, found[1])
    return expr


def order_sums(expr: TensorExpr, tensors: Collection[str]) -> TensorExpr:
    """Terms of sums in the order in which they lie in one of `tensors`, its blocks as axes of their own.

    Σ[c, k] x[c // 4, k, c % 4]  →  Σ[c0, k, c1] x[c0, k, c1]
    """
    stages = []
    for st in expr.stages:
        read = next((ld.tensor for ld in s.loads(st.body) if ld.tensor in tensors), None)
        if read is not None and st.reduce and not st.reduce.op.startswith("arg"):
            st = _in_order_of(st, read)
        stages.append(st)
    return replace(expr, stages=tuple(stages))


def _in_order_of(st: Stage, tensor: str) -> Stage:
    axes = st.axes
    while (found := _divided(replace(st, axes=()), True)) is not None:
        st = _split_stage(st, found[0], _pair(st, *found))
    reduce = st.reduce
    assert reduce is not None
    index = next(ld.index for ld in s.loads(st.body) if ld.tensor == tensor)
    place = {v: n for n, i in enumerate(index) for v in s.variables(i)}
    ordered = tuple(sorted(reduce.axes, key=lambda a: place.get(a.name, -1)))
    return replace(st, axes=axes, reduce=Reduce(reduce.op, ordered))


def _divided(st: Stage, reductions: bool) -> tuple[str, int] | None:
    """An axis and the least factor that divides it. The innermost axis is not cut too short."""
    extents = {a.name: a.extent for a in st.all_axes}
    if st.reduce and (st.reduce.op.startswith("arg") or not reductions):
        extents = {a.name: a.extent for a in st.axes}
    factors: dict[str, set[int]] = {}
    for e in s.walk(st.body):
        if (
            isinstance(e, Binary)
            and e.op in ("floordiv", "mod")
            and isinstance(e.a, Var)
            and isinstance(e.b, Const)
        ):
            factors.setdefault(e.a.name, set()).add(int(e.b.value))
    for name, values in factors.items():
        factor = min(values)
        extent = extents.get(name, 0)
        short = factor < SHORTEST and bool(st.axes) and name == st.axes[-1].name
        if 1 < factor < extent and extent % factor == 0 and not short:
            return name, factor
    return None


def _split(expr: TensorExpr, target: Stage, axis: str, factor: int) -> TensorExpr:
    pair = _pair(target, axis, factor)
    at = next((n for n, a in enumerate(target.axes) if a.name == axis), None)

    def divided(e: Expr) -> Expr | None:
        if not isinstance(e, Load) or e.tensor != target.name or at is None:
            return None
        i = e.index[at]
        parts = (s.binary("floordiv", i, factor), s.binary("mod", i, factor))
        return Load(e.tensor, (*e.index[:at], *parts, *e.index[at + 1 :]), e.type)

    stages = []
    for st in expr.stages:
        if st.name == target.name:
            st = _split_stage(st, axis, pair)
        else:
            body = s.transform(st.body, divided)
            st = st if body is st.body else replace(st, body=affine.simplify(body, st.ranges()))
        stages.append(st)
    return replace(expr, stages=tuple(stages))


def _pair(st: Stage, axis: str, factor: int) -> tuple[Axis, Axis]:
    taken = {a.name for a in st.all_axes}
    extent = next(a.extent for a in st.all_axes if a.name == axis)
    outer, inner = _fresh(f"{axis}_q", taken), _fresh(f"{axis}_m", taken)
    return Axis(outer, extent // factor), Axis(inner, factor)


def _split_stage(st: Stage, axis: str, pair: tuple[Axis, Axis]) -> Stage:
    def replaced(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(p for a in axes for p in (pair if a.name == axis else (a,)))

    value = Var(pair[0].name) * pair[1].extent + Var(pair[1].name)
    reduce = Reduce(st.reduce.op, replaced(st.reduce.axes)) if st.reduce else None
    new = Stage(st.name, st.dtype, replaced(st.axes), s.substitute(st.body, {axis: value}), reduce)
    return replace(new, body=affine.simplify(new.body, new.ranges()))


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name
