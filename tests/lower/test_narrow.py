"""Narrow-float conversions as bit operations: every 16-bit value, every exponent of wider ones."""

import numpy as np
import pytest
from burnish.compiler.ir import scalar as s
from burnish.compiler.ir.numpy_scalar import evaluate
from burnish.compiler.ir.types import BF16, BOOL, F16, F32, F64, I32, I64, U8, DType
from burnish.compiler.lower.narrow import expand_narrow

I = s.Var("i")
NARROW = (F16, BF16)
BITS16 = np.arange(65536, dtype=np.uint16)


def run(e: s.Expr, **tensors: np.ndarray) -> np.ndarray:
    return evaluate(e, {"i": np.arange(len(next(iter(tensors.values()))))}, tensors)


def load(name: str, dtype: DType) -> s.Expr:
    return s.Load(name, (I,), dtype)


def assert_same_bits(value: np.ndarray, expected: np.ndarray) -> None:
    assert value.dtype == expected.dtype
    with np.errstate(invalid="ignore"):
        both_nan = (value != value) & (expected != expected)
    raw = f"u{value.itemsize}"
    different = (value.view(raw) != expected.view(raw)) & ~both_nan
    assert not different.any(), f"{value[different][:4]}, expected {expected[different][:4]}"


def floats() -> np.ndarray:
    """All signs and exponents of f32 with the fractions at which f16 and bf16 round up, down or to even."""
    rng = np.random.default_rng(0)
    ties = [
        0,
        1,
        0x7FFF,
        0x8000,
        0x8001,
        0xFFFF,
        0xFFF,
        0x1000,
        0x1001,
        0x2000,
        0x3000,
        0xEFFF,
        0xF000,
        0xF001,
    ]
    low = np.concatenate([np.array(ties), rng.integers(0, 65536, 2)]).astype(np.uint32)
    return (BITS16.astype(np.uint32)[:, None] << 16 | low).ravel().view(np.float32)


def doubles() -> np.ndarray:
    """Near and on the values above, and random bits."""
    with np.errstate(invalid="ignore"):
        near = floats()[::3].astype(np.float64)
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 2**64, 100_000, dtype=np.uint64).view(np.float64)
    return np.concatenate(
        [near, np.nextafter(near, np.inf), np.nextafter(near, -np.inf), bits, [1e308, -1e-320]]
    )


def round_once(x: np.ndarray, fraction: int, least_exponent: int, largest: float) -> np.ndarray:
    """f64 to the nearest number with `fraction` bits after the leading one, ties to even, as f64."""
    with np.errstate(all="ignore"):
        exponent = np.maximum(np.frexp(x)[1] - 1, least_exponent)
        unit = np.ldexp(1.0, exponent - fraction)
        y = np.rint(x / unit) * unit
    return np.where(np.isfinite(x), np.where(np.abs(y) > largest, np.copysign(np.inf, x), y), x)


@pytest.mark.parametrize("native", [(), (F16,), NARROW], ids=len)
@pytest.mark.parametrize("source", NARROW)
@pytest.mark.parametrize("target", [F32, F64, I32, I64, U8, BOOL, F16, BF16])
def test_from_narrow(source, target, native):
    before = s.Cast(load("x", source), target)
    x = BITS16.view(source.numpy)
    assert_same_bits(run(expand_narrow(before, native), x=x), run(before, x=x))


@pytest.mark.parametrize("native", [(), (F16,), NARROW], ids=len)
@pytest.mark.parametrize("target", NARROW)
@pytest.mark.parametrize("source", [F32, I32, I64, U8, BOOL])
def test_to_narrow(source, target, native):
    rng = np.random.default_rng(2)
    whole = rng.integers(-(2**62), 2**62, 50_000) >> rng.integers(0, 62, 50_000)
    x = floats() if source is F32 else whole.astype(source.numpy)
    before = s.Cast(load("x", source), target)
    assert_same_bits(run(expand_narrow(before, native), x=x), run(before, x=x))


@pytest.mark.parametrize("native", [(), (F16,), NARROW], ids=len)
@pytest.mark.parametrize(
    "target, fraction, least, largest", [(F16, 10, -14, 65504.0), (BF16, 7, -126, 3.39e38)]
)
def test_f64_rounds_once(target, fraction, least, largest, native):
    x = doubles()
    before = s.Cast(load("x", F64), target)
    value = run(expand_narrow(before, native), x=x)
    np.testing.assert_array_equal(value.astype(np.float64), round_once(x, fraction, least, largest))
    assert_same_bits(value, run(before, x=x))


@pytest.mark.parametrize("dtype", NARROW)
def test_only_bits_are_left(dtype):
    x, y = load("x", dtype), load("y", dtype)
    e = expand_narrow(s.cast(s.cast(x, F32) * s.cast(y, F32), dtype))
    casts = [n for n in s.walk(e) if isinstance(n, s.Cast)]
    assert casts and not any(n.type in NARROW or n.value.dtype in NARROW for n in casts)
    assert e.dtype is dtype


def test_f16c_keeps_hardware_conversions():
    e = expand_narrow(s.Cast(load("x", F16), F64), native=(F16,))
    assert e == s.Cast(s.Cast(load("x", F16), F32), F64)


@pytest.mark.parametrize("dtype", NARROW)
def test_arithmetic_left_in_narrow_types_is_done_in_f32(dtype):
    rng = np.random.default_rng(3)
    x, y = (rng.normal(size=1000).astype(dtype.numpy) for _ in range(2))
    total = expand_narrow(load("x", dtype) + load("y", dtype))
    assert_same_bits(run(total, x=x, y=y), (x.astype(np.float32) + y.astype(np.float32)).astype(dtype.numpy))
    greater = expand_narrow(s.binary("gt", load("x", dtype), load("y", dtype)))
    np.testing.assert_array_equal(run(greater, x=x, y=y), x > y)


def test_constants_round_to_their_own_type():
    x = np.zeros(1, np.float32)
    e = expand_narrow(s.cast(s.const(0.1, BF16), F32)) + load("x", F32)
    assert run(e, x=x)[0] == np.float32(np.asarray(0.1, BF16.numpy))
