"""Rewrites of tensor expressions that templates and fusion use before any loop exists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..ir import affine
from ..ir import scalar as s
from ..ir.expr import Axis, Reduce, Stage, TensorExpr
from ..ir.scalar import Expr, Load, Var
from .nest import combine, identity_of


def inline(expr: TensorExpr, wanted: Callable[[Stage], bool]) -> TensorExpr:
    """t[i] = f(i); y[j] = g(t[h(j)])  →  y[j] = g(f(h(j)))   for the stages that `wanted` picks (no
    reductions, no outputs).
    """
    bodies: dict[str, Stage] = {}
    kept: list[Stage] = []
    expanded: dict[Load, Expr] = {}  # equal reads share one object, else chains of x + x would double

    def expand(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.tensor in bodies:
            if e not in expanded:
                source = bodies[e.tensor]
                expanded[e] = s.substitute(source.body, {a.name: i for a, i in zip(source.axes, e.index)})
            return expanded[e]
        return None

    for st in expr.stages:
        body = s.transform(st.body, expand)
        if body is not st.body:
            body = affine.simplify(body, st.ranges())
        st = replace(st, body=body)
        if st.reduce is None and st.name not in expr.outputs and wanted(st):
            bodies[st.name] = st
        else:
            kept.append(st)
    return replace(expr, stages=tuple(kept))


def rename_axes(st: Stage, names: list[str]) -> Stage:
    """The same stage with its own (not reduction) axes renamed in order."""
    values: dict[str, Expr] = {a.name: Var(n) for a, n in zip(st.axes, names, strict=True)}
    clash = {a.name for a in st.reduce.axes} & set(names) if st.reduce else set()
    reduce = st.reduce
    if reduce and clash:
        values.update({n: Var(n + "_r") for n in clash})
        reduce = Reduce(
            reduce.op,
            tuple(Axis(a.name + "_r" if a.name in clash else a.name, a.extent) for a in reduce.axes),
        )
    axes = tuple(Axis(n, a.extent) for a, n in zip(st.axes, names))
    return Stage(st.name, st.dtype, axes, s.substitute(st.body, values), reduce)


def split_reduction(expr: TensorExpr, name: str, axis: str, lanes: int) -> TensorExpr:
    """r[i] = Σk f(i, k)  →  p[i, l] = Σo f(i, lanes·o + l);  r[i] = Σl p[i, l]   (l < lanes, tail guarded).

    The lanes of a vector register each take every lanes-th element; then a tree of halves adds them up.
    """
    stages: list[Stage] = []
    for st in expr.stages:
        if st.name != name:
            stages.append(st)
            continue
        assert st.reduce is not None
        op = st.reduce.op
        extent = next(a.extent for a in st.reduce.axes if a.name == axis)
        outer, lane = f"{axis}_o", f"{axis}_l"
        value = Var(outer) * lanes + Var(lane)
        body = s.substitute(st.body, {axis: value})
        if extent % lanes:
            body = s.select(s.lt(value, extent), body, identity_of(op, st))
        reduce_axes = tuple(Axis(outer, -(-extent // lanes)) if a.name == axis else a for a in st.reduce.axes)
        part = Stage(
            f"{name}_lanes{lanes}", st.dtype, (*st.axes, Axis(lane, lanes)), body, Reduce(op, reduce_axes)
        )
        stages.append(part)
        while lanes > 1:
            half = lanes // 2
            index = tuple(Var(a.name) for a in st.axes)
            final = half == 1
            axes = st.axes if final else (*st.axes, Axis(lane, half))
            at = () if final else (Var(lane),)
            low = Load(part.name, (*index, at[0] if at else s.const(0)), st.dtype)
            high = Load(part.name, (*index, (at[0] + half) if at else s.const(1)), st.dtype)
            from_two = combine(op, low, high)
            part = Stage(name if final else f"{name}_lanes{half}", st.dtype, axes, from_two)
            stages.append(part)
            lanes = half
    return replace(expr, stages=tuple(stages))
