"""Index arithmetic against brute force over every point of the ranges."""

from __future__ import annotations

import numpy as np
from burnish.compiler.ir import scalar as s
from burnish.compiler.ir.affine import bounds, decide, linear, simplify
from burnish.compiler.ir.numpy_scalar import evaluate
from burnish.compiler.ir.scalar import Binary, Call, Const, Expr, Select, Var
from burnish.compiler.ir.types import BOOL, I64
from burnish.compiler.lower.guards import conjuncts
from hypothesis import given, settings
from hypothesis import strategies as st

NAMES = ("i", "j", "k")


def index_expressions(depth: int) -> st.SearchStrategy[Expr]:
    leaves = st.one_of(
        st.sampled_from([Var(n) for n in NAMES]), st.integers(-9, 9).map(lambda v: Const(v, I64))
    )
    if depth == 0:
        return leaves
    sub = index_expressions(depth - 1)
    by = st.sampled_from([1, 2, 3, 4, 6, 8]).map(lambda v: Const(v, I64))
    return st.one_of(
        leaves,
        st.builds(Binary, st.sampled_from(["add", "sub", "min", "max"]), sub, sub),
        st.builds(Binary, st.sampled_from(["mul", "floordiv", "mod"]), sub, by),
        st.builds(lambda v: Call("neg", (v,)), sub),
        st.builds(Select, conditions(depth - 1), sub, sub),
    )


def conditions(depth: int) -> st.SearchStrategy[Expr]:
    sub = index_expressions(depth)
    comparison = st.builds(Binary, st.sampled_from(sorted(s.COMPARISONS)), sub, sub)
    if depth == 0:
        return comparison
    inner = conditions(depth - 1)
    return st.one_of(
        comparison,
        st.builds(Binary, st.sampled_from(["and", "or"]), inner, inner),
        inner.map(lambda c: Call("not", (c,))),
    )


ranges = st.fixed_dictionaries(
    {n: st.tuples(st.integers(-4, 6), st.integers(0, 7)).map(lambda p: (p[0], p[0] + p[1])) for n in NAMES}
)


def everywhere(e: Expr, known: dict[str, tuple[int, int]]) -> np.ndarray:
    grids = np.ogrid[tuple(slice(low, high + 1) for low, high in known.values())]
    values = {n: g.astype(np.int64) for n, g in zip(known, grids)}
    shape = np.broadcast_shapes(*(g.shape for g in grids))
    return np.broadcast_to(evaluate(e, values, {}), shape)


@settings(max_examples=200, deadline=None)
@given(index_expressions(3), ranges)
def test_simplify_keeps_every_value(e, known):
    np.testing.assert_array_equal(everywhere(simplify(e, known), known), everywhere(e, known))


@settings(max_examples=200, deadline=None)
@given(index_expressions(3), ranges)
def test_bounds_contain_every_value(e, known):
    low, high = bounds(e, known)
    values = everywhere(e, known)
    assert low <= values.min() and values.max() <= high


@settings(max_examples=100, deadline=None)
@given(index_expressions(2), ranges)
def test_linear_form_is_the_same_value(e, known):
    np.testing.assert_array_equal(everywhere(linear(e).expr(), known), everywhere(e, known))


@settings(max_examples=200, deadline=None)
@given(conditions(2), ranges)
def test_decided_conditions_hold_everywhere_or_nowhere(cond, known):
    decision, values = decide(cond, known), everywhere(cond, known)
    assert decision is None or (values == decision).all()
    np.testing.assert_array_equal(everywhere(simplify(cond, known), known), values)


def test_an_expression_that_has_a_part_many_times():
    """2 ** 100 times, if each were looked at."""
    e = Var("i")
    for _ in range(100):
        e = Binary("max", e, e)
    assert bounds(e, {"i": (0, 5)}) == (0, 5)


def test_only_arithmetic_on_what_is_read_wraps():
    x = s.Load("x", (s.const(0),), I64)
    assert bounds(s.maximum(s.minimum(x, 15), 0), {}) == (0, 15)
    assert bounds(s.minimum(s.maximum(x, 0), 15), {}) == (0, 15)
    assert bounds(s.maximum(x, 0) + 1, {})[0] < 0
    assert bounds(s.minimum(s.maximum(x, 0), 15) * 2 + 1, {}) == (1, 31)


def test_a_condition_that_has_a_part_many_times():
    e = s.lt(s.Load("x", (s.const(0),), I64), 3)
    for _ in range(100):
        e = Binary("and", e, e)
    assert decide(e, {}) is None and simplify(e, {}) is not None
    assert len(conjuncts(e)) == 1


def test_what_wraps_is_not_taken_apart():
    x = s.Load("x", (s.const(0),), I64)
    bounded = s.minimum(s.maximum(x, 0), 1 << 62)
    for e in (
        (bounded * 2 - 4) % 3,
        (x * x * 0 + (1 << 62)) * 4 % 3,
        s.binary("floordiv", s.binary("floordiv", x, 1 << 62), 8),
        s.binary("mod", s.const(1 << 62) * 4, 3),
    ):
        for value in (-5, 3, (1 << 62) - 1, 1 << 62):
            tensors = {"x": np.array([value])}
            with np.errstate(all="ignore"):
                assert evaluate(simplify(e, {}), {}, tensors) == evaluate(e, {}, tensors)
    assert s.const(1 << 62) * 4 == s.const(0)


def test_split_and_fused_indices_become_simple():
    o, v = Var("o"), Var("v")
    known = {"o": (0, 9), "v": (0, 15)}
    fused = o * 16 + v
    assert simplify(fused // 16, known) == o
    assert simplify(fused % 16, known) == v
    assert simplify((fused + 32) // 16, known) == o + 2
    assert simplify(s.lt(fused, 160), known) == Const(True, BOOL)
    assert decide(s.lt(fused, 100), known) is None
    assert simplify((o // 2) // 3, known) == o // 6
