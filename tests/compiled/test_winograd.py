"""Winograd convolutions against float64, over awkward shapes, tiles and targets; their error is bounded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from burnish.compiler.ir.graph import Graph
from burnish.compiler.ir.loops_interpreter import interpret
from burnish.compiler.ir.loops_verifier import verify
from burnish.compiler.ir.types import F32, Layout, TensorType
from burnish.compiler.kernel_task import FixedConfig, KernelTask
from burnish.compiler.lower.lower import scheduled
from burnish.compiler.ops.base import Decomposer
from burnish.compiler.ops.conv import Conv
from burnish.compiler.ops.elementwise import Unary
from burnish.compiler.ops.toom_cook import POINTS, band, transform
from burnish.compiler.target import get_target
from burnish.compiler.templates.registry import ALGORITHMS
from burnish.compiler.templates.winograd import VARIANTS
from burnish.graph_passes.alternatives import Decision
from burnish.graph_passes.fuse import fuse
from burnish.graph_passes.task_cost import decided_task

from .forked import run_forked
from .kernels import build, build_drawn, execute, load, runnable_targets


@dataclass(frozen=True)
class Shape:
    batch: int
    channels: int
    out: int
    height: int
    width: int
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)


ONE_TILE = Shape(1, 16, 32, 1, 1)
ODD = Shape(1, 16, 32, 7, 7)
UNEVEN_PADS = Shape(2, 32, 32, 5, 13, (0, 1, 1, 0))
DEEP = Shape(1, 96, 64, 14, 14)
WIDE_PADS = Shape(1, 16, 96, 9, 4, (2, 2, 2, 2))
BATCH = Shape(3, 16, 32, 8, 6, (0, 0, 0, 0))
ONE_TILE_5 = Shape(1, 16, 32, 1, 1, (2, 2, 2, 2))
UNEVEN_PADS_5 = Shape(2, 16, 32, 6, 11, (1, 2, 0, 2))
DEEP_5 = Shape(1, 48, 32, 14, 7, (2, 2, 2, 2))
MANY_TILES = Shape(1, 32, 64, 31, 29)
LONG_SUMS = Shape(1, 512, 32, 8, 14)
HALF_PANEL = Shape(1, 32, 16, 7, 9)
PART_OF_VECTOR = Shape(2, 24, 40, 9, 6)
PART_OF_VECTOR_5 = Shape(1, 20, 24, 9, 5, (2, 2, 2, 2))
LONG_SUMS_5 = Shape(1, 512, 32, 6, 9, (2, 2, 2, 2))
SHAPES = {
    "winograd2": (ONE_TILE, ODD, WIDE_PADS, BATCH, PART_OF_VECTOR),
    "winograd4": (ONE_TILE, ODD, UNEVEN_PADS, DEEP, BATCH, MANY_TILES, HALF_PANEL, PART_OF_VECTOR),
    "winograd6": (UNEVEN_PADS, LONG_SUMS),
    "winograd2_5x5": (ONE_TILE_5, DEEP_5, PART_OF_VECTOR_5),
    "winograd4_5x5": (UNEVEN_PADS_5, LONG_SUMS_5),
    "polyphase2": (ONE_TILE, ODD, UNEVEN_PADS),
    "polyphase3": (ODD, DEEP, BATCH, PART_OF_VECTOR),
}
NARROW = {"winograd2": (UNEVEN_PADS,), "winograd4": (ODD, PART_OF_VECTOR), "polyphase2": (BATCH,)}
"""Shapes on targets narrower than the host."""


def convolution(algorithm: str, shape: Shape) -> Graph:
    """A convolution, followed by bias and ReLU where the batch is 1."""
    v = VARIANTS[algorithm]
    rng = np.random.default_rng(shape.channels * shape.out + shape.height)
    w = rng.standard_normal((shape.out, shape.channels, v.kernel, v.kernel)) / np.sqrt(9 * shape.channels)
    bias = rng.standard_normal(shape.out)
    x = TensorType(F32, (shape.batch, shape.channels, shape.height, shape.width))
    g = Decomposer("n", {"x": x}, {})
    names = ["x", g.const(w.astype(np.float32))]
    names += [g.const(bias.astype(np.float32))] if shape.batch == 1 else []
    y = g.one(Conv((v.stride,) * 2, shape.pads, (1, 1), 1), *names)
    y = g.one(Unary("relu"), y) if shape.batch == 1 else y
    return fuse(Graph("test", ("x",), (y,), tuple(g.nodes), g.types, g.constants))


def task_for(graph: Graph, algorithm: str, target: str) -> KernelTask:
    machine = get_target(target)
    blocked = Layout.channel_blocked(4, machine.lanes(4))
    return decided_task(graph, graph.nodes[0], Decision(blocked, blocked, algorithm), machine, 2)


def operands(graph: Graph, task: KernelTask, x: np.ndarray) -> list[np.ndarray]:
    """As they lie in memory, the data first; behind its last channel stands what is finite, but no sum is."""
    lanes = task.target.lanes(4)
    packs = ALGORITHMS[task.transformed].weights(graph.nodes[0].op, lanes)
    arrays = [x, *(graph.constants[name] for name in graph.nodes[0].reads[1:])]
    packed = [packs[n](a) if n in packs else a for n, a in enumerate(arrays)]
    blocked = Layout.channel_blocked(4, lanes)
    data = np.where(blocked.pack(np.ones_like(x)), blocked.pack(x), np.finfo(np.float32).min)
    return [data.astype(np.float32), *packed[1:]]


def expected(graph: Graph, algorithm: str, shape: Shape, x: np.ndarray) -> np.ndarray:
    """In float64."""
    v, (w, *bias) = VARIANTS[algorithm], (graph.constants[i] for i in graph.nodes[0].reads[1:])
    top, left, bottom, right = shape.pads
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (v.kernel, v.kernel), (2, 3))
    y = np.einsum("nchwij,ocij->nohw", windows[:, :, :: v.stride, :: v.stride], w.astype(np.float64))
    return np.maximum(y + bias[0][:, None, None], 0) if bias else y


def check(algorithm: str, shape: Shape, target: str) -> None:
    """By the template's own numbers and by drawn ones, in memory between guard pages, tasks in any order."""
    graph = convolution(algorithm, shape)
    task = task_for(graph, algorithm, target)
    size = (shape.batch, shape.channels, shape.height, shape.width)
    x = np.random.default_rng(1).standard_normal(size).astype(np.float32)
    want, arrays = expected(graph, algorithm, shape, x), operands(graph, task, x)
    builds = [build(task, "chosen"), build_drawn(task, "drawn")]
    code = load(builds, task.target)
    for built in builds:
        for at_end in (True, False):
            (y,) = execute(built, code, arrays, at_end=at_end)
            got = Layout.channel_blocked(4, task.target.lanes(4)).unpack(y, want.shape)
            error = np.abs(got - want).max() / np.abs(want).max()
            assert error <= VARIANTS[algorithm].error, (built.scheduled.name, error)


@pytest.mark.parametrize(("algorithm", "shape"), [(name, sh) for name, all in SHAPES.items() for sh in all])
def test_against_float64(algorithm: str, shape: Shape) -> None:
    (message,) = run_forked([None], lambda _: check(algorithm, shape, "host"))
    assert message is None, message


@pytest.mark.parametrize("target", runnable_targets()[1:])
@pytest.mark.parametrize(("algorithm", "shape"), [(name, sh) for name, all in NARROW.items() for sh in all])
def test_narrower_vectors(algorithm: str, shape: Shape, target: str) -> None:
    (message,) = run_forked([None], lambda _: check(algorithm, shape, target))
    assert message is None, message


@pytest.mark.parametrize(
    ("algorithm", "answers"),
    [
        ("winograd4", {"fused": True, "rows": 1, "output_order": ("ov", "row", "tw")}),
        ("winograd2", {"fused": False, "group": 3, "depth": 4, "input_order": ("row", "tw", "ib")}),
    ],
)
def test_program_means_the_convolution(algorithm: str, answers: dict[str, object]) -> None:
    """Both ways of blocking, executed by the loop programs' definition."""
    shape = Shape(1, 8, 8, 5, 6)
    graph = convolution(algorithm, shape)
    task = task_for(graph, algorithm, "x86-64")
    program = scheduled(task, FixedConfig(answers))
    verify(program)
    x = np.random.default_rng(0).standard_normal((1, 8, 5, 6)).astype(np.float32)
    want = expected(graph, algorithm, shape, x)
    blocked = Layout.channel_blocked(4, 4)
    arrays = [*operands(graph, task, x), np.zeros(blocked.physical_shape(want.shape), np.float32)]
    got = blocked.unpack(interpret(program, arrays)[-1], want.shape)
    assert np.abs(got - want).max() <= VARIANTS[algorithm].error * np.abs(want).max()


@pytest.mark.parametrize(("m", "r"), POINTS)
def test_transforms_are_exact(m: int, r: int) -> None:
    """Of whole tiles, and of smaller ones on some of the points with the same weights."""
    weights = transform(m, r).g
    for outputs in range(1, m + 1):
        nested = band(m, r, outputs)
        assert len(nested.points) == outputs + r - 1
        d, g = np.random.default_rng(m).standard_normal((2, outputs + r - 1))
        want = [d[i : i + r] @ g[:r] for i in range(outputs)]
        got = nested.a @ ((weights[list(nested.points)] @ g[:r]) * (nested.b @ d))
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)
