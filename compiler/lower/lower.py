"""KernelTask + Config → loop program, ready for code generation."""

from __future__ import annotations

from dataclasses import replace

from ..ir import loops as L
from ..ir.loops import Program
from ..kernel_task import Config, KernelTask
from ..templates.registry import template
from .guards import resolve_guards, simplify_program
from .math import expand_math
from .narrow import expand_narrow


def scheduled(task: KernelTask, cfg: Config) -> Program:
    """The loop program as the template built it."""
    if task.algorithm == "loops":
        assert task.program is not None
        return replace(task.program, name=task.name)
    module = template(task)
    return module.schedule(task, module.params(task, cfg))


def lower(task: KernelTask, cfg: Config) -> Program:
    """Scheduled, guards resolved, elementary functions and narrow floats expanded."""
    return finish(scheduled(task, cfg), has_f16c="f16c" in task.target.features)


def finish(program: Program, has_f16c: bool) -> Program:
    program = resolve_guards(simplify_program(program))
    return replace(
        program, body=L.map_expressions(program.body, lambda e: expand_narrow(expand_math(e), has_f16c))
    )
