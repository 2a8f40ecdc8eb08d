"""Random inputs and weights: valid, seeded, and such that a wrong answer shows."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from burnish.errors import InputError
from burnish.models.zoo import random_inputs, random_weights
from onnx import TensorProto, helper, numpy_helper

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
NAMES = (
    *("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet"),
    *("zfnet512", pytest.param("vgg19", marks=pytest.mark.heavy)),
)


@pytest.mark.parametrize("name", NAMES)
def test_light_models_give_telling_outputs(name):
    model = random_weights(onnx.load(LIGHT / f"light_{name}.onnx"))
    onnx.checker.check_model(model, full_check=True)
    assert not any(node.op_type == "ConstantOfShape" for node in model.graph.node)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    first, second = (session.run(None, random_inputs(model, seed))[0].ravel() for seed in (0, 1))
    assert np.isfinite(first).all()
    if "Softmax" in model.graph.node[-1].op_type:
        assert first.max() < 0.1
    assert first.std() > 1e-4
    assert np.abs(first - second).max() > 0.1 * first.std()


def gather_model():
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Clip", ["rows", "low", ""], ["clipped"]),
        helper.make_node("Mul", ["clipped", "half"], ["halved"]),
        helper.make_node("Reshape", ["halved", "shape"], ["y"]),
    ]
    table = numpy_helper.from_array(np.full((7, 4), 0.02, np.float16), "table")
    scalars = [numpy_helper.from_array(np.array(v, np.float16), n) for n, v in (("low", -9), ("half", 0.5))]
    shape = numpy_helper.from_array(np.array([-1], np.int64), "shape")
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, (100,))]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT16, (400,))]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [table, *scalars, shape])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_indices_stay_inside_the_table():
    ids = random_inputs(gather_model(), 0)["ids"]
    assert ids.dtype == np.int64 and ids.min() == 0 and ids.max() == 6


def test_only_weights_are_replaced():
    before = gather_model()
    original = before.SerializeToString()
    after = {
        tensor.name: numpy_helper.to_array(tensor) for tensor in random_weights(before, 1).graph.initializer
    }
    assert before.SerializeToString() == original
    assert after["table"].dtype == np.float16 and after["table"].std() > 0.3
    assert (after["low"], after["half"], after["shape"]) == (-9, 0.5, -1)
    assert random_weights(before, 1) == random_weights(before, 1) != random_weights(before, 2)


def test_symbolic_dims_are_refused_by_name():
    model = gather_model()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    with pytest.raises(InputError, match=r"'ids': dim 0 \(batch\).*--dim batch=1"):
        random_inputs(model)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    with pytest.raises(InputError, match=r"'ids': dim 0 \(\?\) is not static"):
        random_inputs(model)


def test_weights_that_only_a_branch_reads_stay():
    w = numpy_helper.from_array(np.ones((3, 4), np.float32), "w")
    branches = [
        helper.make_graph([helper.make_node(op, ["x", "w"], ["y"])], op, [], [onnx.ValueInfoProto(name="y")])
        for op in ("MatMul", "MatMul")
    ]
    node = helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    infos = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3)),
        helper.make_tensor_value_info("c", TensorProto.BOOL, ()),
    ]
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("y", 1, (2, 4))], [w])
    model = random_weights(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    )
    session = onnxruntime.InferenceSession(model.SerializeToString())
    assert session.run(None, {"x": np.ones((2, 3), np.float32), "c": np.array(True)})[0].shape == (2, 4)
