"""One kernel on every rung between its task and machine code, as text: for `trace` and `--dump`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from .build_kernel import generate
from .codegen.llvm import assembly
from .ir.expr import print_expr
from .ir.loops import print_program
from .kernel_task import Config, KernelTask
from .lower.lower import finished, scheduled
from .schedule.canonical import canonical
from .schedule.schedule import Schedule
from .templates.common import prepared
from .templates.registry import template

LONGEST = 5000
"""Nodes of a value that is written out: what lowering makes of a few functions in a row shares parts, and
would be many millions as a tree."""

RUNGS = ("expression", "task", "naive", "schedule", "lower", "llvm", "assembly")


def rungs(task: KernelTask, cfg: Config, symbol: str | None = None) -> Iterator[tuple[str, str, str]]:
    """(rung, title, text) in the order of RUNGS. Each is made only when it is asked for.

    A task that is a loop program from the start has no expression and no naive program.
    """
    named = replace(task, name=symbol or task.name)
    if task.expr is not None:
        yield "expression", "tensor expression", print_expr(task.expr)
    yield "task", "kernel task and the chosen config", describe(task, cfg)
    if task.expr is not None:
        naive = Schedule(named.name, canonical(prepared(task))).program()
        yield "naive", "naive loop program", print_program(naive)
    program = scheduled(named, cfg)
    yield "schedule", f"scheduled loop program ({task.algorithm})", print_program(program)
    program = finished(program, task.target)
    yield "lower", "lowered loop program", print_program(program, LONGEST)
    code = generate(program, task.target)
    if task.target.gpu:
        yield "assembly", f"source in {task.target.gpu.language}", code.ir
        return
    yield "llvm", "LLVM IR", code.ir
    yield "assembly", f"assembly for {task.target.cpu}", assembly(code, task.target)


def describe(task: KernelTask, cfg: Config) -> str:
    """Name, digest, layouts, constants and the answer to each of the template's questions."""
    layouts = " ".join(f"{name}:{layout}" for name, layout in task.layouts) or "plain"
    return "\n".join(
        (
            f"name       {task.name}",
            f"digest     {task.digest}",
            f"algorithm  {task.algorithm}",
            f"target     {task.target.name} ({task.target.cpu}), {task.threads} threads",
            f"layouts    {layouts}",
            f"constants  {' '.join(sorted(task.constants)) or 'none'}",
            f"config     {answers(task, cfg) or 'nothing to choose'}",
        )
    )


def answers(task: KernelTask, cfg: Config) -> str:
    """What the config answers to the template's questions: `lanes=16 grain=4096`."""
    if task.program is not None:
        return ""
    asked = _Recorder(cfg)
    template(task).params(task, asked)
    return " ".join(f"{knob}={value}" for knob, value in asked.chosen.items())


class _Recorder:
    """Passes every question on and remembers the answer."""

    def __init__(self, cfg: Config):
        self._cfg = cfg
        self.chosen: dict[str, object] = {}
        self.require: Callable[..., None] = cfg.require

    def choose(self, knob, options, default):  # type: ignore[no-untyped-def]
        self.chosen[knob] = self._cfg.choose(knob, options, default)
        return self.chosen[knob]
