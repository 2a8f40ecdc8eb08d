"""KernelTask + Config → object code: lower, generate, compile."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .codegen.llvm import Step, assembly, generate, object_code
from .kernel_task import Config, KernelTask
from .lower.lower import lower


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
    program = lower(replace(task, name=symbol), cfg)
    code = generate(program, task.target)
    return Kernel(
        symbol,
        object_code(code, task.target),
        code.steps,
        tuple(b.nbytes for b in program.temps),
        program.gang,
    )


def kernel_assembly(task: KernelTask, cfg: Config) -> str:
    return assembly(generate(lower(task, cfg), task.target), task.target)
