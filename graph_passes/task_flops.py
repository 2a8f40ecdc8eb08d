"""Floating-point operations of tasks: of their sums of products, a multiply-add being two."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from ..compiler.ir.scalar import DOTS, Binary, Call, Cast, Expr, Select
from ..compiler.kernel_task import KernelTask
from ..compiler.ops.byte_products import BYTES
from ..compiler.ops.recurrence import Recurrence


def flops_by_algorithm(tasks: Iterable[KernelTask]) -> dict[str, int]:
    found: dict[str, int] = {}
    for task in tasks:
        found[task.algorithm] = found.get(task.algorithm, 0) + task_flops(task)
    return found


def task_flops(task: KernelTask) -> int:
    if isinstance(task.op, Recurrence) and (of_input := task.types[0]):
        return 2 * of_input.size * task.output_types[0].dims[-1]
    total = 0
    for st in task.expr.stages if task.expr else ():
        if st.reduce and st.reduce.op == "sum":
            total += _of_term(st.body) * prod(axis.extent for axis in st.all_axes)
    return total


def _of_term(term: Expr) -> int:
    """Of each term of a sum: 0 where that is no product."""
    while isinstance(term, (Cast, Select)):
        term = term.value if isinstance(term, Cast) else term.then
    if isinstance(term, Call) and term.op in DOTS:
        return 2 * BYTES
    return 2 if isinstance(term, Binary) and term.op == "mul" else 0
