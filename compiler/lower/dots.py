"""Words of four bytes, and sums of their products, for machines that have no instructions for them."""

from __future__ import annotations

from ..ir.scalar import DOTS, Call, Expr, binary, cast, const, transform
from ..ir.types import I32, U8


def expand_dots(e: Expr, native: str = "") -> Expr:
    """`e` with words and `dot4_*` as arithmetic on i32. Where a `dot4_*` is `native`, it and words stay."""

    def expand(x: Expr) -> Expr | None:
        if not isinstance(x, Call) or x.op == native:
            return None
        if x.op == "word" and not native:
            return expanded_word(x)
        if x.op not in DOTS:
            return None
        a, b = x.args
        terms = [_byte(a, n, DOTS[x.op]) * _byte(b, n, True) for n in range(4)]
        return (terms[0] + terms[1]) + (terms[2] + terms[3])

    return transform(e, expand)


def expanded_word(e: Call) -> Expr:
    low, *others = (cast(cast(x, U8), I32) for x in e.args)
    for n, byte in enumerate(others, 1):
        low = binary("or", low, binary("shl", byte, const(8 * n, I32)))
    return low


def _byte(word: Expr, n: int, signed: bool) -> Expr:
    """Byte n of an i32, the lowest one first."""
    if not signed:
        return binary("and", binary("shr", word, const(8 * n, I32)), const(0xFF, I32))
    return binary("shr", binary("shl", word, const(24 - 8 * n, I32)), const(24, I32))
