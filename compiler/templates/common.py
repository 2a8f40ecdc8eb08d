"""What several templates share."""

from __future__ import annotations

from ...errors import InternalError
from ..ir import scalar as s
from ..ir.expr import Stage, TensorExpr
from ..kernel_task import KernelTask
from ..schedule.nest import Nest
from ..schedule.relayout import relayout, with_sums
from ..schedule.rewrite_expr import inline
from ..schedule.schedule import Schedule
from ..schedule.split_axes import order_sums
from ..target import Target

COSTLY = frozenset(
    [
        "exp",
        "log",
        "log1p",
        "expm1",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "acosh",
        "atanh",
        "erf",
        "sigmoid",
    ]
)


def prepared(task: KernelTask) -> TensorExpr:
    """The task's expression over physical arrays, every stage inlined that is cheap where it is read.

    On GPUs, where kernels follow expressions closely, sums lie as their results do and go along operands.
    """
    if task.expr is None:
        raise InternalError(f"task {task.name} has no tensor expression")
    expr, layouts = inline_cheap(task.expr), dict(task.layouts)
    if task.target.gpu is None:
        return inline_cheap(relayout(expr, layouts))
    moving = {name for name, _ in expr.params if name in layouts and name not in task.constants}
    return order_sums(inline_cheap(relayout(expr, with_sums(expr, layouts))), moving)


def inline_cheap(expr: TensorExpr) -> TensorExpr:
    readers: dict[str, list[Stage]] = {}
    for st in expr.stages:
        for load in s.loads(st.body):
            readers.setdefault(load.tensor, []).append(st)

    def wanted(st: Stage) -> bool:
        uses = readers.get(st.name, [])
        if not is_costly(st.body):
            return True
        return len(uses) == 1 and _elements(uses[0]) <= _elements(st)

    return inline(expr, wanted)


def is_costly(e: s.Expr) -> bool:
    return any(
        (isinstance(x, s.Call) and x.op in COSTLY) or (isinstance(x, s.Binary) and x.op == "pow")
        for x in s.walk(e)
    )


def _elements(st: Stage) -> int:
    n = 1
    for a in st.all_axes:
        n *= a.extent
    return n


def lanes_of(target: Target, expr: TensorExpr) -> int:
    """Lanes of a vector register for the widest type that the outputs have, at least f32."""
    width = max([4, *(expr.stage(name).dtype.bytes for name in expr.outputs)])
    return target.lanes(width)


def split_tasks(sch: Schedule, nest: Nest, grain: int) -> None:
    """Marks outer loops parallel until a task is about `grain` elements; splits one loop to get there."""
    loops = [lp for lp in nest.loops if lp.kind == "serial"]
    elements = 1
    for lp in nest.loops:
        elements *= lp.extent
    for lp in loops:
        if elements <= grain:
            return
        inner = elements // max(lp.extent, 1)
        if inner >= grain or lp.extent <= 2:
            sch.annotate("parallel", lp.var, within=[nest.label])
            elements = inner
            continue
        factor = max(1, min(lp.extent, grain // max(inner, 1)))
        sch.split(lp.var, factor, f"{lp.var}_t", f"{lp.var}_s", within=[nest.label])
        sch.annotate("parallel", f"{lp.var}_t", within=[nest.label])
        return
