"""Sums of products as one product of matrices: matrix products, and convolutions by their patches.

    acc[…] = Σ a(…)·b(…)  →  C[z, i, j] = Σk A[z, i, k]·B[z, j, k]

where i stands for all axes that only one factor reads along, j for those of the other, z for those of both,
and k for the sums; each is one number whose digits are the axes. Patches are never written: B is read where
they come from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ...ir import scalar as s
from ...ir.affine import linear
from ...ir.expr import Axis, Stage, TensorExpr
from ...ir.loops import Body
from ...ir.scalar import Binary, Expr, Load
from ...kernel_task import KernelTask
from ...schedule.canonical import canonical
from ..common import prepared
from ..memo import per_task
from .common import let
from .grid import groups_of

Axes = tuple[Axis, ...]


@dataclass(frozen=True)
class Product:
    """`group` are the stages of one kernel, the sum first. Columns hold the output's last axis."""

    group: tuple[Stage, ...]
    left: Expr  # over batch, rows and sums
    right: Expr  # over batch, columns and sums
    batch: Axes
    rows: Axes
    columns: Axes
    sums: Axes

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Of batch, rows, columns, sums."""
        z, m, n, k = map(size, (self.batch, self.rows, self.columns, self.sums))
        return z, m, n, k

    @cached_property
    def along(self) -> tuple[bool, bool]:
        """Of both factors, as `along_sums`."""
        return along_sums(self.left, self.sums), along_sums(self.right, self.sums)


def size(axes: Axes) -> int:
    return math.prod(a.extent for a in axes)


def product_of(group: Sequence[Stage]) -> Product | None:
    """None if the group does not begin with a sum of products, or a factor has no axis of its own."""
    acc = group[0]
    if acc.reduce is None or acc.reduce.op != "sum" or not acc.type.size or not size(acc.reduce.axes):
        return None
    if not (isinstance(acc.body, Binary) and acc.body.op == "mul"):
        return None
    left, right = acc.body.a, acc.body.b
    in_left, in_right = s.variables(left), s.variables(right)
    if acc.axes and acc.axes[-1].name not in in_right - in_left:
        left, right, in_left, in_right = right, left, in_right, in_left
    rows = tuple(a for a in acc.axes if a.name in in_left - in_right)
    columns = tuple(a for a in acc.axes if a.name in in_right - in_left)
    batch = tuple(a for a in acc.axes if a not in rows and a not in columns)
    if not rows or not columns:
        return None
    return Product(tuple(group), left, right, batch, rows, columns, acc.reduce.axes)


@per_task
def expression(task: KernelTask) -> TensorExpr:
    return canonical(prepared(task))


@per_task
def main_product(task: KernelTask) -> Product | None:
    """The only sum of products of the task; None if there is none or there are several."""
    if task.expr is None:
        return None
    found = [p for p in map(product_of, groups_of(expression(task))) if p]
    return found[0] if len(found) == 1 else None


def along_sums(factor: Expr, sums: Axes) -> bool:
    """Whether neighbours along the last sum lie side by side in memory."""
    loads = [x for x in s.walk(factor) if isinstance(x, Load) and x.index]
    return any(linear(x.index[-1]).coefficient(sums[-1].name) == 1 for x in loads)


def guarded(factor: Expr) -> bool:
    """Whether it is read only where it exists, as at an image's border."""
    return any(isinstance(x, s.Select) for x in s.walk(factor))


def digits(axes: Axes, number: Expr, body: Body) -> Body:
    """`body` where the axes are the digits of `number`."""
    below = 1
    for axis in reversed(axes):
        digit = s.binary("floordiv", number, below)
        if below * axis.extent < size(axes):
            digit = s.binary("mod", digit, axis.extent)
        body = (let(axis.name, digit, body),)
        below *= axis.extent
    return body


def within(*limits: tuple[Expr, int]) -> Expr:
    """Every number lies below its limit."""
    return s.both(*(s.lt(number, limit) for number, limit in limits))
