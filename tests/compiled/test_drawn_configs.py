"""Whatever a template lets a tuner choose is right: drawn answers over awkward shapes, against the operands'
reference, in memory between guard pages, tasks in any order.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx
import pytest
from burnish.compiler.kernel_task import KernelTask
from burnish.compiler.ops.block_products import BlockMatMul
from burnish.compiler.ops.conv import ConvInteger
from burnish.compiler.ops.elementwise import Unary
from burnish.compiler.target import Target, get_target
from burnish.frontends.onnx.importer import import_onnx
from burnish.graph_passes.alternatives import alternatives, decides
from burnish.graph_passes.make_tasks import kernel_tasks
from burnish.graph_passes.task_cost import decided_task
from burnish.op_tuner.operands import operands
from burnish.pipeline import optimise
from onnx import helper, numpy_helper

from ..passes.make import make
from .forked import run_forked
from .kernels import build_drawn, execute, load, runnable_targets
from .programs import run_program
from .test_conv_algorithms import Case, arrays_of, graph_of

DRAWS = 2  # of every task
TASKS = {"host": 3}  # of every case; elsewhere one
CONVOLUTIONS = [
    Case(16, 32, (9, 13), pads=(1, 1, 1, 1)),
    Case(40, 48, (6, 8), pads=(0, 1, 2, 0), batch=2, epilogue=False),
    Case(3, 16, (15, 17), (7, 7), (2, 2), pads=(3, 3, 3, 3)),
    Case(32, 64, (8, 10), (1, 1)),
    Case(24, 40, (7, 7), (1, 1), (2, 2)),
    Case(13, 19, (12, 4), (3, 2), (2, 1), (1, 2), pads=(1, 0, 2, 1)),
    Case(32, 32, (7, 9), (3, 3), pads=(1, 1, 1, 1), group=2),
    Case(16, 16, (1, 24), (1, 5), pads=(0, 2, 0, 2)),
    Case(64, 64, (16, 12), (3, 3), pads=(1, 1, 1, 1)),
]
DEPTHWISE = [
    Case(32, 32, (10, 12), (3, 3), pads=(1, 1, 1, 1), group=32),
    Case(21, 21, (9, 8), (5, 3), (2, 1), pads=(2, 1, 1, 1), group=21, batch=2),
]


CASES = [*CONVOLUTIONS, *DEPTHWISE]


def tasks_of(case: Case, target: Target) -> list[KernelTask]:
    """By every algorithm and every pair of layouts."""
    _, w, bias, _ = arrays_of(case)
    graph = graph_of(case, w, bias)
    (node,) = graph.nodes
    return [decided_task(graph, node, d, target, 2) for d in alternatives(graph, node, target.lanes(4))]


def check(task: KernelTask, draws: int = DRAWS) -> None:
    builds = [build_drawn(task, f"drawn{n}", n) for n in range(draws)]
    code = load(builds, task.target)
    given = operands(task)
    for n, built in enumerate(builds):
        for at_end in (True, False):
            results = execute(built, code, given.arrays, at_end=at_end)
            assert not (wrong := given.error(list(results))), (n, task.layouts, wrong)


@pytest.mark.parametrize("target", runnable_targets())
@pytest.mark.parametrize("case", CASES, ids=str)
def test_convolutions(case: Case, target: str) -> None:
    every = tasks_of(case, get_target(target))
    first = CASES.index(case)
    tasks = [every[(first + n * 5) % len(every)] for n in range(TASKS.get(target, 1))]
    messages = run_forked(tasks, check, processes=2)
    assert not any(messages), next(f"{t.algorithm}: {m}" for t, m in zip(tasks, messages) if m)


INTEGER = [  # operator, input, shape of the weights
    (ConvInteger((1, 1), (1, 1, 1, 1), (1, 1), 24), "u8[2,24,9,11]", (24, 1, 3, 3)),
    (ConvInteger((2, 1), (2, 1, 2, 1), (1, 1), 40), "u8[1,40,7,13]", (40, 1, 5, 3)),
    (ConvInteger((1,), (2, 2), (1,), 32), "i8[1,32,30]", (32, 1, 5)),
    (ConvInteger((1, 1), (1, 1, 1, 1), (1, 1), 3), "u8[1,3,5,300]", (3, 1, 3, 3)),
    (ConvInteger((1, 1), (1, 0, 2, 1), (1, 1)), "u8[2,36,9,7]", (24, 36, 3, 3)),
    (ConvInteger((1, 1), (0, 0, 0, 0), (1, 1)), "u8[1,64,9,7]", (40, 64, 1, 1)),
]


@pytest.mark.parametrize("target", runnable_targets())
@pytest.mark.parametrize(("op", "x", "shape"), INTEGER)
def test_integer_convolutions(op: ConvInteger, x: str, shape: tuple[int, ...], target: str) -> None:
    machine = get_target(target)
    weights = np.random.default_rng(2).integers(-127, 128, shape).astype(np.int8)
    before = make({"x": x}, lambda g, value: g.one(op, value, g.const(weights)))
    graph = optimise(before, machine, 2, stop_after="fuse")
    tasks = [
        decided_task(graph, node, decision, machine, 2)
        for node in graph.nodes
        if decides(node) and "Dot" in str(node.op)
        for decision in alternatives(graph, node, machine.lanes(4), features=machine.features)
    ]
    assert tasks
    tasks = tasks if target == "host" else tasks[::3]
    messages = run_forked(tasks, check, processes=2)
    assert not any(messages), next(f"{t.layouts}: {m}" for t, m in zip(tasks, messages) if m)


@pytest.mark.parametrize("target", runnable_targets())
@pytest.mark.parametrize(
    ("rows", "columns", "blocks", "bits"), [(1, 40, 3, 4), (9, 33, 2, 4), (1, 65, 2, 2), (3, 16, 1, 8)]
)
def test_weights_in_blocks(rows: int, columns: int, blocks: int, bits: int, target: str) -> None:
    machine, rng = get_target(target), np.random.default_rng(4)
    numbers = rng.integers(0, 256, (columns, blocks, 2 * bits)).astype(np.uint8)
    scale, shift = rng.uniform(0.5, 1.0, (2, columns, blocks)).astype(np.float32)

    def product(g, value):
        weights = map(g.const, (numbers, scale / 2**bits, -shift)[: 3 if rows == 1 else 2])
        return g.one(Unary("relu"), g.one(BlockMatMul(bits, rows), value, *weights))

    before = make({"x": f"f32[{rows},{16 * blocks}]"}, product)
    graph = optimise(before, machine, 2, stop_after="fuse")
    (node,) = graph.nodes
    tasks = [decided_task(graph, node, d, machine, 2) for d in alternatives(graph, node, machine.lanes(4))]
    assert {task.transformed for task in tasks} == {"", "packed_blocks"}
    messages = run_forked(tasks, check, processes=2)
    assert not any(messages), next(f"{t.algorithm}: {m}" for t, m in zip(tasks, messages) if m)


RECURRENCES = [  # kind, gates, batch, hidden units, attributes
    ("LSTM", 4, 5, 21, {}),
    ("LSTM", 4, 1, 40, {"direction": "reverse"}),
    ("GRU", 3, 7, 24, {"linear_before_reset": 1}),
    ("GRU", 3, 2, 33, {}),
    ("RNN", 1, 6, 50, {}),
    ("RNN", 1, 1, 64, {}),
]


def recurrent_tasks(
    kind: str, gates: int, batch: int, hidden: int, given: dict[str, object], target: Target
) -> list[KernelTask]:
    """The time loop over 3 steps, by one worker and by all."""
    rng = np.random.default_rng(0)
    shapes = {"w": (1, gates * hidden, 4), "r": (1, gates * hidden, hidden)}
    weights = [numpy_helper.from_array(rng.normal(0, 0.3, s).astype("f"), n) for n, s in shapes.items()]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (3, batch, 4))
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (3, 1, batch, hidden))
    node = helper.make_node(kind, ["x", "w", "r"], ["y"], hidden_size=hidden, **given)
    model = helper.make_model(
        helper.make_graph([node], "cell", [x], [y], weights), opset_imports=[helper.make_opsetid("", 17)]
    )
    graph = optimise(import_onnx(model), target, 2, stop_after="fuse")
    found = [
        decided_task(graph, n, d, target, 2)
        for n in graph.nodes
        for d in alternatives(graph, n, target.lanes(4))
    ]
    return [task for task in found if task.algorithm in ("gang", "single")]


@pytest.mark.parametrize("target", runnable_targets())
@pytest.mark.parametrize("case", RECURRENCES, ids=lambda c: f"{c[0]} {c[2]}x{c[3]}")
def test_recurrences(case: tuple[str, int, int, int, dict[str, object]], target: str) -> None:
    tasks = recurrent_tasks(*case, get_target(target))
    assert {task.algorithm for task in tasks} == {"gang", "single"}
    messages = run_forked(tasks if target == "host" else tasks[:1], partial(check, draws=5), processes=2)
    assert not any(messages), next(f"{t.algorithm}: {m}" for t, m in zip(tasks, messages) if m)


@pytest.mark.parametrize("case", [("LSTM", 4, 2, 5, {}), ("GRU", 3, 3, 9, {}), ("RNN", 1, 2, 6, {})])
def test_workers_wait_for_each_other(case: tuple[str, int, int, int, dict[str, object]]) -> None:
    """Any number of workers that share the steps of a recurrence computes what one does."""
    task = next(t for t in recurrent_tasks(*case, get_target("x86-64")) if t.algorithm == "gang")
    given = operands(task)
    for n in range(3):
        program = build_drawn(task, f"drawn{n}", n).lowered
        for workers, order in ((1, "forward"), (2, "backward"), (3, "forward")):
            results = run_program(program, given.arrays, order, workers)
            assert not (wrong := given.error(list(results))), (n, workers, wrong)


OTHERS: list[tuple[str, list[tuple[int, ...]], dict[str, object]]] = [  # operator, inputs, attributes
    ("Softmax", [(5, 6, 37)], {}),
    ("Softmax", [(3, 21, 12)], {"axis": 1}),
    ("LayerNormalization", [(12, 50), (50,), (50,)], {}),
    ("LogSoftmax", [(8, 1)], {}),
    ("ReduceMean", [(4, 6, 7, 9)], {"axes": [0, 2], "keepdims": 0}),
    ("ReduceMax", [(13, 40)], {"axes": [0]}),
    ("ArgMax", [(6, 45)], {"axis": 1}),
    ("Gemm", [(7, 33), (18, 33), (18,)], {"transB": 1}),
    ("Transpose", [(5, 12, 19)], {"perm": [2, 0, 1]}),
    ("Transpose", [(6, 10, 9, 64)], {"perm": [0, 2, 1, 3]}),
    ("Add", [(7, 1, 23), (4, 1)], {}),
    ("Erf", [(3, 53)], {}),
    ("Concat", [(4, 9), (4, 14)], {"axis": 1}),
]


def other_tasks(
    kind: str, shapes: list[tuple[int, ...]], given: dict[str, object], target: Target
) -> list[KernelTask]:
    """Of one operator whose operands are no constants, by every algorithm."""
    names = [f"x{n}" for n in range(len(shapes))]
    inputs = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in zip(names, shapes)]
    of = onnx.TensorProto.INT64 if kind == "ArgMax" else onnx.TensorProto.FLOAT
    node = helper.make_node(kind, names, ["y"], **given)
    graph = helper.make_graph([node], "other", inputs, [helper.make_tensor_value_info("y", of, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    fused = optimise(import_onnx(model), target, 2, stop_after="fuse")
    decided = [
        decided_task(fused, n, d, target, 2)
        for n in fused.nodes
        if decides(n)
        for d in alternatives(fused, n, target.lanes(4))
    ]
    return [*decided, *kernel_tasks(fused, target, 2).values()]


@pytest.mark.parametrize("target", runnable_targets())
@pytest.mark.parametrize("case", OTHERS, ids=lambda c: f"{c[0]} {c[1][0]}")
def test_others(case: tuple[str, list[tuple[int, ...]], dict[str, object]], target: str) -> None:
    tasks = other_tasks(*case, get_target(target))
    assert tasks and all(task.algorithm != "loops" for task in tasks)
    messages = run_forked(tasks if target == "host" else tasks[:1], partial(check, draws=6), processes=2)
    assert not any(messages), next(f"{t.algorithm}: {m}" for t, m in zip(tasks, messages) if m)
