"""Neural-network operators whose attributes or shapes do not fit: a typed error that names the node."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from burnish.errors import ModelError, UnsupportedError
from burnish.frontends.onnx.importer import import_onnx

from ..frontends.build import model, node, value, weight

Shape = tuple[int, ...]
X = (1, 4, 8, 8)

BROKEN: list[tuple[str, list[Shape], dict[str, Any]]] = [
    ("Conv", [X, (4, 3, 3, 3)], {}),
    ("Conv", [X, (4, 4, 3)], {}),
    ("Conv", [(4, 8), (4, 8)], {}),
    ("Conv", [X, (4, 4, 9, 9)], {}),
    ("Conv", [X, (4, 4, 3, 3)], {"kernel_shape": [3, 5]}),
    ("Conv", [X, (4, 4, 3, 3)], {"strides": [1]}),
    ("Conv", [X, (4, 4, 3, 3)], {"strides": [0, 1]}),
    ("Conv", [X, (4, 4, 3, 3)], {"dilations": [-1, 1]}),
    ("Conv", [X, (4, 4, 3, 3)], {"pads": [1, 1]}),
    ("Conv", [X, (4, 4, 3, 3)], {"pads": [-1, 0, 0, 0]}),
    ("Conv", [X, (4, 4, 3, 3)], {"auto_pad": "SAME"}),
    ("Conv", [X, (4, 4, 3, 3)], {"group": 0}),
    ("Conv", [X, (4, 4, 3, 3)], {"group": 3}),
    ("Conv", [X, (4, 4, 3, 3), (5,)], {}),
    ("Conv", [X, (4, 4, 0, 3)], {}),
    ("ConvTranspose", [(4, 8), (8, 4)], {}),
    ("ConvTranspose", [X, (3, 4, 3, 3)], {}),
    ("ConvTranspose", [X, (4, 4, 3, 3)], {"pads": [9, 9, 9, 9]}),
    ("ConvTranspose", [X, (4, 4, 3, 3)], {"output_padding": [1]}),
    ("ConvTranspose", [X, (4, 4, 3, 3)], {"output_shape": [-1, 3]}),
    ("ConvTranspose", [X, (4, 4, 3, 3)], {"output_shape": [1 << 40, 1 << 20]}),
    ("MaxPool", [X], {"kernel_shape": [9, 9]}),
    ("MaxPool", [X], {"kernel_shape": [3]}),
    ("MaxPool", [(4, 8)], {"kernel_shape": [3]}),
    ("MaxPool", [X], {"kernel_shape": [0, 3]}),
    ("AveragePool", [(8,)], {"kernel_shape": [3]}),
    ("LpPool", [X], {"kernel_shape": [3, 3], "p": 0}),
    ("GlobalAveragePool", [(4,)], {}),
    ("GlobalLpPool", [X], {"p": 0}),
    ("MaxRoiPool", [X, (2, 5)], {"pooled_shape": [3]}),
    ("MaxRoiPool", [X, (2, 4)], {"pooled_shape": [3, 3]}),
    ("BatchNormalization", [X, (4,), (4,), (4,), (3,)], {}),
    ("InstanceNormalization", [(4,), (4,), (4,)], {}),
    ("InstanceNormalization", [X, (4,), (3,)], {}),
    ("GroupNormalization", [X, (4,), (4,)], {"num_groups": 3}),
    ("GroupNormalization", [X, (4,), (4,)], {"num_groups": 0}),
    ("LayerNormalization", [X, (8,), (8,)], {"axis": 4}),
    ("LayerNormalization", [X, (7,), (8,)], {}),
    ("LpNormalization", [X], {"axis": 5}),
    ("LpNormalization", [X], {"p": 3}),
    ("LRN", [X], {"size": 0}),
    ("LSTM", [(5, 3, 4), (1, 24, 4), (1, 24, 5)], {}),
    ("LSTM", [(5, 3, 4), (1, 24, 4), (1, 24, 6)], {"hidden_size": 7}),
    ("LSTM", [(5, 3, 4), (1, 24, 4), (1, 24, 6)], {"direction": "sideways"}),
    ("LSTM", [(5, 3, 4), (1, 24, 4), (1, 24, 6)], {"direction": "bidirectional"}),
    ("LSTM", [(5, 3, 4), (1, 24, 4), (1, 24, 6)], {"activations": ["Tanh"]}),
    ("LSTM", [(5, 3, 4), (1, 24, 4), (1, 24, 6)], {"activations": ["Tanh", "Tanh", "Sine"]}),
    ("GRU", [(5, 3), (1, 18, 4), (1, 18, 6)], {}),
    ("RNN", [(5, 3, 4), (1, 6, 4), (1, 6, 6), (1, 6)], {}),
    ("GridSample", [X, (1, 3, 3, 3)], {}),
    ("GridSample", [X, (1, 3, 3, 2)], {"padding_mode": "mirror"}),
]


def importable(op: str, shapes: list[Shape], attributes: dict[str, Any], extra=()):
    names = [f"x{n}" for n in range(len(shapes))]
    feeds = [value(name, shape) for name, shape in zip(names, shapes)]
    nodes = [node(op, [*names, *(t.name for t in extra)], ["y"], "culprit", **attributes)]
    return model(
        nodes, feeds, [value("y", None)], list(extra), opset=21 if op == "GroupNormalization" else 20
    )


@pytest.mark.parametrize(("op", "shapes", "attributes"), BROKEN, ids=str)
def test_broken(op: str, shapes: list[Shape], attributes: dict[str, Any]) -> None:
    with pytest.raises(ModelError) as caught:
        import_onnx(importable(op, shapes, attributes))
    assert "\n" not in str(caught.value)
    assert "culprit" in str(caught.value)
    assert "cannot be imported" not in str(caught.value), "an error that nobody thought of"


@pytest.mark.parametrize(
    "inputs",
    [
        {"scales": [1, 1, -2, 2]},
        {"scales": [1, 1, np.nan, 2]},
        {"scales": [1, 1, np.inf, 2]},
        {"scales": [1, 1, 1e9, 1e9]},
        {"scales": [1, 1, 2]},
        {},
    ],
    ids=str,
)
def test_broken_resize(inputs: dict[str, list[float]]) -> None:
    scales = weight("scales", inputs.get("scales", []))
    with pytest.raises(ModelError, match="culprit"):
        import_onnx(importable("Resize", [X], {}, [weight("roi", []), scales]))


def test_tiny_scales_take_no_memory() -> None:
    scales = weight("scales", [1, 1, 1e-9, 1])
    graph = import_onnx(
        importable("Resize", [X], {"mode": "cubic", "antialias": 1}, [weight("roi", []), scales])
    )
    assert graph.type("y").dims == (1, 4, 0, 8)


@pytest.mark.parametrize(
    ("op", "shapes", "attributes"),
    [
        ("BatchNormalization", [X, (4,), (4,), (4,), (4,)], {"training_mode": 1}),
        ("RandomUniformLike", [X], {}),
        ("Bernoulli", [X], {}),
    ],
)
def test_unsupported(op: str, shapes: list[Shape], attributes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="culprit"):
        import_onnx(importable(op, shapes, attributes))
