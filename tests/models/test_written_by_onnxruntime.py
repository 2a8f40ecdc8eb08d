"""Networks as onnxruntime's optimiser and its quantiser write them, with its own operators in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from burnish import pipeline
from burnish.compiler.ir.graph import interpret
from burnish.frontends.onnx.importer import import_onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from .net import Net
from .networks_classify import (
    inception_branches,
    mobilenet_v3,
    resnet_blocks,
    squeeze_and_excitation,
)
from .test_realistic_networks import NETWORKS, expected

TOLERANCE = 1e-4  # of the largest value


def described(describe) -> Net:
    net = Net(seed=len(describe.__name__))
    describe(net)
    return net


@pytest.mark.parametrize("describe", NETWORKS, ids=lambda describe: describe.__name__)
def test_optimised(describe, tmp_path: Path) -> None:
    net, written = described(describe), tmp_path / "optimised.onnx"
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath, options.log_severity_level = str(written), 4
    onnxruntime.InferenceSession(net.model().SerializeToString(), options)
    got = interpret(import_onnx(written), net.feeds)
    for name, array in expected(net.model(), net.feeds).items():
        tolerance = TOLERANCE * max(float(np.max(np.abs(array), initial=0.0)), 1e-3)
        np.testing.assert_allclose(got[name], array, rtol=0, atol=tolerance, err_msg=name)


class _Once(CalibrationDataReader):
    def __init__(self, feeds: dict[str, np.ndarray]):
        self.feeds: dict[str, np.ndarray] | None = feeds

    def get_next(self) -> dict[str, np.ndarray] | None:
        feeds, self.feeds = self.feeds, None
        return feeds


@pytest.mark.parametrize("kind", [QuantType.QUInt8, QuantType.QInt8], ids=str)
@pytest.mark.parametrize(
    "describe",
    [resnet_blocks, inception_branches, mobilenet_v3, squeeze_and_excitation],
    ids=lambda describe: describe.__name__,
)
def test_quantised(describe, kind: QuantType, tmp_path: Path) -> None:
    """Compiled. A value at the edge between two steps may fall to the other one, and moves what follows."""
    net, plain, written = described(describe), tmp_path / "plain.onnx", tmp_path / "quantised.onnx"
    onnx.save(net.model(), plain)
    quantize_static(
        plain,
        written,
        _Once(net.feeds),
        quant_format=QuantFormat.QOperator,
        activation_type=kind,
        weight_type=QuantType.QInt8,
    )
    model = onnx.load(written)
    assert "com.microsoft" in {node.domain for node in model.graph.node}
    got = pipeline.compile(model).run(net.feeds)
    for name, array in expected(model, net.feeds).items():
        away = np.abs(got[name] - array) / np.max(np.abs(array))
        assert np.max(away) <= 0.05 and np.mean(away) <= 0.005, name
