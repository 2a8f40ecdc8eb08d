"""What ONNX's text says of cases that its node tests leave out: compiled, and by operators' definitions."""

from __future__ import annotations

import burnish
import numpy as np
import pytest
from burnish.compiler.ir.graph import interpret
from burnish.frontends.onnx.importer import import_onnx
from ml_dtypes import bfloat16

from .one_node import Array, Node, f32, floats

X = f32(1, 16, 1)
CASES: dict[str, tuple[Node, Array]] = {
    "a power of an integer that f16 does not have": (
        Node("Pow", (np.full((1, 2), -1, np.float16), np.array([[2049, 2048]], np.int32)), opset=15),
        np.array([[-1, 1]], np.float16),
    ),
    "of a constant one": (
        Node("Pow", (np.full((1, 2), -1, np.float16), np.array([2049, 2048], np.int32)), opset=15),
        np.array([[-1, 1]], np.float16),
    ),
    "a power of f32 that f16 does not have": (
        Node("Pow", (np.array([[10]], np.float16), np.array([[4.8]], np.float32)), opset=15),
        np.array([[63104]], np.float16),
    ),
    "a power of an integer that f32 does not have": (
        Node("Pow", (np.full((1, 1), -1, np.float32), np.array([[16777217]])), opset=15),
        np.array([[-1]], np.float32),
    ),
    "a range of bf16": (
        Node("Range", tuple(np.array(n, bfloat16) for n in (1, 512, 1)), opset=27, constant=True),
        np.arange(1, 512).astype(bfloat16),
    ),
    "pooling whose auto_pad is empty": (
        Node("MaxPool", (floats(1, 2, 3, 4, 5).reshape(1, 1, 5),),
             {"kernel_shape": [2], "strides": [2], "ceil_mode": 1, "auto_pad": ""}),
        floats(2, 4, 5).reshape(1, 1, 3),
    ),
    "no place of a number": (Node("NonZero", (np.array(5),), constant=True), np.empty((0, 1), np.int64)),
    "no place of zero": (Node("NonZero", (np.array(0),), constant=True), np.empty((0, 0), np.int64)),
    "the sign of no remainder": (
        Node("Mod", (floats(-4, 4, 4, -4)[None], floats(2, -2, 2, -2)[None]), opset=28),
        floats(0.0, -0.0, 0.0, -0.0)[None],
    ),
    "a spectrum of all samples": (
        Node("STFT", (X, np.array(4)), opset=17),
        np.stack([(f := np.fft.rfft(X[:, None, :, 0])).real, f.imag], -1).astype(np.float32),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rare_cases(name: str) -> None:
    node, want = CASES[name]
    model, feeds = node.model(), node.feeds()
    for found in (interpret(import_onnx(model), feeds), burnish.compile(model, cache=False).run(feeds)):
        got = np.asarray(found["y0"])
        assert got.shape == want.shape and got.dtype == want.dtype
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=1e-5, atol=1e-5)
        if node.op == "Mod":
            np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


def test_one_direction_may_name_the_activations_of_two() -> None:
    inputs = f32(5, 3, 4), f32(1, 6, 4), f32(1, 6, 6)
    plain = Node("RNN", inputs, {"hidden_size": 6}, 2, 14, stored=(1, 2))
    named = Node("RNN", inputs, {"hidden_size": 6, "activations": ["Tanh"] * 2}, 2, 14, stored=(1, 2))
    want, got = (interpret(import_onnx(n.model()), n.feeds()) for n in (plain, named))
    np.testing.assert_array_equal(got["y0"], want["y0"])
