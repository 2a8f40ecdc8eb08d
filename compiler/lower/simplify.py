"""Statements and their expressions simplified under the ranges of the loops around them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..ir import affine
from ..ir import loops as L
from ..ir.affine import Range
from ..ir.loops import Alloc, Body, For, If, Intrinsic, Prefetch, Stmt, Store
from ..ir.scalar import Const, Expr


class Simplifier:
    """Remembers what became of expressions and bodies under which ranges: unrolled and partitioned loops
    repeat them. Equal expressions become one object, which makes looking them up cheap."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[str, Range], ...], affine.Known] = {}
        self._results: dict[Expr, Expr] = {}
        self._done: dict[tuple[tuple[tuple[str, Range], ...], int], Body] = {}  # ids stay with their bodies

    def body(self, body: Body, ranges: Mapping[str, Range]) -> Body:
        """Branches and loops that never run are gone."""
        within = tuple(ranges.items())
        if (within, id(body)) in self._done:
            return body
        known = self._known.setdefault(within, affine.Known(self._results))
        result = tuple([x for st in body for x in self._statement(st, ranges, known)])
        self._done[within, id(result)] = result
        return result

    def _statement(self, st: Stmt, ranges: Mapping[str, Range], known: affine.Known) -> Body:
        parts = tuple([affine.simplify(e, ranges, known) for e in L.expressions(st)])
        match st:
            case For():
                begin, end = parts
                lo, hi = affine.bounds(begin, ranges)[0], affine.bounds(end, ranges)[1] - 1
                if hi < lo:
                    return ()
                inner = self.body(st.body, {**ranges, st.var: (lo, hi)})
                return (For(st.var, begin, end, inner, st.kind),)
            case If():
                (cond,) = parts
                if isinstance(cond, Const):
                    return self.body(st.then if cond.value else st.other, ranges)
                return (If(cond, self.body(st.then, ranges), self.body(st.other, ranges)),)
            case Alloc():
                return (Alloc(st.buffer, self.body(st.body, ranges)),)
            case Store():
                return (Store(st.buffer, parts[:-1], parts[-1]),)
            case Prefetch():
                return (replace(st, index=parts),)
            case Intrinsic():
                return (Intrinsic(st.name, parts, self.body(st.body, ranges)),)
        return (st,)
