"""Products of bytes for machines that do not add up four of them at once."""

from __future__ import annotations

from ..ir.scalar import DOTS, Call, Expr, binary, const, transform
from ..ir.types import I32


def expand_dots(e: Expr, native: str = "") -> Expr:
    """`e` with `dot4_*` as products of i32, but for the one named `native`."""

    def expand(x: Expr) -> Expr | None:
        if not (isinstance(x, Call) and x.op in DOTS) or x.op == native:
            return None
        a, b = x.args
        terms = [_byte(a, n, DOTS[x.op]) * _byte(b, n, True) for n in range(4)]
        return (terms[0] + terms[1]) + (terms[2] + terms[3])

    return transform(e, expand)


def _byte(word: Expr, n: int, signed: bool) -> Expr:
    """Byte n of an i32, the lowest one first."""
    if not signed:
        return binary("and", binary("shr", word, const(8 * n, I32)), const(0xFF, I32))
    return binary("shr", binary("shl", word, const(24 - 8 * n, I32)), const(24, I32))
