"""Depthwise and pointwise convolutions in one kernel against float64, over awkward shapes and targets."""

from functools import partial

import numpy as np
import onnx
import pytest
from burnish import pipeline
from burnish.compiler.ir.graph import interpret as interpret_graph
from burnish.compiler.ir.loops_interpreter import interpret
from burnish.compiler.ir.loops_verifier import verify
from burnish.compiler.kernel_task import FixedConfig, RejectedConfig
from burnish.compiler.lower.lower import scheduled
from burnish.compiler.target import get_target
from burnish.compiler.templates.strips import best_rows
from burnish.frontends.onnx.importer import import_onnx
from burnish.graph_passes.make_tasks import task_of
from burnish.graph_passes.predict import PredictedCost
from burnish.op_tuner.operands import operands
from onnx import TensorProto, helper, numpy_helper

from ..compiled.forked import run_forked
from ..compiled.kernels import runnable_targets
from ..compiled.test_drawn_configs import check

CASES = [  # batch, channels, out channels, height, width, kernel, stride, pads, residual
    (1, 16, 32, 1, 7, 3, 1, (1, 1, 1, 1), False),
    (2, 13, 29, 7, 1, 3, 1, (1, 1, 1, 1), False),
    (1, 16, 16, 13, 11, 3, 1, (1, 1, 1, 1), True),
    (2, 24, 40, 9, 10, 3, 2, (1, 1, 1, 1), False),
    (1, 21, 21, 6, 8, 5, 1, (2, 2, 2, 2), True),
    (1, 32, 16, 8, 12, 5, 2, (1, 2, 2, 1), False),
    (3, 17, 17, 4, 5, 3, 1, (1, 1, 1, 1), True),
    (1, 40, 24, 5, 6, 3, 1, (0, 2, 0, 1), False),
    (1, 8, 72, 2, 2, 3, 1, (1, 1, 1, 1), False),
    (1, 136, 16, 3, 5, 3, 1, (1, 1, 1, 1), False),  # enough channels for prefetches
]


def network(case: tuple, bias: bool = True) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A pointwise convolution, which makes the layout blocked; then depthwise and pointwise. Its weights.

    The residual is the depthwise convolution's own input.
    """
    batch, channels, out, height, width, kernel, stride, pads, residual = case
    rng = np.random.default_rng(channels * out + height)
    shapes = {
        "mix": (channels, channels, 1, 1),
        "w": (channels, 1, kernel, kernel),
        "v": (out, channels, 1, 1),
    }
    weights = {n: rng.standard_normal(s) / np.sqrt(s[1] * s[2] * s[3]) for n, s in shapes.items()}
    weights |= {"a": rng.standard_normal(channels), "b": rng.standard_normal(out)} if bias else {}
    weights = {n: w.astype(np.float32) for n, w in weights.items()}
    extra = (["a"], ["b"]) if bias else ([], [])
    nodes = [
        helper.make_node("Conv", ["x", "mix"], ["m"], "mix"),
        helper.make_node(
            "Conv", ["m", "w", *extra[0]], ["d"], "depthwise", pads=pads, strides=[stride] * 2, group=channels
        ),
        helper.make_node("Relu", ["d"], ["e"], "between"),
        helper.make_node("Conv", ["e", "v", *extra[1]], ["p"], "pointwise"),
        *([helper.make_node("Add", ["p", "m"], ["q"], "join")] if residual else []),
        helper.make_node("Relu", ["q" if residual else "p"], ["y"], "last"),
    ]
    h, w = ((n + a + b - kernel) // stride + 1 for n, a, b in
            ((height, pads[0], pads[2]), (width, pads[1], pads[3])))  # fmt: skip
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, channels, height, width])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, out, h, w])
    tensors = [numpy_helper.from_array(w, n) for n, w in weights.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model, weights


def expected(case: tuple, weights: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """relu(pointwise(relu(depthwise(m)))), in float64."""
    *_, kernel, stride, pads, residual = case
    wide = {n: w.astype(np.float64) for n, w in weights.items()}
    m = np.einsum("nchw,oc->nohw", x.astype(np.float64), wide["mix"][:, :, 0, 0])
    padded = np.pad(m, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), (2, 3))
    d = np.einsum("nchwij,cij->nchw", windows[:, :, ::stride, ::stride], wide["w"][:, 0])
    d = np.maximum(d + wide.get("a", np.zeros(1))[:, None, None], 0)
    y = np.einsum("nchw,oc->nohw", d, wide["v"][:, :, 0, 0]) + wide.get("b", np.zeros(1))[:, None, None]
    return np.maximum(y + (m if residual else 0), 0)


@pytest.fixture(autouse=True)
def always_paired(monkeypatch):
    plain = PredictedCost.node
    monkeypatch.setattr(
        PredictedCost,
        "node",
        lambda self, g, n, d: -1e15 if d.algorithm == "strips" else plain(self, g, n, d),
    )


@pytest.mark.parametrize("target", runnable_targets())
def test_against_float64(target):
    for number, case in enumerate(CASES):
        model, weights = network(case, bias=number % 3 > 0)
        x = np.random.default_rng(1).standard_normal((*case[:2], *case[3:5])).astype(np.float32)
        module = pipeline.compile(model, target=target, threads=2, cache=False)
        assert module.plan is not None and sum("_strips_" in k for k in module.plan.kernels) == 1
        want = expected(case, weights, x)
        for threads in (1, 2):
            got = module.run({"x": x}, threads)["y"]
            assert np.abs(got - want).max() <= 2e-6 * np.abs(want).max(), (case, threads)


def pair_task(case, target):
    model, weights = network(case)
    graph = pipeline.optimise(import_onnx(model), target, 1)
    node = next(n for n in graph.nodes if getattr(n.op, "algorithm", "") == "strips")
    return task_of(graph, node, target, 1), graph, node, model, weights


@pytest.mark.parametrize("rows", [1, 2, 3, 6])
@pytest.mark.parametrize("order", ["forward", "backward"])
def test_program_means_both_convolutions(rows, order):
    """Every height of a strip, executed by the loop programs' definition in both orders."""
    case = (2, 5, 6, 6, 3, 3, 1, (1, 1, 1, 1), False)
    task, graph, node, model, weights = pair_task(case, get_target("x86-64"))
    program = scheduled(task, FixedConfig({"rows": rows}))
    verify(program)
    x = np.random.default_rng(0).standard_normal((2, 5, 6, 3)).astype(np.float32)
    mixed = interpret_graph(import_onnx(model), {"x": x}, watch=["m"])["m"]
    arrays = [graph.types[node.reads[0]].layout.pack(mixed)]
    arrays += [graph.constants[i] for i in node.reads[1:]]
    arrays = [a.reshape(b.shape) for a, b in zip(arrays, program.params)]
    out = graph.types[node.outputs[0]]
    results = interpret(program, [*arrays, np.zeros(program.params[-1].shape, np.float32)], order=order)
    got = out.layout.unpack(results[-1].reshape(out.physical_shape), out.dims)
    want = expected(case, weights, x)
    assert np.abs(got - want).max() <= 2e-6 * np.abs(want).max()


@pytest.mark.parametrize("target", runnable_targets())
def test_drawn_answers(target: str) -> None:
    tasks = [pair_task(CASES[n], get_target(target))[0] for n in (1, 3, 5, 9)]
    messages = run_forked(tasks, partial(check, draws=6), processes=2)
    assert not any(messages), messages


def test_rows_divide_the_height():
    task, *_ = pair_task((1, 16, 16, 6, 6, 3, 1, (1, 1, 1, 1), False), get_target("x86-64-v3"))
    with pytest.raises(RejectedConfig, match=r"rows=4 is none of \[1, 2, 3, 6\]"):
        scheduled(task, FixedConfig({"rows": 4}))


def test_best_rows():
    """As many as the cache holds, shared out evenly, with enough pixels for the pointwise product."""
    target = get_target("x86-64-v3")
    tensor = 512 * 14 * 14 * 4
    assert best_rows((1, 512, 14, 14), 3 * tensor, target, 1) == (2, 1.0)
    assert best_rows((1, 512, 14, 14), 3 * tensor, target, 2)[0] == 7
    assert best_rows((1, 8, 64, 64), 3 * 8 * 64 * 64 * 4, target, 1)[0] == 32
    assert best_rows((1, 16, 7, 7), 3 * 16 * 7 * 7 * 4, target, 2)[1] > 1.5


def test_operands_for_measuring():
    """A tuner measures the merged task on operands in its layouts, and knows its result."""
    case = (1, 20, 24, 6, 5, 3, 1, (1, 1, 1, 1), False)
    target = get_target("x86-64-v3")
    task, graph, node, *_ = pair_task(case, target)
    made = operands(task)
    shapes = [graph.types[v].physical_shape for v in node.reads]
    assert [a.shape for a in made.arrays] == shapes
    assert made.weights == {1, 2, 3, 4} and made.expected is not None
