"""Every algorithm of convolutions that the planner may choose, against float64: awkward shapes, each pair of
layouts that it offers, several targets, whole and in pieces, within its own bound of error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from burnish import pipeline
from burnish.compiler.codegen.llvm import LoadedCode
from burnish.compiler.ir.graph import Graph
from burnish.compiler.ir.loops_verifier import verify
from burnish.compiler.kernel_task import DefaultConfig, KernelTask
from burnish.compiler.lower.lower import scheduled
from burnish.compiler.ops.conv import Conv
from burnish.compiler.ops.elementwise import Binary, Unary
from burnish.compiler.target import Target, get_target
from burnish.compiler.templates import fourier, kn2row, patches, winograd
from burnish.compiler.templates.registry import ALGORITHMS
from burnish.graph_passes.alternatives import Decision, alternatives
from burnish.graph_passes.fuse import fuse
from burnish.graph_passes.predict import PredictedCost
from burnish.graph_passes.task_cost import decided_task
from burnish.op_tuner.operands import operands
from onnx import TensorProto, helper, numpy_helper

from ..passes.make import make
from .kernels import Build, build, build_drawn, execute, load, runnable_targets


@dataclass(frozen=True)
class Case:
    """A convolution of `size` images, with or without an epilogue of bias, residual and ReLU."""

    channels: int
    out: int
    size: tuple[int, int]
    kernel: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    group: int = 1
    batch: int = 1
    epilogue: bool = True


WINOGRAD = [a.name for a in winograd.ALGORITHMS]
CONVOLUTIONS = [*WINOGRAD, *(a.name for module in (patches, fourier, kn2row) for a in module.ALGORITHMS)]
CASES = [
    Case(16, 32, (9, 13), pads=(1, 1, 1, 1)),
    Case(16, 32, (1, 1), pads=(1, 1, 1, 1)),
    Case(32, 64, (14, 5), pads=(2, 0, 1, 3), batch=2, epilogue=False),
    Case(3, 16, (17, 19), (7, 7), (2, 2), pads=(3, 3, 3, 3)),
    Case(5, 3, (11, 10), (5, 5), pads=(2, 2, 2, 2), batch=2),
    Case(16, 1, (8, 30), (5, 5), pads=(2, 2, 2, 2)),
    Case(16, 16, (23, 21), (7, 7), pads=(3, 2, 3, 4)),
    Case(16, 48, (12, 31), (11, 11), pads=(5, 5, 5, 5), epilogue=False),
    Case(32, 24, (10, 9), (2, 4), (1, 1), (2, 1), (1, 0, 1, 3), batch=2),
    Case(24, 40, (15, 16), (3, 5), (2, 3), (1, 2), (0, 1, 2, 1)),
    Case(16, 16, (9, 9), (1, 1), (2, 2)),
    Case(16, 21, (7, 7), (1, 1), pads=(1, 0, 0, 2)),
    Case(32, 64, (6, 6), (3, 3), pads=(1, 1, 1, 1), group=2),
    Case(12, 9, (8, 8), (3, 3), pads=(1, 1, 1, 1), group=3),
    Case(13, 19, (40, 3), (6, 1), (1, 1), (1, 1), (3, 0, 2, 0)),
    Case(16, 16, (1, 40), (1, 9), pads=(0, 4, 0, 4)),
    Case(16, 32, (10, 11), (5, 5), pads=(2, 2, 2, 2)),
    Case(16, 32, (11, 10), (3, 3), (2, 2), pads=(1, 1, 1, 1)),
    Case(16, 16, (23, 19), (5, 5), dilations=(2, 3), pads=(4, 6, 4, 6), batch=2),
    Case(16, 16, (40, 37), (5, 5), dilations=(6, 6), pads=(12, 12, 12, 12), epilogue=False),
]


def graph_of(case: Case, weights: np.ndarray, bias: np.ndarray) -> Graph:
    """One fused operator over inputs x and r."""
    shape = expected_shape(case)
    conv = Conv(case.strides, case.pads, case.dilations, case.group)

    def body(g, x, r):
        if not case.epilogue:
            return g.one(conv, x, g.const(weights))
        y = g.one(conv, x, g.const(weights), g.const(bias))
        return g.one(Unary("relu"), g.one(Binary("add"), y, r))

    inputs = {"x": f"f32[{case.batch},{case.channels},{case.size[0]},{case.size[1]}]"}
    inputs["r"] = f"f32[{','.join(map(str, shape))}]"
    return fuse(make(inputs, body))


def expected_shape(case: Case) -> tuple[int, ...]:
    sizes = zip(case.size, case.kernel, case.strides, case.dilations, case.pads[:2], case.pads[2:])
    return (case.batch, case.out, *((n + a + b - (k - 1) * d - 1) // st + 1 for n, k, st, d, a, b in sizes))


def expected(case: Case, x: np.ndarray, w: np.ndarray, bias: np.ndarray, r: np.ndarray) -> np.ndarray:
    x, w = x.astype(np.float64), w.astype(np.float64)
    top, left, bottom, right = case.pads
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    spans = tuple((k - 1) * d + 1 for k, d in zip(case.kernel, case.dilations))
    windows = np.lib.stride_tricks.sliding_window_view(padded, spans, (2, 3))
    (sh, sw), (dh, dw) = case.strides, case.dilations
    windows = windows[:, :, ::sh, ::sw, ::dh, ::dw]
    groups = zip(np.split(windows, case.group, 1), np.split(w, case.group, 0))
    y = np.concatenate([np.einsum("nchwij,ocij->nohw", a, b) for a, b in groups], 1)
    return np.maximum(y + bias[:, None, None] + r, 0) if case.epilogue else y


@dataclass(frozen=True)
class Item:
    """One algorithm on one pair of layouts; `arrays` are the operands, logical."""

    case: Case
    algorithm: str
    task: KernelTask
    arrays: tuple[np.ndarray, ...]


def arrays_of(case: Case) -> tuple[np.ndarray, ...]:
    """x, weights, bias, residual."""
    rng = np.random.default_rng(case.channels * 1000 + case.out)
    shape = (case.out, case.channels // case.group, *case.kernel)
    w = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
    x = rng.standard_normal((case.batch, case.channels, *case.size))
    arrays = x, w, rng.standard_normal(case.out), rng.standard_normal(expected_shape(case))
    return tuple(a.astype(np.float32) for a in arrays)


def items_of(case: Case, target: Target, wanted: str) -> list[Item]:
    """The algorithm on every pair of layouts, if it fits."""
    x, w, bias, r = arrays_of(case)
    graph = graph_of(case, w, bias)
    (node,) = graph.nodes
    algorithm, block = ALGORITHMS[wanted], target.lanes(4)
    if algorithm.kind != target.kind or not algorithm.fits(node.op, block):
        return []
    given = {"x": x, "r": r, **graph.constants}
    arrays = tuple(given[value] for value in node.reads)
    pairs = algorithm.layouts(node.op, block)
    tasks = [decided_task(graph, node, Decision(*pair, wanted), target, 2) for pair in pairs]
    return [Item(case, wanted, task, arrays) for task in tasks]


def physical(item: Item) -> list[np.ndarray]:
    """The task's operands as they lie in memory."""
    task = item.task
    packs = ALGORITHMS[item.algorithm].weights(task.op, task.target.lanes(4))
    result = []
    for n, ((name, _), array) in enumerate(zip(task.expr.params, item.arrays)):
        layout = task.layout(name)
        packed = packs[n](array) if n in packs else layout.pack(array) if layout else array
        result.append(np.ascontiguousarray(packed))
    return result


def check(item: Item, built: Build, code: LoadedCode) -> None:
    task = item.task
    name = task.expr.outputs[0]
    type = task.expr.type_of(name).with_layout(task.layout(name))
    want = expected(item.case, *arrays_of(item.case))
    for at_end in (True, False):
        (got,) = execute(built, code, physical(item), at_end=at_end)
        flat = got.reshape(type.physical_shape)
        result = flat if type.layout is None else type.layout.unpack(flat, type.dims)
        error = np.abs(result - want).max() / np.abs(want).max()
        assert error <= ALGORITHMS[item.algorithm].error, (item.algorithm, task.layouts, item.case, error)


@pytest.mark.parametrize("algorithm", CONVOLUTIONS)
@pytest.mark.parametrize("target", runnable_targets())
def test_against_float64(target, algorithm):
    target = get_target(target)
    drawn = target.vector_bits == 128  # elsewhere what the default rule answers
    items: list[Item] = []
    for n, case in enumerate(CASES):
        found = items_of(case, target, algorithm)
        items += found[n % len(found) :][:1] if found else []  # each case on one pair of layouts
    items = items[:: 3 if drawn or algorithm in WINOGRAD else 1]  # which has tests of its own
    builds = [(build_drawn if drawn else build)(i.task, f"k{n}") for n, i in enumerate(items)]
    code = load(builds, target)
    assert items
    for item, built in zip(items, builds):
        check(item, built, code)
        given = operands(item.task)  # what a measurement compares with
        assert not given.error(list(execute(built, code, given.arrays, at_end=True)))


def test_none_is_left_out():
    """Of the algorithms that fit a case on any vectors; Strassen's has tests of its own."""
    found = set()
    for case in CASES:
        _, weights, bias, _ = arrays_of(case)
        (node,) = graph_of(case, weights, bias).nodes
        blocks = {get_target(target).lanes(4) for target in runnable_targets()}
        found |= {
            n for n, a in ALGORITHMS.items() if a.kind == "cpu" and any(a.fits(node.op, b) for b in blocks)
        }
    assert found - {"strassen"} == set(CONVOLUTIONS)


@pytest.mark.parametrize("algorithm", CONVOLUTIONS)
def test_in_a_network(algorithm, monkeypatch):
    """Two convolutions of which one has the algorithm forced on it by its cost, with conversions around."""
    rng = np.random.default_rng(3)
    kernel = 5 if algorithm == "fft" or algorithm.endswith("5x5") else 3
    stride = 2 if algorithm.startswith("polyphase") else 1
    case = Case(16, 32, (10, 11), (kernel,) * 2, (stride,) * 2, pads=(kernel // 2,) * 4, epilogue=False)
    shapes = (16, 16, 1, 1), (32, 16, kernel, kernel)
    first, second = ((rng.standard_normal(s) / np.sqrt(np.prod(s[1:]))).astype(np.float32) for s in shapes)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 10, 11])]
    outputs = [helper.make_tensor_value_info("z", TensorProto.FLOAT, expected_shape(case))]
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["m"], "mix"),
        helper.make_node("Conv", ["m", "second"], ["y"], "conv", pads=case.pads, strides=case.strides),
        helper.make_node("Relu", ["y"], ["z"], "relu"),
    ]
    weights = [numpy_helper.from_array(first, "first"), numpy_helper.from_array(second, "second")]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    monkeypatch.setattr(
        PredictedCost, "node", lambda self, graph, node, d: 0.0 if d.algorithm == algorithm else 1.0
    )
    module = pipeline.compile(model, threads=2, cache=False, accuracy=1e-4)
    assert module.plan is not None and any(algorithm in name for name in module.plan.kernels)
    x = rng.standard_normal((1, 16, 10, 11)).astype(np.float32)
    mixed = np.einsum("nchw,oc->nohw", x.astype(np.float64), first[:, :, 0, 0].astype(np.float64))
    want = np.maximum(expected(case, mixed, second, np.zeros(0), np.zeros(0)), 0)
    for threads in (1, 2):
        got = module.run({"x": x}, threads)["z"]
        assert np.abs(got - want).max() <= 2 * ALGORITHMS[algorithm].error * np.abs(want).max()


def test_a_pixel_that_is_added_to_what_becomes_of_it():
    """Height and width are one axis of the image then, wherever it is read."""
    w = np.random.default_rng(0).standard_normal((8, 8, 3, 3)).astype(np.float32)
    conv = Conv((1, 1), (2, 2, 2, 2), (1, 1), 1)
    graph = fuse(
        make({"x": "f32[2,8,1,1]"}, lambda g, x: g.one(Binary("add"), g.one(conv, x, g.const(w)), x))
    )
    (node,) = graph.nodes
    decision = Decision(None, None, "kn2row")
    verify(scheduled(decided_task(graph, node, decision, get_target("x86-64-v3"), 1), DefaultConfig()))


def test_pointwise_is_named():
    case = Case(16, 32, (5, 6), (1, 1))
    _, w, bias, _ = arrays_of(case)
    graph = graph_of(case, w, bias)
    assert {d.algorithm for d in alternatives(graph, graph.nodes[0], 8)} == {"pointwise"}
