"""Guards resolved before code generation: iterations that need none run without, taps on padding are never
visited.

tighten    for k < K: acc += select(0 <= r + k < H, x, 0) · w   →   for k in [max(0, -r), min(K, H - r)):
acc += x · w
partition  for o < N: if 4·o + i < n: S                         →   for o < N-1: S    and the last
iteration on its own
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from ..ir import affine
from ..ir import loops as L
from ..ir import scalar as s
from ..ir.affine import Range
from ..ir.loops import Alloc, Body, For, If, Program, Stmt, Store
from ..ir.scalar import Binary, Expr, Load, Select, Var
from ..ir.types import I64, DType
from .simplify import Simplifier

PEEL = 2  # edge iterations that become straight code of their own
EDGE_PIECES = 16  # pieces of one edge of a loop that differ in which conditions hold
STATEMENT_LIMIT = 12_000  # stores after unrolling that one program may grow to by partitioning


def resolve_guards(program: Program, limit: int = STATEMENT_LIMIT) -> Program:
    """`limit`: stores after unrolling that it may grow to by partitioning."""
    body = _tighten_body(program.body, frozenset())
    budget = _Budget(limit - _weight(body), Simplifier())
    return replace(program, body=tuple(x for st in body for x in _partition(st, {}, budget)))


def simplify_program(program: Program) -> Program:
    return replace(program, body=Simplifier().body(program.body, {}))


# --- tighten --------------------------------------------------------------------------------------------


def _tighten_body(body: Body, outer: frozenset[str]) -> Body:
    return tuple(_tighten(st, outer) for st in body)


def _tighten(st: Stmt, outer: frozenset[str]) -> Stmt:
    match st:
        case For():
            body = _tighten_body(st.body, outer | {st.var})
            st = replace(st, body=body)
            stores = [x for x in L.walk(body) if isinstance(x, Store)]
            if st.kind != "serial" or len(stores) != 1 or not _is_update(stores[0]):
                return st
            return _tighten_loop(st, stores[0], outer)
        case If():
            return If(st.cond, _tighten_body(st.then, outer), _tighten_body(st.other, outer))
        case Alloc():
            return Alloc(st.buffer, _tighten_body(st.body, outer))
    return st


def _is_update(st: Store) -> bool:
    v = st.value
    return (
        isinstance(v, Binary) and isinstance(v.a, Load) and v.a.tensor == st.buffer and v.a.index == st.index
    )


def _tighten_loop(st: For, store: Store, outer: frozenset[str]) -> For:
    """Takes out of the update's selects the conditions that only the loop's own and outer variables
    decide.
    """
    value = store.value
    assert isinstance(value, Binary)
    identity = _identity(value.op, value.dtype)
    begin, end = st.begin, st.end
    removed: set[Expr] = set()
    for guard in _skipping_guards(value.b, value.op, identity, set()):
        for cond in conjuncts(guard):
            names = s.variables(cond)
            if st.var not in names or not names <= outer | {st.var}:
                continue
            limit = _bound(cond, st.var)
            if limit is None:
                continue
            is_upper, e = limit
            begin, end = (begin, s.minimum(end, e)) if is_upper else (s.maximum(begin, e), end)
            removed.add(cond)
    if not removed:
        return st

    def drop(e: Expr) -> Expr | None:
        if isinstance(e, Select):
            rest = [c for c in conjuncts(e.cond) if c not in removed]
            return s.select(s.both(*rest), e.then, e.other)
        return None

    new_store = Store(store.buffer, store.index, s.transform(store.value, drop))
    return replace(st, begin=begin, end=end, body=_replace_store(st.body, store, new_store))


def _identity(op: str, dtype: DType) -> Expr | None:
    match op:
        case "add":
            return s.const(0, dtype)
        case "max":
            return s.lowest(dtype)
        case "min":
            return s.highest(dtype)
    return None


def _skipping_guards(e: Expr, op: str, identity: Expr | None, seen: set[int]) -> list[Expr]:
    """Conditions without which the update changes nothing: select(c, x, 0) as a factor of a sum, or
    select(c, x, identity). Objects in `seen`, by id, are passed over: one may be a factor many times.
    """
    if id(e) in seen:
        return []
    seen.add(id(e))
    if isinstance(e, Select) and identity is not None and e.other == identity:
        return [e.cond, *_skipping_guards(e.then, op, identity, seen)]
    if op == "add" and isinstance(e, Binary) and e.op == "mul":
        return _skipping_guards(e.a, op, identity, seen) + _skipping_guards(e.b, op, identity, seen)
    if op == "add" and isinstance(e, s.Cast) and e.value.dtype.is_integer == e.type.is_integer:
        zero = s.const(0, e.value.dtype)
        return _skipping_guards(e.value, op, zero, seen)
    return []


def conjuncts(e: Expr) -> list[Expr]:
    """In order, each object once."""
    found: dict[int, Expr] = {}
    waiting, seen = [e], set[int]()
    while waiting:
        x = waiting.pop()
        if id(x) in seen:
            continue
        seen.add(id(x))
        if isinstance(x, Binary) and x.op == "and":
            waiting += (x.b, x.a)
        else:
            found[id(x)] = x
    return list(found.values())


def _comparison(cond: Expr, var: str) -> tuple[str, int, Expr] | None:
    """(op, c, rest) of a condition c·var + rest op 0; None if it is not of that kind, or of what is read."""
    if not (isinstance(cond, Binary) and cond.op in ("lt", "le", "gt", "ge") and cond.a.dtype is I64):
        return None
    if s.is_data(cond.a) or s.is_data(cond.b):
        return None
    form = affine.linear(s.binary("sub", cond.a, cond.b))
    c = form.coefficient(var)
    if c == 0 or any(var in s.variables(a) for a, _ in form.terms if not isinstance(a, Var)):
        return None
    rest = affine.Linear(form.offset, tuple((a, k) for a, k in form.terms if a != Var(var))).expr()
    return cond.op, c, rest


def _bound(cond: Expr, var: str) -> tuple[bool, Expr] | None:
    """(True, e) for var < e, (False, e) for var >= e; None if the condition is not of that kind."""
    comparison = _comparison(cond, var)
    if comparison is None:
        return None
    op, c, rest = comparison
    if c < 0:  # -c·var op rest'
        op = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}[op]
        c, rest = -c, s.binary("mul", rest, -1)
    negated = s.binary("mul", rest, -1)  # c·var op -rest
    if op in ("le", "gt"):
        negated = negated + 1
    up = s.binary("floordiv", negated + (c - 1), c)
    return (op in ("lt", "le")), affine.linear(up).expr()


def _replace_store(body: Body, old: Store, new: Store) -> Body:
    def one(st: Stmt) -> Stmt:
        if st is old:
            return new
        match st:
            case For() | Alloc():
                return replace(st, body=_replace_store(st.body, old, new))
            case If():
                return If(st.cond, _replace_store(st.then, old, new), _replace_store(st.other, old, new))
        return st

    return tuple(one(st) for st in body)


# --- partition ------------------------------------------------------------------------------------------


@dataclass
class _Budget:
    left: int
    simplifier: Simplifier


def _weight(body: Body, times: int = 1) -> int:
    """Stores after unrolling."""
    total = 0
    for st in body:
        match st:
            case For():
                total += _weight(st.body, times * (st.extent or 1) if st.kind == "unroll" else times)
            case If():
                total += _weight(st.then, times) + _weight(st.other, times)
            case Alloc():
                total += _weight(st.body, times)
            case Store():
                total += times
    return total


def _partition(st: Stmt, ranges: dict[str, Range], budget: _Budget) -> list[Stmt]:
    match st:
        case For():
            return _partition_loop(st, ranges, budget)
        case If():
            inside = lambda body: tuple(x for y in body for x in _partition(y, ranges, budget))  # noqa: E731
            return [If(st.cond, inside(st.then), inside(st.other))]
        case Alloc():
            return [Alloc(st.buffer, tuple(x for y in st.body for x in _partition(y, ranges, budget)))]
    return [st]


def _recurse(st: For, lo: int, hi: int, ranges: dict[str, Range], budget: _Budget) -> Body:
    inner = {**ranges, st.var: (lo, hi)}
    body = budget.simplifier.body(st.body, inner)
    return tuple(x for y in body for x in _partition(y, inner, budget))


def _partition_loop(st: For, ranges: dict[str, Range], budget: _Budget) -> list[Stmt]:
    lo, hi = affine.bounds(st.begin, ranges)[0], affine.bounds(st.end, ranges)[1]
    extent = st.extent
    if st.kind not in ("serial", "parallel") or extent is None or extent <= 1:
        return [replace(st, body=_recurse(st, lo, hi - 1, ranges, budget))]
    steady = _steady_range(st, lo, hi, ranges)
    if steady is None:
        return [replace(st, body=_recurse(st, lo, hi - 1, ranges, budget))]
    first, last = steady  # [first, last) needs no guard; empty where every iteration is an edge
    edges = _edge_pieces(st, lo, first, ranges)
    tail = _edge_pieces(st, last, hi, ranges)
    pieces = [*edges, (first, last), *tail]
    pieces = [(a, b) for a, b in pieces if a < b]
    cost = _weight(st.body) * (len(pieces) - 1)
    if len(pieces) == 1 or cost > budget.left:
        return [replace(st, body=_recurse(st, lo, hi - 1, ranges, budget))]
    budget.left -= cost
    if st.kind == "serial":
        return [
            For(st.var, s.const(a), s.const(b), _recurse(st, a, b - 1, ranges, budget), st.kind)
            for a, b in pieces
        ]
    return [replace(st, body=_choose(st, pieces, ranges, budget))]


def _edge_pieces(st: For, lo: int, hi: int, ranges: dict[str, Range]) -> list[tuple[int, int]]:
    """The iterations of an edge: each alone if few, else cut where some condition begins to hold or fail."""
    if hi - lo <= PEEL:
        return [(v, v + 1) for v in range(lo, hi)]
    points = {lo, hi}
    for cond, inner in _conditions(st.body, {**ranges, st.var: (lo, hi - 1)}):
        for c in conjuncts(cond):
            for e in (c, _negated(c)):
                a, b = _always(e, st.var, inner, lo, hi) or (lo, hi)
                points |= {a, b} if a < b else set()
    cuts = sorted(points)
    return list(pairwise(cuts)) if len(cuts) <= EDGE_PIECES + 1 else [(lo, hi)]


def _negated(cond: Expr) -> Expr:
    opposite = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}
    if isinstance(cond, Binary) and cond.op in opposite:
        return Binary(opposite[cond.op], cond.a, cond.b)
    return s.call("not", cond)


def _choose(st: For, pieces: list[tuple[int, int]], ranges: dict[str, Range], budget: _Budget) -> Body:
    """A parallel loop stays whole, so that its iterations remain one task range: each picks its piece."""
    a, b = pieces[0]
    body = _recurse(st, a, b - 1, ranges, budget)
    if b - a == 1:
        body = L.substitute(body, {st.var: s.const(a)})
    if len(pieces) == 1:
        return body
    return (If(s.lt(Var(st.var), b), body, _choose(st, pieces[1:], ranges, budget)),)


def _steady_range(st: For, lo: int, hi: int, ranges: dict[str, Range]) -> tuple[int, int] | None:
    """The iterations for which all conditions that can be decided by this loop hold; None if there is
    nothing to decide.
    """
    first, last, found = lo, hi, False
    for cond, inner in _conditions(st.body, {**ranges, st.var: (lo, hi - 1)}):
        for c in conjuncts(cond):
            interval = _always(c, st.var, inner, lo, hi)
            if interval is None:
                continue
            a, b = interval
            if a >= b and hi - lo > 2 * PEEL:
                continue  # no iteration is free of this condition: cutting would not help
            found = True
            first, last = max(first, a), min(last, b)
    if not found or (first <= lo and last >= hi):
        return None
    if first >= last:
        middle = min(max(first, lo), hi)
        return (middle, middle) if hi - lo <= 2 * PEEL else None
    return first, last


def _conditions(body: Body, ranges: dict[str, Range]):
    """(condition, ranges of the variables there) of every if and select."""
    for st in body:
        for e in L.expressions(st):
            for cond in s.guards(e):
                yield cond, ranges
        match st:
            case For():
                lo, hi = affine.bounds(st.begin, ranges)[0], affine.bounds(st.end, ranges)[1] - 1
                yield from _conditions(st.body, {**ranges, st.var: (lo, hi)})
            case If():
                yield st.cond, ranges
                yield from _conditions(st.then, ranges)
                yield from _conditions(st.other, ranges)
            case Alloc():
                yield from _conditions(st.body, ranges)


def _always(cond: Expr, var: str, ranges: Mapping[str, Range], lo: int, hi: int) -> tuple[int, int] | None:
    """The iterations [a, b) of `var` for which the condition holds whatever the others are; None if it
    does not matter.
    """
    comparison = _comparison(cond, var)
    if comparison is None:
        return None
    op, c, rest = comparison
    low, high = affine.bounds(rest, ranges)
    if op in ("lt", "le"):  # c·v + rest < 0, worst where rest is high
        strict = 1 if op == "lt" else 0
        edge = -high - strict  # c·v <= edge
        a, b = (lo, edge // c + 1) if c > 0 else (-((edge) // -c), hi)
    else:
        strict = 1 if op == "gt" else 0
        edge = strict - low  # c·v >= edge
        a, b = (-(-edge // c), hi) if c > 0 else (lo, (-edge) // -c + 1)
    return max(a, lo), min(b, hi)
