"""Weights that are stored as in the model and transformed when the module is opened."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import burnish
import numpy as np
import onnx
import pytest
from burnish.errors import InputError
from burnish.graph_passes.predict import PredictedCost
from onnx import TensorProto, helper, numpy_helper


def network(channels: int = 64) -> onnx.ModelProto:
    """Two 3×3 convolutions that share their weights, then one with few outputs, whose blocks are padded."""
    rng = np.random.default_rng(0)
    shapes = {"w": (channels, channels, 3, 3), "v": (9, channels, 1, 1)}
    weights = [numpy_helper.from_array(rng.standard_normal(s, np.float32) / 9, n) for n, s in shapes.items()]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="first", pads=[1] * 4),
        helper.make_node("Conv", ["a", "w"], ["b"], name="second", pads=[1] * 4),
        helper.make_node("Conv", ["b", "v"], ["y"], name="third"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, channels, 14, 14])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "shared", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


X = np.random.default_rng(1).standard_normal((1, 64, 14, 14)).astype(np.float32)


@pytest.fixture(autouse=True)
def transformed(monkeypatch):
    """Plans that take Winograd's algorithm wherever they can."""
    monkeypatch.setattr(
        PredictedCost, "node", lambda self, graph, node, d: float("winograd4" not in d.algorithm) * 1e15
    )


def compiled(weights: str, **options) -> burnish.Module:
    return burnish.compile(network(), target="x86-64-v3", threads=2, weights=weights, **options)


def test_results_sizes_and_files(tmp_path):
    packed, compact = compiled("packed"), compiled("compact")
    want = packed.run({"x": X})["y"]
    scale = np.abs(want).max()
    assert np.abs(compact.run({"x": X})["y"] - want).max() <= 1e-6 * scale
    for module, name in ((packed, "packed.so"), (compact, "compact.so")):
        module.save(tmp_path / name)
    loaded = burnish.load(tmp_path / "compact.so", verify_digest=True)
    for threads in (1, 2, 3):
        np.testing.assert_array_equal(loaded.run({"x": X}, threads)["y"], compact.run({"x": X})["y"])
    a, b = packed.plan, compact.plan
    assert a is not None and b is not None
    assert not a.setup and a.prepared_size == 0
    made = 36 * 64 * 64 * 4  # F(4×4, 3×3) has 36 points; both convolutions share them
    assert b.prepared_size >= made and a.weights_size - b.weights_size >= made - 9 * 64 * 64 * 4
    assert b.weights_in_use == a.weights_in_use == a.weights_size
    sizes = [(tmp_path / name).stat().st_size for name in ("packed.so", "compact.so")]
    assert sizes[0] - sizes[1] > 0.9 * (a.weights_size - b.weights_size)


def test_layouts_without_padding_are_stored_as_they_are():
    module = compiled("compact", accuracy=0)
    assert module.plan is not None
    made = [step.node for step in module.plan.setup]
    assert made in ([], ["v"])  # 9 outputs are padded to 16


def test_opened_by_many_at_once(tmp_path):
    compact = compiled("compact")
    compact.save(tmp_path / "m.so")
    want = compact.run({"x": X})["y"]

    def open_and_run(_: int) -> bool:
        return np.array_equal(burnish.load(tmp_path / "m.so", threads=2).run({"x": X})["y"], want)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(open_and_run, range(12)))


def test_the_same_every_time(tmp_path):
    for name in ("a.so", "b.so"):
        compiled("compact").save(tmp_path / name)
    assert (tmp_path / "a.so").read_bytes() == (tmp_path / "b.so").read_bytes()


def test_unknown_kind():
    with pytest.raises(InputError, match="expected one of packed, compact"):
        compiled("small")
