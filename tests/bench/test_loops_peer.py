"""Convolutions as loops in C through gcc, Graphite and Polly, where they are installed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from burnish import pipeline
from burnish.commands import peers
from burnish.commands.bench import bench
from burnish.commands.peers.loops_peer import single_convolution
from burnish.errors import UnsupportedError
from burnish.models import zoo
from onnx import TensorProto, helper, numpy_helper

from .needed import need
from .networks import relu


def network(groups=1, bias=True, **attributes) -> peers.Network:
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.standard_normal((6, 4 // groups, 3, 2), np.float32), "w")]
    if bias:
        weights.append(numpy_helper.from_array(rng.standard_normal(6, np.float32), "b"))
    inputs = ["x", *(w.name for w in weights)]
    node = helper.make_node("Conv", inputs, ["y"], group=groups, **attributes)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4, 9, 7])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return peers.Network("conv", model)


CASES = [
    {},
    {"bias": False, "groups": 2, "pads": [1, 0, 2, 1]},
    {"strides": [2, 3], "dilations": [2, 1], "pads": [2, 1, 2, 1]},
]


@pytest.mark.parametrize("case", CASES, ids=["plain", "groups and pads", "strides and dilations"])
@pytest.mark.parametrize("name", ["gcc", "graphite", "polly"])
def test_computes_the_convolution(name, case):
    (peer,) = peers.find([name])
    need(peer)
    net = network(**case)
    x = {"x": np.random.default_rng(1).standard_normal((2, 4, 9, 7), np.float32)}
    want = peers.OnnxRuntime().prepare(net, 1).run(x)["y"]
    for threads in (1, 2):
        got = peer.prepare(net, threads).run(x)["y"]
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


def test_other_models_are_refused():
    model = zoo.build("dqn")
    with pytest.raises(UnsupportedError, match=r"not a single convolution$"):
        single_convolution(peers.Network("dqn", model))
    with pytest.raises(UnsupportedError, match="explicit padding"):
        single_convolution(network(auto_pad="SAME_UPPER"))


def test_rows_say_why_there_is_no_time():
    missing = replace(peers.find(["polly"])[0], compilers=("no-such-compiler",))
    gcc = peers.find(["gcc"])[0]
    result = bench([("relu", relu((1, 2)))], [missing, gcc], threads=(1,), rounds=1, min_seconds=0.001)
    reasons = [row.reason for row in result.groups[0].rows]
    assert reasons[0] == "not installed: no-such-compiler"
    assert reasons[1] in ("not a single convolution", "not installed: gcc")


def test_the_compiler_says_what_it_chose():
    """`burnish`'s row names the algorithm, from the module's plan."""
    peer = peers.Burnish(pipeline.compile)
    assert peer.prepare(peers.Network("c3", zoo.build("c3", image=8)), 1).algorithm == "direct"
    winograd = peer.prepare(peers.Network("c2", zoo.build("c2", image=16)), 1).algorithm
    assert winograd.startswith("winograd")


@pytest.mark.parametrize("name", ["gcc", "polly"])
def test_denormals_stay_what_they_are(name):
    """What a compiler's start-up code sets holds for the whole process, Burnish's kernels included."""
    (peer,) = peers.find([name])
    need(peer)
    peer.prepare(network(), 1).run({"x": np.ones((2, 4, 9, 7), np.float32)})
    smallest = np.full(64, np.finfo(np.float32).tiny, np.float32)
    assert (smallest * np.float32(0.5) > 0).all()
