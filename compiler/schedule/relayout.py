"""Layouts made explicit: a tensor expression over logical tensors → the same over their physical arrays.

y[n, c, h, w] with y: aBcd16b    →    y[n, c0, h, w, c1]   where c = 16·c0 + c1
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from ..ir import affine
from ..ir import scalar as s
from ..ir.expr import Axis, Stage, TensorExpr
from ..ir.scalar import Expr, Load, Var
from ..ir.types import Layout, TensorType


def relayout(expr: TensorExpr, layouts: Mapping[str, Layout]) -> TensorExpr:
    """Every param and stage named in `layouts` becomes its physical array. Other stages keep their logical
    axes.

    In the padding of a blocked axis, loads that would leave their tensor are guarded and read zero. What
    is computed of zeros may not be finite, as a quotient: then zero is written.
    """
    shapes = {name: type.dims for name, type in expr.params}
    shapes.update({st.name: st.shape for st in expr.stages})
    physical = {n: layouts[n].physical_shape(shapes[n]) if n in layouts else shapes[n] for n in shapes}
    params = tuple(
        (name, TensorType(type.dtype, physical[name]) if name in layouts else type)
        for name, type in expr.params
    )
    stages = tuple(_stage(st, layouts, physical) for st in expr.stages)
    return replace(expr, params=params, stages=stages)


def with_sums(expr: TensorExpr, layouts: Mapping[str, Layout]) -> dict[str, Layout]:
    """The layouts, and those of sums that a stage with a layout alone reads, where they stand: the same."""
    found = dict(layouts)
    for st in reversed(expr.stages):
        for load in s.loads(st.body) if st.name in found else ():
            source = next((x for x in expr.stages if x.name == load.tensor and x.reduce), None)
            readers = [ld for x in expr.stages for ld in s.loads(x.body) if ld.tensor == load.tensor]
            alone = all(ld in s.loads(st.body) and _where_it_stands(ld, st) for ld in readers)
            if source is not None and alone and source.shape == st.shape and source.name not in expr.outputs:
                found[source.name] = found[st.name]
    return found


def _where_it_stands(load: Load, st: Stage) -> bool:
    """Whether the element read has the place of the stage's own; of one place 0 is the name, too."""
    return len(load.index) == len(st.axes) and all(
        e == Var(a.name) or (a.extent == 1 and e == s.const(0)) for e, a in zip(load.index, st.axes)
    )


def physical_index(layout: Layout, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Where a logical element stands."""
    rest = list(index)
    inner: list[Expr] = []
    for axis, factor in reversed(layout.blocks):
        inner.append(s.binary("mod", rest[axis], factor))
        rest[axis] = s.binary("floordiv", rest[axis], factor)
    return tuple(rest[axis] for axis in layout.order) + tuple(reversed(inner))


def split_axes(stage: Stage, layout: Layout) -> tuple[tuple[Axis, ...], dict[str, Expr]]:
    """The stage's physical axes, and each logical axis as an expression of them."""
    shape = layout.physical_shape(stage.shape)
    names = [stage.axes[axis].name for axis in layout.order]
    values: dict[int, Expr] = {axis: Var(stage.axes[axis].name) for axis in layout.order}
    for axis, factor in layout.blocks:
        name = f"{stage.axes[axis].name}_{sum(1 for n in names if n.startswith(stage.axes[axis].name + '_'))}"
        values[axis] = values[axis] * factor + Var(name)
        names.append(name)
    axes = tuple(Axis(n, e) for n, e in zip(names, shape))
    return axes, {stage.axes[axis].name: value for axis, value in values.items()}


def _stage(st: Stage, layouts: Mapping[str, Layout], shapes: Mapping[str, tuple[int, ...]]) -> Stage:
    axes: tuple[Axis, ...] = st.axes
    values: dict[str, Expr] = {}
    if st.name in layouts:
        axes, values = split_axes(st, layouts[st.name])
    ranges = {a.name: (0, max(a.extent - 1, 0)) for a in (*axes, *(st.reduce.axes if st.reduce else ()))}
    ragged = [
        a for n, a in enumerate(st.axes) if st.name in layouts and a.extent % layouts[st.name].block_of(n)
    ]

    def place(e: Expr) -> Expr | None:
        if not isinstance(e, Load):
            return None
        index = physical_index(layouts[e.tensor], e.index) if e.tensor in layouts else e.index
        moved = Load(e.tensor, index, e.type)
        if not ragged:
            return moved
        leaves = [
            s.within(i, extent)
            for i, extent in zip(index, shapes[e.tensor])
            if not _inside(affine.simplify(i, ranges), extent, ranges)
        ]
        return s.select(s.both(*leaves), moved, s.const(0, e.type)) if leaves else moved

    body = s.transform(s.substitute(st.body, values), place)
    if ragged and st.reduce is None and st.dtype.is_float and not _finite_of_zeros(st.body):
        within = [s.lt(values[a.name], a.extent) for a in ragged]
        body = s.select(s.both(*within), body, s.const(0, st.dtype))
    return Stage(st.name, st.dtype, axes, affine.simplify(body, ranges), st.reduce)


_FINITE = frozenset("sin cos atan tanh asinh erf sigmoid floor ceil round trunc".split())


def _finite_of_zeros(e: Expr) -> bool:
    """Whether it is a finite number for any constants, where all that is read is zero."""
    for x in s.walk(e):
        match x:
            case s.Const(value=v):
                finite = not x.dtype.is_float or math.isfinite(v)
            case s.Binary(op="div" | "mod" | "rem", b=divisor):
                finite = not x.dtype.is_float or (isinstance(divisor, s.Const) and bool(divisor.value))
            case s.Binary(op="pow"):
                finite = not x.dtype.is_float
            case s.Call(op=op):
                finite = op not in s.FLOAT_FUNCTIONS or op in _FINITE
            case _:
                finite = True
        if not finite:
            return False
    return True


def _inside(index: Expr, extent: int, ranges: Mapping[str, affine.Range]) -> bool:
    lo, hi = affine.bounds(index, ranges)
    return lo >= 0 and hi < extent
