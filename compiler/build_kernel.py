"""KernelTask + Config → object code: lower, generate, compile."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ..errors import InternalError
from .codegen import c_like, cuda, device_code, llvm, opencl
from .codegen.kernel_code import KernelCode, Step
from .ir.loops import Program
from .kernel_task import Config, KernelTask
from .lower.lower import lower
from .target import Target

DEPTH = 4000
"""Of Python's calls. Expressions are as deep as the functions that a kernel computes one of the other."""
sys.setrecursionlimit(max(sys.getrecursionlimit(), DEPTH))


@dataclass(frozen=True)
class Kernel:
    """Machine code of one task: its steps in order, each with buffers params, outputs, then temps.

    For a GPU, `object` is source text in the target's language.
    """

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
    return _kernel(program, generate(program, task.target), b"")


def assemble(program: Program, target: Target) -> Kernel:
    """Object code of a lowered program; its symbols start with the program's name."""
    code = generate(program, target)
    if target.kind == "gpu":
        return _kernel(program, code, code.ir.encode())
    return _kernel(program, code, llvm.object_code(code, target))


def different(kernels: Iterable[Kernel]) -> list[Kernel]:
    """Each once: nodes of one task share theirs. InternalError if two that differ have one name, of which the
    last part is a hash of 32 bits."""
    found: dict[str, Kernel] = {}
    for kernel in kernels:
        if found.setdefault(kernel.name, kernel) != kernel:
            raise InternalError(f"two different kernels are named {kernel.name}; rename a node of the model")
    return list(found.values())


def device_program(
    kernels: Sequence[Kernel], symbols: Sequence[str], target: Target, nvcc: Callable[..., bytes]
) -> bytes:
    """A GPU's kernels as one program; `symbols` are the plan's kernels in order. `nvcc` compiles CUDA, as
    `runtime.nvcc.fatbin` does."""
    assert target.gpu is not None
    launches = {step.symbol: step.launch for k in kernels for step in k.steps if step.launch}
    parts = target.gpu.language, [k.object.decode() for k in kernels], symbols, launches
    if target.cuda:
        build = partial(nvcc, arch=target.cpu, options=cuda.OPTIONS)
        return device_code.encode(*parts, options=target.cpu, build=build)
    return device_code.encode(*parts)


def generate(program: Program, target: Target) -> KernelCode:
    """LLVM IR, or source in the language of a GPU."""
    if target.gpu is None:
        return llvm.generate(program, target)
    return c_like.generate(program, target, _DIALECTS[target.gpu.language])


_DIALECTS = {dialect.name: dialect for dialect in (opencl.DIALECT, cuda.DIALECT)}


def _kernel(program: Program, code: KernelCode, data: bytes) -> Kernel:
    temps = tuple(b.nbytes for b in program.temps)
    return Kernel(program.name, data, code.steps, temps, program.gang)


def kernel_assembly(task: KernelTask, cfg: Config) -> str:
    """Of a GPU's kernel the source."""
    code = generate(lower(task, cfg), task.target)
    return code.ir if task.target.kind == "gpu" else llvm.assembly(code, task.target)
