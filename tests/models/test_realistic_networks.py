"""Networks as people build them, compiled as a whole, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from burnish import pipeline

from ..compiled.kernels import runnable_targets
from . import networks_classify, networks_dense, networks_sequence
from .net import Net

NETWORKS = (*networks_classify.NETWORKS, *networks_dense.NETWORKS, *networks_sequence.NETWORKS)
TOLERANCE = 1e-5  # of the largest value
IN_HALVES = (
    *(networks_classify.resnet_blocks, networks_classify.mobilenet_v3, networks_classify.inception_branches),
    *(networks_dense.decoder_of_transposed_convolutions, networks_dense.volumes),
    *(networks_sequence.vision_transformer, networks_sequence.bidirectional_recurrences),
    networks_classify.flattened_into_dense_layers,
)
HALVES_TOLERANCE = 5e-3


def expected(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds)))


def cases() -> list:
    """Every network on this machine's vectors, and most of them on narrower ones."""
    host, *narrower = runnable_targets()
    return [
        pytest.param(describe, target, id=f"{describe.__name__}-{target}")
        for n, describe in enumerate(NETWORKS)
        for target in (host, *narrower[n % (len(narrower) + 1) :][:1])
    ]


@pytest.mark.parametrize(("describe", "target"), cases())
def test_network(describe, target) -> None:
    net = Net(seed=len(describe.__name__))
    describe(net)
    want = expected(net.model(), net.feeds)
    module = pipeline.compile(net.model(), target=target, threads=2)
    for threads in (1, 2):
        got = module.run(net.feeds, threads=threads)
        assert list(got) == list(want)
        for name, array in want.items():
            assert (got[name].shape, got[name].dtype) == (array.shape, array.dtype), name
            tolerance = TOLERANCE * max(float(np.max(np.abs(array), initial=0.0)), 1e-3)
            np.testing.assert_allclose(
                got[name], array, rtol=0, atol=tolerance, err_msg=f"{name}, {threads} threads"
            )


@pytest.mark.parametrize("describe", IN_HALVES)
def test_network_of_16_bits(describe) -> None:
    """As onnxruntime computes it, in f32 with results that are rounded; products by the algorithms of f32."""
    net = Net(seed=len(describe.__name__), floats=np.float16)
    describe(net)
    want = expected(net.model(), net.feeds)
    got = pipeline.compile(net.model(), threads=2).run(net.feeds)
    for name, array in want.items():
        assert (got[name].shape, got[name].dtype) == (array.shape, array.dtype), name
        tolerance = HALVES_TOLERANCE * float(np.max(np.abs(array)))
        np.testing.assert_allclose(got[name], array, rtol=0, atol=tolerance, err_msg=name)
