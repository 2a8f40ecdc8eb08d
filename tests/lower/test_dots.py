"""Sums of four products of bytes, in every number of lanes, and conversions around them."""

from dataclasses import replace

import numpy as np
import pytest
from burnish.compiler.ir import loops as L
from burnish.compiler.ir import scalar as s
from burnish.compiler.ir.loops_interpreter import interpret
from burnish.compiler.ir.numpy_scalar import convert, dot4, evaluate
from burnish.compiler.ir.types import DTYPES, F32, I32, U8
from burnish.compiler.lower.dots import expand_dots
from burnish.compiler.target import TARGETS as TARGETS_BY_NAME
from burnish.compiler.target import get_target, runs_here

from ..compiled.kernels import build_program, execute, load, runnable_targets
from .test_compiled_math import LANES, run

RNG = np.random.default_rng(3)
AVX_VNNI = replace(TARGETS_BY_NAME["x86-64-v3"], features=(*TARGETS_BY_NAME["x86-64-v3"].features, "avxvnni"))
MACHINES = [
    *map(get_target, runnable_targets()),
    *filter(runs_here, (TARGETS_BY_NAME["x86-64-v4"], AVX_VNNI)),
]
TARGETS = pytest.mark.parametrize("target", MACHINES, ids=lambda t: f"{t.name} {t.features[-1]}")
"""Those with vectors of AVX-512 but no VNNI, and the other way round, beside what runs here anyway."""
NAMES = pytest.mark.parametrize("name", s.DOTS)


def words(size: int) -> np.ndarray:
    """The extremes first."""
    few = np.array([-1, 0, 0x7F7F7F7F, -0x7F7F7F80], np.int32)
    return np.resize(np.concatenate([few, RNG.integers(-(2**31), 2**31, size).astype(np.int32)]), size)


def by_bytes(a: np.ndarray, b: np.ndarray, signed: bool) -> np.ndarray:
    left = a.view(np.int8 if signed else np.uint8).reshape(-1, 4).astype(np.int32)
    return (left * b.view(np.int8).reshape(-1, 4)).sum(1, dtype=np.int32)


@NAMES
def test_the_meaning(name):
    a, b = words(64), words(64)[::-1].copy()
    expected = by_bytes(a, b, s.DOTS[name])
    np.testing.assert_array_equal(dot4(a, b, s.DOTS[name]), expected)
    tensors = {"a": a, "b": b}
    here = (s.Var("i"),)
    call = s.call(name, s.Load("a", here, I32), s.Load("b", here, I32))
    for e in (call, expand_dots(call)):
        np.testing.assert_array_equal(evaluate(e, {"i": np.arange(64)}, tensors), expected)
    assert expand_dots(call, name) is call


@TARGETS
@NAMES
@pytest.mark.parametrize("lanes", [1, 2, 3, 4, 6, 8, 16, 24, 32, 40])
def test_any_number_of_lanes(name, lanes, target):
    """Added to a sum, and alone; the second factor once of all lanes."""
    a, b, c = words(lanes), words(lanes)[::-1].copy(), words(lanes)
    i = (s.Var("v"),)
    x, y, z = (s.Load(v, i, I32) for v in "abc")
    first = s.Load("b", (s.const(0),), I32)
    body = (
        L.Store("sum", i, s.call(name, x, y) + z),
        L.Store("alone", i, s.call(name, x, first)),
    )
    loop = L.loop("v", lanes, *body, kind="vector") if lanes > 1 else L.loop("v", 1, *body)
    buffers = tuple(L.Buffer(n, I32, (lanes,)) for n in ("a", "b", "c", "sum", "alone"))
    built = build_program(L.Program("k", buffers, (loop,)), get_target(target))
    total, alone = execute(built, load([built], get_target(target)), [a, b, c], at_end=True)
    np.testing.assert_array_equal(total, by_bytes(a, b, s.DOTS[name]) + c)
    np.testing.assert_array_equal(alone, by_bytes(a, np.full(lanes, b[0]), s.DOTS[name]))


@TARGETS
@pytest.mark.parametrize("dtype", ["i8", "u8", "i16", "u16"])
def test_floats_saturate(dtype, target):
    info = np.iinfo(DTYPES[dtype].numpy)
    edges = [info.min, info.max, 0, 2.0**31, -(2.0**31), 1e30]
    near = [e + d for e in edges for d in (-1.5, -1, -0.5, 0, 0.5, 1, 1.5)]
    x = np.array([*near, np.nan, np.inf, -np.inf, -0.0], np.float32)
    x = np.resize(x, -(-x.size // LANES) * LANES)
    found = run(target, lambda e: s.cast(e, DTYPES[dtype]), F32, DTYPES[dtype], x)
    np.testing.assert_array_equal(found, convert(x, DTYPES[dtype]))


@TARGETS
@pytest.mark.parametrize(
    ("value", "types"),
    [
        (-5, "i8 u8 i32"),
        (200, "u8 i8 i64"),
        (3_000_000_000, "u32 i32 f32"),
        (3_000_000_000, "u32 i32 i64 f32"),
        (2**32 + 5, "i64 i32 f32"),
        (2**63 + 2**40, "u64 i64 f32"),
        (-1, "i32 u64 f32"),
        (300, "i32 bool i32"),
    ],
)
def test_constants_change_with_their_types(value, types, target):
    first, *others = (DTYPES[name] for name in types.split())
    result = others[-1]

    def body(e: s.Expr) -> s.Expr:
        found: s.Expr = s.const(value, first)
        for dtype in others:
            found = s.cast(found, dtype)
        return s.cast(e, result) + found

    x = np.zeros(LANES, np.int32)
    with np.errstate(all="ignore"):
        expected = np.asarray(value, first.numpy)
        for dtype in others:
            expected = convert(expected, dtype)
    np.testing.assert_array_equal(run(target, body, I32, result, x), np.full(LANES, expected))


BLOCKS, ROWS, BLOCK = 3, 5, 16
PLACES = {
    "side by side": (lambda n: (s.const(0), s.Var("b"), n), 16),
    "in blocks": (lambda n: (n // BLOCK, s.Var("b"), n % BLOCK), 48),
    "a row apart": (lambda n: (s.const(1), n % ROWS, s.Var("b")), 16),
    "the same for all lanes": (lambda n: (s.const(2), s.Var("b"), n % 4), 16),
}


@TARGETS
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("guard", ["none", "lanes", "blocks", "rows", "bytes"])
@pytest.mark.parametrize("lanes", [1, 4, 12])
def test_words_in_memory(place, guard, lanes, target):
    """Loads of whole words give what loads of bytes give, and read nothing that is guarded."""
    at, size = PLACES[place]
    lanes = min(lanes, size // 4)
    lane, row = s.Var("v") if place != "the same for all lanes" else s.const(0), s.Var("b")
    conditions = {
        "none": lambda n: None,
        "lanes": lambda n: s.lt(s.Var("v"), 3),
        "blocks": lambda n: s.lt(n // BLOCK, 2),
        "rows": lambda n: s.lt(row, 3),
        "bytes": lambda n: s.lt(n, 7),
    }
    bytes = []
    for k in range(4):
        n = lane * 4 + k
        byte = s.Load("x", at(n), U8)
        cond = conditions[guard](n)
        bytes.append(byte if cond is None else s.select(cond, byte, s.const(0, U8)))
    store = L.Store("y", (row, s.Var("v")), s.call("word", *bytes))
    inner = L.loop("v", lanes, store, kind="vector" if lanes > 1 else "serial")
    buffers = (L.Buffer("x", U8, (BLOCKS, ROWS, BLOCK)), L.Buffer("y", I32, (ROWS, lanes)))
    program = L.Program("k", buffers, (L.loop("b", ROWS, inner),))
    x = RNG.integers(0, 256, (BLOCKS, ROWS, BLOCK)).astype(np.uint8)
    (expected,) = interpret(program, [x, np.zeros((ROWS, lanes), np.int32)])
    built = build_program(program, get_target(target))
    for at_end in (True, False):
        (found,) = execute(built, load([built], get_target(target)), [x], at_end=at_end)
        np.testing.assert_array_equal(found, expected)
