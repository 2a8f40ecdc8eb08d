"""Winograd convolutions against float64, over awkward shapes, tiles and targets; their error is bounded."""

import numpy as np
import onnx
import pytest
from burnish import pipeline
from burnish.compiler.ir.graph import interpret as interpret_graph
from burnish.compiler.ir.loops_interpreter import interpret
from burnish.compiler.ir.loops_verifier import verify
from burnish.compiler.kernel_task import DefaultConfig, FixedConfig
from burnish.compiler.lower.lower import scheduled
from burnish.compiler.ops.toom_cook import transform
from burnish.compiler.target import get_target
from burnish.compiler.templates.winograd import VARIANTS
from burnish.frontends.onnx.importer import import_onnx
from burnish.graph_passes.make_tasks import task_of
from burnish.graph_passes.predict import PredictedCost
from onnx import TensorProto, helper, numpy_helper

from .kernels import runnable_targets

SHAPES = [  # (batch, channels, out channels, height, width, pads)
    (1, 16, 32, 1, 1, (1, 1, 1, 1)),
    (1, 16, 32, 7, 7, (1, 1, 1, 1)),
    (2, 32, 32, 5, 13, (0, 1, 1, 0)),
    (1, 48, 64, 14, 14, (1, 1, 1, 1)),
    (1, 16, 96, 9, 4, (2, 2, 2, 2)),
    (3, 16, 32, 8, 6, (0, 0, 0, 0)),
    (1, 32, 64, 31, 29, (1, 1, 1, 1)),
]


def network(
    batch: int, channels: int, out: int, height: int, width: int, pads: tuple[int, ...]
) -> onnx.ModelProto:
    """A pointwise convolution, which makes the layout blocked, then conv + bias + relu; or only conv."""
    rng = np.random.default_rng(channels * out + height)
    w = (rng.standard_normal((out, channels, 3, 3)) / np.sqrt(9 * channels)).astype(np.float32)
    b = rng.standard_normal(out).astype(np.float32)
    mix = (rng.standard_normal((channels, channels, 1, 1)) / np.sqrt(channels)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "mix"], ["m"], "mix"),
        helper.make_node(
            "Conv", ["m", "w", "b"] if batch == 1 else ["m", "w"], ["y"], "conv", pads=list(pads)
        ),
        helper.make_node("Relu" if batch == 1 else "Identity", ["y"], ["z"], "last"),
    ]
    sizes = (height + pads[0] + pads[2] - 2, width + pads[1] + pads[3] - 2)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, channels, height, width])
    z = helper.make_tensor_value_info("z", TensorProto.FLOAT, [batch, out, *sizes])
    weights = [
        numpy_helper.from_array(mix, "mix"),
        numpy_helper.from_array(w, "w"),
        numpy_helper.from_array(b, "b"),
    ]
    graph = helper.make_graph(nodes, "g", [x], [z], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def expected(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    conv = import_onnx(model).nodes[1].op
    mix, w, b = (numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer)
    x = np.einsum("nchw,oc->nohw", x.astype(np.float64), mix[:, :, 0, 0])
    padded = np.pad(x, ((0, 0), (0, 0), (conv.pads[0], conv.pads[2]), (conv.pads[1], conv.pads[3])))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    y = np.einsum("nchwij,ocij->nohw", windows, w)
    return np.maximum(y + b[:, None, None], 0) if len(x) == 1 else y


@pytest.fixture
def tile(request, monkeypatch):
    wanted = f"winograd{request.param}"
    monkeypatch.setattr(
        PredictedCost, "node", lambda self, graph, node, d: 0.0 if d.algorithm == wanted else 1e15
    )
    return request.param


@pytest.mark.parametrize("target", runnable_targets())
@pytest.mark.parametrize("tile", [2, 4, 6], indirect=True)
def test_against_float64(tile, target):
    for shape in SHAPES:
        model = network(*shape)
        x = np.random.default_rng(1).standard_normal(shape[:2] + shape[3:5]).astype(np.float32)
        module = pipeline.compile(model, target=target, threads=2, cache=False, accuracy=1e-4)
        assert module.plan is not None and any(f"winograd{tile}" in k for k in module.plan.kernels)
        want = expected(model, x)
        for threads in (1, 2):
            got = module.run({"x": x}, threads)["z"]
            assert np.abs(got - want).max() <= VARIANTS[f"winograd{tile}"].error * np.abs(want).max(), (shape, threads)


@pytest.mark.parametrize("tile", [2, 4], indirect=True)
@pytest.mark.parametrize(
    "answers", [{}, {"fused": True, "rows": 1}, {"fused": False, "group": 3, "prefetch": 0}]
)
def test_program_means_the_convolution(tile, answers):
    """Both ways of blocking, executed by the loop programs' definition."""
    model = network(1, 4, 8, 5, 6, (1, 1, 1, 1))
    target = get_target("x86-64")
    graph = pipeline.optimise(import_onnx(model), target, 1)
    n, node = next((n, node) for n, node in enumerate(graph.nodes) if getattr(node.op, "algorithm", ""))
    task = task_of(graph, node, target, 1)
    program = scheduled(task, FixedConfig(answers) if answers else DefaultConfig())
    verify(program)
    x = np.random.default_rng(n).standard_normal((1, 4, 5, 6)).astype(np.float32)
    out_type = graph.types[node.outputs[0]]
    mixed = interpret_graph(import_onnx(model), {"x": x}, watch=["m"])["m"]
    arrays = [graph.types[node.reads[0]].layout.pack(mixed)]
    arrays += [graph.constants[i].reshape(graph.types[i].physical_shape) for i in node.reads[1:]]
    results = interpret(program, [*arrays, np.zeros(out_type.physical_shape, np.float32)])
    want = expected(model, x)
    got = out_type.layout.unpack(results[-1], out_type.dims)
    assert np.abs(got - want).max() <= VARIANTS[f"winograd{tile}"].error * np.abs(want).max()


@pytest.mark.parametrize("m", [2, 4, 6])
def test_transform_is_exact(m):
    t = transform(m)
    d, g = np.random.default_rng(m).standard_normal((2, t.n))
    g = g[:3]
    want = [d[i : i + 3] @ g for i in range(m)]
    np.testing.assert_allclose(t.a @ ((t.g @ g) * (t.b @ d)), want, rtol=0, atol=1e-13)
