"""What both IRs check about a scalar expression."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import InternalError
from . import scalar as s
from .scalar import Binary, Call, Cast, Const, Expr, Load, Select, Var
from .types import BOOL, I32, I64, DType

_ARITY = {
    "word": 4,
    "dot4_u8": 2,
    "dot4_i8": 2,
    "fma": 3,
    "checked": 2,
    "copysign": 2,
    "libm.pow": 2,
    "libm.fmod": 2,
}
_BINARY = s.COMPARISONS | s.LOGICAL | s.ARITHMETIC


def verify_scalar(
    e: Expr, has_variable: Callable[[str], bool], tensor: Callable[[str], tuple[DType, int] | None]
) -> None:
    """InternalError unless variables are bound, tensors known (as dtype and rank) and types agree."""
    for x in s.walk(e):
        problem = _problem(x, has_variable, tensor)
        if problem:
            raise InternalError(f"{s.text(x)}: {problem}")


def _problem(
    e: Expr, has_variable: Callable[[str], bool], tensor: Callable[[str], tuple[DType, int] | None]
) -> str | None:
    match e:
        case Var(name=n):
            return None if has_variable(n) else f"variable {n} is not bound here"
        case Load(tensor=t, index=index, type=d):
            known = tensor(t)
            if known is None:
                return f"{t} is not defined here"
            if (d, len(index)) != known:
                return f"{t} holds {known[0]} and has {known[1]} axes"
            wrong = next((i.dtype for i in index if i.dtype is not I64), None)
            return f"an index is {wrong}, expected i64" if wrong else None
        case Binary(op=op, a=a, b=b):
            if op not in _BINARY:
                return f"unknown operator {op}"
            return f"operands are {a.dtype} and {b.dtype}" if a.dtype is not b.dtype else None
        case Call(op=op, args=args):
            return _call_problem(op, args)
        case Select(cond=c, then=t, other=o):
            if c.dtype is not BOOL:
                return f"the condition is {c.dtype}, expected bool"
            return f"the branches are {t.dtype} and {o.dtype}" if t.dtype is not o.dtype else None
        case Const() | Cast():
            return None
    return "not a scalar expression"


def _call_problem(op: str, args: tuple[Expr, ...]) -> str | None:
    if op not in s.FUNCTIONS:
        return f"unknown function {op}"
    arity = _ARITY.get(op, 1)
    if len(args) != arity:
        return f"{op} takes {arity} arguments, not {len(args)}"
    types = [a.dtype for a in args]
    if any(t is not types[0] for t in types):
        return f"the arguments are {', '.join(map(str, types))}"
    if op in s.FLOAT_FUNCTIONS and not types[0].is_float:
        return f"{op} of {types[0]}, expected a float"
    if op == "word" and not (types[0].is_integer and types[0].bits == 8):
        return f"{op} of {types[0]}, expected 8-bit integers"
    if op in s.DOTS and types[0] is not I32:
        return f"{op} of {types[0]}, expected i32"
    if op in s.BITCASTS and types[0].bits != s.BITCASTS[op].bits:
        return f"{op} of {types[0]}, which has another size"
    return None
