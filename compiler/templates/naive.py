"""The template of last resort, right for every tensor expression: each stage is a loop nest of its own.

The innermost axis of stages without a reduction is vectorised, the outer axes are dealt to threads.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.expr import TensorExpr
from ..ir.loops import Program
from ..kernel_task import Config, KernelTask
from ..schedule.canonical import canonical
from ..schedule.nest import Nest
from ..schedule.schedule import Schedule
from .common import lanes_of, prepared, split_tasks


@dataclass(frozen=True)
class Params:
    lanes: int  # elements of the innermost axis that go through a vector register together
    grain: int  # elements in one task


def matches(task: KernelTask) -> bool:
    return task.expr is not None


def params(task: KernelTask, cfg: Config) -> Params:
    assert task.expr is not None
    lanes = lanes_of(task.target, task.expr)
    return Params(
        lanes=cfg.choose("lanes", [n for n in (1, 2, 4, 8, 16, 32) if n <= 2 * lanes], lanes),
        grain=cfg.choose("grain", (1024, 4096, 16384), 4096),
    )


def schedule(task: KernelTask, p: Params) -> Program:
    return schedule_expr(task.name, canonical(prepared(task)), p)


def schedule_expr(name: str, expr: TensorExpr, p: Params) -> Program:
    sch = Schedule(name, expr)
    for nest in list(sch.nests):
        if nest.label.endswith(".update"):
            for lp in nest.loops[: len(expr.stage(nest.label.removesuffix(".update")).axes)]:
                lp.kind = "parallel"
        else:
            _one(sch, nest, p)
    return sch.program()


def _one(sch: Schedule, nest: Nest, p: Params) -> None:
    if not nest.loops:
        return
    last = nest.loops[-1]
    if last.extent > 1 and p.lanes > 1:
        lanes = min(p.lanes, 1 << (last.extent - 1).bit_length())
        whole, inner = f"{last.var}_vo", f"{last.var}_v"
        sch.split(last.var, lanes, whole, inner, within=[nest.label])
        sch.annotate("vector", inner, within=[nest.label])
        split_tasks(sch, nest, p.grain)
    else:
        split_tasks(sch, nest, p.grain)
