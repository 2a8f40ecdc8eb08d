"""Pieces of the loop programs that operators give."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.loops import Alloc, Buffer, Stmt, Store, loop
from ..ir.scalar import Expr, Load, Var, const
from ..ir.types import DType, TensorType


def program_buffers(inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> list[Buffer]:
    """Params in the order that `Op.loops` promises: the present inputs x0, x1, …, the outputs y0, y1, …"""
    present = [t for t in inputs if t is not None]
    names = [f"x{n}" for n in range(len(present))] + [f"y{n}" for n in range(len(outputs))]
    return [Buffer(name, t.dtype, t.dims) for name, t in zip(names, (*present, *outputs))]


def nest(
    names: Sequence[str], extents: Sequence[int], body: Sequence[Stmt], kind: str = "parallel"
) -> tuple[Stmt, ...]:
    """`body` inside one loop for each name, outermost first."""
    result = tuple(body)
    for name, extent in reversed(list(zip(names, extents, strict=True))):
        result = (loop(name, extent, *result, kind=kind),)
    return result


def copy_step(x: Buffer, y: Buffer) -> tuple[Stmt, ...]:
    """y = x, of one shape."""
    index = tuple(Var(f"c{n}") for n in range(len(x.shape)))
    return nest([v.name for v in index], x.shape, [Store(y.name, index, Load(x.name, index, x.dtype))])


def register(name: str, dtype: DType) -> Buffer:
    """A variable."""
    return Buffer(name, dtype, (1,), "register")


def get(variable: Buffer) -> Load:
    return Load(variable.name, (const(0),), variable.dtype)


def put(variable: Buffer, value: Expr) -> Store:
    return Store(variable.name, (const(0),), value)


def allocated(buffers: Sequence[Buffer], *body: Stmt) -> Stmt:
    """`body` with the buffers allocated around it."""
    result = tuple(body)
    for buffer in reversed(buffers):
        result = (Alloc(buffer, result),)
    return result[0]
