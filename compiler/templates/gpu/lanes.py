"""Values of a warp's threads joined through each other's registers, without a barrier."""

from __future__ import annotations

from collections.abc import Callable

from ...ir import scalar as s
from ...ir.loops import Barrier, Body, Buffer, Intrinsic, Store
from ...ir.scalar import Expr, Load, Var
from ...ir.types import BOOL, DType
from ...target import Gpu
from .common import THREAD

WARP = 32  # threads that can exchange values
Join = Callable[[Expr, Expr], Expr]


def can_exchange(gpu: Gpu, dtype: DType) -> bool:
    return gpu.exchanges and dtype.bytes in (4, 8) and dtype is not BOOL


def joined(mine: Load, other: Buffer, meeting: Buffer, nearest: int, end: int, join: Join) -> Body:
    """`mine` of the threads whose numbers differ by multiples of `nearest` below `end`: all of them then have
    what `join` makes of theirs.

    `nearest` and `end` are powers of two, `end` at most WARP; `mine` and `other` registers of one element.
    `meeting` has an element for each of the block's threads; it says what an exchange means, no GPU uses it.
    """
    body: Body = ()
    theirs = Load(other.name, (), other.dtype)
    distance = end // 2
    while distance >= nearest:
        joint = Store(mine.tensor, (), join(mine, theirs))
        body += (_exchange(mine, theirs, meeting, distance), joint)
        distance //= 2
    return body


def _exchange(mine: Load, theirs: Load, meeting: Buffer, distance: int) -> Intrinsic:
    """theirs = `mine` of the thread whose number differs in one bit."""
    thread, pair = Var(THREAD), 2 * distance
    across = s.binary("floordiv", thread, pair) * pair + s.binary("mod", thread + distance, pair)
    meaning = (
        Store(meeting.name, (thread,), mine),
        Barrier(),
        Store(theirs.tensor, (), Load(meeting.name, (across,), meeting.dtype)),
        Barrier(),
    )
    operands = (theirs, mine, s.const(distance), s.const(min(meeting.size, WARP)))
    return Intrinsic("exchange", operands, meaning)
