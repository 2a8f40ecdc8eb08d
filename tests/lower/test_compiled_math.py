"""Elementary functions and narrow-float conversions as machine code, on every target that this CPU runs."""

import numpy as np
import pytest
from burnish.compiler.ir import loops as L
from burnish.compiler.ir import scalar as s
from burnish.compiler.ir.types import BF16, F16, F32, DType
from burnish.compiler.target import get_target

from ..compiled.kernels import build_program, execute, load, runnable_targets
from .test_math import REFERENCES, Long, assert_close, points

LANES = 16


def run(target: str, fn, source: DType, result: DType, x: np.ndarray) -> np.ndarray:
    """fn over a vector loop; x has a multiple of 16 elements."""
    i = s.Var("b") * LANES + s.Var("v")
    store = L.Store("y", (i,), fn(s.Load("x", (i,), source)))
    body = L.loop("b", x.size // LANES, L.loop("v", LANES, store, kind="vector"), kind="parallel")
    program = L.Program("k", (L.Buffer("x", source, x.shape), L.Buffer("y", result, x.shape)), (body,))
    built = build_program(program, get_target(target))
    return execute(built, load([built], get_target(target)), [x], at_end=True)[0]


@pytest.mark.parametrize("target", runnable_targets())
@pytest.mark.parametrize("name", REFERENCES)
def test_functions_within_4_ulp(name, target):
    x = points(2_000)
    x = x[: x.size // LANES * LANES]
    with np.errstate(all="ignore"):
        exact = REFERENCES[name](x.astype(Long))
    assert_close(run(target, lambda e: s.call(name, e), F32, F32, x), exact, 4.0, x)


@pytest.mark.parametrize("target", runnable_targets())
@pytest.mark.parametrize("dtype", [F16, BF16])
def test_narrow_floats(dtype, target):
    bits = np.arange(65536, dtype=np.uint16).view(dtype.numpy)
    with np.errstate(invalid="ignore"):
        exact = bits.astype(np.float32)
    np.testing.assert_array_equal(run(target, lambda e: s.cast(e, F32), dtype, F32, bits), exact)
    x = points(2_000)
    x = x[: x.size // LANES * LANES]
    narrow = run(target, lambda e: s.cast(e, dtype), F32, dtype, x)
    with np.errstate(all="ignore"):
        expected = x.astype(dtype.numpy).astype(np.float32)
        np.testing.assert_array_equal(narrow.astype(np.float32), expected)
