"""Windows that reach far beyond their input."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from burnish.compiler.ir.graph import interpret
from burnish.compiler.ops.normalization import LRN
from burnish.compiler.ops.pool import AveragePool, LpPool, MaxPool
from burnish.errors import BurnishError, ModelError, UnsupportedError
from burnish.frontends.onnx import rules_pool
from burnish.frontends.onnx.importer import import_onnx

from .build import model, node, untyped, value

POOLS = {"MaxPool": MaxPool, "AveragePool": AveragePool, "LpPool": LpPool}


def pooled(op: str, x: np.ndarray, outputs=("y",), **attributes):
    g = import_onnx(
        model([node(op, ["x"], outputs, "pool", **attributes)], [value("x", x.shape)], map(untyped, outputs))
    )
    (kept,) = g.nodes
    return kept.op, interpret(g, {"x": x})


@pytest.mark.parametrize("op", POOLS)
@pytest.mark.filterwarnings("ignore:invalid value")  # means of nothing
def test_cut_windows_have_the_same_results(monkeypatch, op):
    monkeypatch.setattr(rules_pool, "MOST_TAPS", 0)
    x = np.random.default_rng(0).standard_normal((1, 2, 4)).astype(np.float32)
    shorter = 0
    for k, stride, begin, end, dilation, ceil in product(
        (1, 2, 5, 9), (1, 3, 40), (0, 3, 7), (0, 4), (1, 2, 3), (0, 1)
    ):
        outputs = ("y", "i") if op == "MaxPool" else ("y",)
        indices = {"indices": True} if op == "MaxPool" else {}
        full = POOLS[op]((k,), (stride,), (begin, end), (dilation,), bool(ceil), **indices)
        attributes = {
            "kernel_shape": [k],
            "strides": [stride],
            "pads": [begin, end],
            "dilations": [dilation],
            "ceil_mode": ceil,
        }
        try:
            expected = full.reference(x)
        except BurnishError:
            with pytest.raises(ModelError, match="does not fit an input"):
                pooled(op, x, outputs, **attributes)
            continue
        cut, found = pooled(op, x, outputs, **attributes)
        shorter += cut.kernel < full.kernel
        for name, array in zip(outputs, expected):
            np.testing.assert_array_equal(found[name], array, err_msg=str(full))
    assert shorter > 50


@pytest.mark.parametrize("op", POOLS)
@pytest.mark.parametrize("size", [1 << 40, 1 << 60])
@pytest.mark.parametrize("far", ["begin", "end", "stride"])
def test_kernels_are_as_long_as_what_they_meet(op, size, far):
    """Every window begins in the padding before all elements, or ends behind them."""
    pads = {"begin": [size - 1, 0], "end": [0, size - 1], "stride": [0, 0]}[far]
    attributes = {"strides": [size], "ceil_mode": 1} if far == "stride" else {}
    x = np.arange(8, dtype=np.float32).reshape(1, 1, 8)
    cut, found = pooled(op, x, kernel_shape=[size], pads=pads, **attributes)
    assert cut.kernel[0] <= 15 and found["y"].shape == (1, 1, 1 if far == "stride" else 8)


def test_windows_far_from_each_other_are_refused():
    far = 1 << 40
    with pytest.raises(UnsupportedError, match="expected at most two taps"):
        pooled("MaxPool", np.ones((1, 1, 8)), kernel_shape=[far + 8], strides=[far], pads=[far, far])


def test_padding_that_counts_is_not_cut():
    x = np.ones((1, 1, 2), np.float32)
    _, found = pooled("AveragePool", x, kernel_shape=[8], pads=[7, 7], count_include_pad=1)
    np.testing.assert_array_equal(found["y"].ravel(), [1, *[2] * 7, 1][:9] / np.float32(8))
    with pytest.raises(UnsupportedError, match=r"'pool' .* on an input f32\[1,1,0\]"):
        pooled("AveragePool", x[..., :0], kernel_shape=[1 << 40], pads=[(1 << 40) - 1, 1])
    with pytest.raises(
        UnsupportedError,
        match=r"'pool' .*: kernel_shape \[1099511627776\] on an input .*; expected at most two taps",
    ):
        pooled("AveragePool", x, kernel_shape=[1 << 40], pads=[(1 << 40) - 1, 0], count_include_pad=1)


@pytest.mark.parametrize("size", [5, 9, 10, 1001, 1 << 60])
def test_sizes_of_lrn_beyond_all_channels(size):
    x = np.random.default_rng(0).standard_normal((1, 5, 3)).astype(np.float32)
    op, found = pooled("LRN", x, size=size, alpha=0.5 * size, bias=2.0)
    assert op.size <= 9
    expected = LRN(min(size, 1001), 0.5 * min(size, 1001), 0.75, 2.0).reference(x)[0]
    np.testing.assert_allclose(found["y"], expected, rtol=1e-6)


def test_clips_of_integers_are_refused_before_opset_12():
    for opset, minimum in ((7, -3.4e38), (10, 0.0)):
        m = model([node("Clip", ["x"], ["y"], "clip", min=minimum)], [value("x", (2,), 6)], [untyped("y")],
                  opset=opset)  # fmt: skip
        with pytest.raises(ModelError, match=r"'clip' \(Clip\): x is i32\[2\], expected floats"):
            import_onnx(m)
