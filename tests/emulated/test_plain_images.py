"""Convolutions of plain images on AArch64, whose pixels are loaded side by side: against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from burnish import pipeline
from burnish.commands.compare import compare
from burnish.commands.verify import run_onnxruntime

from ..frontends.build import model, node, value, weight

WINDOWS = [  # kernel, stride, dilation, padding, output channels
    (1, 1, 1, 0, 8),
    (1, 2, 1, 0, 12),
    (2, 2, 1, 0, 16),
    (3, 1, 1, 1, 16),
    (3, 2, 1, 1, 32),
    (3, 1, 2, 2, 5),
    (5, 3, 1, 0, 20),
    (7, 2, 1, 3, 8),
    (7, 4, 1, 5, 24),
    (3, 5, 1, 0, 9),
]


@pytest.mark.parametrize(("channels", "height", "width"), [(1, 17, 31), (3, 23, 29), (2, 7, 8), (5, 9, 9)])
def test_convolutions_of_a_plain_image(aarch64, channels, height, width):
    random = np.random.default_rng(channels)
    nodes, outputs, weights = [], [], []
    for n, (kernel, stride, dilation, padding, made) in enumerate(WINDOWS):
        how = {"strides": [stride] * 2, "dilations": [dilation] * 2, "pads": [padding] * 4}
        nodes.append(node("Conv", ["x", f"w{n}"], [f"y{n}"], **how))
        array = random.standard_normal((made, channels, kernel, kernel), np.float32)
        weights.append(weight(f"w{n}", array))
        outputs.append(value(f"y{n}", None))
    network = model(nodes, [value("x", (2, channels, height, width))], outputs, weights)
    feeds = {"x": random.standard_normal((2, channels, height, width), np.float32)}
    found = pipeline.compile(network, target="cortex-a72", threads=1).run(feeds)
    for name, expected in run_onnxruntime(network, feeds).items():
        one = compare(name, "onnxruntime", found[name], expected)
        assert one.ok, one.text()
