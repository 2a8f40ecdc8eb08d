"""Expanded elementary functions against references in extended precision."""

import numpy as np
import pytest
from burnish.compiler.ir import scalar as s
from burnish.compiler.ir.numpy_scalar import evaluate
from burnish.compiler.ir.types import BF16, F16, F32, F64, I32, I64, U8, DType
from burnish.compiler.lower.math import expand_math

I = s.Var("i")
Long = np.longdouble
ALLOWED = {"fma", "neg", "abs", "not", "isnan", "sqrt", "copysign", *s.BITCASTS}
SPECIAL = np.array(
    [
        0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        1,
        -1,
        2,
        -2,
        0.5,
        -0.5,
        3,
        -3,
        1e-45,
        -1e-45,
        1e-38,
        -1e-38,
        1.1754944e-38,
    ]
    + [
        3.4028235e38,
        -3.4028235e38,
        88.72283,
        88.72284,
        89.5,
        -87.33,
        -87.34,
        -103.28,
        -103.97,
        -104.5,
        1e5,
        -1e5,
    ],
    np.float32,
)


def _sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, e) / (1 + e)


def _erf(x):
    """For |x| < 2 its series, else a continued fraction of erfc (Abramowitz and Stegun 7.1.5, 7.1.14)."""
    a = np.minimum(np.abs(x), Long(12))
    term = total = np.minimum(a, Long(2))
    square = term * term
    for n in range(1, 60):
        term = -term * square / n
        total = total + term / (2 * n + 1)
    b, tail = np.maximum(a, Long(2)), Long(0)
    for n in range(120, 0, -1):
        tail = Long(n) / 2 / (b + tail)
    root_pi = np.sqrt(Long(np.pi)) * (1 + Long(1.2246467991473532e-16) / (2 * Long(np.pi)))
    small, large = 2 / root_pi * total, 1 - np.exp(-b * b) / (root_pi * (b + tail))
    return np.copysign(np.where(np.isnan(x), x, np.where(a < 2, small, large)), x)


REFERENCES = {
    "exp": np.exp, "log": np.log, "log1p": np.log1p, "expm1": np.expm1, "sin": np.sin, "cos": np.cos,
    "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh,
    "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "sigmoid": _sigmoid,
    "erf": _erf, "rsqrt": lambda x: 1 / np.sqrt(x),
}  # fmt: skip
F32_ONLY = ("exp", "log", "tanh", "sigmoid", "erf")


def load(name: str, dtype: DType) -> s.Expr:
    return s.Load(name, (I,), dtype)


def run(e: s.Expr, **tensors: np.ndarray) -> np.ndarray:
    return evaluate(e, {"i": np.arange(len(next(iter(tensors.values()))))}, tensors)


def unfused(e: s.Expr) -> s.Expr:
    """As on a machine without fused multiply-add."""

    def split(x: s.Expr) -> s.Expr | None:
        return x.args[0] * x.args[1] + x.args[2] if isinstance(x, s.Call) and x.op == "fma" else None

    return s.transform(e, split)


def points(count: int) -> np.ndarray:
    """Special values, random bit patterns, and ranges in which the functions bend."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 2 * count, dtype=np.uint64).astype(np.uint32).view(np.float32)
    ranges = [rng.uniform(-width, width, count).astype(np.float32) for width in (1, 4, 12, 110, 1e5)]
    near_one = (1 + rng.uniform(-0.5, 0.5, count) ** 5).astype(np.float32)
    return np.concatenate([SPECIAL, bits, *ranges, near_one])


def ulps(value: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Distances in units of the last f32 place of the exact result; inf where only one side is finite."""
    with np.errstate(all="ignore"):
        near = exact.astype(np.float32)
        magnitude = np.clip(np.abs(near.astype(np.float64)), 2.0**-126, np.finfo(np.float32).max)
        unit = 2.0 ** (np.floor(np.log2(magnitude)) - 23)
        distance = np.abs(value.astype(Long) - exact) / unit
    same = (value == near) | (np.isnan(value) & np.isnan(near))
    finite = np.isfinite(near) & np.isfinite(value)
    return np.where(finite, distance, np.where(same, 0, np.inf)).astype(np.float64)


def assert_close(value: np.ndarray, exact: np.ndarray, limit: float, *arguments: np.ndarray) -> None:
    assert value.dtype == np.float32
    value = np.broadcast_to(value, exact.shape)
    error = ulps(value, exact)
    worst = int(np.argmax(error))
    found = f"{[float(a[worst]) for a in arguments]}: {value[worst]!r}, exact {exact[worst]!r}"
    assert error[worst] <= limit, f"{error[worst]} ULP at {found}"
    zero = value == 0
    assert (np.signbit(value) == np.signbit(exact))[zero & (exact == 0)].all()


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", REFERENCES)
def test_f32_within_4_ulp(name, fused):
    x = points(20_000)
    e = expand_math(s.call(name, load("x", F32)))
    with np.errstate(all="ignore"):
        exact = REFERENCES[name](x.astype(Long))
    assert_close(run(e if fused else unfused(e), x=x), exact, 4.0, x)


@pytest.mark.parametrize("name", REFERENCES)
def test_only_vectorisable_operations_are_left(name):
    nodes = list(s.walk(expand_math(s.call(name, load("x", F32)))))
    assert {n.op for n in nodes if isinstance(n, s.Call)} <= ALLOWED
    if name in F32_ONLY:
        assert F64 not in {n.dtype for n in nodes}


@pytest.mark.parametrize("name", ["tanh", "erf", "sigmoid"])
def test_bounded_by_one(name):
    x = np.arange(0x3F000000, 0x41A00000, 7, dtype=np.uint32).view(np.float32)  # 0.5 … 20
    y = run(expand_math(s.call(name, load("x", F32))), x=x)
    assert y.max() == 1.0


def test_exact_where_it_is_easy():
    x = np.array([0.0, -0.0, 1.0, 1e-45, -1e-42, 3e-39], np.float32)
    for name in ("tanh", "sinh", "asinh", "expm1", "log1p", "sin", "tan", "asin", "atan", "atanh"):
        y = run(expand_math(s.call(name, load("x", F32))), x=x)
        small = np.abs(x) < 1
        assert y[small].tobytes() == x[small].tobytes(), name
    assert run(expand_math(s.call("exp", load("x", F32))), x=x)[:2].tolist() == [1.0, 1.0]
    assert run(expand_math(s.call("log", load("x", F32))), x=x)[2] == 0.0


@pytest.mark.parametrize("name", [n for n in REFERENCES if n != "rsqrt"])
def test_f64_calls_libm(name):
    e = expand_math(s.call(name, load("x", F64)))
    assert {n.op for n in s.walk(e) if isinstance(n, s.Call)} & s.LIBM
    x = np.concatenate([SPECIAL.astype(np.float64), np.random.default_rng(1).normal(size=1000)])
    with np.errstate(all="ignore"):
        exact = REFERENCES[name](x.astype(Long)).astype(np.float64)
    np.testing.assert_allclose(run(e, x=x), exact, rtol=1e-15)


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_narrow_floats_as_if_in_f32_and_rounded(dtype):
    bits = np.arange(65536, dtype=np.uint16).view(dtype.numpy)
    y = run(expand_math(s.call("tanh", load("x", dtype))), x=bits)
    wide = run(expand_math(s.call("tanh", load("x", F32))), x=bits.astype(np.float32))
    np.testing.assert_array_equal(y.astype(np.float32), wide.astype(dtype.numpy).astype(np.float32))


# --- power ----------------------------------------------------------------------------------------------


def power_arguments(case: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    if case == "special":
        return np.repeat(SPECIAL, len(SPECIAL)), np.tile(SPECIAL, len(SPECIAL))
    if case == "bits":
        x = points(count)
        return x, rng.permutation(x)
    if case == "range":
        x = np.exp(rng.uniform(-80, 80, count)).astype(np.float32)
        return x, (rng.uniform(-104, 89, count) / np.log(x)).astype(np.float32)
    x = rng.uniform(-10, 10, count).astype(np.float32)
    return x, rng.integers(-40, 40, count).astype(np.float32)


@pytest.mark.parametrize("case", ["special", "bits", "range", "integers"])
def test_f32_power(case):
    x, y = power_arguments(case, 20_000)
    e = expand_math(s.binary("pow", load("x", F32), load("y", F32)))
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(Long), y.astype(Long))
    assert_close(run(e, x=x, y=y), exact, 4.0, x, y)
    assert_close(run(unfused(e), x=x, y=y), exact, 4.0, x, y)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 0.75, 1.0, 2.0, 3.0, 4.0, -1.0, -2.0, 2.5, -0.5])
def test_f32_power_of_a_constant(exponent):
    x = points(20_000)
    e = expand_math(s.binary("pow", load("x", F32), s.const(exponent, F32)))
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(Long), Long(exponent))
    assert_close(run(e, x=x), exact, 4.0, x)


def test_roots_need_no_f64():
    for exponent in (0.5, 0.75):
        e = expand_math(s.binary("pow", load("x", F32), s.const(exponent, F32)))
        assert all(n.dtype is not F64 for n in s.walk(e))


@pytest.mark.parametrize("dtype", [I32, I64, U8])
def test_integer_power(dtype):
    x, y = (a.ravel().astype(dtype.numpy) for a in np.meshgrid(np.arange(-9, 10), np.arange(-3, 70)))
    before = s.binary("pow", load("x", dtype), load("y", dtype))
    after = expand_math(before)
    assert not any(isinstance(n, s.Binary) and n.op == "pow" for n in s.walk(after))
    np.testing.assert_array_equal(run(after, x=x, y=y), run(before, x=x, y=y))
    for part in (
        s.binary("pow", load("x", dtype), s.const(3, dtype)),
        s.binary("pow", s.const(3, dtype), load("x", dtype)),
    ):
        np.testing.assert_array_equal(run(expand_math(part), x=x), run(part, x=x))


@pytest.mark.parametrize("dtype", [F32, F64])
def test_float_remainder_is_exact(dtype):
    x, y = (a.ravel() for a in np.meshgrid(*[np.array([0.0, -0.0, 5.3, -5.3, 1e30, np.inf, np.nan])] * 2))
    x, y = x.astype(dtype.numpy), y.astype(dtype.numpy)
    after = expand_math(s.binary("rem", load("x", dtype), load("y", dtype)))
    assert not any(isinstance(n, s.Binary) and n.op == "rem" for n in s.walk(after))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(run(after, x=x, y=y), np.fmod(x, y))


# --- shared objects -------------------------------------------------------------------------------------


def test_nested_functions_stay_small():
    e: s.Expr = load("x", F32)
    for name in ("tanh", "sigmoid", "exp", "erf", "sin", "asinh", "log1p", "tanh", "cosh", "atan"):
        e = s.call(name, e)
    before, after = e, expand_math(e)
    assert len(list(s.walk(after))) < 700
    assert hash(after) == hash(expand_math(before)) and after == expand_math(before)
    assert s.variables(after) == {"i"}
    x = np.linspace(-3, 3, 101, dtype=np.float32)
    np.testing.assert_allclose(run(after, x=x), run(before, x=x), rtol=1e-5)


def test_what_shares_parts_is_printed_as_how_many_there_are():
    """As a tree five exponentials in a row are 30 billion nodes."""
    e = load("x", F32)
    for _ in range(5):
        e = s.call("exp", e)
    assert "objects>" in s.abbreviated(expand_math(e), 5000)
    assert s.abbreviated(load("x", F32) + 1.0, 5000) == s.text(load("x", F32) + 1.0)
