"""Loop nests that a schedule rewrites, and the naive nests of a tensor expression.

A nest is a perfect stack of loops with guards at its bottom and a body of statements or deeper nests.
Building a
Program from nests turns loops into `for`, guards into `if`, and adds the buffers that were moved inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ..ir import scalar as s
from ..ir.expr import Stage, TensorExpr
from ..ir.loops import Alloc, Body, Buffer, For, If, Program, Stmt, Store
from ..ir.scalar import Expr, Load, Var
from ..ir.types import BOOL


@dataclass
class Loop:
    var: str
    extent: int
    kind: str = "serial"
    after: tuple[Stmt, ...] = ()  # every iteration ends with these


@dataclass
class Nest:
    """`label` names the stage and the part: acc.init, acc.update, out."""

    label: str
    loops: list[Loop]
    body: list[Stmt | Nest]
    guards: list[Expr] = field(default_factory=list)
    allocs: list[Buffer] = field(default_factory=list)

    @property
    def vars(self) -> list[str]:
        return [lp.var for lp in self.loops]

    def children(self) -> list[Nest]:
        return [x for x in self.body if isinstance(x, Nest)]

    def all_nests(self) -> Iterator[Nest]:
        yield self
        for child in self.children():
            yield from child.all_nests()

    def loop(self, var: str) -> Loop | None:
        return next((lp for lp in self.loops if lp.var == var), None)

    def build(self) -> Body:
        body: Body = tuple(st for x in self.body for st in (x.build() if isinstance(x, Nest) else (x,)))
        if self.guards:
            body = (If(s.both(*self.guards), body),)
        for buffer in reversed(self.allocs):
            body = (Alloc(buffer, body),)
        for lp in reversed(self.loops):
            body = (*body, *lp.after)
            body = (For(lp.var, s.const(0), s.const(lp.extent), body, lp.kind),)
        return body


def identity_of(op: str, stage: Stage) -> Expr:
    match op:
        case "sum":
            return s.const(0, stage.dtype)
        case "prod":
            return s.const(1, stage.dtype)
        case "max":
            return s.lowest(stage.dtype)
        case "min":
            return s.highest(stage.dtype)
    raise AssertionError(op)


def combine(op: str, a: Expr, b: Expr) -> Expr:
    if a.dtype is BOOL:
        return s.binary({"sum": "or", "max": "or", "prod": "and", "min": "and"}[op], a, b)
    return s.binary({"sum": "add", "prod": "mul"}.get(op, op), a, b)


def naive_nests(expr: TensorExpr) -> tuple[list[Nest], tuple[Buffer, ...], tuple[Buffer, ...]]:
    """(nests in order, params, temporaries): each stage as loops over its axes, nothing fused or
    reordered.
    """
    params = [Buffer(name, type.dtype, type.dims) for name, type in expr.params]
    params += [Buffer(name, expr.stage(name).dtype, expr.stage(name).shape) for name in expr.outputs]
    temps = [
        Buffer(st.name, st.dtype, st.shape, "global") for st in expr.stages if st.name not in expr.outputs
    ]
    nests: list[Nest] = []
    for st in expr.stages:
        index = tuple(Var(a.name) for a in st.axes)
        loops = [Loop(a.name, a.extent) for a in st.axes]
        if st.reduce is None:
            nests.append(Nest(st.name, loops, [Store(st.name, index, st.body)]))
        elif st.reduce.op.startswith("arg"):
            best = Buffer(f"{st.name}_best", st.body.dtype, st.shape, "global")
            temps.append(best)
            nests += _arg_nests(st, best, index)
        else:
            init = Store(st.name, index, identity_of(st.reduce.op, st))
            nests.append(Nest(f"{st.name}.init", loops, [init]))
            inner = [Loop(a.name, a.extent) for a in st.reduce.axes]
            value = combine(st.reduce.op, Load(st.name, index, st.dtype), st.body)
            update = Nest(
                f"{st.name}.update",
                [Loop(a.name, a.extent) for a in st.axes] + inner,
                [Store(st.name, index, value)],
            )
            nests.append(update)
    return nests, tuple(params), tuple(temps)


def _arg_nests(st: Stage, best: Buffer, index: tuple[Expr, ...]) -> list[Nest]:
    """argmax and argmin: the best value so far and its index. NaN wins: the first, as in numpy, or last."""
    assert st.reduce is not None
    op = st.reduce.op
    axis = st.reduce.axes[0].name
    old = Load(best.name, index, best.dtype)
    beats = s.binary("gt" if op.startswith("argmax") else "lt", st.body, old)
    if op.endswith("_last"):
        beats = s.binary("or", beats, s.eq(st.body, old))
    if best.dtype.is_float:
        beats = s.both(beats, s.call("not", s.call("isnan", old)))
        new = s.call("isnan", st.body)
        new = new if op.endswith("_last") else s.both(new, s.call("not", s.call("isnan", old)))
        beats = s.binary("or", beats, new)
    beats = s.binary("or", beats, s.eq(Var(axis), 0))
    loops = lambda: [Loop(a.name, a.extent) for a in st.axes]  # noqa: E731
    init = Nest(
        f"{st.name}.init",
        loops(),
        [Store(st.name, index, s.const(0)), Store(best.name, index, s.const(0, best.dtype))],
    )
    update = Nest(
        f"{st.name}.update",
        [*loops(), Loop(axis, st.reduce.axes[0].extent)],
        [
            Store(st.name, index, s.select(beats, Var(axis), Load(st.name, index, st.dtype))),
            Store(best.name, index, s.select(_index_is(st, index, axis), st.body, old)),
        ],
    )
    return [init, update]


def _index_is(st: Stage, index: tuple[Expr, ...], axis: str) -> Expr:
    """The index was just set to this position."""
    return s.eq(Load(st.name, index, st.dtype), Var(axis))


def program_of(
    name: str, nests: list[Nest], params: tuple[Buffer, ...], temps: tuple[Buffer, ...]
) -> Program:
    """The loop program of nests; temporaries that nothing names any more are gone."""
    body = tuple(st for nest in nests for st in nest.build())
    return Program(name, params, body, temps)


def nest_stores(nest: Nest) -> Mapping[str, list[Store]]:
    found: dict[str, list[Store]] = {}
    for part in nest.all_nests():
        for st in part.body:
            if isinstance(st, Store):
                found.setdefault(st.buffer, []).append(st)
    return found
