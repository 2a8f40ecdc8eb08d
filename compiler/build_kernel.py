"""KernelTask + Config → object code: lower, generate, compile."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .codegen.llvm import Step, assembly, generate, object_code
from .ir.loops import Program
from .kernel_task import Config, KernelTask
from .lower.lower import lower
from .target import Target


@dataclass(frozen=True)
class Kernel:
    """Machine code of one task: its steps in order, each with buffers params, outputs, then temps."""

    name: str
    object: bytes
    steps: tuple[Step, ...]
    temps: tuple[int, ...]  # bytes of each temporary that the steps share
    gang: bool = False


def build_kernel(task: KernelTask, cfg: Config, symbol: str) -> Kernel:
    """Object code whose symbols start with `symbol`."""
    return assemble(lower(replace(task, name=symbol), cfg), task.target)


def outline(task: KernelTask, cfg: Config) -> Kernel:
    """The kernel without its machine code, for what it needs."""
    program = lower(task, cfg)
    code = generate(program, task.target)
    temps = tuple(b.nbytes for b in program.temps)
    return Kernel(program.name, b"", code.steps, temps, program.gang)


def assemble(program: Program, target: Target) -> Kernel:
    """Object code of a lowered program; its symbols start with the program's name."""
    code = generate(program, target)
    temps = tuple(b.nbytes for b in program.temps)
    return Kernel(program.name, object_code(code, target), code.steps, temps, program.gang)


def kernel_assembly(task: KernelTask, cfg: Config) -> str:
    return assembly(generate(lower(task, cfg), task.target), task.target)
