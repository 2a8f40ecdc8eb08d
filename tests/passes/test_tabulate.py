"""Rows of products with tables that are known when compiling."""

from __future__ import annotations

import numpy as np
import pytest
from burnish import compile
from burnish.compiler.ops.elementwise import Binary, Unary
from burnish.compiler.ops.indexing import Gather
from burnish.compiler.ops.matmul import MatMul
from burnish.compiler.ops.movement import Reshape
from burnish.errors import RunError
from burnish.graph_passes import tabulate as module
from burnish.graph_passes.tabulate import tabulate
from onnx import TensorProto, helper, numpy_helper

from ..conftest import require_module
from .make import assert_same, make, op_names

RNG = np.random.default_rng(3)
INDICES = {"i": "i64[5,2]"}


def f32(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def table(g) -> str:
    return g.const(f32(24, 8))


def gathered(g, i: str) -> str:
    return g.one(Gather(0), table(g), i)


@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("row", [(6,), (1, 6), (1,), ()], ids=str)
def test_a_projection_of_an_embedding_is_a_table(trans_b, swapped, row):
    def body(g, i):
        rows = g.one(Reshape((10, 8)), gathered(g, i))
        product = g.one(MatMul(trans_b=trans_b), rows, g.const(f32(6, 8) if trans_b else f32(8, 6)))
        operands = [product, g.const(f32(*row))]
        return g.one(Reshape((5, 2, 6)), g.one(Binary("sub"), *operands[:: -1 if swapped else 1]))

    before = make(INDICES, body)
    after = tabulate(before)
    assert op_names(after) == ["Reshape", "Reshape", "Gather"] or op_names(after) == ["Reshape", "Gather"]
    assert [a.shape for a in after.constants.values()] == [(24, 6)]
    assert_same(before, after)


@pytest.mark.parametrize(
    "body",
    [
        lambda g, i: g.one(Binary("add"), gathered(g, i), g.const(f32(2, 8))),
        lambda g, i: g.one(Binary("add"), gathered(g, i), g.const(f32(2, 1))),
        lambda g, i: g.one(Binary("add"), gathered(g, i), g.const(f32(1, 1, 1, 8))),
        lambda g, i: g.one(Binary("add"), gathered(g, i), gathered(g, i)),
        lambda g, i: g.one(Reshape((5, 16)), gathered(g, i)),
        lambda g, i: g.one(Reshape((80,)), gathered(g, i)),
        lambda g, i: g.one(MatMul(), gathered(g, i), g.const(f32(5, 8, 3))),
        lambda g, i: g.one(MatMul(trans_a=True), gathered(g, i), g.const(f32(2, 3))),
        lambda g, i: g.one(MatMul(), g.one(Gather(1), g.const(f32(8, 24)), i), g.const(f32(2, 3))),
        lambda g, i: (x := gathered(g, i), g.one(MatMul(), x, g.const(f32(8, 3)))),
    ],
    ids=["rows", "column", "rank", "both", "longer", "flat", "batch", "transposed", "axis", "output"],
)
def test_what_is_no_product_of_rows_stays(body):
    before = make(INDICES, body)
    after = tabulate(before)
    assert op_names(after) == op_names(before)
    assert_same(before, after)


def test_a_row_of_one_index_and_a_matrix_of_one_row():
    before = make({"i": "i64[]"}, lambda g, i: g.one(Binary("add"), gathered(g, i), g.const(f32(1, 8))))
    after = tabulate(before)
    assert op_names(after) == ["Gather", "Binary"]
    assert_same(before, after)


def tied(g, i, x):
    """The table multiplies the outputs, too, so that it stays."""
    c, w = table(g), g.const(f32(8, 20))
    return g.one(MatMul(), g.one(Gather(0), c, i), w), g.one(MatMul(trans_b=True), x, c)


def test_tables_grow_no_more_than_what_they_replace_allows(monkeypatch):
    before = make({**INDICES, "x": "f32[3,8]"}, tied)
    assert op_names(tabulate(before)) == ["Gather", "MatMul"], "24 · 20 for the 8 · 20 that go"
    monkeypatch.setattr(module, "GROWTH", 2)
    assert op_names(tabulate(before)) == ["Gather", "MatMul", "MatMul"]
    alone = make(INDICES, lambda g, i: g.one(MatMul(), gathered(g, i), g.const(f32(8, 20))))
    assert op_names(tabulate(alone)) == ["Gather"], "the table goes as well"
    monkeypatch.setattr(module, "LARGEST", 24 * 20 * 4 - 1)
    assert op_names(tabulate(alone)) == ["Gather", "MatMul"]
    monkeypatch.undo()
    monkeypatch.setattr(module, "LONGEST", 24 * 8 * 20 - 1)
    assert op_names(tabulate(alone)) == ["Gather", "MatMul"]


def test_what_is_computed_between_stays():
    def body(g, i):
        return g.one(MatMul(), g.one(Unary("tanh", ()), gathered(g, i)), g.const(f32(8, 6)))

    before = make(INDICES, body)
    assert op_names(tabulate(before)) == op_names(before)


def test_rows_of_nothing_have_no_number():
    """As many elements of an empty table are any number of rows."""
    before = make(
        {"i": "i64[2]"}, lambda g, i: g.one(Reshape((3, 0)), g.one(Gather(0), g.const(f32(5, 0)), i))
    )
    assert op_names(tabulate(before)) == op_names(before)


def language_model():
    """Tokens, their embedding, an LSTM."""
    w, r, b = f32(1, 16, 8), f32(1, 16, 4), f32(1, 32)
    held = {"embedding": f32(50, 8), "w": w, "r": r, "b": b}
    nodes = [
        helper.make_node("Gather", ["embedding", "tokens"], ["x"], name="embed"),
        helper.make_node("LSTM", ["x", "w", "r", "b"], ["y"], hidden_size=4, name="lstm"),
    ]
    tokens = helper.make_tensor_value_info("tokens", TensorProto.INT64, [7, 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [7, 1, 2, 4])
    constants = [numpy_helper.from_array(a, n) for n, a in held.items()]
    graph = helper.make_graph(nodes, "lm", [tokens], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_a_language_model_takes_rows_of_its_first_product():
    onnxruntime = require_module("onnxruntime")
    model = language_model()
    tokens = RNG.integers(-50, 50, (7, 2))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (expected,) = session.run(None, {"tokens": tokens})
    fast, *others = (
        compile(model, threads=1, **how) for how in ({}, {"weights": "compact"}, {"memory_limit": 1 << 20})
    )
    products = [sum("matmul" in k for k in m.plan.kernels) for m in (fast, *others)]
    assert products == [0, 1, 1], "what is to take few bytes keeps the smaller table"
    for module_ in (fast, *others):
        np.testing.assert_allclose(module_.run({"tokens": tokens}, 1)["y"], expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(RunError, match="index"):
        fast.run({"tokens": np.full((7, 2), 50)}, 1)
