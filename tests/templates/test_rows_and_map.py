"""What the templates of rows and maps promise about their programs and code, beyond the right values."""

import random

import numpy as np
import pytest
from burnish.compiler.codegen.llvm import generate
from burnish.compiler.ir import graph as graph_ir
from burnish.compiler.ir import loops as L
from burnish.compiler.ir import loops_interpreter
from burnish.compiler.ir import scalar as s
from burnish.compiler.ir.graph import Graph
from burnish.compiler.ir.types import F32, Layout, TensorType
from burnish.compiler.kernel_task import DefaultConfig, KernelTask
from burnish.compiler.lower.lower import lower, scheduled
from burnish.compiler.ops.base import Decomposer, Op
from burnish.compiler.ops.conv import Conv
from burnish.compiler.ops.elementwise import Unary
from burnish.compiler.ops.fused import expression
from burnish.compiler.ops.indexing import Gather
from burnish.compiler.ops.movement import Concat, Identity, Pad, Transpose
from burnish.compiler.ops.normalization import GroupNormalization, LayerNormalization
from burnish.compiler.ops.pool import GlobalAveragePool
from burnish.compiler.ops.reduction import ArgReduce, Softmax
from burnish.compiler.target import get_target
from burnish.compiler.templates.registry import algorithms
from burnish.graph_passes import make_tasks
from burnish.graph_passes.fuse import fuse
from burnish.op_tuner.space import Space

BLOCKED = Layout.channel_blocked(4, 16)


def task_of(op: Op, algorithm: str, *types: str, output: Layout | None = None) -> KernelTask:
    expr = expression(op, tuple(TensorType.parse(t) for t in types))
    layouts = ((expr.outputs[0], output),) if output else ()
    return KernelTask("kernel", expr, layouts, frozenset(), algorithm, get_target("x86-64-v4"), 2)


@pytest.mark.parametrize(
    "op, types",
    [
        (Softmax(-1), ("f32[128,1000]",)),
        (Softmax(1), ("f32[2,21,33,5]",)),
        (LayerNormalization(-1), ("f32[128,768]", "f32[768]", "f32[768]")),
        (GroupNormalization(4), ("f32[2,64,7,7]", "f32[64]", "f32[64]")),
        (ArgReduce("argmax", 1), ("f32[128,1000]",)),
        (GlobalAveragePool(), ("f32[2,64,20,20]",)),
    ],
)
def test_rows_are_one_step_without_gathers(op: Op, types: tuple[str, ...]) -> None:
    task = task_of(op, "rows", *types)
    assert algorithms(task)[0] == "rows"
    code = generate(lower(task, DefaultConfig()), task.target)
    assert len(code.steps) == 1
    assert code.steps[0].tasks > 1
    assert "llvm.masked.gather" not in code.ir


@pytest.mark.parametrize(
    "op, types, output",
    [
        (Transpose((0, 2, 3, 1)), "f32[1,12,128,64]", None),
        (Transpose((1, 0)), "u8[100,77]", None),
        (Identity(), "f32[1,64,56,56]", BLOCKED),
        (Identity(), "f32[1,3,9,7]", BLOCKED),
    ],
)
def test_transposes_are_shuffles(op: Op, types: str, output: Layout | None) -> None:
    task = task_of(op, "map", types, output=output)
    assert algorithms(task)[0] == "map"
    ir = generate(lower(task, DefaultConfig()), task.target).ir
    assert "shufflevector" in ir
    assert "gather" not in ir
    assert "scatter" not in ir


@pytest.mark.parametrize("axis, mixed", [(1, 0), (2, 2)])
def test_concatenation_selects_only_where_inputs_meet(axis: int, mixed: int) -> None:
    shapes = {
        1: ("f32[4,3,640]", "f32[4,5,640]", "f32[4,7,640]"),
        2: ("f32[4,3,100]", "f32[4,3,200]", "f32[4,3,300]"),
    }
    program = lower(task_of(Concat(axis), "map", *shapes[axis]), DefaultConfig())
    stores = [st for st in L.walk(program.body) if isinstance(st, L.Store)]
    selecting = [st for st in stores if any(isinstance(e, s.Select) for e in s.walk(st.value))]
    assert len(selecting) == mixed


@pytest.mark.parametrize(
    "table, indices, innermost",
    [
        ("f32[10000,2600]", "i64[35,1]", 7),  # a part of the lines
        ("f32[3000,768]", "i64[127]", 127),  # all
        ("f32[3000,768]", "i64[131]", 12),  # too many: one line after another
        ("f32[100,768]", "i64[128]", 12),  # lines that a cache holds
    ],
)
def test_lines_from_anywhere_are_read_side_by_side(table: str, indices: str, innermost: int) -> None:
    program = lower(task_of(Gather(0), "map", table, indices), DefaultConfig())
    serial = [st for st in L.walk(program.body) if isinstance(st, L.For) and st.kind == "serial"]
    assert serial[-1].extent == innermost


@pytest.mark.parametrize("rows", [1, 3, 35, 127, 131])
def test_lines_side_by_side_are_those_of_the_index(rows: int) -> None:
    rng = np.random.default_rng(1)
    table, indices = rng.standard_normal((3000, 200)).astype(np.float32), rng.integers(-3000, 3000, rows)
    program = lower(task_of(Gather(0), "map", "f32[3000,200]", f"i64[{rows}]"), DefaultConfig())
    index, result = program.params[1:]
    arrays = [table, indices.reshape(index.shape), np.zeros(result.shape, np.float32)]
    got = loops_interpreter.interpret(program, arrays)[-1]
    np.testing.assert_array_equal(got.reshape(rows, 200), table[indices])


@pytest.mark.parametrize("stride", [1, 2])
def test_small_groups_are_on_register_tiles(stride: int) -> None:
    conv = Conv(strides=(stride, stride), pads=(1, 1, 1, 1), dilations=(1, 1), group=8)
    assert algorithms(task_of(conv, "direct", "f32[1,32,28,28]", "f32[32,4,3,3]"))[0] == "direct"


def test_squares_of_any_width_read_what_is_there() -> None:
    """Channels that do not fill their blocks, and padding around: x read without its guards would be left."""
    expr = expression(Pad((0, 0, 1, 1), (0, 0, 1, 1)), (TensorType.parse("f32[1,24,19,19]"),))
    layouts = ((expr.params[0][0], BLOCKED),)
    task = KernelTask("kernel", expr, layouts, frozenset(), "map", get_target("x86-64-v4"), 1)
    space, rng = Space(task), random.Random(0)
    drawn = {space.draw(rng) for _ in range(24)} | {space.default()}
    x = np.random.default_rng(1).standard_normal((1, 2, 19, 19, 16)).astype(np.float32)
    plain = x.transpose(0, 1, 4, 2, 3).reshape(1, 32, 19, 19)[:, :24]
    want = np.pad(plain, ((0, 0), (0, 0), (1, 1), (1, 1)))
    squares = set()
    for point in sorted(drawn, key=str):
        squares.add((dict(point).get("square0"), dict(point).get("lanes0")))
        program = scheduled(task, Space.config(point))
        arrays = [x.reshape(program.params[0].shape), np.zeros(program.params[1].shape, np.float32)]
        got = loops_interpreter.interpret(program, arrays)[-1]
        np.testing.assert_array_equal(got.reshape(want.shape), want)
    assert len(squares) > 1


def test_squares_read_no_more_than_a_temporary_has() -> None:
    g = Decomposer("n", {"x": TensorType(F32, (1, 17, 32))}, {})
    twice = g.one(Concat(0), *[g.one(Unary("elu", (1.0,)), "x")] * 2)
    y = g.one(Transpose((0, 2, 1)), twice)
    graph = fuse(Graph("test", ("x",), (y,), tuple(g.nodes), g.types, g.constants))
    (node,) = graph.nodes
    x = np.random.default_rng(1).standard_normal((1, 17, 32)).astype(np.float32)
    for algorithm in ("map", "rows"):
        task = make_tasks.task_of(graph, node, get_target("x86-64-v4"), 1, algorithm)
        program = scheduled(task, DefaultConfig())
        arrays = [x.reshape(program.params[0].shape), np.zeros(program.params[1].shape, np.float32)]
        got = loops_interpreter.interpret(program, arrays)[-1]
        want = graph_ir.interpret(graph, {"x": x})[y]
        np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-5)
