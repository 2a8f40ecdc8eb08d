"""Random scalar expressions as machine code, over scalars and over vectors: equal to numpy's values."""

from dataclasses import replace

import numpy as np
import pytest
from burnish.compiler.ir import scalar as s
from burnish.compiler.ir.loops import Buffer, Program, Store, loop
from burnish.compiler.ir.numpy_scalar import evaluate
from burnish.compiler.ir.scalar import Expr, Var
from burnish.compiler.ir.types import dtype_of
from burnish.compiler.target import Target, get_target
from hypothesis import given, settings

from ..ir.strategies import DATA_DTYPES, POINTS, any_scalar
from .forked import run_forked
from .kernels import build_program, execute, load, runnable_targets

LANES = (1, 2, 4, 8)


def data() -> dict[str, np.ndarray]:
    """The tensors x_<dtype>: random bits and small numbers, with NaN and infinities."""
    rng = np.random.default_rng(11)
    arrays = {}
    for dtype in DATA_DTYPES:
        if dtype.is_float:
            array = rng.normal(0, 20, POINTS).astype(dtype.numpy)
            array[:5] = [np.nan, np.inf, -np.inf, 0.0, 1.0]
        else:
            raw = rng.integers(0, 256, POINTS * dtype.bytes, dtype=np.uint8)
            array = (raw % 2 == 0) if dtype.kind == "bool" else raw.view(dtype.numpy).copy()
            array[::3] = rng.integers(0, 3, array[::3].size)
        arrays[f"x_{dtype}"] = array
    return arrays


DATA = data()


def exact(name: str) -> Target:
    """A target whose code rounds after each operation, as numpy does."""
    target = get_target(name)
    return replace(target, features=tuple(f for f in target.features if f != "fma"))


def program_of(e: Expr, lanes: int) -> Program:
    params = [Buffer(name, dtype_of(a), a.shape) for name, a in DATA.items()]
    out = Buffer("out", e.dtype, (POINTS,))
    at = Var("o") * lanes + Var("v")
    store = Store("out", (at,), s.substitute(e, {"i": at}))
    inner = loop("v", lanes, store, kind="vector") if lanes > 1 else loop("v", 1, store)
    return Program(f"lanes{lanes}", (*params, out), (loop("o", POINTS // lanes, inner, kind="parallel"),))


def check(e: Expr, target: Target) -> None:
    with np.errstate(all="ignore"):
        expected = np.broadcast_to(evaluate(e, {"i": np.arange(POINTS)}, DATA), POINTS)
    builds = [build_program(program_of(e, lanes), target) for lanes in LANES]
    code = load(builds, target)
    for built in builds:
        for at_end in (True, False):
            (got,) = execute(built, code, list(DATA.values()), at_end=at_end)
            np.testing.assert_array_equal(got, expected, f"{built.scheduled.name} on {target.name}")


@pytest.mark.parametrize("target", runnable_targets())
@settings(max_examples=60, deadline=None, derandomize=True)
@given(e=any_scalar())
def test_expressions_agree_with_numpy(e: Expr, target: str) -> None:
    (message,) = run_forked([e], lambda e: check(e, exact(target)))
    assert message is None, f"{s.text(e)}\n{message}"
