"""Attention, recurrences and embeddings, as they are exported."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from .net import Net


def masked_attention(n: Net) -> None:
    """A causal mask of minus infinity, and one of padding as a boolean input."""
    x = n.input(2, 11, 36)
    causal = n.const(np.triu(np.full((11, 11), -np.inf), 1))
    x = n.layer_norm(n.op("Add", x, n.attention(x, 2, 11, 36, 3, causal)), 36)
    valid = n.input(value=np.arange(11)[None] < np.array([[11], [6]]))
    holes = n.op("Where", n.op("Unsqueeze", valid, n.ints(1, 2)), n.const(0.0), n.const(-1e9))
    x = n.op("Add", x, n.attention(n.layer_norm(x, 36), 2, 11, 36, 4, holes))
    n.output(x, n.slice(x, 1, 0, 1))


def layer_norms(n: Net) -> None:
    x = n.linear(n.input(3, 5, 17), 17, 40)
    centred = n.op("Sub", x, n.mean(x, -1))
    variance = n.mean(n.op("Pow", centred, n.const(2.0)), -1)
    a = n.op("Div", centred, n.op("Sqrt", n.op("Add", variance, n.const(1e-5))))
    a = n.op("Add", n.op("Mul", a, n.normal(40)), n.normal(40))
    b = n.op("LayerNormalization", n.gelu(a), n.normal(5, 40), n.normal(5, 40), axis=1)
    square = n.mean(n.op("Mul", b, b), -1)  # RMS norm
    c = n.op("Mul", b, n.op("Reciprocal", n.op("Sqrt", n.op("Add", square, n.const(1e-6)))))
    outs = n.ops("LayerNormalization", c, n.normal(40), outs=3)
    n.output(*outs, n.linear(c, 40, 3))


def vision_transformer(n: Net) -> None:
    x = n.conv(n.input(2, 3, 16, 20), 3, 32, 4, stride=4)  # 4x5 patches
    x = n.transpose(n.reshape(x, 2, 32, 20), 0, 2, 1)
    token = n.op("Expand", n.normal(1, 1, 32), n.ints(2, 1, 32))
    x = n.op("Add", n.concat(token, x, axis=1), n.normal(1, 21, 32, scale=0.1))
    for _ in range(2):
        x = n.op("Add", x, n.attention(n.layer_norm(x, 32), 2, 21, 32, 4))
        x = n.op("Add", x, n.linear(n.gelu(n.linear(n.layer_norm(x, 32), 32, 100)), 100, 32))
    first = n.op("Gather", n.layer_norm(x, 32), n.const(0, np.int64), axis=1)
    n.output(n.linear(first, 32, 10))


def shifted_windows(n: Net) -> None:
    x = n.input(1, 8, 8, 24)
    rolled = n.concat(n.slice(x, 1, 2, 99), n.slice(x, 1, 0, 2), axis=1)
    rolled = n.concat(n.slice(rolled, 2, 2, 99), n.slice(rolled, 2, 0, 2), axis=2)
    windows = n.transpose(n.reshape(rolled, 1, 2, 4, 2, 4, 24), 0, 1, 3, 2, 4, 5)
    y = n.attention(n.reshape(windows, 4, 16, 24), 4, 16, 24, 3, n.normal(1, 3, 16, 16))
    y = n.reshape(n.transpose(n.reshape(y, 1, 2, 2, 4, 4, 24), 0, 1, 3, 2, 4, 5), 1, 8, 8, 24)
    parts = [n.slice(n.slice(y, 1, i, 99, 2), 2, j, 99, 2) for j in (0, 1) for i in (0, 1)]
    n.output(n.linear(n.layer_norm(n.concat(*parts, axis=3), 96), 96, 48))


def mixer(n: Net) -> None:
    x = n.input(2, 10, 28)
    y = n.transpose(n.layer_norm(x, 28), 0, 2, 1)
    x = n.op("Add", x, n.transpose(n.linear(n.gelu(n.linear(y, 10, 33)), 33, 10), 0, 2, 1))
    x = n.op("Add", x, n.op("Einsum", x, n.normal(28, 28, scale=0.2), equation="bld,de->ble"))
    n.output(n.op("Einsum", x, x, equation="bld,bmd->blm"), n.mean(x, 1, keepdims=0))


def bidirectional_recurrences(n: Net) -> None:
    x = n.input(9, 3, 20)
    for kind, gates, width in (("LSTM", 4, 17), ("GRU", 3, 24)):
        wide = 20 if kind == "LSTM" else 34
        weights = [n.normal(2, gates * width, k, scale=k**-0.5) for k in (wide, width)]
        bias = n.normal(2, 2 * gates * width, scale=0.2)
        more = {"linear_before_reset": 1} if kind == "GRU" else {}
        sequence, *_ = n.ops(
            kind,
            x,
            *weights,
            bias,
            outs=3 if kind == "LSTM" else 2,
            hidden_size=width,
            direction="bidirectional",
            **more,
        )
        x = n.reshape(n.transpose(sequence, 0, 2, 1, 3), 9, 3, 2 * width)
    n.output(x, n.linear(n.op("Gather", x, n.const(-1, np.int64), axis=0), 48, 5))


def recurrences_of_different_lengths(n: Net) -> None:
    x, lengths = n.input(7, 2, 16), n.input(value=np.array([7, 4], np.int32))
    h0, c0 = n.input(1, 2, 32), n.input(1, 2, 32)
    weights = [n.normal(1, 128, k, scale=k**-0.5) for k in (16, 32)]
    y, h, c = n.ops("LSTM", x, *weights, n.normal(1, 256), lengths, h0, c0, outs=3, hidden_size=32)
    weights = [n.normal(1, 40, k, scale=k**-0.5) for k in (32, 40)]
    z, last = n.ops(
        *("RNN", n.op("Squeeze", y, n.ints(1)), *weights), outs=2, hidden_size=40, direction="reverse"
    )
    n.output(h, c, z, last)


def text_classifier(n: Net) -> None:
    """Embedding, masked mean, attention over time, the best two classes."""
    tokens = n.input(value=n.rng.integers(0, 50, (3, 12)))
    x = n.op("Gather", n.normal(50, 40), tokens)
    mask = n.op("Cast", n.op("Not", n.op("Equal", tokens, n.const(0, np.int64))), to=TensorProto.FLOAT)
    mask = n.op("Unsqueeze", mask, n.ints(2))
    total = n.op("ReduceSum", n.op("Mul", x, mask), n.ints(1), keepdims=0)
    mean = n.op("Div", total, n.op("Clip", n.op("ReduceSum", mask, n.ints(1), keepdims=0), n.const(1e-9)))
    weights = n.op("Softmax", n.linear(n.op("Tanh", n.linear(x, 40, 30)), 30, 1), axis=1)
    pooled = n.op("Squeeze", n.op("MatMul", n.transpose(weights, 0, 2, 1), x), n.ints(1))
    best, which = n.ops("TopK", n.linear(n.concat(mean, pooled), 80, 9), n.ints(2), outs=2)
    n.output(best, which)


def siamese(n: Net) -> None:
    weights, dense = n.normal(20, 3, 3, 3, scale=0.2), n.normal(20, 16, scale=0.2)

    def embed(x: str) -> str:
        return n.op("MatMul", n.mean(n.relu(n.op("Conv", x, weights)), 2, 3, keepdims=0), dense)

    a, b = embed(n.input(2, 3, 9, 9)), embed(n.input(2, 3, 7, 12))
    dot = n.op("ReduceSum", n.op("Mul", a, b), n.ints(1))
    norms = n.op("Mul", *(n.op("ReduceL2", v, n.ints(1)) for v in (a, b)))
    n.output(n.op("Div", dot, n.op("Max", norms, n.const(1e-8))), n.op("CumSum", a, n.const(1, np.int64)))


def quantised_with_scales(n: Net) -> None:
    """Fake quantisation around a convolution, as training with quantisation exports it."""

    def fake(x: str, scale: float, *axis: Any) -> str:
        s, zero = n.const(scale), n.const(np.zeros(np.shape(scale)), np.int8)
        attributes = {"axis": 0} if np.ndim(scale) else {}
        return n.op(
            "DequantizeLinear", n.op("QuantizeLinear", x, s, zero, **attributes), s, zero, **attributes
        )

    grid = n.rng.integers(-60, 60, (1, 3, 8, 8)) / 32  # exact steps: no rounding can tip over
    x = fake(n.input(value=grid.astype(np.float32)), 1 / 32)
    weights = fake(n.const(n.rng.integers(-100, 100, (20, 3, 3, 3)) / 512), 1 / 512)
    n.output(n.relu(n.op("Conv", x, weights, n.normal(20), pads=[1] * 4)))


NETWORKS = (
    masked_attention,
    layer_norms,
    vision_transformer,
    shifted_windows,
    mixer,
    bidirectional_recurrences,
    recurrences_of_different_lengths,
    text_classifier,
    siamese,
    quantised_with_scales,
)
