"""Which axes the stages of an expression share as rows: a row reads only the same row of other stages."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..ir import scalar as s
from ..ir.expr import Axis, Reduce, Stage, TensorExpr
from ..ir.scalar import Var

SMALL = 1 << 15  # elements for which too few rows do not matter


@dataclass(frozen=True)
class Group:
    """Stages that are computed together, row by row; in all of them the row axes have these names."""

    stages: tuple[str, ...]
    rows: tuple[str, ...]


def groups_of(expr: TensorExpr, threads: int) -> tuple[TensorExpr, list[Group]]:
    """Neighbouring stages in as few groups as rows allow.

    In the expression that comes with them, row axes have the group's names, all other axes unique ones.
    """
    groups: list[list[Stage]] = []
    for st in expr.stages:
        reads = {load.tensor for load in s.loads(st.body)}
        if groups and reads & {x.name for x in groups[-1]} and _enough([*groups[-1], st], threads):
            groups[-1].append(st)
        else:
            groups.append([st])
    stages: list[Stage] = []
    result: list[Group] = []
    for n, group in enumerate(groups):
        classes = _row_classes(group)
        rows = tuple(f"row{n}_{i}" for i in range(len(classes)))
        names = [{c[st.name]: r for c, r in zip(classes, rows)} for st in group]
        stages += [_renamed(st, mapping) for st, mapping in zip(group, names)]
        result.append(Group(tuple(st.name for st in group), rows))
    return replace(expr, stages=tuple(stages)), result


def _enough(group: list[Stage], threads: int) -> bool:
    classes = _row_classes(group)
    elements = max(math.prod(a.extent for a in st.all_axes) for st in group)
    extents = {a.name: a.extent for a in group[0].axes}
    rows = math.prod(extents[c[group[0].name]] for c in classes)
    return bool(classes) and (rows >= threads or elements <= SMALL)


def _row_classes(group: list[Stage]) -> list[dict[str, str]]:
    """Every row axis as its name in each stage, in the order of the stage with the most axes."""
    leader = max(group, key=lambda st: len(st.axes))
    found = (_row_class(group, leader.name, a.name) for a in leader.axes)
    return [c for c in found if c is not None]


def _row_class(group: list[Stage], stage: str, axis: str) -> dict[str, str] | None:
    """The axis of each stage that goes with `axis` of `stage` wherever they read each other."""
    by_name = {st.name: st for st in group}
    names = {stage: axis}
    grown = True
    while grown:
        grown = False
        for st in group:
            for load in s.loads(st.body):
                source = by_name.get(load.tensor)
                if source is None:
                    continue
                pair = _pair(st, source, load.index, names)
                if pair is None:
                    return None
                for name, a in zip((st.name, source.name), pair):
                    if a and names.get(name, a) != a:
                        return None
                    if a and name not in names:
                        names[name] = a
                        grown = True
    if len(names) != len(group):
        return None
    extents = {next(a.extent for a in by_name[n].axes if a.name == axis) for n, axis in names.items()}
    return names if len(extents) == 1 else None


def _pair(
    reader: Stage, source: Stage, index: tuple[s.Expr, ...], names: dict[str, str]
) -> tuple[str, str] | None:
    """The axes of reader and source that a load ties together; ("", "") if neither is in `names` yet.

    None if the load does not read the same row.
    """
    own = {a.name for a in reader.axes}
    if source.name in names:
        d = next(n for n, a in enumerate(source.axes) if a.name == names[source.name])
        e = index[d]
        return (e.name, names[source.name]) if isinstance(e, Var) and e.name in own else None
    if reader.name in names:
        at = [d for d, e in enumerate(index) if e == Var(names[reader.name])]
        return (names[reader.name], source.axes[at[0]].name) if len(at) == 1 else None
    return "", ""


def _renamed(st: Stage, rows: dict[str, str]) -> Stage:
    """Row axes get the group's names, all others names that no other stage uses."""
    names = {a.name: rows.get(a.name, f"{st.name}_{a.name}") for a in st.all_axes}
    body = s.substitute(st.body, {old: Var(new) for old, new in names.items()})
    axes = tuple(Axis(names[a.name], a.extent) for a in st.axes)
    reduce = (
        Reduce(st.reduce.op, tuple(Axis(names[a.name], a.extent) for a in st.reduce.axes))
        if st.reduce
        else None
    )
    return Stage(st.name, st.dtype, axes, body, reduce)
