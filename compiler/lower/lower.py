"""KernelTask + Config → loop program, ready for code generation."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ..ir import loops as L
from ..ir.loops import Program
from ..ir.scalar import Binary, Call, Expr
from ..ir.types import BF16, F16, NARROW, DType
from ..kernel_task import Config, KernelTask
from ..target import Target
from ..templates.registry import template
from .dots import expand_dots
from .guards import resolve_guards, simplify_program
from .math import expand_math
from .narrow import expand_narrow


def scheduled(task: KernelTask, cfg: Config) -> Program:
    """The loop program as the template built it."""
    if not task.asks:
        assert task.program is not None
        return replace(task.program, name=task.name)
    module = template(task)
    return module.schedule(task, module.params(task, cfg))


def lower(task: KernelTask, cfg: Config) -> Program:
    """Scheduled, guards resolved, elementary functions and narrow floats expanded."""
    return finished(scheduled(task, cfg), task.target)


def finished(program: Program, target: Target) -> Program:
    return finish(program, native_narrow(target), partition=target.kind == "cpu", dot=target.dot)


def native_narrow(target: Target) -> tuple[DType, ...]:
    """The narrow floats that the target's own instructions round to."""
    if target.cuda:
        return F16, BF16
    of_cpu = "f16c" in target.features or (target.kind == "cpu" and target.arch == "aarch64")
    return (F16,) if of_cpu else ()


def finish(program: Program, native: Collection[DType], partition: bool = True, dot: str = "") -> Program:
    """`native`: as of `expand_narrow`; `partition`: whether loops may be cut where their guards begin to hold
    or fail; `dot`: as of `expand_dots`."""
    simple = simplify_program(program)
    program = resolve_guards(simple) if partition else resolve_guards(simple, limit=0)

    plain: set[int] = set()

    def expand(e: Expr) -> Expr:
        return expand_narrow(expand_math(expand_dots(e, dot)), native) if _may_expand(e, plain) else e

    return replace(program, body=L.map_expressions(program.body, expand))


def _may_expand(e: Expr, plain: set[int]) -> bool:
    """Whether there may be anything that machines do not have; most expressions are sums of products.

    plain   ids of objects without; the caller keeps these, and finds more of them here
    """
    stack, seen = [e], set[int]()
    while stack:
        x = stack.pop()
        if id(x) in plain or id(x) in seen:
            continue
        if isinstance(x, Call) or x.dtype in NARROW or (isinstance(x, Binary) and x.op in ("pow", "rem")):
            return True
        seen.add(id(x))
        stack += x.children
    plain |= seen
    return False
