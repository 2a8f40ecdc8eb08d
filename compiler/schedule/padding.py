"""Guards moved from stores to loads, where a temporary has room for what lies beyond the edge."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ..ir import affine
from ..ir import scalar as s
from ..ir.loops import Store
from ..ir.scalar import Expr, Load
from .nest import Nest
from .schedule import Schedule


def compute_on_padding(sch: Schedule, nest: Nest, parent: Nest, roomy: Collection[str]) -> None:
    """if g: t = f(x)   →   t = f(g ? x : 0)      for a `roomy` temporary, which has room for whole vectors"""
    body = nest.body[0]
    if not nest.guards or len(nest.body) != 1 or not isinstance(body, Store):
        return
    if s.checks(body.value):
        return
    shapes = {b.name: b.shape for b in (*sch.params, *sch.temps) if b.name not in roomy}
    ranges = {lp.var: (0, lp.extent - 1) for lp in (*parent.loops, *nest.loops)}

    def guarded(e: Expr) -> Expr | None:
        if not isinstance(e, Load) or e.tensor not in shapes or not may_leave(e, shapes[e.tensor], ranges):
            return None
        needed = [g for g in nest.guards if s.variables(g) & s.variables(e)]
        return s.select(s.both(*needed), e, s.const(0, e.type))

    value = s.transform(body.value, guarded)
    nest.guards = []
    nest.body = [Store(body.buffer, body.index, value)]


def may_leave(load: Load, shape: tuple[int, ...], ranges: Mapping[str, affine.Range]) -> bool:
    """Whether some index of the load can lie outside its tensor."""
    for e, d in zip(load.index, shape):
        lo, hi = affine.bounds(e, ranges)
        if lo < 0 or hi >= d:
            return True
    return False
