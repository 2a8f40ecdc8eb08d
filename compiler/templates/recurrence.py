"""Recurrent cells as fused time loops: the operator builds its program, the template asks how much of it
at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from ..ir.loops import Program
from ..ir.types import F32, Layout, TensorType
from ..kernel_task import Config, KernelTask
from ..ops.fused import FusedOp
from ..ops.packed_recurrence import PACKED, Packed, Tiling, pack_weights
from .algorithm import Algorithm, Layouts, Pack, Work
from .choices import choose

PARTS = (1, 2, 3, 4, 6, 8)
IN_FLIGHT = 8  # multiply-adds that two units with a latency of four take up
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


def matches(task: KernelTask) -> bool:
    return isinstance(task.op, Packed)


def params(task: KernelTask, cfg: Config) -> Tiling:
    """By default sums enough to hide the latency of multiply-adds: of several rows, if there are any."""
    packed, y = task.types[1], task.output_types[0]
    assert packed is not None
    blocks, _, gates, _ = packed.dims
    batch, registers = y.dims[1], task.target.vector_registers
    even = [
        n for n in PARTS if blocks % n == 0 and n * gates <= IN_FLIGHT and blocks // n >= 2 * task.threads
    ]
    short = [n for n in PARTS if n == 1 or n * gates <= registers]
    parts = choose(cfg, "parts", short, 1 if batch > 1 else max(even, default=1))
    sums = parts * gates
    turns = -(-batch // max(1, (registers - gates - 1) // sums))  # beside one block's weights and an input
    most = max(1, (registers - 1) // sums)
    return Tiling(parts, choose(cfg, "rows", range(1, min(most, batch) + 1), -(-batch // turns)))


def schedule(task: KernelTask, p: Tiling) -> Program:
    assert isinstance(task.op, Packed)
    return replace(task.op.program(task.types, task.output_types, p), name=task.name)
