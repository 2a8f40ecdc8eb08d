"""The LSTM language model of Zaremba et al. 2014 (medium): two layers of 650, vocabulary of 10,000 words."""

from __future__ import annotations

import onnx

from .builder import NetBuilder

VOCABULARY, HIDDEN, LAYERS = 10_000, 650, 2


def lstm_lm(steps: int, *, seed: int, batch: int) -> onnx.ModelProto:
    """tokens int64 (steps, batch), h0, c0 (2, batch, 650) → logits (steps, batch, 10000), hn, cn like h0."""
    net = NetBuilder("lstm_lm" if steps > 1 else "lstm_lm_step", seed)
    tokens = net.input("tokens", (steps, batch), onnx.TensorProto.INT64)
    state = (LAYERS, batch, HIDDEN)
    h0, c0 = net.input("h0", state), net.input("c0", state)
    table = net.normal("encoder.weight", (VOCABULARY, HIDDEN), 1.0)
    x = net.node("Gather", [table, tokens], "encoder", axis=0)
    h_last, c_last = [], []
    for layer in range(LAYERS):
        x, h, c = _lstm(net, x, h0, c0, layer)
        h_last.append(h)
        c_last.append(c)
    weight = net.normal("decoder.weight", (HIDDEN, VOCABULARY), 2.0 * HIDDEN**-0.5)
    x = net.node("MatMul", [x, weight], "decoder")
    bias = net.normal("decoder.bias", (VOCABULARY,), 0.1)
    logits = net.output("logits", (steps, batch, VOCABULARY))
    net.node("Add", [x, bias], "decoder", outputs=[logits])
    net.node("Concat", h_last, "rnn", axis=0, outputs=[net.output("hn", state)])
    net.node("Concat", c_last, "rnn", axis=0, outputs=[net.output("cn", state)])
    return net.model()


def _lstm(net: NetBuilder, x: str, h0: str, c0: str, layer: int) -> tuple[str, str, str]:
    """One layer on x (steps, batch, 650): outputs (steps, batch, 650), last h and last c (1, batch, 650)."""
    scope, std = f"rnn.{layer}", HIDDEN**-0.5
    first, last = net.constant([layer], "int64", scope), net.constant([layer + 1], "int64", scope)
    axis = net.constant([0], "int64", scope)
    h = net.node("Slice", [h0, first, last, axis], scope)
    c = net.node("Slice", [c0, first, last, axis], scope)
    weights = [
        net.normal(f"{scope}.weight_ih", (1, 4 * HIDDEN, HIDDEN), std),
        net.normal(f"{scope}.weight_hh", (1, 4 * HIDDEN, HIDDEN), std),
        net.normal(f"{scope}.bias", (1, 8 * HIDDEN), 0.1),
    ]
    outputs = [f"/{scope}/LSTM_output_{index}" for index in range(3)]
    y = net.node("LSTM", [x, *weights, "", h, c], scope, outputs=outputs, hidden_size=HIDDEN)
    y = net.node("Squeeze", [y, net.constant([1], "int64", scope)], scope)
    return y, outputs[1], outputs[2]
