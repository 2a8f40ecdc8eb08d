"""Matrix products of the direct template against float64, with every number of terms in an iteration."""

import numpy as np
import pytest
from burnish.compiler.ir.loops_interpreter import interpret
from burnish.compiler.ir.types import F32, TensorType
from burnish.compiler.kernel_task import FixedConfig, KernelTask
from burnish.compiler.ops.fused import expression
from burnish.compiler.ops.matmul import Einsum, MatMul
from burnish.compiler.target import get_target
from burnish.compiler.templates import direct
from burnish.compiler.templates.products import packed_layout
from burnish.compiler.templates.registry import algorithms
from burnish.graph_passes.plan_layout import plan_layout
from burnish.graph_passes.predict_gpu import predicted_cost
from burnish.pipeline import optimise

from ..passes.make import make

LANES = 8


def task_of(rows: int, terms: int, columns: int) -> KernelTask:
    expr = expression(MatMul(), (TensorType(F32, (rows, terms)), TensorType(F32, (terms, columns))))
    (_, _), (w, _) = expr.params
    layouts = ((w, packed_layout(LANES, False)),)
    return KernelTask("kernel", expr, layouts, frozenset({w}), "direct", get_target("x86-64-v3"), 1)


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("terms", [2, 3, 4, 5, 8, 13])
@pytest.mark.parametrize("together", [1, 2, 4, 8])
def test_terms_that_an_iteration_takes_together(rows, terms, together):
    columns = 19
    rng = np.random.default_rng(terms)
    x = rng.standard_normal((rows, terms), dtype=np.float32)
    w = rng.standard_normal((terms, columns), dtype=np.float32)
    padded = np.pad(w, ((0, 0), (0, -columns % LANES)))
    packed = np.ascontiguousarray(padded.reshape(terms, -1, LANES).transpose(1, 0, 2))
    task = task_of(rows, terms, columns)
    program = direct.schedule(task, direct.params(task, FixedConfig({"together": together})))
    given = {"p0": x, "p1": packed}
    arrays = [given.get(b.name, np.zeros(b.shape, np.float32)).reshape(b.shape) for b in program.params]
    (y,) = interpret(program, arrays)
    exact = x.astype(np.float64) @ w
    bound = 2 * terms * np.finfo(np.float32).eps * (abs(x.astype(np.float64)) @ abs(w))
    assert (abs(y.reshape(rows, -1)[:, :columns] - exact) <= bound).all()


@pytest.mark.parametrize(
    ("op", "shapes"),
    [(MatMul(), ((64, 32), (32, 1))), (Einsum("ij,ij->i"), ((64, 32), (64, 32)))],
    ids=["a matrix times a vector", "rows times rows"],
)
def test_what_is_read_once_is_not_copied(op, shapes):
    """Across the sum's direction, before it is added up."""
    expr = expression(op, tuple(TensorType(F32, shape) for shape in shapes))
    task = KernelTask("kernel", expr, (), frozenset(), "", get_target("x86-64-v3"), 1)
    assert algorithms(task)[0] == "rows"


@pytest.mark.parametrize(("columns", "algorithm"), [(2, "dot"), (3, "packed"), (24, "packed")])
def test_few_columns_are_dot_products(columns, algorithm):
    """A vector of columns is mostly empty then."""
    weights, target = np.ones((96, columns), np.float32), get_target("x86-64-v3")
    graph = make({"x": "f32[40,96]"}, lambda g, x: g.one(MatMul(), x, g.const(weights)))
    fused = optimise(graph, target, 1, stop_after="fuse")
    plan = plan_layout(fused, target.lanes(4), predicted_cost(target, 1))
    assert [decision.algorithm for decision in plan.decisions.values()] == [algorithm]
