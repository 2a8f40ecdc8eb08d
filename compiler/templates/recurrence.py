"""Recurrent cells as fused time loops: the operator builds its program, the template asks how much of it
at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..ir.loops import Program
from ..kernel_task import Config, KernelTask
from ..ops.packed_recurrence import Packed


@dataclass(frozen=True)
class Params:
    parts: int  # vector blocks of units whose gates are summed together


def matches(task: KernelTask) -> bool:
    return isinstance(task.op, Packed)


def params(task: KernelTask, cfg: Config) -> Params:
    assert isinstance(task.op, Packed)
    packed = task.types[1]
    assert packed is not None
    blocks = packed.dims[0]
    return Params(cfg.choose("parts", (1, 2, 3, 4), 2 if blocks % 2 == 0 else 1))


def schedule(task: KernelTask, p: Params) -> Program:
    assert isinstance(task.op, Packed)
    return replace(task.op.program(task.types, task.output_types, p.parts), name=task.name)
