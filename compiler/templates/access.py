"""How the loads of a stage move when one of its axes moves: which axis fills vector registers best."""

from __future__ import annotations

from collections.abc import Mapping

from ..ir import affine
from ..ir import scalar as s
from ..ir.expr import Stage, TensorExpr
from ..ir.scalar import Binary, Call, Cast, Expr, Load, Select, Var
from ..ir.types import BF16, F16
from .common import COSTLY

Shapes = Mapping[str, tuple[int, ...]]

COSTLY_OPERATIONS = 12  # instructions that an elementary function takes, about
GATHER = 1.25  # cost of one lane of a gather against a vector load
CROSSING = 8.0  # cost of a vector that lies in two blocks, as of channels that a window shifts


def shapes_of(expr: TensorExpr) -> dict[str, tuple[int, ...]]:
    shapes = {name: type.dims for name, type in expr.params}
    shapes.update({st.name: st.shape for st in expr.stages})
    return shapes


def stride(index: tuple[Expr, ...], shape: tuple[int, ...], axis: str, extent: int, lanes: int) -> int | None:
    """Elements between neighbours along the axis within a vector, which starts at a multiple of `lanes`.

    None if that is not constant.
    """
    if not any(axis in s.variables(e) for e in index):
        return 0
    position = Var("vectors ") * lanes + Var("lane ") if extent > lanes else Var("lane ")
    ranges = {"lane ": (0, min(lanes, extent) - 1), "vectors ": (0, extent // lanes)}
    total, step = 0, 1
    for e, d in zip(reversed(index), reversed(shape)):
        form = affine.linear(affine.simplify(s.substitute(e, {axis: position}), ranges))
        if any("lane " in s.variables(a) and a != Var("lane ") for a, _ in form.terms):
            return None
        total += form.coefficient("lane ") * step
        step *= d
    return total


def crosses_blocks(index: tuple[Expr, ...], axis: str, lanes: int) -> bool:
    """Whether neighbours along the axis lie side by side but where a block of `lanes` ends: the axis stands
    in quotients and remainders by `lanes` alone, with the factor 1."""

    def inside(e: Expr) -> bool:
        blocks = isinstance(e, Binary) and e.op in ("floordiv", "mod") and e.b == s.const(lanes)
        return blocks and affine.linear(s.children(e)[0]).coefficient(axis) == 1

    atoms = [atom for e in index for atom, _ in affine.linear(e).terms if axis in s.variables(atom)]
    return bool(atoms) and all(map(inside, atoms))


def width(e: Expr, at_least: int = 1) -> int:
    """Bytes of the widest value that the expression computes or loads, indices of loads aside."""
    widest = at_least
    stack, seen = [e], set()
    while stack:
        x = stack.pop()
        if id(x) in seen:
            continue
        seen.add(id(x))
        if isinstance(x, Load):
            widest = max(widest, x.type.bytes)
            continue
        if isinstance(x, (Binary, Call, Cast)):
            narrow = x.dtype in (F16, BF16) or (isinstance(x, Cast) and x.value.dtype in (F16, BF16))
            widest = max(widest, 4 if narrow else x.dtype.bytes)
        if isinstance(x, Select):
            stack += [x.then, x.other]
            continue
        stack.extend(s.children(x))
    return widest


def operations(e: Expr) -> int:
    """Instructions per element, about; indices of loads aside."""
    count, stack, seen = 0, [e], set()
    while stack:
        x = stack.pop()
        if id(x) in seen or isinstance(x, Load):
            continue
        seen.add(id(x))
        if isinstance(x, (Binary, Call, Cast, Select)):
            costly = (isinstance(x, Call) and x.op in COSTLY) or (isinstance(x, Binary) and x.op == "pow")
            count += COSTLY_OPERATIONS if costly else 1
        stack.extend(s.children(x))
    return count


def stage_cost(st: Stage, shapes: Shapes, axis: str | None, lanes: int) -> float:
    """Cycles of the stage, about, with vectors along `axis` (None: one element at a time)."""
    elements = 1
    for a in st.all_axes:
        elements *= a.extent
    loads, work = s.loads(st.body), operations(st.body) / 2
    if axis is None:
        return elements * (len(loads) + work + 1)
    extent = next(a.extent for a in st.all_axes if a.name == axis)
    vectors = -(-extent // lanes)
    cost = work + 0.5
    for load in loads:
        step = stride(load.index, shapes[load.tensor], axis, extent, lanes)
        shifted = step is None and crosses_blocks(load.index, axis, lanes)
        cost += CROSSING if shifted else access_cost(step, lanes)
    own = [a.name for a in st.axes]
    if st.reduce is None:
        index: tuple[Expr, ...] = tuple(Var(n) for n in own)
        cost += access_cost(stride(index, st.shape, axis, extent, lanes), lanes)
    total = elements / extent * vectors * cost
    if axis not in own:  # a tree of halves for every result
        rows = 1
        for a in st.axes:
            rows *= a.extent
        total += rows * 2.0 * lanes.bit_length()
    return total


def access_cost(step: int | None, lanes: int) -> float:
    if step is None:  # positions are computed lane by lane
        return 2 * GATHER * lanes
    if step == 0:
        return 0.25
    return 1.0 if step == 1 else GATHER * lanes
