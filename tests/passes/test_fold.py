from __future__ import annotations

import numpy as np
from burnish.compiler.ops.elementwise import Binary, Unary
from burnish.compiler.ops.matmul import Einsum
from burnish.compiler.ops.movement import Expand, Identity, Reshape
from burnish.graph_passes.fold import fold

from .make import assert_same, make, op_names

C = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_operators_on_constants_become_constants():
    before = make(
        {"x": "f32[2,3]"},
        lambda g, x: g.one(
            Binary("add"), x, g.one(Unary("exp"), g.one(Binary("mul"), g.const(C), g.const(C)))
        ),
    )
    after = fold(before)
    assert op_names(after) == ["Binary"]
    assert len(after.constants) == 1
    assert_same(before, after)


def test_a_constant_output_is_copied_from_a_constant():
    before = make({"x": "f32[2,3]"}, lambda g, x: g.one(Reshape((3, 2)), g.const(C)))
    after = fold(before)
    assert op_names(after) == ["Identity"]
    assert_same(before, after)
    assert op_names(fold(after)) == ["Identity"]


def test_results_beyond_the_limit_stay_computed():
    before = make(
        {"x": "f32[1]"}, lambda g, x: g.one(Expand((1000, 1000)), g.const(np.ones((1,), np.float32)))
    )
    assert op_names(fold(before, max_bytes=1000)) == ["Expand"]
    assert op_names(fold(before)) == ["Identity"]


def test_results_beyond_the_total_stay_computed(monkeypatch):
    def body(g, x):
        grown = [g.one(Expand((100, n)), g.const(np.ones((1,), np.float32))) for n in (10, 11, 12)]
        return [g.one(Binary("add"), x, y) for y in grown]

    monkeypatch.setattr("burnish.graph_passes.fold.MAX_TOTAL_BYTES", 8700)
    before = make({"x": "f32[1]"}, body)
    after = fold(before)
    assert op_names(after).count("Expand") == 1
    assert_same(before, after)


def test_what_takes_minutes_stays_computed():
    long = np.ones(1 << 18, np.float32)
    before = make({"x": "f32[1]"}, lambda g, x: g.one(Einsum("i,j->"), g.const(long), g.const(long)))
    assert op_names(fold(before)) == ["Einsum"]


def test_results_that_only_folded_operators_read_are_freed(monkeypatch):
    def body(g, x):
        y = g.const(np.ones((1,), np.float32))
        for _ in range(9):
            y = g.one(Expand((100, 10)), y)
        return g.one(Binary("add"), x, y)

    monkeypatch.setattr("burnish.graph_passes.fold.MAX_TOTAL_BYTES", 8100)
    assert op_names(fold(make({"x": "f32[1]"}, body))) == ["Binary"]


def test_what_reads_an_input_stays():
    before = make({"x": "f32[2,3]"}, lambda g, x: g.one(Identity(), g.one(Unary("exp"), x)))
    assert fold(before) == before
