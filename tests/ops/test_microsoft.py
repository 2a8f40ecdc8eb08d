"""onnxruntime's own operators, as its optimisers and its quantisers write them, against onnxruntime."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from burnish.compiler.ir.graph import interpret
from burnish.compiler.target import host
from burnish.errors import ModelError, UnsupportedError
from burnish.frontends.onnx.importer import import_onnx
from onnx import helper

from ..conftest import require_module
from .one_node import Array, Node, assert_agrees, f32, floats, ints

require_module("onnxruntime")
RNG = np.random.default_rng(3)


def own(op: str, inputs: tuple[Array | None, ...], outputs: int = 1, **rest: Any) -> Node:
    """A node of the domain; what is no field of `Node` is an attribute."""
    fields = {key: rest.pop(key) for key in ("tolerance", "without", "constant", "stored") if key in rest}
    return Node(op, inputs, rest, outputs, domain="com.microsoft", **fields)


def integers(dtype: type, *shape: int, low: int = -128) -> Array:
    low = max(low, 0) if dtype is np.uint8 else low
    return RNG.integers(low, low + 256, shape).clip(np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype)


def factors(*shape: int) -> Array:
    """Of 7 bits where a CPU has no dot products: there onnxruntime's sums of two of bytes saturate."""
    return integers(np.int8, *shape) // (1 if host().fast_dot else 2)


def few_bits(dtype: type, *shape: int) -> Array:
    """Of 4 bits: every number that they hold."""
    return RNG.integers(0, 16, shape).astype(np.uint8).view(dtype)


def scalar(value: float, dtype: type = np.float32) -> Array:
    return np.array(value, dtype)


X, WIDE = f32(2, 5, 12), f32(12) + 1
CONV = f32(1, 4, 7, 6), f32(6, 4, 3, 3), f32(6)
FUSED = [
    own("Gelu", (X,)),
    own("BiasGelu", (X, f32(12))),
    own("FastGelu", (X,)),
    own("FastGelu", (X, f32(12))),
    own("QuickGelu", (X,)),
    own("QuickGelu", (X,), alpha=0.7),
    own("ExpandDims", (X, np.array(1, np.int32))),
    own("Pad", (f32(3, 4), ints(0, 1, 2, 0), scalar(0.5)), mode="constant"),
    own("Range", (scalar(1), scalar(5.5)), constant=True),
    own("Range", (scalar(1), scalar(5.5), scalar(1.5)), constant=True),
    own("Trilu", (f32(5, 4), scalar(1, np.int64)), upper=0),
    own("GatherND", (f32(3, 4), np.array([[0, 1], [2, 3]]))),
    own("GridSample", (f32(1, 2, 4, 5), f32(1, 3, 3, 2)), mode="bilinear", padding_mode="border"),
    own("FusedMatMul", (f32(3, 4, 5), f32(3, 6, 4)), transA=1, transB=1, alpha=0.3),
    own("FusedMatMul", (f32(4), f32(3, 4, 5)), transA=1),
    own("TransposeMatMul", (f32(3, 5, 4), f32(3, 6, 4)), transB=1),
    *(
        own("FusedConv", CONV, activation=name, pads=[1, 0, 1, 2], strides=[2, 1], **rest)
        for name, rest in (
            ("Relu", {}),
            ("Sigmoid", {}),
            ("LeakyRelu", {"activation_params": [0.2]}),
            ("Clip", {"activation_params": [-0.3, 0.9]}),
        )
    ),
    own("FusedConv", (*CONV, f32(1, 6, 5, 4)), activation="Relu"),
    own("FusedConv", (*CONV[:2], None, f32(1, 6, 5, 4)), activation="Tanh"),
    own("FusedGemm", (f32(4, 3), f32(5, 4), f32(5)), transA=1, transB=1, alpha=0.5, activation="Relu"),
    own("FusedGemm", (f32(3, 4), f32(4, 5)), activation="LeakyRelu", activation_alpha=0.1),
    own("FusedGemm", (f32(3, 4), f32(4, 5)), activation="Selu", activation_alpha=0.7, activation_gamma=2.0),
]
TABLES = f32(30, 12), f32(9, 12), f32(2, 12)
WORDS, SEGMENTS = RNG.integers(0, 30, (2, 5)).astype(np.int32), RNG.integers(0, 2, (2, 5)).astype(np.int32)
MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
NORMALISATIONS = [
    *(Node("LayerNormalization", (X, WIDE, f32(12)), {"axis": -1}, opset=n) for n in (9, 13)),
    Node("SimplifiedLayerNormalization", (X, WIDE), {"axis": -1, "epsilon": 1e-3}, opset=13),
    own("SkipLayerNormalization", (X, f32(2, 5, 12), WIDE)),
    own("SkipLayerNormalization", (X, f32(2, 5, 12), WIDE, f32(12)), epsilon=1e-2),
    own("SkipLayerNormalization", (X, f32(2, 5, 12), WIDE, f32(12), f32(12)), 4, without=(1, 2)),
    own("SkipSimplifiedLayerNormalization", (X, f32(2, 5, 12), WIDE), 4, without=(1, 2)),
    own("EmbedLayerNormalization", (WORDS, SEGMENTS, *TABLES, WIDE, f32(12), MASK), 3),
    own("EmbedLayerNormalization", (WORDS, None, *TABLES[:2], None, WIDE, f32(12)), 2),
    own("EmbedLayerNormalization", (WORDS, SEGMENTS, *TABLES, WIDE, f32(12), MASK, SEGMENTS + 4), 2),
]

PROJECTED = X, f32(12, 36), f32(36)
HALVES = tuple(a.astype(np.float16) for a in PROJECTED)
PAST = f32(2, 2, 3, 2, 4)  # of 2 steps, 3 heads of 4
SELF = {"num_heads": 3}
ENDS, SPANS = np.array([3, 5], np.int32), np.array([3, 5, 1, 0], np.int32)
EACH = (RNG.integers(0, 4, (2, 5, 5)) > 0).astype(np.int32)
QUERY, KEY, VALUE, BIAS = f32(2, 5, 12), f32(2, 7, 12), f32(2, 7, 6), f32(30)
LONGER = (np.arange(7) < np.array([[4], [7]])).astype(np.int32)
ATTENTION = [
    own("Attention", PROJECTED, **SELF),
    own("Attention", (*PROJECTED[:2], None), **SELF, scale=0.2),
    *(own("Attention", (*PROJECTED, mask), **SELF) for mask in (MASK, EACH, ENDS, SPANS, MASK[:, :1])),
    own("Attention", (*PROJECTED, MASK), **SELF, mask_filter_value=-3.0),
    own("Attention", PROJECTED, **SELF, unidirectional=1),
    own("Attention", (*HALVES, 1 - MASK), **SELF, unidirectional=1, tolerance=4e-3),
    own("Attention", (*PROJECTED, None, PAST), 2, **SELF, unidirectional=1),
    own("Attention", (*PROJECTED, None, None, f32(2, 3, 5, 5)), **SELF),
    own("Attention", (X, f32(12, 30), f32(30)), **SELF, qkv_hidden_sizes=[12, 12, 6]),
    own("MultiHeadAttention", (QUERY, KEY, VALUE), **SELF),
    *(
        own("MultiHeadAttention", (f32(2, n, 12), f32(2, m, 12), f32(2, m, 12)), **SELF, unidirectional=1)
        for n, m in ((3, 5), (5, 3), (4, 4), (1, 4))
    ),
    own("MultiHeadAttention", (QUERY, KEY, VALUE, BIAS), **SELF),
    own("MultiHeadAttention", (QUERY, KEY, VALUE, None, LONGER, f32(1, 3, 5, 7)), **SELF),
    own("MultiHeadAttention", (QUERY, KEY, VALUE, None, np.array([4, 7], np.int32)), **SELF),
    own("MultiHeadAttention", (QUERY, f32(2, 3, 7, 4), f32(2, 3, 7, 4)), **SELF),
    own(
        "MultiHeadAttention",
        (QUERY, f32(2, 5, 12), f32(2, 5, 12), None, None, None, f32(2, 3, 2, 4), f32(2, 3, 2, 4)),
        3,
        **SELF,
    ),
]

STEPS, ANGLES = np.array([[0, 1, 2, 3, 4], [3, 4, 5, 6, 7]]), (f32(9, 2), f32(9, 2))
ROTARY = [
    *(
        own("RotaryEmbedding", (f32(2, 5, 12), where, *ANGLES), interleaved=pairs)
        for where in (STEPS, ints(4))
        for pairs in (0, 1)
    ),
    own("RotaryEmbedding", (f32(2, 3, 5, 4), STEPS, *ANGLES)),
    *(
        own(
            "RotaryEmbedding",
            (f32(2, 5, 18), STEPS, *ANGLES),
            num_heads=3,
            rotary_embedding_dim=4,
            interleaved=pairs,
        )
        for pairs in (0, 1)
    ),
]


def decoding(
    batch: int,
    steps: int,
    before: tuple[int, ...] = (4,),
    room: int | None = 4,
    whole: int = 7,
    rest: tuple[Array | None, ...] = (),
    packed: bool = False,
    outputs: int = 3,
    **attributes: Any,
) -> Node:
    """Four heads of queries and two of keys, of 16. `before` are the steps of a cache with some `room`; what
    is behind them is zero, as onnxruntime leaves it."""
    by_head = f32(batch, steps, 64), f32(batch, steps, 32), f32(batch, steps, 32)
    new = (np.concatenate(by_head, 2), None, None) if packed else by_head
    caches: list[Array | None] = [None, None]
    if room is not None:
        kept = np.arange(room)[:, None] < np.array(before).reshape(-1, 1, 1, 1)
        caches = [f32(batch, 2, room, 16) * kept.astype(np.float32) for _ in range(2)]
    ends = np.array(before, np.int32) + steps - 1
    given = (*new, *caches, ends, scalar(whole, np.int32), *rest)
    heads = {"num_heads": 4, "kv_num_heads": 2, **attributes}
    return own("GroupQueryAttention", given, outputs, **heads, tolerance=2e-5)


TURNS = f32(40, 8), f32(40, 8)
LARGE = [np.full((1, 2, 64), 50, np.float16)] * 2  # whose products are beyond what f16 holds
DECODING = [
    decoding(1, 1, whole=5),
    decoding(1, 1, room=9, whole=5),
    decoding(1, 5, (0,), 0, 5),
    decoding(1, 5, (0,), 9, 5),
    decoding(2, 5, (0, 0), None, 5),
    decoding(1, 3),
    decoding(2, 1, (5, 3), 5, 6),
    decoding(2, 1, (5, 3), 5, 6, packed=True),
    decoding(2, 1, (5, 3), 5, 6, TURNS, do_rotary=1),
    decoding(1, 5, (0,), 0, 5, TURNS, do_rotary=1),
    decoding(1, 3, rest=TURNS, do_rotary=1, rotary_interleaved=1, packed=True),
    decoding(1, 3, rest=(*TURNS, np.array([[7, 3, 2]])), do_rotary=1),
    decoding(1, 3, (6,), 6, 9, local_window_size=4),
    decoding(1, 6, (0,), 0, 6, local_window_size=2),
    decoding(1, 3, scale=0.7, softcap=0.5),
    decoding(1, 3, smooth_softmax=1),
    decoding(1, 3, rest=(None,) * 4 + (f32(4),)),
    decoding(1, 3, rest=(None,) * 3 + (f32(1, 4, 3, 7),)),
    decoding(1, 3, rest=(None,) * 3 + (f32(1, 1, 3, 7),), softcap=0.5),
    decoding(1, 3, room=9, rest=(None,) * 3 + (f32(1, 1, 3, 7),)),
    decoding(2, 5, (0, 0), None, 5, (*TURNS, np.array([[2, 1, 0, 7, 9], [3, 0, 5, 1, 2]])), do_rotary=1),
    decoding(2, 5, (0, 0), None, 5, causal=0),
    own(
        "GroupQueryAttention",
        (*LARGE, f32(1, 2, 64).astype(np.float16), None, None, np.array([1], np.int32), scalar(2, np.int32)),
        3,
        num_heads=1,
        kv_num_heads=1,
        tolerance=2e-3,
    ),
    decoding(1, 3, causal=0),
    decoding(2, 1, (5, 3), 5, 6, causal=0),
]


def by_blocks(bits: int, terms: int, *rest: Array | None, size: int = 16, **attributes: Any) -> Node:
    """A product with 7 columns of weights; `rest`: zero points, blocks of terms, bias."""
    blocks = -(-terms // size)
    weights, scales = integers(np.uint8, 7, blocks, size * bits // 8), np.abs(f32(7, blocks)) / 4
    inputs = (f32(2, 3, terms), weights, scales, *rest)
    return own(
        "MatMulNBits",
        inputs,
        N=7,
        K=terms,
        bits=bits,
        block_size=size,
        stored=(1, 2, 3, 4),
        tolerance=1e-4,
        **attributes,
    )


BLOCKS = [
    by_blocks(4, 48),
    by_blocks(8, 32),
    by_blocks(2, 32),
    by_blocks(4, 40),
    by_blocks(4, 64, size=32),
    by_blocks(4, 48, integers(np.uint8, 7, 2)),
    by_blocks(8, 48, integers(np.uint8, 7, 3)),
    by_blocks(4, 48, f32(7, 3) + 7),
    by_blocks(4, 48, None, None, f32(7)),
    by_blocks(4, 48, None, (np.arange(48) * 5 % 3).astype(np.int32)),
    *(
        own(
            "GatherBlockQuantized",
            (integers(np.uint8, 9, 32 * bits // 8), np.array([[3, 0], [8, 3]]), np.abs(f32(9, 2)) / 4, *zero),
            bits=bits,
            block_size=16,
            quantize_axis=1,
            stored=(0, 2, 3),
        )
        for bits in (4, 8)
        for zero in ((), (integers(np.uint8, 9, bits // 4),))
    ),
    *(
        own(
            "GatherBlockQuantized",
            (integers(np.uint8, 9, 16), np.array([[3, 9], [-9, -10]]), np.abs(f32(9, scales)) / 4),
            bits=4,
            block_size=size,
            quantize_axis=1,
            stored=(0, 2),
        )
        for size, scales in ((16, 2), (32, 1))
    ),
    *(
        replace(
            own(
                "GatherBlockQuantized",
                (few_bits(kind, 9, 32), np.array([[3, 0], [8, 3]]), np.abs(f32(*scales)) / 4, *zero),
                block_size=16,
                quantize_axis=axis,
                stored=(0, 2, 3),
            ),
            opset=21,
        )
        for kind in (ml_dtypes.int4, ml_dtypes.uint4)
        for axis, scales in ((1, (9, 2)), (0, (1, 32)))
        for zero in ((), (few_bits(kind, *scales),))
    ),
]

A8, B8 = integers(np.uint8, 2, 3, 6, 5), integers(np.uint8, 3, 1, 5)
S8 = integers(np.int8, 2, 3, 6, 5)
LEFT, RIGHT = scalar(0.04), scalar(0.03)
OF_A, OF_B, OF_S = scalar(120, np.uint8), scalar(7, np.uint8), scalar(-5, np.int8)
RESULT = scalar(0.05), scalar(99, np.uint8)
COLUMNS = np.abs(f32(7)) / 50 + 0.01, integers(np.int8, 7)
M8, N8 = integers(np.uint8, 4, 6), factors(6, 7)
QUANTISED = [
    own("QuantizeLinear", (X, scalar(0.02), scalar(300, np.uint16))),
    own(
        "DequantizeLinear",
        (integers(np.int8, 5, 4), floats(0.1, 0.2, 0.3, 0.4), integers(np.int8, 4)),
        axis=1,
    ),
    own("QLinearAdd", (A8, LEFT, OF_A, B8, RIGHT, OF_B, *RESULT)),
    own("QLinearAdd", (S8, LEFT, OF_S, S8[:, :1], RIGHT, OF_S, scalar(0.0973), OF_S)),
    own("QLinearMul", (A8, LEFT, OF_A, B8, RIGHT, OF_B, scalar(0.197), scalar(99, np.uint8))),
    own("QLinearSigmoid", (A8, LEFT, OF_A, scalar(1 / 256), scalar(0, np.uint8))),
    own("QLinearSigmoid", (S8, LEFT, OF_S, scalar(1 / 256), scalar(-128, np.int8))),
    own("QLinearLeakyRelu", (A8, LEFT, OF_A, *RESULT), alpha=0.3),
    own("QLinearSoftmax", (A8, LEFT, OF_A, scalar(1 / 256), scalar(0, np.uint8)), axis=1, opset=13),
    own("QLinearSoftmax", (A8, LEFT, OF_A, scalar(1 / 256), scalar(0, np.uint8)), axis=2, opset=11),
    own("QLinearAveragePool", (A8, LEFT, OF_A, *RESULT), kernel_shape=[3, 2], pads=[1, 0, 1, 1]),
    own("QLinearAveragePool", (A8, LEFT, OF_A, *RESULT), kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1),
    own("QLinearGlobalAveragePool", (A8, LEFT, OF_A, *RESULT)),
    own("QLinearConcat", (*RESULT, A8, LEFT, OF_A, A8[:, :2], *RESULT), axis=1),
    own("QLinearWhere", (S8 > 0, A8, LEFT, OF_A, A8[:1], RIGHT, OF_B, *RESULT)),
    own("QGemm", (M8, LEFT, OF_A, N8, *COLUMNS, integers(np.int32, 7) * 30, scalar(0.7), OF_A)),
    own("QGemm", (M8.T.copy(), LEFT, OF_A, N8.T.copy(), RIGHT, OF_S, None), transA=1, transB=1, alpha=0.5),
    own("DynamicQuantizeMatMul", (f32(2, 4, 6), N8, *COLUMNS, f32(7)), tolerance=1e-4),
    own("DynamicQuantizeMatMul", (f32(4, 6), N8, RIGHT), tolerance=1e-4),
    own("MatMulIntegerToFloat", (M8, N8, LEFT, COLUMNS[0], OF_A, COLUMNS[1], f32(7)), tolerance=1e-4),
    own("MatMulIntegerToFloat", (M8, N8, LEFT, RIGHT), tolerance=1e-4),
    own(
        "QAttention",
        (integers(np.uint8, 2, 5, 12), factors(12, 36), f32(36), scalar(0.01), scalar(0.02))
        + (ENDS, OF_A, OF_S),
        num_heads=3,
        tolerance=1e-4,
    ),
]


def recurrent(directions: int, scales: tuple[int, ...], without: tuple[int, ...] = ()) -> Node:
    """5 steps of 3 rows of 4 inputs, 6 hidden. onnxruntime rounds data and states to 8 bits; where gates have
    scales of their own, it wants zero points of 0."""
    kind = "forward" if directions == 1 else "bidirectional"
    x, h, cell = f32(5, 3, 4), f32(directions, 3, 6), f32(directions, 3, 6)
    weights = [factors(directions, n, 24) for n in (4, 6)]
    by = [np.abs(f32(*scales)) / 300 + 0.003, integers(np.int8, *scales) // 9 * (len(scales) < 2)]
    states = (f32(directions, 48), np.array([5, 2, 4], np.int32), h, cell, f32(directions, 18) / 4)
    given = [None if n in without else a for n, a in enumerate((x, *weights, *states))]
    return own("DynamicQuantizeLSTM", (*given, *by, *by), 3, hidden_size=6, direction=kind, tolerance=0.02)


RECURRENT = [
    recurrent(1, (1,)),
    recurrent(1, (1, 24), without=(4, 7)),
    recurrent(2, (2,), without=(3, 4, 5, 6, 7)),
    recurrent(2, (2, 24)),
]


AGREEING = (*FUSED, *NORMALISATIONS, *ATTENTION, *ROTARY, *DECODING, *BLOCKS, *QUANTISED, *RECURRENT)


@pytest.mark.parametrize("node", AGREEING, ids=str)
def test_agrees(node: Node) -> None:
    assert_agrees(node)


def test_scores_of_halves_are_not_rounded() -> None:
    """100 and 100.0977, which f16 does not have: 100.125."""
    q, k, v = (np.zeros((1, steps, 16), np.float16) for steps in (1, 2, 2))
    q[0, 0, 0], k[0, :, 0], v[0, 1] = 100, [1, 1.0009766], 1
    node = own("MultiHeadAttention", (q, k, v), num_heads=1, scale=1.0)
    (y,) = interpret(import_onnx(node.model()), node.feeds()).values()
    np.testing.assert_allclose(y, np.full((1, 1, 16), 0.5244), atol=1e-3)


def test_a_table_behind_a_reshape_may_be_large() -> None:
    """Too large to be computed at once, as embeddings that a product shares are written."""
    table = RNG.integers(0, 256, (4096, 32, 16)).astype(np.uint8)
    scales, rows = np.abs(f32(4096, 32)), np.array([[3, 4095]])
    nodes = [
        helper.make_node("Reshape", ["q", "shape"], ["flat"]),
        helper.make_node("GatherBlockQuantized", ["flat", "rows", "s"], ["y"], domain="com.microsoft",
                         bits=4, block_size=32, quantize_axis=1, gather_axis=0),
    ]  # fmt: skip
    held = {"q": table, "s": scales, "shape": np.array([4096, 512])}
    inputs = [helper.make_tensor_value_info("rows", onnx.TensorProto.INT64, [1, 2])]
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 2, 1024])]
    weights = [onnx.numpy_helper.from_array(array, name) for name, array in held.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    found = interpret(import_onnx(helper.make_model(graph, opset_imports=opsets)), {"rows": rows})["y"]
    numbers = np.stack([table & 15, table >> 4], -1).reshape(4096, 32, 32)[rows[0]].astype(np.float32) - 8
    np.testing.assert_allclose(found[0], (numbers * scales[rows[0]][..., None]).reshape(2, 1024), rtol=1e-6)


def test_keys_without_values_of_the_past() -> None:
    node = own("MultiHeadAttention", (QUERY, KEY, VALUE, None, None, None, f32(2, 3, 4, 4)), **SELF)
    with pytest.raises(ModelError, match="past keys and past values"):
        import_onnx(node.model())


REFUSED = {
    "channels_last": own("QLinearGlobalAveragePool", (A8, LEFT, OF_A, *RESULT), channels_last=1),
    "activation='Gelu2'": own("FusedConv", CONV, activation="Gelu2"),
    "transBatchA": own("FusedMatMul", (f32(3, 4, 5), f32(4, 5, 6)), transBatchA=1),
    "do_rotary": own("Attention", PROJECTED, **SELF, do_rotary=1),
    "a mask i32[3]": own("Attention", (*PROJECTED, np.array([1, 2, 3], np.int32)), **SELF),
    "packed": own("MultiHeadAttention", (f32(2, 5, 3, 3, 4),), **SELF),
    "scale of the result": own("QGemm", (M8, LEFT, OF_A, N8, RIGHT, OF_S, None, scalar(0.7))),
    "differ in width": own("Attention", (X, f32(12, 30), f32(30)), 2, **SELF, qkv_hidden_sizes=[12, 12, 6]),
    "a product without weights": by_blocks(4, 48, size=1),
    "weights that are computed": replace(by_blocks(4, 48), stored=(2,)),
    "is_packed_batching": own("RotaryEmbedding", (f32(2, 5, 12), STEPS, *ANGLES), is_packed_batching=1),
    "a quantised cache": decoding(1, 3, rest=(None,) * 5 + (f32(1),)),
    "an output of the scores": decoding(1, 3, outputs=4),
    "scores f32[1,4,3,6] that are added": decoding(1, 3, rest=(None,) * 3 + (f32(1, 4, 3, 6),)),
    "dequantising to i32": Node(
        "DequantizeLinear", (np.zeros(4, np.uint8), scalar(0.5)), {"output_dtype": 6}, opset=23
    ),
    "output 'y1'": own("SkipLayerNormalization", (X, X, WIDE), 2),
}


def test_bias_add() -> None:
    """onnxruntime has it on GPUs only."""
    x, bias, skip = f32(2, 4, 5), f32(5), f32(2, 4, 5)
    node = own("BiasAdd", (x, bias, skip))
    (result,) = interpret(import_onnx(node.model()), node.feeds()).values()
    np.testing.assert_allclose(result, x + bias + skip, rtol=1e-6)


def test_steps_without_a_cache() -> None:
    """Those that were before are nowhere."""
    for steps, whole in ((1, 5), (3, 7), (3, 2)):
        with pytest.raises(ModelError, match=f"{whole} steps, {steps} of them new, without a cache"):
            import_onnx(decoding(1, steps, (4,), None, whole).model())


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    with pytest.raises(UnsupportedError) as error:
        import_onnx(REFUSED[what].model())
    assert what in str(error.value)
    assert f"'node' ({REFUSED[what].op})" in str(error.value)


WRONG = {
    "scales [7, 2]: expected as many as in [7, 3]": ({2: f32(7, 2)}, {}),
    "bits=9: expected 2 to 8": ({}, {"bits": 9}),
    "weights [7, 3, 8]: expected as many as in [7, 4, 8]": ({}, {"K": 64}),
    "N=0, K=48, block_size=16: expected positive numbers": ({}, {"N": 0}),
    "the blocks of 48 terms are not numbers below 3": ({4: np.full(48, 3, np.int32)}, {}),
}


@pytest.mark.parametrize("what", WRONG)
def test_weights_in_blocks_that_do_not_fit(what: str) -> None:
    inputs, attributes = WRONG[what]
    node = by_blocks(4, 48, None, None)
    given = tuple(inputs.get(n, a) for n, a in enumerate(node.inputs))
    with pytest.raises(ModelError) as error:
        import_onnx(replace(node, inputs=given, attributes={**node.attributes, **attributes}).model())
    assert what in str(error.value) and "'node' (MatMulNBits)" in str(error.value)


NO_CACHE = decoding(1, 5, (0,), None, 5)
SMALL_CACHE = f32(1, 2, 4, 8)


@pytest.mark.parametrize(
    ("what", "inputs", "attributes"),
    [
        ("4 heads of queries for 3 of keys", {}, {"kv_num_heads": 3}),
        ("4 heads of queries for 0 of keys", {}, {"kv_num_heads": 0}),
        ("keys without values", {2: None}, {}),
        ("keys without values", {3: SMALL_CACHE}, {}),
        ("expected heads of one size, 4 + 2 + 2", {0: f32(1, 5, 60), 1: None, 2: None}, {}),
        ("expected [batch, steps, a multiple of 4]", {0: f32(1, 5, 63)}, {}),
        ("keys f32[1,5,48] and values f32[1,5,32]: expected [1, 5, 32]", {1: f32(1, 5, 48)}, {}),
        ("last steps i32[2]: expected one for each of 1", {5: np.array([4, 4], np.int32)}, {}),
        ("do_rotary without tables", {}, {"do_rotary": 1}),
        ("a cache f32[1,2,4,8]: expected [1, 2, steps, 16]", {3: SMALL_CACHE, 4: SMALL_CACHE}, {}),
    ],
)
def test_attention_of_decoders_that_does_not_fit(what, inputs, attributes) -> None:
    given = tuple(inputs.get(n, a) for n, a in enumerate(NO_CACHE.inputs))
    wrong = replace(NO_CACHE, inputs=given, attributes={**NO_CACHE.attributes, **attributes})
    with pytest.raises(ModelError) as error:
        import_onnx(wrong.model())
    assert what in str(error.value) and "'node' (GroupQueryAttention)" in str(error.value)


@pytest.mark.parametrize(
    "node",
    [
        own("RotaryEmbedding", (f32(2, 12), STEPS, *ANGLES)),
        own("RotaryEmbedding", (X, STEPS, f32(9, 2), f32(9, 3))),
        own("RotaryEmbedding", (X, STEPS, f32(9), f32(9))),
        own("RotaryEmbedding", (X, STEPS, f32(9, 0), f32(9, 0))),
        own("RotaryEmbedding", (X, STEPS, f32(9, 7), f32(9, 7))),
        own("RotaryEmbedding", (X, STEPS[:, :3], *ANGLES)),
    ],
    ids=str,
)
def test_rotary_embeddings_that_do_not_fit(node: Node) -> None:
    with pytest.raises(ModelError, match=r"'node' \(RotaryEmbedding\)"):
        import_onnx(node.model())
