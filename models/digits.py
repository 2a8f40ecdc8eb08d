"""`digits`: a small convolutional network with real weights, and handwritten digits that it has never seen.

They are the 1,797 images of 8×8 pixels that scikit-learn ships (UCI "Optical Recognition of Handwritten
Digits").
`train_digits.py` trains the network and writes digits.onnx.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from ..errors import ToolError
from .builder import NetBuilder

WEIGHTS = Path(__file__).with_name("digits.onnx")
_HELD_BACK = 360
_SPLIT_SEED = 2024


@dataclass(frozen=True)
class Digits:
    """images float32 (n, 1, 8, 8) in [0, 1] and labels int64 (n,) in 0..9."""

    images: np.ndarray
    labels: np.ndarray


def held_back() -> tuple[np.ndarray, np.ndarray]:
    """The 360 test digits: images float32 (360, 1, 8, 8) in [0, 1], labels int64 (360,).

    Raises ToolError where scikit-learn is not installed.
    """
    test = split()[1]
    return test.images, test.labels


def split() -> tuple[Digits, Digits]:
    """(training digits, held-back digits), always the same division. Raises ToolError like `held_back`."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ToolError(
            "the digits come with scikit-learn, which is missing: pip install scikit-learn"
        ) from error
    data = load_digits()
    images = (data.images[:, None] / 16.0).astype(np.float32)
    labels = data.target.astype(np.int64)
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(labels))
    train, test = order[_HELD_BACK:], order[:_HELD_BACK]
    return Digits(images[train], labels[train]), Digits(images[test], labels[test])


def digits(*, batch: int) -> onnx.ModelProto:
    """The trained network: images (batch, 1, 8, 8) → logits (batch, 10)."""
    model = onnx.load(WEIGHTS)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    return model


def digits_network(weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    """The network with a symbolic dim "batch"; weights are named conv1.weight, conv1.bias, … fc.bias."""
    net = NetBuilder("digits", seed=0)
    x = net.input("images", ("batch", 1, 8, 8))
    for name in ("conv1", "conv2", "conv3"):
        inputs = [
            x,
            *(net.weight(f"{name}.{part}", weights[f"{name}.{part}"]) for part in ("weight", "bias")),
        ]
        x = net.node("Conv", inputs, name, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[1, 1])
        x = net.node("Relu", [x], name)
        if name != "conv1":
            x = net.node("MaxPool", [x], name, kernel_shape=[2, 2], strides=[2, 2])
    x = net.node("Flatten", [x], axis=1)
    inputs = [x, net.weight("fc.weight", weights["fc.weight"]), net.weight("fc.bias", weights["fc.bias"])]
    net.node("Gemm", inputs, "fc", outputs=[net.output("logits", ("batch", 10))], transB=1)
    return net.model()
