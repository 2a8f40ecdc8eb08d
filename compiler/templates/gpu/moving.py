"""Windows that move over an operand: which axes of an expression are positions and taps of one axis of it.

    Σ[kh, kw] x[c, h·2 + kh - 1, w·2 + kw - 1] · …      →      pairs (h, kh, stride 2), (w, kw, stride 2)

and x read at h·2 + kh = `at_h`, whichever position and tap that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...ir import scalar as s
from ...ir.affine import linear
from ...ir.expr import Axis, Stage
from ...ir.scalar import Binary, Expr, Var
from ...ir.types import I64


@dataclass(frozen=True)
class Pair:
    """Position `axis` and tap `tap` of a window read at stride · axis + dilation · tap."""

    axis: Axis
    tap: Axis
    stride: int
    dilation: int

    @property
    def at(self) -> Var:
        return Var(f"at_{self.axis.name}")

    @property
    def length(self) -> int:
        """Places that all positions read."""
        return self.reach(self.axis.extent)

    def reach(self, positions: int) -> int:
        """Places that so many neighbouring positions read."""
        return (positions - 1) * self.stride + (self.tap.extent - 1) * self.dilation + 1

    def place(self, position: int, tap: int) -> int:
        return position * self.stride + tap * self.dilation


def pairs_of(data: Expr, st: Stage) -> tuple[Pair, ...] | None:
    """Of every tap that `data` reads along, in the order of the stage's axes; None where it reads otherwise.

    Taps of one place stand alone, without a position.
    """
    assert st.reduce is not None
    taps = {a.name: a for a in st.reduce.axes}
    axes = {a.name: a for a in st.axes}
    found: dict[str, Pair] = {}
    for index in (i for load in s.loads(data) for i in load.index):
        form = linear(index)
        names = [atom.name for atom, _ in form.terms if isinstance(atom, Var)]
        moving = [n for n in names if n in taps]
        if not moving and not s.variables(index) & set(taps):
            continue
        at = [n for n in names if n in axes]
        if len(form.terms) != 2 or len(moving) != 1 or len(at) != 1:
            return None
        stride, dilation = form.coefficient(at[0]), form.coefficient(moving[0])
        pair = Pair(axes[at[0]], taps[moving[0]], stride, dilation)
        if min(stride, dilation) < 1 or found.setdefault(at[0], pair) != pair:
            return None
    if sorted(p.tap.name for p in found.values()) != sorted(taps) or not found:
        return None
    pairs = tuple(found[a.name] for a in st.axes if a.name in found)
    free = {name for p in pairs for name in (p.axis.name, p.tap.name)}
    return None if s.variables(by_place(data, pairs)) & free else pairs


def by_place(data: Expr, pairs: Sequence[Pair]) -> Expr:
    """stride · position + dilation · tap  →  at_position, wherever it stands."""

    def put(e: Expr) -> Expr | None:
        if not (isinstance(e, Var | Binary) and e.dtype is I64):
            return None
        form, change = linear(e), s.as_expr(0)
        for p in pairs:
            c, k = form.coefficient(p.axis.name), form.coefficient(p.tap.name)
            if c and c % p.stride == 0 and k == c // p.stride * p.dilation:
                change += p.at * (c // p.stride) - Var(p.axis.name) * c - Var(p.tap.name) * k
        return None if change == s.const(0) else linear(e + change).expr()

    return s.transform(data, put)
