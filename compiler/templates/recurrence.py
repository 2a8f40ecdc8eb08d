"""Recurrent cells as fused time loops: the operator builds its program, the template asks how much of it
at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from ..ir.loops import Program
from ..ir.types import F32, Layout, TensorType
from ..kernel_task import Config, KernelTask
from ..ops.fused import FusedOp
from ..ops.packed_recurrence import PACKED, Packed, pack_weights
from .algorithm import Algorithm, Layouts, Pack, Work

CELL_COST = 100.0  # multiply-adds of a lane for the functions of one gate and unit


def fits(op: FusedOp, lanes: int) -> bool:
    """Whether it is a time loop in f32 whose sequences all have full length."""
    node = op.graph.nodes[0]
    if len(op.graph.nodes) != 1 or type(node.op) not in PACKED:
        return False
    given = dict(zip(node.op.roles, node.inputs))  # type: ignore[attr-defined]
    types = [op.graph.types[v] for v in given.values() if v is not None]
    return given.get("lengths") is None and all(t.dtype is F32 and t.size > 0 for t in types)


def layouts(op: FusedOp, lanes: int) -> tuple[Layouts, ...]:
    return ((None, None),)


def weights(op: FusedOp, lanes: int) -> Mapping[int, Pack | Layout]:
    return {1: partial(pack_weights, lanes=lanes)}


def _operands(op: FusedOp) -> tuple[TensorType, TensorType]:
    node = op.graph.nodes[0]
    return op.graph.types[node.inputs[0] or ""], op.graph.types[node.inputs[1] or ""]


def work(cores: int, op: FusedOp, lanes: int) -> Work:
    """One product for four bytes: the arithmetic hides behind the way of the weights through the caches."""
    (steps, batch, gates), r = _operands(op)[0].dims, _operands(op)[1]
    return Work(
        *(0.0, 1.0),
        streamed=r.nbytes,
        other=steps * batch * gates * CELL_COST,
        moved=(steps * batch - 1) * r.nbytes,
        cores=cores,
        barriers=0 if cores == 1 else steps,
    )


ALGORITHMS = tuple(
    Algorithm(name, fits, layouts, weights, partial(work, cores), 0.0)
    for name, cores in (("gang", 0), ("single", 1))
)


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
