"""Compiled models at their edges: wrong indices, empty tensors, scalars, outputs that are inputs."""

from functools import cache

import numpy as np
import onnx
import pytest
from burnish import pipeline
from burnish.errors import RunError
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, list[int]]],
    outputs: dict[str, tuple[int, list[int]]],
    constants: dict[str, np.ndarray] | None = None,
) -> onnx.ModelProto:
    """`inputs` and `outputs`: name → (type, shape)."""
    infos = [
        [helper.make_tensor_value_info(name, type, shape) for name, (type, shape) in group.items()]
        for group in (inputs, outputs)
    ]
    arrays = [numpy_helper.from_array(a, name) for name, a in (constants or {}).items()]
    graph = helper.make_graph(nodes, "edges", *infos, arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def compiled(m: onnx.ModelProto) -> pipeline.Module:
    return pipeline.compile(m, threads=2, cache=False)


@cache
def picker(op: str) -> pipeline.Module:
    names = ["x", "at"] + (["x"] if op == "ScatterElements" else [])
    nodes = [helper.make_node(op, names, ["g"], "picker"), helper.make_node("Relu", ["g"], ["y"], "relu")]
    return compiled(model(nodes, {"x": (FLOAT, [7]), "at": (INT64, [7])}, {"y": (FLOAT, [7])}))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("bad", [7, -8, 2**40, -(2**62), 2**62])
@pytest.mark.parametrize("op", ["Gather", "GatherElements", "ScatterElements"])
def test_an_index_out_of_range_names_the_node(op, bad, threads):
    m = picker(op)
    x, at = np.arange(7, dtype=np.float32), np.array([0, 6, -7, -1, 3, 2, 1])
    before = m.run({"x": x, "at": at}, threads)["y"].copy()
    at[4] = bad
    with pytest.raises(RunError, match="picker"):
        m.run({"x": x, "at": at}, threads)
    at[4] = 3
    np.testing.assert_array_equal(m.run({"x": x, "at": at}, threads)["y"], before)


@pytest.mark.parametrize("threads", [1, 2])
def test_empty_tensors(threads):
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("MatMul", ["r", "w"], ["m"]),
        helper.make_node("ReduceSum", ["r", "axes"], ["s"], keepdims=0),
        helper.make_node("Concat", ["x", "z"], ["c"], axis=0),
        helper.make_node("Transpose", ["x"], ["t"]),
        helper.make_node("MatMul", ["t", "r"], ["none"]),
    ]
    m = compiled(
        model(
            nodes,
            {"x": (FLOAT, [0, 5]), "z": (FLOAT, [2, 5])},
            {"m": (FLOAT, [0, 3]), "s": (FLOAT, [5]), "c": (FLOAT, [2, 5]), "none": (FLOAT, [5, 5])},
            {"w": np.ones((5, 3), np.float32), "axes": np.array([0])},
        )
    )
    z = np.random.default_rng(0).normal(size=(2, 5)).astype(np.float32)
    got = m.run({"x": np.zeros((0, 5), np.float32), "z": z}, threads)
    assert got["m"].shape == (0, 3)
    np.testing.assert_array_equal(got["s"], np.zeros(5))
    np.testing.assert_array_equal(got["c"], z)
    np.testing.assert_array_equal(got["none"], np.zeros((5, 5)))


@pytest.mark.parametrize("threads", [1, 2])
def test_scalars(threads):
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["square"]),
        helper.make_node("ReduceMax", ["v"], ["top"], keepdims=0),
        helper.make_node("Add", ["square", "top"], ["y"]),
    ]
    m = compiled(model(nodes, {"x": (FLOAT, []), "v": (FLOAT, [3])}, {"y": (FLOAT, []), "top": (FLOAT, [])}))
    got = m.run({"x": np.float32(3), "v": np.array([1, 5, 2], np.float32)}, threads)
    assert got["y"].shape == () and got["y"] == 14 and got["top"] == 5


@pytest.mark.parametrize("threads", [1, 2])
def test_outputs_that_are_inputs_constants_and_each_other(threads):
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Identity", ["k"], ["fixed"]),
        helper.make_node("Neg", ["x"], ["n"]),
        helper.make_node("Identity", ["n"], ["again"]),
        helper.make_node("Reshape", ["n", "shape"], ["flat"]),
        helper.make_node("Concat", ["n", "n"], ["twice"], axis=0),
    ]
    square, long = (FLOAT, [4, 16]), (FLOAT, [64])
    outputs = {"same": square, "fixed": square, "n": square, "again": square, "flat": long}
    outputs["twice"] = (FLOAT, [8, 16])
    k = np.full((4, 16), 2.5, np.float32)
    m = compiled(model(nodes, {"x": square}, outputs, {"k": k, "shape": np.array([64])}))
    x = np.random.default_rng(1).normal(size=(4, 16)).astype(np.float32)
    got = m.run({"x": x}, threads)
    want = {"same": x, "fixed": k, "n": -x, "again": -x, "flat": -x.reshape(64)}
    want["twice"] = np.concatenate([-x, -x])
    assert got.keys() == want.keys()
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array, name)


def test_a_run_leaves_no_trace_in_the_next():
    """The arena is dirty after a run: what a kernel reads it must have written."""
    nodes = [
        helper.make_node("Pad", ["x", "pads"], ["p"]),
        helper.make_node("AveragePool", ["p"], ["a"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Softmax", ["a"], ["s"]),
        helper.make_node("ReduceMean", ["s", "axes"], ["y"], keepdims=1),
    ]
    constants = {"pads": np.array([0, 0, 1, 2, 0, 3, 0, 1]), "axes": np.array([2])}
    m = compiled(model(nodes, {"x": (FLOAT, [1, 5, 7, 9])}, {"y": (FLOAT, [1, 8, 1, 12])}, constants))
    x = np.random.default_rng(2).normal(size=(1, 5, 7, 9)).astype(np.float32)
    first = m.run({"x": x}, 2)["y"].copy()
    m.run({"x": np.full_like(x, np.nan)}, 2)
    np.testing.assert_array_equal(m.run({"x": x}, 1)["y"], first)
