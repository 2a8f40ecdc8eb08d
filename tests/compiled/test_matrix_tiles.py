"""Products of tiles by AMX: what the loops mean, which instructions they become, and what these compute where
this machine has them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from burnish.compiler.codegen.llvm import assembly, generate
from burnish.compiler.ir import loops_interpreter, text
from burnish.compiler.ir.loops import Intrinsic, print_program, walk
from burnish.compiler.ir.loops_verifier import verify
from burnish.compiler.kernel_task import DefaultConfig, KernelTask
from burnish.compiler.lower.lower import finished, scheduled
from burnish.compiler.ops.conv import ConvInteger
from burnish.compiler.ops.elementwise import Binary, Cast, Unary
from burnish.compiler.ops.matmul import MatMulInteger
from burnish.compiler.target import AMX, VNNI, Target, get_target, host
from burnish.compiler.templates import matrix_tiles
from burnish.graph_passes.alternatives import alternatives, decides
from burnish.graph_passes.task_cost import decided_task
from burnish.op_tuner.operands import operands
from burnish.pipeline import optimise

from ..passes.make import make
from .forked import run_forked
from .kernels import DrawnConfig
from .test_drawn_configs import check

V4 = get_target("x86-64-v4")
TILES = replace(V4, features=(*V4.features, VNNI[1], *AMX))
Case = tuple[ConvInteger | MatMulInteger, str, tuple[int, ...]]


def conv(strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1)) -> ConvInteger:
    return ConvInteger(strides, pads, dilations)


SMALL: list[Case] = [
    (conv(), "u8[1,32,1,3]", (16, 32, 1, 1)),
    (conv(pads=(1, 1, 1, 1)), "u8[1,32,2,2]", (9, 32, 2, 2)),
    (conv((2, 1), (0, 1, 1, 0)), "u8[2,36,4,3]", (24, 36, 2, 2)),
    (conv((2, 2), (1, 3, 1, 3)), "u8[1,3,3,5]", (17, 3, 2, 7)),
    (MatMulInteger(), "u8[2,3,32]", (32, 9)),
]
"""For the interpreter, which takes a microsecond an operation."""
CASES: list[Case] = [
    *SMALL,
    (conv(pads=(1, 1, 1, 1)), "u8[1,64,14,14]", (64, 64, 3, 3)),
    (conv(pads=(1, 1, 1, 1)), "u8[2,128,7,7]", (40, 128, 3, 3)),
    (conv((2, 2), (1, 1, 1, 1)), "u8[1,64,17,35]", (33, 64, 3, 3)),
    (conv((1, 2), (3, 2, 3, 2), (2, 1)), "i8[1,96,9,40]", (16, 96, 4, 5)),
    (conv(), "u8[1,256,5,5]", (300, 256, 1, 1)),
    (conv((2, 2)), "u8[3,100,9,9]", (50, 100, 1, 1)),
    (conv(pads=(0, 4, 0, 4)), "u8[1,52,1,60]", (20, 52, 1, 9)),
    (conv((2, 2), (3, 3, 3, 3)), "u8[2,3,33,35]", (64, 3, 7, 7)),
    (conv(pads=(1, 2, 0, 1)), "i8[1,4,9,40]", (24, 4, 2, 3)),
    (MatMulInteger(), "u8[128,768]", (768, 100)),
    (MatMulInteger(), "i8[2,2,19,96]", (96, 33)),
    (MatMulInteger(), "u8[1,1,2080]", (2080, 70)),
]


def tasks_of(case: Case, target: Target) -> list[KernelTask]:
    """On each pair of layouts, with an epilogue that ends in bytes."""
    op, x, shape = case
    weights = np.random.default_rng(2).integers(-127, 128, shape).astype(np.int8)
    channels = (shape[0], 1, 1) if isinstance(op, ConvInteger) else (shape[1],)
    scale = np.linspace(1e-3, 2e-3, max(channels), dtype=np.float32).reshape(channels)

    def body(g, value):
        real = g.one(Cast("f32"), g.one(op, value, g.const(weights)))
        return g.one(Cast("u8"), g.one(Unary("round"), g.one(Binary("mul"), real, g.const(scale))))

    graph = optimise(make({"x": x}, body), target, 2, stop_after="fuse")
    return [
        decided_task(graph, node, decision, target, 2)
        for node in graph.nodes
        if decides(node)
        for decision in alternatives(graph, node, target.lanes(4), features=target.features)
        if decision.algorithm == matrix_tiles.NAME
    ]


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_the_loops_mean_the_sums(case):
    tasks = tasks_of(case, TILES)
    assert tasks
    for task in tasks:
        given = operands(task)
        for config in (DefaultConfig(), DrawnConfig("0"), DrawnConfig("1")):
            program = scheduled(task, config)
            assert {st.name for st in walk(program.body) if isinstance(st, Intrinsic)} >= {"amx_dot_u8"}
            verify(program)
            assert text.parse_program(print_program(program)) == program
            outs = [np.zeros(b.shape, b.dtype.numpy) for b in program.params[len(given.arrays) :]]
            arrays = [a.reshape(b.shape) for a, b in zip(given.arrays, program.params)]
            results = loops_interpreter.interpret(program, [*arrays, *outs])
            assert not given.error(list(results)), task.layouts


def test_the_instructions_and_what_they_need():
    task = tasks_of(CASES[3], TILES)[0]
    written = assembly(generate(finished(scheduled(task, DefaultConfig()), TILES), TILES), TILES)
    counts = Counter(line.split()[0] for line in written.splitlines() if line.split())
    assert counts["tdpbusd"] == counts["tilezero"] == counts["tilestored"] > 1
    assert counts["ldtilecfg"] >= 1 and counts["tilerelease"] >= 1


@pytest.mark.parametrize("kernel", [(conv(dilations=(1, 2)), 3), (conv(), 20)], ids=str)
def test_pixels_of_one_word_that_are_no_channels_of_a_row_are_left_alone(kernel):
    op, taps = kernel
    assert not tasks_of((op, "u8[1,4,9,40]", (24, 4, 3, taps)), TILES)


def test_machines_without_tiles_are_offered_none():
    assert tasks_of(CASES[3], TILES)
    assert not tasks_of(CASES[3], V4)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernels(case):
    if not set(AMX) <= set(host().features):
        pytest.skip("this machine has no tiles, or the system permits none")
    tasks = tasks_of(case, host())
    assert tasks
    messages = run_forked(tasks, check, processes=2)
    assert not any(messages), next(f"{t.layouts}: {m}" for t, m in zip(tasks, messages) if m)
