"""Import of the operators that onnxruntime's optimisers write, domain com.microsoft: fused ones.

Defined by onnxruntime's docs/ContribOperators.md. Those of attention and of quantisation have modules of
their own. Optimisers also put layer normalisations into ONNX's domain, at opsets that do not have them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ...compiler.ir.types import I32
from ...compiler.ops.elementwise import Binary, Cast, Unary
from ...compiler.ops.indexing import Gather
from ...compiler.ops.matmul import MatMul
from ...compiler.ops.movement import Slice
from ...compiler.ops.normalization import LayerNormalization, RMSNormalization
from ...compiler.ops.reduction import Reduce
from ...compiler.ops.shapes import axis_of
from ...errors import ModelError
from .registry import NodeContext, Rule, find_rule, onnx
from .rules_elementwise import PARAMETERS, UNARY_NAMES
from .rules_matmul import matrix_product, scaled
from .rules_normalization import layer_normalization

DOMAIN = "com.microsoft"
Results = tuple[str | None, ...]
"""Of a rule; None for an output that is not supported."""

OLDER = {
    "ExpandDims": ("Unsqueeze", 13), "GatherND": ("GatherND", 13), "Gelu": ("Gelu", 20),
    "GridSample": ("GridSample", 16), "Pad": ("Pad", 13), "Trilu": ("Trilu", 14),
}  # fmt: skip
"""Operators that ONNX has taken over: its own name, and an opset that defines them alike."""


def microsoft(name: str) -> Callable[[Rule], Rule]:
    """Registers the import rule of an operator of onnxruntime's own."""
    return onnx(name, domain=DOMAIN)


def standard(c: NodeContext, name: str, opset: int, *inputs: str | None) -> str:
    """The first output of ONNX's operator with this node's attributes."""
    rule = find_rule(name, opset)
    assert rule is not None, f"{name} of opset {opset} has no rule"
    results = rule(c, *inputs)
    first = results if isinstance(results, str) else results[0]
    assert first is not None
    return first


def _older_rule(name: str, opset: int) -> Rule:
    return lambda c, *inputs: standard(c, name, opset, *inputs)


for _own, (_name, _opset) in OLDER.items():
    microsoft(_own)(_older_rule(_name, _opset))


@microsoft("Range")
def range_(c: NodeContext, start: str, limit: str, delta: str | None = None):
    step = c.const(np.array(1, c.type(start).dtype.numpy)) if delta is None else delta
    return standard(c, "Range", 11, start, limit, step)


def total(c: NodeContext, *terms: str | None) -> str:
    """The sum of those that are present."""
    first, *others = [t for t in terms if t is not None]
    for term in others:
        first = c.one(Binary("add"), first, term)
    return first


@microsoft("BiasGelu")
def bias_gelu(c: NodeContext, x: str, bias: str):
    return c.emit(Unary("gelu"), total(c, x, bias))


@microsoft("FastGelu")
def fast_gelu(c: NodeContext, x: str, bias: str | None = None):
    return c.emit(Unary("gelu_tanh"), total(c, x, bias))


@microsoft("QuickGelu")
def quick_gelu(c: NodeContext, x: str):
    return c.emit(Unary("swish", (float(c.attr("alpha", 1.702)),)), x)


@microsoft("BiasAdd")
def bias_add(c: NodeContext, x: str, bias: str, skip: str):
    return total(c, x, bias, skip)


# --- products with what follows them ------------------------------------------------------------------------


def fused_activation(c: NodeContext, x: str, params: Sequence[float | None]) -> str:
    """What the attribute `activation` names, if anything, of `x`; a parameter of None has its default."""
    name = c.attr("activation", "")
    if not name:
        return x
    if name in UNARY_NAMES:
        return c.one(Unary(UNARY_NAMES[name]), x)
    if name == "Clip":
        fn, defaults = "clip", [-np.inf, np.inf]
    elif name in PARAMETERS:
        fn, defaults = PARAMETERS[name][0], list(PARAMETERS[name][1].values())
    else:
        raise c.unsupported(f"activation={name!r}")
    given = [*params, *[None] * len(defaults)]
    values = [default if value is None else float(value) for value, default in zip(given, defaults)]
    return c.one(Unary(fn, tuple(values)), x)


@microsoft("FusedConv")
def fused_conv(c: NodeContext, x: str, w: str, bias: str | None = None, added: str | None = None):
    result = total(c, standard(c, "Conv", 11, x, w, bias), added)
    return fused_activation(c, result, c.attr("activation_params") or ())


@microsoft("FusedGemm")
def fused_gemm(c: NodeContext, a: str, b: str, bias: str | None = None):
    names = PARAMETERS.get(c.attr("activation", ""), ("", ("alpha", "beta")))[1]
    params = [c.attr(f"activation_{name}") for name in names]
    return fused_activation(c, standard(c, "Gemm", 13, a, b, bias), params)


def fused_matmul(c: NodeContext, a: str, b: str):
    """A vector is not transposed."""
    if c.attr("transBatchA", 0) or c.attr("transBatchB", 0):
        raise c.unsupported("transBatchA or transBatchB", "transpose the batch axis by a Transpose")
    flags = [bool(c.attr(n, 0)) and c.type(v).rank > 1 for n, v in (("transA", a), ("transB", b))]
    return scaled(c, matrix_product(c, partial(c.one, MatMul(*flags)), a, b), "alpha")


microsoft("FusedMatMul")(fused_matmul)
microsoft("TransposeMatMul")(fused_matmul)


# --- normalisations -----------------------------------------------------------------------------------------

onnx("LayerNormalization")(layer_normalization)


@onnx("SimplifiedLayerNormalization")
def simplified_layer_normalization(c: NodeContext, x: str, scale: str):
    axis = axis_of(c.attr("axis", -1), c.type(x).rank)
    return c.emit(RMSNormalization(axis, c.attr("epsilon", 1e-5)), x, scale)


@microsoft("SkipLayerNormalization")
def skip_layer_normalization(
    c: NodeContext, x: str, skip: str, scale: str, shift: str | None = None, bias: str | None = None
) -> Results:
    added = total(c, x, skip, bias)
    normal = c.one(LayerNormalization(-1, c.attr("epsilon", 1e-12)), added, scale, shift)
    return normal, None, None, added


@microsoft("SkipSimplifiedLayerNormalization")
def skip_simplified_layer_normalization(
    c: NodeContext, x: str, skip: str, scale: str, bias: str | None = None
) -> Results:
    added = total(c, x, skip, bias)
    return c.one(RMSNormalization(-1, c.attr("epsilon", 1e-12)), added, scale), None, None, added


@microsoft("EmbedLayerNormalization")
def embed_layer_normalization(
    c: NodeContext,
    words: str,
    segments: str | None,
    word_table: str,
    position_table: str,
    segment_table: str | None,
    scale: str,
    shift: str,
    mask: str | None = None,
    positions: str | None = None,
) -> Results:
    """Rows of the tables, added and normalised; how many entries of each row of the mask are not masked."""
    length = c.type(words).dims[-1]
    if positions is not None:
        place = c.one(Gather(0), position_table, positions)
    else:
        rows, width = c.dims(position_table, 2)
        if rows < length:
            raise ModelError(f"{c.label}: {length} words, but the position table has {rows} rows")
        place = c.one(Slice((0, 0), (length, width), (1, 1)), position_table)
    rows_of = [c.one(Gather(0), word_table, words), place]
    if segments is not None and segment_table is not None:
        rows_of.append(c.one(Gather(0), segment_table, segments))
    added = total(c, *rows_of)
    normal = c.one(LayerNormalization(-1, c.attr("epsilon", 1e-12)), added, scale, shift)
    if mask is None:
        return normal, c.const(np.zeros(c.type(words).dims[0], np.int32)), added
    kept = c.one(Binary("eq"), mask, c.const(np.array(1, c.type(mask).dtype.numpy)))
    return normal, c.one(Reduce("sum", (1,), False), c.one(Cast(I32.name), kept)), added
