"""Integer index arithmetic: linear forms, bounds, and simplification of // and % under known ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .scalar import (
    COMPARE,
    Binary,
    Call,
    Const,
    Expr,
    Select,
    Var,
    binary,
    children,
    const,
    is_data,
    rebuild,
)
from .types import BOOL, I64

Range = tuple[int, int]
"""Inclusive bounds of a value."""
I64_LIMIT = 1 << 63
_BIG = 1 << 66  # beyond every i64 and every difference of two


@dataclass(frozen=True)
class Linear:
    """offset + Σ coefficient · atom; an atom is a Var or any i64 expression that is not linear."""

    offset: int
    terms: tuple[tuple[Expr, int], ...]  # no zero coefficients, atoms distinct, in order of first appearance

    @property
    def is_const(self) -> bool:
        return not self.terms

    def coefficient(self, name: str) -> int:
        return next((c for a, c in self.terms if isinstance(a, Var) and a.name == name), 0)

    def expr(self) -> Expr:
        result: Expr | None = None
        for atom, c in self.terms:
            if c < 0 and result is not None:
                result = binary("sub", result, binary("mul", atom, -c))
            else:
                term = binary("mul", atom, c)
                result = term if result is None else binary("add", result, term)
        if result is None:
            return const(self.offset)
        return binary("sub", result, -self.offset) if self.offset < 0 else binary("add", result, self.offset)


def linear(e: Expr) -> Linear:
    terms: dict[Expr, int] = {}
    offset = _collect(e, 1, terms)
    return Linear(offset, tuple((a, c) for a, c in terms.items() if c))


def _collect(e: Expr, scale: int, terms: dict[Expr, int]) -> int:
    if isinstance(e, Const):
        return int(e.value) * scale
    if isinstance(e, Binary):
        if e.op == "add":
            return _collect(e.a, scale, terms) + _collect(e.b, scale, terms)
        if e.op == "sub":
            return _collect(e.a, scale, terms) + _collect(e.b, -scale, terms)
        if e.op == "mul":
            if isinstance(e.b, Const):
                return _collect(e.a, scale * int(e.b.value), terms)
            if isinstance(e.a, Const):
                return _collect(e.b, scale * int(e.a.value), terms)
    if isinstance(e, Call) and e.op == "neg":
        return _collect(e.args[0], -scale, terms)
    terms[e] = terms.get(e, 0) + scale
    return 0


def bounds(e: Expr, ranges: Mapping[str, Range], known: dict[int, Range] | None = None) -> Range:
    """The least and greatest value that `e` can take; unknown variables and what may wrap are unbounded.
    `known` are those of parts of one expression in the same ranges, by id: one may stand there many times."""
    known = {} if known is None else known
    form = linear(e)
    lo = hi = form.offset
    for atom, c in form.terms:
        if id(atom) not in known:
            known[id(atom)] = _atom_bounds(atom, ranges, known)
        a, b = known[id(atom)]
        lo += a * c if c > 0 else b * c
        hi += b * c if c > 0 else a * c
    computed = form.terms != ((e, 1),)
    if computed and not -(1 << 63) <= lo <= hi < 1 << 63 and is_data(e):
        return -_BIG, _BIG
    return max(lo, -_BIG), min(hi, _BIG)


def _atom_bounds(e: Expr, ranges: Mapping[str, Range], known: dict[int, Range]) -> Range:
    match e:
        case Var(name=n):
            return ranges.get(n, (-_BIG, _BIG))
        case Binary(op="floordiv", a=a, b=Const(value=d)) if d > 0:
            lo, hi = bounds(a, ranges, known)
            return lo // int(d), hi // int(d)
        case Binary(op="mod", a=a, b=Const(value=d)) if d > 0:
            lo, hi = bounds(a, ranges, known)
            return (lo, hi) if lo >= 0 and hi < d else (0, int(d) - 1)
        case Binary(op="min", a=a, b=b):
            (la, ha), (lb, hb) = bounds(a, ranges, known), bounds(b, ranges, known)
            return min(la, lb), min(ha, hb)
        case Binary(op="max", a=a, b=b):
            (la, ha), (lb, hb) = bounds(a, ranges, known), bounds(b, ranges, known)
            return max(la, lb), max(ha, hb)
        case Select(then=a, other=b):
            (la, ha), (lb, hb) = bounds(a, ranges, known), bounds(b, ranges, known)
            return min(la, lb), max(ha, hb)
        case Call(op="checked", args=(_, n)):
            return 0, max(bounds(n, ranges, known)[1] - 1, 0)
    return -_BIG, _BIG


def _difference(a: Expr, b: Expr, ranges: Mapping[str, Range]) -> Range:
    """Bounds of a - b. What is read may be anything, and x + 1 less than x: so it does not cancel."""
    if not (is_data(a) or is_data(b)):
        return bounds(binary("sub", a, b), ranges)
    (la, ha), (lb, hb) = bounds(a, ranges), bounds(b, ranges)
    return max(la - hb, -_BIG), min(ha - lb, _BIG)


def decide(e: Expr, ranges: Mapping[str, Range]) -> bool | None:
    """Whether a condition always or never holds; None if it depends."""
    return _decide(e, ranges, {})


def _decide(e: Expr, ranges: Mapping[str, Range], known: dict[int, bool | None]) -> bool | None:
    """`known` by the identity of conditions, which may stand in many places."""
    if id(e) not in known:
        known[id(e)] = _decided(e, ranges, known)
    return known[id(e)]


def _decided(e: Expr, ranges: Mapping[str, Range], known: dict[int, bool | None]) -> bool | None:
    match e:
        case Const(value=v):
            return bool(v)
        case Binary(op="and", a=a, b=b):
            x, y = _decide(a, ranges, known), _decide(b, ranges, known)
            return False if x is False or y is False else True if x and y else None
        case Binary(op="or", a=a, b=b):
            x, y = _decide(a, ranges, known), _decide(b, ranges, known)
            return True if x or y else False if x is False and y is False else None
        case Call(op="not", args=(a,)):
            x = _decide(a, ranges, known)
            return None if x is None else not x
        case Binary(op=op, a=a, b=b) if op in COMPARE and a.dtype is I64:
            lo, hi = _difference(a, b, ranges)
            always = {
                "lt": hi < 0,
                "le": hi <= 0,
                "gt": lo > 0,
                "ge": lo >= 0,
                "eq": lo == hi == 0,
                "ne": lo > 0 or hi < 0,
            }
            never = {
                "lt": lo >= 0,
                "le": lo > 0,
                "gt": hi <= 0,
                "ge": hi < 0,
                "eq": lo > 0 or hi < 0,
                "ne": lo == hi == 0,
            }
            return True if always[op] else False if never[op] else None
    return None


class Known(dict[Expr, Expr]):
    """What expressions became under the same ranges. Equal results are one object, also across ranges where
    the same `results` are handed in.
    """

    def __init__(self, results: dict[Expr, Expr] | None = None):
        super().__init__()
        self.results = {} if results is None else results


def simplify(e: Expr, ranges: Mapping[str, Range], known: Known | None = None) -> Expr:
    """An equal expression under the given ranges: linear parts collected, //, % and guards resolved.

    `known` may hold what was simplified under the same ranges, and takes up what is.
    """
    return _simplify(e, ranges, Known() if known is None else known)


def _simplify(e: Expr, ranges: Mapping[str, Range], known: Known) -> Expr:
    if isinstance(e, Const):
        return e
    found = known.get(e)
    if found is None:
        result = _simplified(e, ranges, known)
        found = known[e] = known.results.setdefault(result, result)
    return found


def _simplified(e: Expr, ranges: Mapping[str, Range], known: Known) -> Expr:
    parts = children(e)
    if not parts:
        if isinstance(e, Var) and e.name in ranges and ranges[e.name][0] == ranges[e.name][1]:
            return const(ranges[e.name][0])
        return e
    if isinstance(e, Select):
        cond = _simplify(parts[0], ranges, known)
        if isinstance(cond, Const):
            return _simplify(parts[1 if cond.value else 2], ranges, known)
        new = (cond, *(_simplify(p, ranges, known) for p in parts[1:]))
        return rebuild(e, new) if any(n is not p for n, p in zip(new, parts)) else e
    new = tuple([_simplify(p, ranges, known) for p in parts])
    if any(n is not p for n, p in zip(new, parts)):
        e = rebuild(e, new)
    if e.dtype is BOOL:
        holds = decide(e, ranges)
        return e if holds is None else const(holds, BOOL)
    if e.dtype is not I64 or not isinstance(e, Binary):
        return e
    if e.op in ("floordiv", "mod") and isinstance(e.b, Const) and int(e.b.value) > 0:
        return _divide(e.op, e.a, int(e.b.value), ranges)
    if e.op in ("min", "max"):
        lo, hi = _difference(e.a, e.b, ranges)
        if hi <= 0 or lo >= 0:
            return e.a if (hi <= 0) == (e.op == "min") else e.b
        return e
    if e.op in ("add", "sub", "mul"):
        return linear(e).expr()
    return e


def _divide(op: str, a: Expr, d: int, ranges: Mapping[str, Range]) -> Expr:
    """a // d or a % d: the terms that d divides come out of the division, unless `a` may have wrapped."""
    if is_data(a):
        least, most = bounds(a, ranges)
        if not -_BIG < least <= most < _BIG:
            return Binary(op, a, const(d))
    form = linear(a)
    whole = Linear(form.offset // d, tuple((t, c // d) for t, c in form.terms if c % d == 0))
    rest = Linear(form.offset % d, tuple((t, c) for t, c in form.terms if c % d))
    rest_expr = rest.expr()
    lo, hi = bounds(rest_expr, ranges)
    if is_data(a) and not (lo >= -I64_LIMIT and hi < I64_LIMIT):  # what is left would wrap
        return Binary(op, a, const(d))
    if lo >= 0 and hi < d:
        return whole.expr() if op == "floordiv" else rest_expr
    if rest.offset == 0 and rest.terms and op == "floordiv":
        nested = _nested_division(rest, d)
        if nested is not None:
            return binary("add", whole.expr(), nested) if whole.terms or whole.offset else nested
    shift = lo // d
    if shift == hi // d:  # the rest lies within one period
        if op == "floordiv":
            return binary("add", whole.expr(), shift)
        return binary("sub", rest_expr, shift * d)
    if op == "floordiv":
        return binary("add", whole.expr(), Binary("floordiv", rest_expr, const(d)))
    return Binary("mod", rest_expr, const(d))


def _nested_division(rest: Linear, d: int) -> Expr | None:
    """(x // p) // d → x // (p·d)."""
    if len(rest.terms) == 1 and rest.terms[0][1] == 1:
        atom = rest.terms[0][0]
        if (
            isinstance(atom, Binary)
            and atom.op == "floordiv"
            and isinstance(atom.b, Const)
            and 0 < int(atom.b.value) * d < I64_LIMIT
        ):
            return Binary("floordiv", atom.a, const(int(atom.b.value) * d))
    return None
