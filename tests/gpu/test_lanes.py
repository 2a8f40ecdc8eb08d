"""Values that a warp's threads take from each other's registers, and the places of threads in tiles."""

from __future__ import annotations

import burnish
import numpy as np
import onnx
import pytest
from burnish import pipeline
from burnish.compiler.build_kernel import build_kernel
from burnish.compiler.ir.numpy_scalar import evaluate
from burnish.compiler.kernel_task import DefaultConfig, FixedConfig
from burnish.compiler.target import TARGETS
from burnish.compiler.templates.gpu.tiles import place_of_thread
from burnish.workloads import planned
from onnx import TensorProto, helper, numpy_helper

RNG = np.random.default_rng(7)
FLOAT, INT64, HALF = TensorProto.FLOAT, TensorProto.INT64, TensorProto.FLOAT16


def model(op: str, *shapes: tuple[int, ...], dtype: int = FLOAT, result: int = FLOAT, **attributes):
    """Of one operator; inputs but the first one are constants."""
    names = ["x", *(f"w{n}" for n in range(1, len(shapes)))]
    node = helper.make_node(op, names, ["y"], **attributes)
    x, y = (helper.make_tensor_value_info(*info) for info in (("x", dtype, shapes[0]), ("y", result, None)))
    weights = [
        numpy_helper.from_array(RNG.standard_normal(shape).astype(np.float32), name)
        for name, shape in zip(names[1:], shapes[1:])
    ]
    graph = helper.make_graph([node], op, [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def lstm(batch: int, hidden: int) -> onnx.ModelProto:
    node = helper.make_node("LSTM", ["x", "w1", "w2"], ["y"], hidden_size=hidden)
    weights = [RNG.standard_normal((1, 4 * hidden, n)).astype(np.float32) / hidden for n in (3, hidden)]
    x, y = (
        helper.make_tensor_value_info(*info)
        for info in (("x", FLOAT, (3, batch, 3)), ("y", FLOAT, (3, 1, batch, hidden)))
    )
    named = [numpy_helper.from_array(w, f"w{n}") for n, w in enumerate(weights, 1)]
    graph = helper.make_graph([node], "lstm", [x], [y], named)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


MODELS = {
    "a block a row": model("MatMul", (1, 700), (700, 3)),
    "rows in a warp": model("Softmax", (5, 300, 3), axis=1),
    "less than a warp": model("ReduceSum", (9, 37), keepdims=0),
    "no sums": model("ReduceMax", (33, 3), axes=[0]),
    "places": model("ArgMax", (2, 40), result=INT64, axis=1),
    "8 bytes": model("ReduceProd", (3, 50), dtype=INT64, result=INT64, axes=[1]),
    "16 bits": model("Softmax", (7, 65), dtype=HALF, result=HALF),
    "two stages": model("LayerNormalization", (9, 5, 129), (129,), (129,)),
    "a cell": lstm(1, 129),
    "rows of a cell": lstm(5, 20),
    "too many rows": lstm(9, 40),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("threads", [None, 8])
def test_a_module_on_the_fake_driver(driver, name, threads):
    """`threads`: of a row, or that share a cell's sums."""

    class Config(DefaultConfig):
        def choose(self, knob, options, default):
            wanted = threads if knob[:7] in ("threads", "shares") and threads in options else default
            return super().choose(knob, options, wanted)

    module = pipeline.compile(
        MODELS[name], target="cuda-sm80", cache=False, pick_config=lambda task: Config()
    )
    host = burnish.compile(MODELS[name])
    info = host.inputs[0]
    x = RNG.integers(-3, 4, info.shape) if info.dtype.kind == "i" else RNG.standard_normal(info.shape)
    x = x.astype(info.dtype)
    found, expected = (m.run({"x": x})["y"] for m in (module, host))
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-3 if info.dtype.itemsize == 2 else 2e-5)


@pytest.mark.parametrize(
    "name, rows, threads, barriers, exchanges",
    [
        ("a block a row", 1, 256, 1, 5),
        ("a block a row", 1, 32, 0, 5),
        ("a block a row", 1, 8, 0, 3),
        ("no sums", 4, 64, 1, 3),
        ("no sums", 32, 8, 1, 0),
    ],
)
def test_threads_of_a_warp_do_not_meet(name, rows, threads, barriers, exchanges):
    found = planned("model", MODELS[name], TARGETS["cuda-sm80"], 1)[0]
    config = FixedConfig({"rows0": rows, "threads0": threads})
    source = build_kernel(found.task, config, "k").object.decode()
    assert source.count("__syncthreads") == barriers
    assert source.count("__shfl_xor_sync") == exchanges


@pytest.mark.parametrize("threads", [(4, 8), (16, 16), (8, 32), (16, 8), (2, 32), (3, 8), (4, 12)])
@pytest.mark.parametrize("shared", [True, False])
def test_every_thread_has_a_place_of_its_own(threads, shared):
    numbers = np.arange(threads[0] * threads[1])
    row, column = (evaluate(e, {"thread_x": numbers}, {}) for e in place_of_thread(threads, shared))
    assert sorted(zip(row, column)) == [(i, j) for i in range(threads[0]) for j in range(threads[1])]
    if shared and threads[0] % 4 == threads[1] % 8 == 0:
        assert (column[numbers ^ 1] == column).all() and (row[numbers ^ 2] == row).all()
        warps = zip(row.reshape(-1, 32), column.reshape(-1, 32))
        assert all(len(set(r)) == 4 and len(set(c)) == 8 for r, c in warps)
