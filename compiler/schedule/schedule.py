"""Rewrites of loop nests. Each keeps the meaning; its docstring says before → after.

Loops are found by name in every nest that has them, so nests of fused stages whose axes share names are
rewritten alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ...errors import InternalError
from ..ir import affine
from ..ir import loops as L
from ..ir import scalar as s
from ..ir.expr import TensorExpr
from ..ir.loops import Alloc, Barrier, For, If, Prefetch, Program, Stmt, Store
from ..ir.scalar import Expr, Load, Var
from .nest import Loop, Nest, naive_nests, program_of

Index = Callable[[tuple[Expr, ...]], tuple[Expr, ...]]


class Schedule:
    """The nests of one tensor expression under rewriting."""

    def __init__(self, name: str, expr: TensorExpr):
        self.name = name
        self.nests, self.params, temps = naive_nests(expr)
        self.temps = list(temps)

    def program(self) -> Program:
        """The loop program as it stands."""
        return program_of(self.name, self.nests, self.params, tuple(self.temps))

    def every(self) -> Iterable[Nest]:
        for nest in self.nests:
            yield from nest.all_nests()

    def nest(self, label: str) -> Nest:
        return next(n for n in self.every() if n.label == label)

    def _having(self, var: str, within: Sequence[str] | None = None) -> list[Nest]:
        found = [n for n in self.every() if n.loop(var) and (within is None or n.label in within)]
        if not found:
            raise InternalError(f"schedule {self.name}: no loop {var}")
        return found

    # --- rewrites ---------------------------------------------------------------------------------------

    def rename(self, label: str, names: dict[str, str]) -> None:
        """for a: S(a)  →  for b: S(b)"""
        nest = self.nest(label)
        for lp in nest.loops:
            lp.var = names.get(lp.var, lp.var)
        self._substitute(nest, {old: Var(new) for old, new in names.items()})

    def split(
        self, var: str, factor: int, outer: str, inner: str, within: Sequence[str] | None = None
    ) -> None:
        """for v < N: S(v)  →  for o < ⌈N/f⌉: for i < f: if f·o + i < N: S(f·o + i)"""
        for nest in self._having(var, within):
            at = nest.vars.index(var)
            n = nest.loops[at].extent
            nest.loops[at : at + 1] = [Loop(outer, -(-n // factor)), Loop(inner, factor)]
            value = Var(outer) * factor + Var(inner)
            self._substitute(nest, {var: value})
            if n % factor:
                nest.guards.append(s.lt(value, n))
            self._simplify(nest)

    def fuse(self, outer: str, inner: str, fused: str, within: Sequence[str] | None = None) -> None:
        """for o < M: for i < N: S(o, i)  →  for v < M·N: S(v // N, v mod N)"""
        for nest in self._having(outer, within):
            at = nest.vars.index(outer)
            if nest.vars[at + 1 : at + 2] != [inner]:
                raise InternalError(
                    f"schedule {self.name}: {inner} is not directly inside {outer} in {nest.label}"
                )
            m, n = nest.loops[at].extent, nest.loops[at + 1].extent
            nest.loops[at : at + 2] = [Loop(fused, m * n)]
            v = Var(fused)
            self._substitute(nest, {outer: s.binary("floordiv", v, n), inner: s.binary("mod", v, n)})
            self._simplify(nest)

    def reorder(self, label: str, order: Sequence[str]) -> None:
        """for a: for b: S  →  for b: for a: S. Names the nest's loops in their new order, all of them."""
        nest = self.nest(label)
        if sorted(order) != sorted(nest.vars):
            raise InternalError(f"schedule {self.name}: {label} has loops {nest.vars}, not {list(order)}")
        by_name = {lp.var: lp for lp in nest.loops}
        nest.loops = [by_name[v] for v in order]

    def merge(self, labels: Sequence[str], depth: int) -> Nest:
        """for a: A   for a: B  →  for a: { A  B }   over the `depth` outermost loops, which must agree.

        Legal when B's iteration of the shared loops reads only what A's same iteration wrote.
        """
        siblings = self._siblings(labels[0])
        at = next(i for i, x in enumerate(siblings) if isinstance(x, Nest) and x.label == labels[0])
        group = siblings[at : at + len(labels)]
        if [g.label for g in group if isinstance(g, Nest)] != list(labels):
            raise InternalError(f"schedule {self.name}: {labels} do not stand side by side")
        nests = [g for g in group if isinstance(g, Nest)]
        shared = [(lp.var, lp.extent) for lp in nests[0].loops[:depth]]
        for n in nests:
            if [(lp.var, lp.extent) for lp in n.loops[:depth]] != shared:
                raise InternalError(f"schedule {self.name}: {n.label} does not share the loops {shared}")
        parent = Nest("+".join(labels), nests[0].loops[:depth], list(nests))
        for n in nests:
            n.loops = n.loops[depth:]
        siblings[at : at + len(labels)] = [parent]
        return parent

    def annotate(self, kind: str, *variables: str, within: Sequence[str] | None = None) -> None:
        """for v  →  for v KIND"""
        for var in variables:
            for nest in self._having(var, within):
                loop = nest.loop(var)
                assert loop is not None
                loop.kind = kind

    def append(self, label: str, var: str, *statements: Stmt) -> None:
        """for v: S  →  for v: { S  statements }   for statements without effect: prefetches, barriers of
        loads
        """
        loop = self.nest(label).loop(var)
        if loop is None or not all(isinstance(st, Prefetch | Barrier) for st in statements):
            raise InternalError(f"schedule {self.name}: {statements} cannot stand in loop {var} of {label}")
        loop.after += statements

    def stage(self, buffer: str, parent: Nest, scope: str) -> None:
        """A temporary of the whole program → a buffer inside `parent`, of the size that one iteration
        touches.
        """
        old = next(b for b in self.temps if b.name == buffer)
        inner: dict[str, affine.Range] = {}
        for child in parent.children():
            for n in child.all_nests():
                for lp in n.loops:
                    inner[lp.var] = (0, max(lp.extent - 1, inner.get(lp.var, (0, 0))[1]))
        outer_of: list[Expr] | None = None
        extents = [1] * len(old.shape)

        def split_index(index: tuple[Expr, ...]) -> list[tuple[Expr, Expr]]:
            parts = []
            for e in index:
                form = affine.linear(e)
                local = tuple((a, c) for a, c in form.terms if s.variables(a) & inner.keys())
                rest = tuple((a, c) for a, c in form.terms if not s.variables(a) & inner.keys())
                parts.append((affine.Linear(0, rest).expr(), affine.Linear(form.offset, local).expr()))
            return parts

        def shrink(index: tuple[Expr, ...]) -> tuple[Expr, ...]:
            nonlocal outer_of
            parts = split_index(index)
            bases = [p[0] for p in parts]
            if outer_of is None:
                outer_of = bases
            if bases != outer_of:
                raise InternalError(
                    f"schedule {self.name}: {buffer} is used at {bases} and {outer_of}: cannot be staged"
                )
            for n, (_, local) in enumerate(parts):
                lo, hi = affine.bounds(local, inner)
                if lo < 0:
                    raise InternalError(f"schedule {self.name}: {buffer} is used below its tile")
                extents[n] = max(extents[n], hi + 1)
            return tuple(p[1] for p in parts)

        self._rewrite_uses(parent, buffer, shrink)
        self.temps.remove(old)
        parent.allocs.append(replace(old, shape=tuple(extents), scope=scope))

    # --- helpers ----------------------------------------------------------------------------------------

    def _siblings(self, label: str) -> list:
        def search(group: list) -> list | None:
            for x in group:
                if isinstance(x, Nest):
                    if x.label == label:
                        return group
                    inside = search(x.body)
                    if inside is not None:
                        return inside
            return None

        found = search(self.nests)
        if found is None:
            raise InternalError(f"schedule {self.name}: no nest {label}")
        return found

    def _substitute(self, nest: Nest, values: dict[str, Expr]) -> None:
        self._map(nest, lambda e: s.substitute(e, values))

    def _map(self, nest: Nest, fn: Callable[[Expr], Expr]) -> None:
        nest.guards = [fn(g) for g in nest.guards]
        new: list[Stmt | Nest] = []
        for x in nest.body:
            if isinstance(x, Nest):
                self._map(x, fn)
                new.append(x)
            else:
                new.extend(L.map_expressions((x,), fn))
        nest.body = new

    def _simplify(self, nest: Nest) -> None:
        ranges = {lp.var: (0, lp.extent - 1) for lp in nest.loops}
        known = affine.Known()
        self._map(nest, lambda e: affine.simplify(e, ranges, known))

    def rename_buffer(self, nest: Nest, buffer: str, name: str, fn: Index = lambda index: index) -> None:
        """b[i]  →  name[fn(i)]   where the nest reads, writes and allocates b"""
        self._rewrite_uses(nest, buffer, fn, name)
        for part in nest.all_nests():
            part.allocs = [replace(b, name=name) if b.name == buffer else b for b in part.allocs]

    def _rewrite_uses(self, nest: Nest, buffer: str, fn: Index, name: str = "") -> None:
        name = name or buffer

        def on_expr(e: Expr) -> Expr:
            return s.transform(
                e,
                lambda x: (
                    Load(name, fn(x.index), x.type) if isinstance(x, Load) and x.tensor == buffer else None
                ),
            )

        def on_stmt(st: Stmt) -> Stmt:
            if isinstance(st, Store):
                if st.buffer == buffer:
                    return Store(name, fn(st.index), on_expr(st.value))
                return Store(st.buffer, tuple(on_expr(i) for i in st.index), on_expr(st.value))
            if isinstance(st, Prefetch):
                return replace(st, buffer=name, index=fn(st.index)) if st.buffer == buffer else st
            if isinstance(st, If):
                return If(on_expr(st.cond), tuple(map(on_stmt, st.then)), tuple(map(on_stmt, st.other)))
            if isinstance(st, For):
                return replace(
                    st, begin=on_expr(st.begin), end=on_expr(st.end), body=tuple(map(on_stmt, st.body))
                )
            if isinstance(st, Alloc):
                return Alloc(st.buffer, tuple(map(on_stmt, st.body)))
            return st

        nest.guards = [on_expr(g) for g in nest.guards]
        for lp in nest.loops:
            lp.after = tuple(map(on_stmt, lp.after))
        for x in nest.children():
            self._rewrite_uses(x, buffer, fn, name)
        nest.body = [x if isinstance(x, Nest) else on_stmt(x) for x in nest.body]
