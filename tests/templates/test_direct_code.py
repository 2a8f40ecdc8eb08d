"""The direct template offers only configs whose code is short, counted in their loop programs."""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np
import pytest
from burnish.compiler.ir.loops import Alloc, For, If, Stmt, Store
from burnish.compiler.ir.loops_interpreter import interpret
from burnish.compiler.kernel_task import DefaultConfig
from burnish.compiler.lower.lower import lower
from burnish.compiler.ops.conv import Conv
from burnish.compiler.ops.elementwise import Binary
from burnish.compiler.ops.fused import FusedOp
from burnish.compiler.ops.reduction import Reduce
from burnish.compiler.target import get_target
from burnish.compiler.templates.direct_params import LONGEST_CODE
from burnish.compiler.templates.register_tiles import ACC, MAX_UNROLLED
from burnish.graph_passes.make_tasks import kernel_tasks, task_of
from burnish.op_tuner.space import Space
from burnish.pipeline import optimise
from burnish.workloads import direct_convolution

from ..passes.make import make

DRAWS = 12
SLACK = 1.3  # with what begins the sums


def updates(body: Iterable[Stmt]) -> int:
    """Stores to the register tile, as often as they are written out."""
    count = 0
    for st in body:
        if isinstance(st, Store):
            count += st.buffer.startswith(ACC)
        elif isinstance(st, For):
            count += updates(st.body) * ((st.extent or 1) if st.kind == "unroll" else 1)
        elif isinstance(st, If):
            count += updates((*st.then, *st.other))
        elif isinstance(st, Alloc):
            count += updates(st.body)
    return count


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("name", ["c2", "c9"])
def test_what_is_written_out_is_short(name: str, target: str) -> None:
    """Borders, tails of tiles and blocks of loops included."""
    space, rng = Space(direct_convolution(name, get_target(target))), random.Random(1)
    points = [space.default(), *(space.draw(rng) for _ in range(DRAWS))]
    found = [updates(lower(space.task, Space.config(p)).body) for p in points]
    assert min(found) > 10 and max(found) <= SLACK * LONGEST_CODE


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4", "cortex-a72"])
@pytest.mark.parametrize("pads", [0, 63])
def test_long_kernels_are_not_written_out(target: str, pads: int) -> None:
    def body(g, x):
        w = g.const(np.ones((36, 1, 256), np.float32))
        return g.one(Conv((16,), (pads, pads), (1,)), x, w)

    machine = get_target(target)
    graph = optimise(make({"x": "f32[1,1,4096]"}, body), machine, 1)
    tasks = [task_of(graph, node, machine, 1) for node in graph.nodes if isinstance(node.op, FusedOp)]
    found = [updates(lower(task, DefaultConfig()).body) for task in tasks]
    assert 0 < max(found) <= 4 * MAX_UNROLLED


def test_a_default_is_always_offered() -> None:
    for name in ("c1", "c2", "c7", "c12"):
        for target in ("x86-64-v3", "x86-64-v4"):
            space = Space(direct_convolution(name, get_target(target)))
            assert space.point(dict(space.default())) == space.default()


@pytest.mark.parametrize("op", ["add", "sub"])
def test_sums_of_integers_read_nothing_behind_the_last_column(op: str) -> None:
    """acc + (x + y) becomes (acc + x) + y, where integers are simplified."""

    def build(g, x, y):
        return g.one(Reduce("sum", (0,), False), g.one(Binary(op), x, y))

    target = get_target("x86-64-v3")
    graph = optimise(make({"x": "i64[5,7]", "y": "i64[5,7]"}, build), target, 1)
    ((_, task),) = kernel_tasks(graph, target, 1).items()
    assert task.algorithm == "direct"
    x, y = np.arange(35).reshape(5, 7), np.arange(35).reshape(5, 7) * 3
    expected = (x + y if op == "add" else x - y).sum(axis=0)
    found = np.zeros(7, np.int64)
    interpret(lower(task, DefaultConfig()), [x, y, found])
    np.testing.assert_array_equal(found, expected)
