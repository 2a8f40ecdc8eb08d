"""The trained network reads digits that it has not seen, and its training script differentiates correctly."""

import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from burnish.errors import ToolError
from burnish.models.digits import WEIGHTS, digits_network, held_back, split
from burnish.models.train_digits import initial_weights, loss_and_gradients
from burnish.models.zoo import build


def test_accuracy_on_held_back_digits():
    images, labels = held_back()
    assert images.shape == (360, 1, 8, 8) and images.dtype == np.float32 and images.max() == 1.0
    session = onnxruntime.InferenceSession(build("digits", batch=360).SerializeToString())
    logits = session.run(None, {"images": images})[0]
    assert (logits.argmax(axis=1) == labels).mean() >= 0.98


def test_the_file_is_small_and_its_batch_symbolic():
    assert WEIGHTS.stat().st_size <= 200_000
    model = onnx.load(WEIGHTS)
    onnx.checker.check_model(model, full_check=True)
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_training_and_held_back_digits_are_disjoint():
    train, test = split()
    assert len(train.labels) + len(test.labels) == 1797
    seen = {image.tobytes() for image in train.images}
    assert not any(image.tobytes() in seen for image in test.images)


def test_missing_scikit_learn_is_a_tool_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ToolError, match="pip install scikit-learn"):
        held_back()


def test_loss_is_that_of_the_network_and_gradients_are_its_slope():
    rng = np.random.default_rng(0)
    weights = initial_weights(rng)
    images, labels = rng.random((4, 1, 8, 8), np.float32), rng.integers(0, 10, 4)
    loss, gradients = loss_and_gradients(weights, images, labels)
    session = onnxruntime.InferenceSession(digits_network(weights).SerializeToString())
    logits = session.run(None, {"images": images})[0].astype(np.float64)
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    assert loss == pytest.approx(-log_p[np.arange(4), labels].mean(), rel=1e-5)
    for name, gradient in gradients.items():
        step = 2e-3 * gradient / np.linalg.norm(gradient)
        up = loss_and_gradients({**weights, name: weights[name] + step}, images, labels)[0]
        down = loss_and_gradients({**weights, name: weights[name] - step}, images, labels)[0]
        assert (up - down) / 4e-3 == pytest.approx(np.linalg.norm(gradient), rel=0.03), name
