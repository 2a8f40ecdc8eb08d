"""What loop programs mean, and what the interpreter finds wrong with programs that would run silently."""

from __future__ import annotations

import time

import numpy as np
import pytest
from burnish.compiler.ir import scalar as s
from burnish.compiler.ir.loops import Alloc, Barrier, Buffer, If, Program, Store, loop
from burnish.compiler.ir.loops_interpreter import interpret
from burnish.compiler.ir.numpy_scalar import evaluate
from burnish.compiler.ir.scalar import Call, Const, Load, Select, Var
from burnish.compiler.ir.types import BF16, DTYPES, F32, I64, dtype_of
from burnish.errors import InternalError, RunError
from hypothesis import given, settings
from hypothesis import strategies as st

from .programs import (
    ZERO,
    gang_scan,
    gpu_matmul,
    grid_scan,
    naive_matmul,
    read,
    register_tiled_matmul,
    write,
)
from .strategies import DATA_DTYPES, POINTS, any_scalar

I, V = Var("i"), Var("v")
X8, Y8 = Buffer("x", F32, (8,)), Buffer("y", F32, (8,))


def run(body, arrays=(), params=(X8, Y8), **options):
    filled = arrays or (np.arange(8, dtype=np.float32), np.zeros(8, np.float32))
    return interpret(Program("test", params, tuple(body)), filled, **options)


def matmul_error(program, **options):
    rng = np.random.default_rng(0)
    a, b, c = (rng.uniform(-1, 1, p.shape).astype(np.float32) for p in program.params)
    (result,) = interpret(program, [a, b, c], **options)
    assert result is c
    return np.abs(c - a.astype(np.float64) @ b).max()


@pytest.mark.parametrize("order", ["forward", "backward"])
@pytest.mark.parametrize(
    "program", [naive_matmul(), register_tiled_matmul(), gpu_matmul()], ids=lambda p: p.name
)
def test_matrix_products(program, order):
    assert matmul_error(program, order=order) < 1e-5


@pytest.mark.parametrize("workers", [1, 2, 3, 10, 16])
@pytest.mark.parametrize("order", ["forward", "backward"])
def test_a_gang_waits_at_its_barriers(workers, order):
    check_scan(gang_scan(), 10, workers=workers, order=order)


def check_scan(program, width, **options):
    x = np.arange(4 * width, dtype=np.float32).reshape(4, width)
    expected = np.zeros((5, width), np.float32)
    for t in range(4):
        expected[t + 1] = expected[t, ::-1] + x[t]
    (h,) = interpret(program, [x, np.empty_like(expected)], **options)
    np.testing.assert_array_equal(h, expected)


@pytest.mark.parametrize("order", ["forward", "backward"])
def test_blocks_wait_for_each_other(order):
    check_scan(grid_scan(), 12, order=order)
    with pytest.raises(InternalError, match="undefined element h"):
        check_scan(grid_scan(barrier=False), 12, order=order)


def test_a_barrier_that_some_blocks_miss():
    thread = loop("t", 2, If(s.lt(Var("b"), 3), (Barrier("grid"),)), kind="thread.x")
    with pytest.raises(InternalError, match="not all threads reach"):
        run([loop("b", 4, thread, kind="block.x")], complete=False)


def test_workers_know_which_one_they_are():
    y = Buffer("y", I64, (3,))
    program = Program(
        "who", (y,), (write(y, Var("worker"), value=Var("workers") * 10 + Var("worker")),), gang=True
    )
    (result,) = interpret(program, [np.zeros(3, np.int64)], workers=3)
    assert result.tolist() == [30, 31, 32]


def test_a_missing_barrier_shows():
    with pytest.raises(InternalError, match=r"undefined element [ab]_tile"):
        matmul_error(gpu_matmul(barriers=(False, True)))
    assert matmul_error(gpu_matmul(barriers=(True, False)), order="forward") > 0.1
    x, h = np.ones((4, 10), np.float32), np.zeros((5, 10), np.float32)
    with pytest.raises(InternalError, match="undefined element h"):
        interpret(gang_scan(barrier=False), [x, h], workers=2)


def test_a_barrier_that_some_threads_miss():
    register = Alloc(Buffer("r", F32, (), "register"), (If(s.lt(Var("t"), 3), (Barrier("block"),)),))
    body = loop("b", 1, loop("t", 4, register, kind="thread.x"), kind="block.x")
    with pytest.raises(InternalError, match="not all threads reach"):
        run([body], complete=False)


# --- scalars ----------------------------------------------------------------------------------------------


def data():
    rng = np.random.default_rng(7)
    arrays = {}
    for dtype in DATA_DTYPES:
        if dtype.is_float:
            array = rng.normal(0, 20, POINTS).astype(dtype.numpy)
            array[:4] = [np.nan, np.inf, 0.0, 1.0]
        else:
            raw = rng.integers(0, 256, POINTS * dtype.bytes, dtype=np.uint8)
            array = (raw % 2 == 0) if dtype.kind == "bool" else raw.view(dtype.numpy)
            array[::3] = rng.integers(0, 3, array[::3].size)
        arrays[f"x_{dtype}"] = array
    return arrays


DATA = data()


@pytest.mark.parametrize("kind", ["serial", "vector"])
@settings(max_examples=80, deadline=None)
@given(e=any_scalar())
def test_expressions_agree_with_numpy(e, kind):
    with np.errstate(all="ignore"):
        expected = np.broadcast_to(evaluate(e, {"i": np.arange(POINTS)}, DATA), POINTS)
    params = [Buffer(name, dtype_of(a), a.shape) for name, a in DATA.items()]
    out = Buffer("out", e.dtype, (POINTS,))
    program = Program("test", (*params, out), (loop("i", POINTS, Store("out", (I,), e), kind=kind),))
    (result,) = interpret(program, [*DATA.values(), np.zeros(POINTS, e.dtype.numpy)])
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("kind", ["serial", "vector"])
@pytest.mark.parametrize("dtype", [DTYPES[n] for n in ("f32", "f64", "f16", "bf16")], ids=str)
@pytest.mark.parametrize("op", sorted(s.FLOAT_FUNCTIONS))
def test_float_functions(op, dtype, kind):
    low = 1.0 if op == "acosh" else 0.0
    x = np.linspace(low + 0.1, low + 0.9, 8).astype(dtype.numpy)
    e = Call(op, (Load("x", (I,), dtype),))
    body = loop("i", 8, Store("y", (I,), e), kind=kind)
    params = (Buffer("x", dtype, (8,)), Buffer("y", dtype, (8,)))
    (y,) = interpret(Program("test", params, (body,)), [x, np.zeros_like(x)])
    expected = evaluate(e, {"i": np.arange(8)}, {"x": x})
    np.testing.assert_allclose(y.astype(np.float64), expected.astype(np.float64), rtol=1e-6)


def test_narrow_products_are_rounded_at_every_step():
    x = Buffer("x", BF16, (8,))
    array = np.array([1.0, 1.0078125, 3.0, 0.1, 200.0, 1e-3, -5.5, 7.0], BF16.numpy)
    square = read(x, I) * read(x, I) + read(x, I)
    body = loop("i", 8, Store("y", (I,), square))
    (y,) = interpret(Program("test", (x, Buffer("y", BF16, (8,))), (body,)), [array, np.zeros_like(array)])
    np.testing.assert_array_equal(y, array * array + array)


def test_shared_subexpressions_are_computed_once():
    e = read(X8, I)
    for _ in range(60):
        e = Select(s.lt(I, 4), e * 0.5 + e, e - e * 0.25)
    start = time.perf_counter()
    (y,) = run([loop("i", 8, write(Y8, I, value=e))])
    (lanes,) = run([loop("i", 8, write(Y8, I, value=e), kind="vector")])
    assert time.perf_counter() - start < 5
    np.testing.assert_array_equal(y, lanes)


def test_a_long_sum_and_many_loops_fit_into_python():
    e = read(X8, I)
    for n in range(150):
        e = e + read(X8, (I + n) % 8)
    nest = write(Y8, I, value=e)
    for n in range(30):
        nest = loop(f"u{n}", 1, nest)
    (y,) = run([loop("i", 8, nest)])
    assert y[0] == 0 + 18 * 28 + sum(range(6))


# --- places of loops --------------------------------------------------------------------------------------


def test_lanes_read_before_any_of_them_writes():
    shift = write(Y8, V, value=read(Y8, (V + 1) % 8))
    (y,) = run(
        [loop("v", 8, shift, kind="vector")], (X := np.arange(8.0, dtype=np.float32), X.copy()), inout=("y",)
    )
    assert y.tolist() == [1, 2, 3, 4, 5, 6, 7, 0]


def test_lanes_have_registers_of_their_own():
    r = Buffer("r", F32, (2,), "register")
    total = loop("u", 2, write(r, Var("u"), value=read(X8, V) * 2), kind="unroll")
    body = Alloc(r, (total, write(Y8, V, value=read(r, 0) + read(r, 1))))
    (y,) = run([loop("v", 8, body, kind="vector")])
    assert y.tolist() == [4.0 * n for n in range(8)]


def test_lanes_that_disagree_on_an_element():
    with pytest.raises(InternalError, match="different values to one element of y"):
        run([loop("v", 8, write(Y8, 0, value=read(X8, V)), kind="vector")])


def test_a_barrier_of_order_changes_nothing():
    (y,) = run(
        [loop("v", 8, Barrier("order"), write(Y8, V, value=read(X8, V)), kind="vector"), Barrier("order")]
    )
    assert y.tolist() == list(range(8))


def test_masked_lanes_do_nothing():
    inner = If(s.lt(V, 3), (write(Y8, V, value=read(X8, V)),), (write(Y8, V, value=ZERO),))
    (y,) = run([loop("v", 8, inner, kind="vector")])
    assert y.tolist() == [0, 1, 2, 0, 0, 0, 0, 0]


def test_bounds_may_depend_on_outer_loops():
    add = write(Y8, I, value=read(Y8, I) + read(X8, Var("j")))
    body = loop("i", 8, write(Y8, I, value=ZERO), loop("j", I + 1, add, begin=I // 2))
    (y,) = run([body])
    assert y.tolist() == [sum(range(n // 2, n + 1)) for n in range(8)]


# --- what a program may not do ----------------------------------------------------------------------------


def test_out_of_bounds():
    with pytest.raises(InternalError, match=r"x: index 8 of axis 0 lies outside of its shape \[8\]"):
        run([loop("i", 8, write(Y8, I, value=read(X8, I + 1)))])
    with pytest.raises(InternalError, match=r"y: index -1"):
        run([loop("i", 8, write(Y8, I - 1, value=ZERO))])
    for kind in ("serial", "vector"):
        with pytest.raises(InternalError, match=r"index 8 of axis 0 lies outside"):
            run([loop("i", 9, write(Y8, I, value=ZERO), kind=kind)])


@pytest.mark.parametrize("kind", ["serial", "vector"])
def test_undefined_elements(kind):
    r = Buffer("r", F32, (8,), "scratch")
    with pytest.raises(InternalError, match=r"undefined element r\[3\]"):
        define = If(s.lt(I, 3), (write(r, I, value=ZERO),))
        use = loop("j", 8, write(Y8, Var("j"), value=read(r, Var("j"))), kind=kind)
        run([Alloc(r, (loop("i", 8, define), use))])


def test_outputs_start_undefined_and_end_complete():
    accumulate = loop("i", 8, write(Y8, I, value=read(Y8, I) + read(X8, I)))
    with pytest.raises(InternalError, match=r"undefined element y\[0\]"):
        run([accumulate])
    (y,) = run([accumulate], (np.ones(8, np.float32), np.ones(8, np.float32)), inout=("y",))
    assert y.tolist() == [2.0] * 8
    with pytest.raises(InternalError, match=r"never writes y\[7\]"):
        run([loop("i", 7, write(Y8, I, value=ZERO))])


def test_iterations_do_not_inherit_scratch_from_one_another():
    r = Buffer("r", F32, (), "scratch")
    leak = (If(s.eq(I, 0), (write(r, value=ZERO),)), write(Y8, I, value=read(r)))
    with pytest.raises(InternalError, match="undefined element r"):
        run([Alloc(r, (loop("i", 8, *leak, kind="parallel"),))])
    (y,) = run([Alloc(r, (loop("i", 8, *leak),))])
    assert y.tolist() == [0.0] * 8


def test_checked_indices_are_the_users_error():
    index = Call("checked", (Load("k", (I,), I64), Const(8, I64)))
    params = (X8, Buffer("k", I64, (8,)), Y8)
    x, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    for kind in ("serial", "vector"):
        body = [loop("i", 8, write(Y8, I, value=read(X8, index)), kind=kind)]
        (y,) = run(body, (x, np.arange(8)[::-1].copy(), y), params)
        assert y.tolist() == list(range(8))[::-1]
        with pytest.raises(RunError, match="index out of range"):
            run(body, (x, np.arange(8) + 1, y), params)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((np.zeros(8, np.float32),), "takes 2 arrays, not 1"),
        ((np.zeros(9, np.float32), np.zeros(8, np.float32)), r"param x: got float32\[9\], expected f32\[8\]"),
        ((np.zeros(8), np.zeros(8, np.float32)), "param x: got float64"),
    ],
)
def test_wrong_arrays(arrays, message):
    with pytest.raises(InternalError, match=message):
        run([loop("i", 8, write(Y8, I, value=read(X8, I)))], arrays)


def test_strided_outputs_are_written_too():
    wide = np.zeros((8, 2), np.float32)
    run([loop("i", 8, write(Y8, I, value=read(X8, I)))], (np.arange(8, dtype=np.float32), wide[:, 1]))
    assert wide[:, 1].tolist() == list(range(8)) and not wide[:, 0].any()


def test_quick_enough_for_tests():
    program = naive_matmul(40, 50, 50)  # 100,000 multiply-adds
    start = time.perf_counter()
    assert matmul_error(program) < 1e-4
    assert time.perf_counter() - start < 5


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 30), st.integers(1, 9))
def test_workers_share_every_task_once(extent, workers):
    y = Buffer("y", I64, (max(extent, 1),))
    once = write(y, I, value=read(y, I) + 1)
    program = Program("count", (y,), (loop("i", extent, once, kind="parallel"),), gang=True)
    (counts,) = interpret(program, [np.zeros(y.shape, np.int64)], workers=workers, inout=("y",))
    assert counts[:extent].tolist() == [1] * extent
