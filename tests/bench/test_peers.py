import importlib.metadata
from pathlib import Path

import numpy as np
import pytest
from burnish.commands import peers
from burnish.commands.peers.ncnn_peer import require_layers
from burnish.errors import InputError, ToolError

from .needed import need
from .networks import convolution, convolution_reference, relu


def prepare(peer, network, threads=1):
    need(peer)
    return peer.prepare(network, threads)


@pytest.mark.parametrize(
    "peer", [peers.OnnxRuntime(), peers.OpenVino(), peers.Torch(), peers.Ncnn()], ids=lambda peer: peer.name
)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_convolution_is_right_and_bound_inputs_count(peer, threads):
    network = peers.Network("convolution", convolution())
    runner = prepare(peer, network, threads)
    rng = np.random.default_rng(1)
    for _ in range(2):
        x = rng.standard_normal((1, 3, 6, 7), np.float32)
        found = runner.run({"x": x})
        assert list(found) == ["y"]
        assert found["y"].shape == (1, 4, 6, 7)
        np.testing.assert_allclose(found["y"], convolution_reference(network.model, x), atol=1e-4)
    assert runner.time({"x": x}, 3) > 0
    runner.close()


def test_openvino_in_bfloat16_is_close_or_says_that_it_is_not_bfloat16():
    peer, network = peers.OpenVino(bf16=True), peers.Network("convolution", convolution())
    try:
        runner = prepare(peer, network)
    except ToolError as error:
        assert "not in bf16" in str(error)
        return
    x = np.random.default_rng(1).standard_normal((1, 3, 6, 7), np.float32)
    expected = convolution_reference(network.model, x)
    difference = np.abs(runner.run({"x": x})["y"] - expected).max() / np.abs(expected).max()
    assert 1e-5 < difference < peer.tolerance


def test_litert_runs_a_channels_last_file_of_a_channels_first_network(tmp_path):
    peer = peers.LiteRT({"relu": tmp_path / "relu.tflite"})
    need(peer)
    (tmp_path / "relu.tflite").write_bytes(relu_tflite((1, 4, 5, 3)))
    runner = prepare(peer, peers.Network("relu", relu((1, 3, 4, 5))))
    x = np.random.default_rng(2).standard_normal((1, 3, 4, 5), np.float32)
    np.testing.assert_array_equal(runner.run({"x": x})["y"], np.maximum(x, 0))


def test_a_missing_tflite_file_is_named(tmp_path):
    peer = peers.LiteRT({"other": tmp_path / "other.tflite"})
    with pytest.raises(InputError, match=r"no such \.tflite file"):
        peer.prepare(peers.Network("other", relu()), 1)


def test_ncnn_names_the_layers_that_it_lacks():
    need(peers.Ncnn())
    param = "7767517\n3 3\nInput in0 0 1 in0\n{} a 1 1 in0 1\nReLU r 1 1 1 out0\n"
    require_layers(param.format("Sigmoid"))
    with pytest.raises(ToolError, match=r"ncnn lacks what pnnx made of this model: Gather$"):
        require_layers(param.format("Gather"))


def test_find_by_name():
    assert [peer.name for peer in peers.find()] == ["onnxruntime", "openvino", "openvino-bf16"]
    assert [peer.name for peer in peers.find(["torch", "torch"])] == ["torch", "torch-inductor"]
    everything = [peer.name for peer in peers.find(["all"])]
    assert "ncnn" in everything and "litert" in everything
    assert [peer.name for peer in peers.find(["ncnn"], {"a": Path("a.tflite")})] == ["ncnn", "litert"]
    with pytest.raises(InputError, match="no peer 'tvm': choose from onnxruntime"):
        peers.find(["tvm"])


def test_only_f32_peers_may_be_compared_with():
    precisions = {peer.name: peer.precision for peer in peers.find(["all"])}
    assert precisions.pop("openvino-bf16") == "bf16"
    assert set(precisions.values()) == {"f32"}


def test_a_missing_package_is_a_reason():
    class Missing(peers.OnnxRuntime):
        packages = ("nowhere-to-be-found",)
        modules = ("nowhere_to_be_found",)

    assert Missing().available() == "not installed: pip install nowhere-to-be-found"


def test_open_dimensions_are_named():
    network = peers.Network("open", relu(("n", 3)))
    with pytest.raises(InputError, match="open: input 'x' has open dimensions"):
        network.input_shape("x")
    assert network.output_shape("y") is None


def test_burnish_runs_through_the_compiler_that_it_is_handed():
    class Context:
        def __init__(self, threads):
            self.threads = threads
            self.closed = False

        def bind_input(self, name, array):
            assert name == "x"
            self.x = array

        def run(self):
            self.y = np.maximum(self.x, 0) * self.threads

        def output(self, name):
            assert name == "y"
            return self.y

    class Module:
        def context(self, threads):
            return Context(threads)

    def compile(model, *, threads):
        assert model.graph.node[0].op_type == "Relu" and threads == 2
        return Module()

    peer = peers.Burnish(compile)
    x = np.array([[-1.0, 3.0]], np.float32)
    runner = peer.prepare(peers.Network("relu", relu((1, 2))), 2)
    np.testing.assert_array_equal(runner.run({"x": x})["y"], [[0.0, 6.0]])
    assert runner.time({"x": x}, 2) > 0
    runner.close()
    assert runner.context is None and runner.module is None
    assert peer.subject and not peers.OnnxRuntime.subject


def relu_tflite(shape) -> bytes:
    """A .tflite file of y = max(x, 0)."""
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.RELU
    code.version = 1
    tensors = []
    for name in ("x", "y"):
        tensor = schema.TensorT()
        tensor.shape, tensor.type = list(shape), schema.TensorType.FLOAT32
        tensor.buffer, tensor.name = 0, name
        tensors.append(tensor)
    operator = schema.OperatorT()
    operator.opcodeIndex, operator.inputs, operator.outputs = 0, [0], [1]
    graph = schema.SubGraphT()
    graph.tensors, graph.inputs, graph.outputs, graph.operators = tensors, [0], [1], [operator]
    model = schema.ModelT()
    model.version, model.operatorCodes = 3, [code]
    model.subgraphs, model.buffers = [graph], [schema.BufferT()]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def test_a_version_of_a_distribution_by_another_name(monkeypatch):
    peer = peers.OnnxRuntime()
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name == "onnxruntime":
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.2" if name == "onnxruntime-gpu" else real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(
        importlib.metadata, "packages_distributions", lambda: {"onnxruntime": ["onnxruntime-gpu"]}
    )
    assert peer.version() == "1.2 (onnxruntime-gpu)"
    monkeypatch.setattr(importlib.metadata, "packages_distributions", dict)
    assert peer.version() == "unknown"
