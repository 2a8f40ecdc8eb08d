"""The zoo's networks are valid ONNX, have the promised shapes, and compute something worth comparing."""

import numpy as np
import onnx
import onnxruntime
import pytest
from burnish import pipeline
from burnish.commands.compare import compare
from burnish.errors import InputError
from burnish.models.zoo import build, names, random_inputs

# name: (megabytes of weights, output shapes)
EXPECTED = {
    "digits": (0.1, [(1, 10)]),
    "resnet18": (46.8, [(1, 1000)]),
    "resnet34": (87.3, [(1, 1000)]),
    "resnet50": (102.4, [(1, 1000)]),
    "vgg19": (574.7, [(1, 1000)]),
    "mobilenet_v1": (17.0, [(1, 1000)]),
    "mobilenet_v2": (14.2, [(1, 1000)]),
    "lstm_lm": (79.1, [(35, 1, 10000), (2, 1, 650), (2, 1, 650)]),
    "lstm_lm_step": (79.1, [(1, 1, 10000), (2, 1, 650), (2, 1, 650)]),
    "dqn": (6.8, [(1, 18)]),
    "bert_base": (437.9, [(1, 128, 768), (1, 768)]),
    "inception_v1": (28.0, [(1, 1000)]),
    "inception_v2": (45.0, [(1, 1000)]),
    "densenet121": (32.7, [(1, 1000, 1, 1)]),
    "c1": (0.04, [(1, 64, 112, 112)]),
    "c5": (0.03, [(1, 128, 28, 28)]),
    "c12": (9.4, [(1, 512, 7, 7)]),
}


def run(model, *inputs):
    """The outputs on each of the inputs, by name."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    outputs = [value.name for value in session.get_outputs()]
    return [dict(zip(outputs, session.run(None, feeds))) for feeds in inputs]


HEAVY = ("vgg19", "bert_base")
LIGHT = ("inception_v1", "inception_v2", "densenet121")  # as others exported them long ago


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.heavy) if n in HEAVY else n for n in EXPECTED]
)
def test_network(name):
    model = build(name)
    onnx.checker.check_model(model, full_check=True)
    assert 8 <= model.ir_version <= 10 and model.opset_import[0].version >= (9 if name in LIGHT else 17)
    node_names = [node.name for node in model.graph.node]
    assert all(node_names) and len(set(node_names)) == len(node_names)
    megabytes, shapes = EXPECTED[name]
    assert model.ByteSize() / 1e6 == pytest.approx(megabytes, rel=0.02, abs=0.02)
    first, second = run(model, random_inputs(model, 0), random_inputs(model, 1))
    assert [output.shape for output in first.values()] == shapes
    for output, other in zip(first.values(), second.values()):
        assert np.isfinite(output).all()
        assert 1e-4 < output.std() < 20
        assert np.abs(output - other).max() > 0.1 * output.std()
    if "probabilities" in first:
        assert first["probabilities"].max() < 0.1


def test_every_name_is_expected_or_a_convolution():
    assert set(names()) == set(EXPECTED) | {f"c{index}" for index in range(1, 13)}


def test_same_seed_same_bytes():
    assert build("dqn", seed=3).SerializeToString() == build("dqn", seed=3).SerializeToString()
    assert build("dqn", seed=3).SerializeToString() != build("dqn", seed=4).SerializeToString()


@pytest.mark.parametrize(
    ("name", "batch", "image", "shape"),
    [
        ("resnet18", 2, 232, (2, 1000)),
        ("mobilenet_v2", 3, 64, (3, 1000)),
        ("vgg19", 1, 32, (1, 1000)),
        ("dqn", 2, 92, (2, 18)),
        ("c1", 2, 232, (2, 64, 116, 116)),
        ("digits", 5, None, (5, 10)),
        ("lstm_lm_step", 4, None, (1, 4, 10000)),
    ],
)
def test_batch_and_image(name, batch, image, shape):
    model = build(name, batch=batch, image=image)
    onnx.checker.check_model(model, full_check=True)
    (outputs,) = run(model, random_inputs(model, 0))
    assert next(iter(outputs.values())).shape == shape


def test_lstm_step_continues_the_sequence():
    """35 steps at once equal one step after another: the state outputs are the next step's inputs."""
    model = build("lstm_lm")
    inputs = random_inputs(model, 0)
    (whole,) = run(model, inputs)
    step = onnxruntime.InferenceSession(build("lstm_lm_step").SerializeToString())
    h, c = inputs["h0"], inputs["c0"]
    for token in inputs["tokens"]:
        logits, h, c = step.run(["logits", "hn", "cn"], {"tokens": token[None], "h0": h, "c0": c})
    np.testing.assert_allclose(logits[0], whole["logits"][-1], atol=1e-4)
    np.testing.assert_allclose(c, whole["cn"], atol=1e-4)


def test_errors_say_what_to_do():
    with pytest.raises(InputError, match=r"'resnet19'.*choose one of digits, resnet18"):
        build("resnet19")
    with pytest.raises(InputError, match="lstm_lm has a fixed input size"):
        build("lstm_lm", image=8)
    with pytest.raises(InputError, match="at least 32 pixels"):
        build("vgg19", image=31)
    with pytest.raises(InputError, match="batch must be at least 1"):
        build("dqn", batch=0)
    with pytest.raises(InputError, match="densenet121: batch 2: this network has a fixed batch of 1"):
        build("densenet121", batch=2)


@pytest.mark.parametrize(
    ("name", "image"),
    [
        *(("resnet18", 48), ("resnet50", 40), ("mobilenet_v1", 64), ("mobilenet_v2", 64)),
        *(("dqn", None), ("lstm_lm_step", None), ("inception_v1", None), ("digits", None)),
    ],
)
def test_compiled_for_this_machine_it_agrees_with_onnxruntime(name, image):
    model = build(name, image=image)
    inputs = random_inputs(model, 1)
    found = pipeline.compile(model, threads=2).run(inputs)
    (expected,) = run(model, inputs)
    assert list(found) == list(expected)
    for output, array in expected.items():
        one = compare(output, "host", found[output], array)
        assert one.ok, one.text()
