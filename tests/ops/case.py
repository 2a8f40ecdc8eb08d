"""One operator applied to inputs, written once and run on every backend.

Each `tests/ops/cases_<family>.py` holds a list `CASES`; `all_cases()` is all of them.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
from burnish.compiler.ir import expr as expr_ir
from burnish.compiler.ir import graph as graph_ir
from burnish.compiler.ir import loops_interpreter
from burnish.compiler.ir.graph import Graph
from burnish.compiler.ir.types import TensorType, dtype_of
from burnish.compiler.ops.base import Decomposer, Op

TOLERANCE = {"f32": 2e-6, "f64": 1e-12, "f16": 2e-6, "bf16": 2e-6}
"""Greatest difference from the reference, relative to what is expected and to the largest of it up to 1,
before a case widens it: narrow floats are computed in f32."""
ROUNDING = {"f16": 2.0**-11, "bf16": 2.0**-8}
"""What a narrow float may be off for being rounded, relative to it, whatever a case widens."""

Spec: TypeAlias = TensorType | np.ndarray | str | None
"""An input: a type to be filled with seeded data ("f32[2,3]" or TensorType), the data itself, or absent."""


@dataclass(frozen=True, eq=False)
class Case:
    """`low` and `high` bound the random data (floats are uniform); `widen` multiplies the tolerance."""

    op: Op
    inputs: tuple[Spec, ...]
    note: str = ""
    low: float = -3.0
    high: float = 3.0
    widen: float = 1.0

    @property
    def types(self) -> tuple[TensorType | None, ...]:
        return tuple(_type(i) for i in self.inputs)

    @property
    def id(self) -> str:
        fields = ",".join(f"{v}".replace(" ", "") for v in self.op.attributes().values())
        types = " ".join("_" if t is None else str(t) for t in self.types)
        return f"{self.op.name}({fields}) {types} {self.note}".strip()

    def arrays(self) -> tuple[np.ndarray | None, ...]:
        """The inputs, the same on every call."""
        rng = np.random.default_rng(zlib.crc32(self.id.encode()))
        return tuple(
            None if i is None else i if isinstance(i, np.ndarray) else self._random(rng, t)
            for i, t in zip(self.inputs, self.types)
        )

    def _random(self, rng: np.random.Generator, type: TensorType | None) -> np.ndarray:
        assert type is not None
        dtype = type.dtype
        if dtype.is_float:
            return rng.uniform(self.low, self.high, type.dims).astype(dtype.numpy)
        if dtype.kind == "bool":
            return rng.integers(0, 2, type.dims).astype(np.bool_)
        low = max(int(self.low), 0) if dtype.kind == "uint" else int(self.low)
        return rng.integers(low, int(self.high) + 1, type.dims).astype(dtype.numpy)

    def expected(self) -> tuple[np.ndarray, ...]:
        """The reference's outputs, checked against the inferred types. Not to be written to."""
        return self._expected

    @cached_property
    def _expected(self) -> tuple[np.ndarray, ...]:
        types = self.op.infer(*self.types)
        with np.errstate(all="ignore"):
            outputs = self.op.reference(*self.arrays())
        assert len(outputs) == len(types)
        for array, type in zip(outputs, types):
            assert isinstance(array, (np.ndarray, np.generic)), f"reference gave {array!r}"
            assert (dtype_of(array), array.shape) == (type.dtype, type.shape), (
                f"{array.dtype}{array.shape} != {type}"
            )
        return outputs


def _type(spec: Spec) -> TensorType | None:
    if spec is None or isinstance(spec, TensorType):
        return spec
    return TensorType.parse(spec) if isinstance(spec, str) else TensorType(dtype_of(spec), spec.shape)


@lru_cache(maxsize=1)
def all_cases() -> tuple[Case, ...]:
    """Every case of every `cases_*.py` beside this file."""
    found: list[Case] = []
    for path in sorted(Path(__file__).parent.glob("cases_*.py")):
        found += importlib.import_module(f".{path.stem}", __package__).CASES
    return tuple(found)


def assert_outputs(case: Case, actual: Sequence[np.ndarray], extra: float = 1.0) -> None:
    """Integers must be equal, floats within `extra` times the tolerance, or equal where that is 0; NaN and
    infinities must be in the same places."""
    expected = case.expected()
    assert len(actual) == len(expected)
    for got, want in zip(actual, expected):
        assert (got.dtype, got.shape) == (want.dtype, want.shape), (
            f"{got.dtype}{got.shape} != {want.dtype}{want.shape}"
        )
        dtype = dtype_of(want)
        if not dtype.is_float or not extra:
            np.testing.assert_array_equal(got, want)
            continue
        got, want = got.astype(np.float64), want.astype(np.float64)
        tolerance = TOLERANCE[dtype.name] * case.widen * extra
        largest = np.abs(want[np.isfinite(want)]).max(initial=0.0)
        rounding = 2 * ROUNDING.get(dtype.name, 0.0)
        np.testing.assert_allclose(got, want, rtol=tolerance + rounding, atol=tolerance * min(1.0, largest))


def run_reference_vs_expr(case: Case) -> None:
    """The operator's tensor expression or decomposition, interpreted, gives the reference's outputs."""
    if case.op.has("compute"):
        expression = build_expr(case)
        expr_ir.verify(expression)
        arrays = [a for a in case.arrays() if a is not None]
        assert_outputs(case, expr_ir.interpret(expression, arrays))
    elif case.op.has("decompose"):
        graph = build_graph(case)
        graph_ir.verify(graph)
        named = dict(zip(graph.inputs, (a for a in case.arrays() if a is not None)))
        with np.errstate(all="ignore"):
            results = graph_ir.interpret(graph, named)
        assert_outputs(case, [results[o] for o in graph.outputs])
    else:
        raise AssertionError(f"{case.op.name} is a loop program: use run_reference_vs_loops")


def run_reference_vs_loops(case: Case) -> None:
    """The operator's loop program, in both orders of its parallel loops, gives the reference's outputs."""
    outputs = case.op.infer(*case.types)
    program = case.op.loops(case.types, outputs)
    for order in loops_interpreter.ORDERS:
        arrays = [a for a in case.arrays() if a is not None]
        memory = [np.zeros(t.dims, t.dtype.numpy) for t in outputs]
        loops_interpreter.interpret(program, [*arrays, *memory], order=order)
        assert_outputs(case, memory)


def build_expr(case: Case) -> expr_ir.TensorExpr:
    """The operator's own tensor expression; params x0, x1, … are the present inputs."""
    b = expr_ir.ExprBuilder()
    operands = [None if t is None else b.param(f"x{n}", t) for n, t in enumerate(case.types)]
    return b.finish(case.op.compute(b, *operands))


def build_graph(case: Case) -> Graph:
    """A graph of the operator alone, composites decomposed; inputs x0, x1, … are the present ones."""
    names = [None if t is None else f"x{n}" for n, t in enumerate(case.types)]
    types = {n: t for n, t in zip(names, case.types) if n is not None and t is not None}
    inputs = tuple(types)
    g = Decomposer("node", types, {})
    outputs = g.emit(case.op, *names)
    return Graph("case", inputs, outputs, tuple(g.nodes), g.types, g.constants)
