"""A small decoder as onnxruntime-genai writes large ones: weights of 4 bits, a cache for each layer, one file
for prompts and for single steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from burnish import pipeline
from onnx import TensorProto, helper, numpy_helper

LAYERS, HEADS, GROUPS, SIZE, WIDTH, VOCABULARY, ROOM = 2, 4, 2, 16, 64, 96, 16
PROMPT, STEPS = np.array([[5, 17, 2, 90, 33]]), 4


class Decoder:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(11)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.model = self._model()

    def _stored(self, array: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def _normal(self, *shape: int) -> str:
        return self._stored(self.rng.normal(0, 0.5, shape).astype(np.float32))

    def _node(self, op: str, inputs: list[str], outputs: int = 1, own: bool = False, **attributes: Any):
        names = [f"v{len(self.nodes)}_{n}" for n in range(outputs)]
        domain = "com.microsoft" if own else ""
        self.nodes.append(helper.make_node(op, inputs, names, domain=domain, **attributes))
        return names if outputs > 1 else names[0]

    def _product(self, x: str, terms: int, columns: int) -> str:
        blocks = terms // 32
        numbers = self._stored(self.rng.integers(0, 256, (columns, blocks, 16)).astype(np.uint8))
        scales = self._stored(self.rng.uniform(0.01, 0.05, (columns, blocks)).astype(np.float32))
        sizes = {"K": terms, "N": columns, "bits": 4, "block_size": 32}
        return self._node("MatMulNBits", [x, numbers, scales], own=True, **sizes)

    def _layer(self, layer: int, x: str, tables: list[str], ends: str, whole: str) -> tuple[str, list[str]]:
        queries = self._product(x, WIDTH, HEADS * SIZE)
        keys, values = (self._product(x, WIDTH, GROUPS * SIZE) for _ in range(2))
        cache = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
        given = [queries, keys, values, *cache, ends, whole, *tables]
        heads = {"num_heads": HEADS, "kv_num_heads": GROUPS, "do_rotary": 1}
        x, *present = self._node("GroupQueryAttention", given, 3, own=True, **heads)
        for kind, name in zip(("key", "value"), present):
            self.nodes.append(helper.make_node("Identity", [name], [f"present.{layer}.{kind}"]))
        return self._product(x, HEADS * SIZE, WIDTH), present

    def _gated(self, x: str) -> str:
        gate, up = (self._product(x, WIDTH, 2 * WIDTH) for _ in range(2))
        gate = self._node("Mul", [gate, self._node("Sigmoid", [gate])])
        return self._product(self._node("Mul", [gate, up]), 2 * WIDTH, WIDTH)

    def _normalised(self, x: str, skip: str) -> tuple[str, str]:
        normal, _, _, added = self._node(
            "SkipSimplifiedLayerNormalization", [x, skip, self._normal(WIDTH)], 4, own=True, epsilon=1e-6
        )
        self.nodes[-1].output[1] = self.nodes[-1].output[2] = ""
        return normal, added

    def _model(self) -> onnx.ModelProto:
        one = self._stored(np.array([1]))
        long = self._node("ReduceSum", ["attention_mask", one], keepdims=1)
        ends = self._node("Cast", [self._node("Sub", [long, one])], to=TensorProto.INT32)
        whole = self._node("Gather", [self._node("Shape", ["attention_mask"]), self._stored(np.array(1))])
        whole = self._node("Cast", [whole], to=TensorProto.INT32)
        angles = np.outer(np.arange(ROOM), 10.0 ** -np.arange(0, 2, 2 / 8)).astype(np.float32)
        tables = [self._stored(np.cos(angles)), self._stored(np.sin(angles))]
        skip = self._node("Gather", [self._normal(VOCABULARY, WIDTH), "input_ids"])
        x = self._node("SimplifiedLayerNormalization", [skip, self._normal(WIDTH)], epsilon=1e-6)
        for layer in range(LAYERS):
            x, _ = self._layer(layer, x, tables, ends, whole)
            x, skip = self._normalised(skip, x)
            x, skip = self._normalised(skip, self._gated(x))
        self.nodes.append(helper.make_node("Identity", [self._product(x, WIDTH, VOCABULARY)], ["logits"]))

        def info(name: str, kind: int, *dims: str | int) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(name, kind, dims)

        names = [f"{n}.{kind}" for n in range(LAYERS) for kind in ("key", "value")]
        caches = [
            [info(f"{prefix}.{name}", TensorProto.FLOAT, "batch", GROUPS, length, SIZE) for name in names]
            for prefix, length in (("past_key_values", "past"), ("present", "whole"))
        ]
        inputs = [
            info("input_ids", TensorProto.INT64, "batch", "steps"),
            info("attention_mask", TensorProto.INT64, "batch", "whole"),
            *caches[0],
        ]
        logits = info("logits", TensorProto.FLOAT, "batch", "steps", VOCABULARY)
        graph = helper.make_graph(self.nodes, "decoder", inputs, [logits, *caches[1]], self.weights)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def feeds(tokens: np.ndarray, seen: int, whole: int, caches: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """`seen` steps of `whole` count, the new ones among them."""
    return {"input_ids": tokens, "attention_mask": (np.arange(whole) < seen).astype(np.int64)[None], **caches}


@pytest.mark.parametrize("target", ["host", "x86-64-v3"])
def test_prompt_and_steps(target: str) -> None:
    """A module for the prompt, and one for steps, whose cache keeps its size, say what onnxruntime says."""
    model = Decoder().model
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    modules = [
        pipeline.compile(
            model, target=target, dims={"batch": 1, "steps": steps, "past": past, "whole": whole}
        )
        for steps, past, whole in ((PROMPT.shape[1], 0, PROMPT.shape[1]), (1, ROOM, ROOM))
    ]

    def step(module, given: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        expected = dict(zip(names, session.run(None, given)))
        found = module.run(given)
        for name, array in expected.items():
            scale = float(np.abs(array).max())
            np.testing.assert_allclose(found[name], array, rtol=0, atol=2e-5 * scale, err_msg=name)
        present = {n.replace("present", "past_key_values"): a for n, a in found.items() if n != "logits"}
        return found["logits"][:, -1:].argmax(-1), present

    seen = PROMPT.shape[1]
    nothing = np.zeros((1, GROUPS, 0, SIZE), np.float32)
    empty = {f"past_key_values.{n}.{kind}": nothing for n in range(LAYERS) for kind in ("key", "value")}
    token, caches = step(modules[0], feeds(PROMPT, seen, seen, empty))
    pad = ((0, 0), (0, 0), (0, ROOM - seen), (0, 0))
    caches = {name: np.pad(cache, pad) for name, cache in caches.items()}
    for _ in range(STEPS):
        seen += 1
        token, caches = step(modules[1], feeds(token, seen, ROOM, caches))
