"""BERT base (Devlin et al. 2018), in the operators that a trace of its usual implementation exports."""

from __future__ import annotations

import numpy as np
import onnx

from .builder import NetBuilder

VOCABULARY, POSITIONS, TYPES = 30_522, 512, 2
LAYERS, HIDDEN, HEADS, INNER = 12, 768, 12, 3072
TOKENS = 128


def bert_base(*, seed: int, batch: int) -> onnx.ModelProto:
    """input_ids, token_type_ids, attention_mask, each int64 (batch, 128) →
    last_hidden_state (batch, 128, 768) and pooler_output (batch, 768)."""
    net = NetBuilder("bert_base", seed)
    names = ("input_ids", "token_type_ids", "attention_mask")
    ids, types, mask = [net.input(name, (batch, TOKENS), onnx.TensorProto.INT64) for name in names]
    mask = _additive_mask(net, mask)
    x = _embeddings(net, ids, types)
    for layer in range(LAYERS):
        scope = f"encoder.layer.{layer}"
        x = _attention(net, x, mask, f"{scope}.attention", batch)
        last = layer == LAYERS - 1
        hidden = net.output("last_hidden_state", (batch, TOKENS, HIDDEN)) if last else ""
        x = _feed_forward(net, x, scope, [hidden] if last else [])
    first = net.node("Gather", [x, net.constant(0, "int64", "pooler")], "pooler", axis=1)
    pooled = net.linear(first, "pooler.dense", (HIDDEN, HIDDEN))
    net.node("Tanh", [pooled], "pooler", outputs=[net.output("pooler_output", (batch, HIDDEN))])
    return net.model()


def _additive_mask(net: NetBuilder, mask: str) -> str:
    """(batch, 128) of ones and zeros → (batch, 1, 1, 128) of 0 and the lowest float."""
    for axis in (1, 2):
        mask = net.node("Unsqueeze", [mask, net.constant([axis], "int64")])
    mask = net.node("Cast", [mask], to=onnx.TensorProto.FLOAT)
    mask = net.node("Sub", [net.constant(1.0, "float32"), mask])
    return net.node("Mul", [mask, net.constant(np.finfo(np.float32).min, "float32")])


def _embeddings(net: NetBuilder, ids: str, types: str) -> str:
    words = net.normal("embeddings.word_embeddings.weight", (VOCABULARY, HIDDEN), 0.02)
    kinds = net.normal("embeddings.token_type_embeddings.weight", (TYPES, HIDDEN), 0.02)
    places = net.normal("embeddings.position_embeddings.weight", (POSITIONS, HIDDEN), 0.02)
    x = net.node("Gather", [words, ids], "embeddings.word_embeddings")
    y = net.node("Gather", [kinds, types], "embeddings.token_type_embeddings")
    x = net.node("Add", [x, y], "embeddings")
    order = net.constant(np.arange(TOKENS)[None, :], "int64", "embeddings")
    y = net.node("Gather", [places, order], "embeddings.position_embeddings")
    x = net.node("Add", [x, y], "embeddings")
    return _layer_norm(net, x, "embeddings.LayerNorm")


def _attention(net: NetBuilder, x: str, mask: str, scope: str, batch: int) -> str:
    q, k, v = [_heads(net, x, f"{scope}.self", name, batch) for name in ("query", "key", "value")]
    scores = net.node("MatMul", [q, k], f"{scope}.self")
    scale = net.constant((HIDDEN // HEADS) ** 0.5, "float32", f"{scope}.self")
    scores = net.node("Div", [scores, scale], f"{scope}.self")
    scores = net.node("Add", [scores, mask], f"{scope}.self")
    weights = net.node("Softmax", [scores], f"{scope}.self", axis=-1)
    y = net.node("MatMul", [weights, v], f"{scope}.self")  # (batch, heads, tokens, 64)
    y = net.node("Transpose", [y], f"{scope}.self", perm=[0, 2, 1, 3])
    shape = net.constant([batch, TOKENS, HIDDEN], "int64", f"{scope}.self")
    y = net.node("Reshape", [y, shape], f"{scope}.self")
    y = _dense(net, y, f"{scope}.output.dense", HIDDEN, HIDDEN)
    y = net.node("Add", [y, x], f"{scope}.output")
    return _layer_norm(net, y, f"{scope}.output.LayerNorm")


def _heads(net: NetBuilder, x: str, scope: str, name: str, batch: int) -> str:
    """(batch, tokens, 768) → (batch, heads, tokens, 64), for the key (batch, heads, 64, tokens)."""
    y = _dense(net, x, f"{scope}.{name}", HIDDEN, HIDDEN)
    y = net.node("Reshape", [y, net.constant([batch, TOKENS, HEADS, HIDDEN // HEADS], "int64", scope)], scope)
    return net.node("Transpose", [y], scope, perm=[0, 2, 3, 1] if name == "key" else [0, 2, 1, 3])


def _feed_forward(net: NetBuilder, x: str, scope: str, outputs: list[str]) -> str:
    y = _dense(net, x, f"{scope}.intermediate.dense", HIDDEN, INNER)
    y = _gelu(net, y, f"{scope}.intermediate")
    y = _dense(net, y, f"{scope}.output.dense", INNER, HIDDEN)
    y = net.node("Add", [y, x], f"{scope}.output")
    return _layer_norm(net, y, f"{scope}.output.LayerNorm", outputs)


def _gelu(net: NetBuilder, x: str, scope: str) -> str:
    """x / 2 · (1 + erf(x / √2))"""
    y = net.node("Div", [x, net.constant(2.0**0.5, "float32", scope)], scope)
    y = net.node("Erf", [y], scope)
    y = net.node("Add", [y, net.constant(1.0, "float32", scope)], scope)
    y = net.node("Mul", [x, y], scope)
    return net.node("Mul", [y, net.constant(0.5, "float32", scope)], scope)


def _dense(net: NetBuilder, x: str, scope: str, f_in: int, f_out: int) -> str:
    y = net.node("MatMul", [x, net.normal(f"{scope}.weight", (f_in, f_out), f_in**-0.5)], scope)
    return net.node("Add", [net.normal(f"{scope}.bias", (f_out,), 0.1), y], scope)


def _layer_norm(net: NetBuilder, x: str, scope: str, outputs: list[str] | None = None) -> str:
    scale = net.uniform(f"{scope}.weight", (HIDDEN,), 0.7, 1.3)
    bias = net.normal(f"{scope}.bias", (HIDDEN,), 0.1)
    return net.node(
        "LayerNormalization", [x, scale, bias], scope, outputs=outputs or [], axis=-1, epsilon=1e-12
    )
