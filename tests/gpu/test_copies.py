"""Factors on their way to shared memory beside the arithmetic: whole vectors of constants at once."""

from __future__ import annotations

import re

import burnish
import numpy as np
import onnx
import pytest
from burnish import pipeline
from burnish.compiler.build_kernel import build_kernel
from burnish.compiler.ir.expr import Axis
from burnish.compiler.ir.scalar import Load, Var, const, lt, select
from burnish.compiler.ir.types import F32
from burnish.compiler.kernel_task import DefaultConfig, FixedConfig
from burnish.compiler.target import TARGETS
from burnish.compiler.templates.gpu.implicit import LAST
from burnish.compiler.templates.gpu.staging import lies_along
from burnish.workloads import planned
from onnx import TensorProto, helper

from .test_tensor_cores import prefer

SM80 = TARGETS["cuda-sm80"]
RNG = np.random.default_rng(0)


def model(
    op: str, x: tuple[int, ...], w: tuple[int, ...], constant: bool = True, **attributes
) -> onnx.ModelProto:
    """Of one operator, with small integers as weights, so that sums stay exact."""
    node = helper.make_node(op, ["x", "w"], ["y"], **attributes)
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, d) for n, d in (("x", x), ("w", w))]
    weights = helper.make_tensor("w", TensorProto.FLOAT, w, integers(w).ravel())
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    given = (infos[:1], [weights]) if constant else (infos, [])
    graph = helper.make_graph([node], op, given[0], [result], given[1])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def integers(shape: tuple[int, ...]) -> np.ndarray:
    return RNG.integers(-3, 4, shape).astype(np.float32)


def copied(wanted: onnx.ModelProto, **config) -> set[int]:
    """Bytes that instructions copy at once in the model's kernel."""
    (found,) = planned("model", wanted, SM80, 1)
    source = build_kernel(found.task, FixedConfig(config), "k").object.decode()
    return {int(size) for size in re.findall(r"^ +copy_async_(\d+)\(", source, re.MULTILINE)}


def product(columns: int, constant: bool = True) -> onnx.ModelProto:
    return model("MatMul", (24, 40), (40, columns), constant)


CHANNELS_LAST = model("Conv", (2, 8, 7, 5), (20, 8, 3, 2), pads=[1, 0, 1, 1])
CONVOLUTION = model("Conv", (2, 6, 7, 5), (20, 6, 3, 2), pads=[1, 0, 1, 1])
WINOGRAD = model("Conv", (1, 16, 9, 9), (24, 16, 3, 3), pads=[1, 1, 1, 1])


@pytest.mark.parametrize(("columns", "vectors"), [(64, True), (44, True), (4, True), (66, False), (3, False)])
@pytest.mark.parametrize("constant", [True, False])
def test_what_lies_side_by_side_and_begins_where_vectors_may(columns, vectors, constant):
    """Columns of the right factor; of the left one terms, if they lie so in shared memory."""
    assert copied(product(columns, constant), terms=4) == ({16} if vectors else {4, 16})
    assert copied(product(columns, constant), terms=1) == ({4, 16} if vectors else {4})


def test_terms_that_do_not_fill_vectors():
    assert copied(model("MatMul", (24, 42), (42, 64))) == {4, 16}
    assert copied(model("MatMul", (24, 72), (72, 64)), parts=2, depth=8) == {16}
    assert copied(model("MatMul", (24, 76), (76, 64)), parts=2, depth=8) == {4, 16}


def test_threads_that_wait_take_an_element_each():
    assert copied(product(64), stages=1) == set()


@pytest.mark.parametrize(
    ("wanted", "algorithm", "reads"),
    [
        *((product(columns), "tiles", None) for columns in (64, 44, 4, 66, 3)),
        (CONVOLUTION, "implicit_gemm", None),
        (CONVOLUTION, "implicit_gemm", LAST),
        (CHANNELS_LAST, "implicit_gemm", LAST),
        (WINOGRAD, "gpu_winograd2", None),
        (WINOGRAD, "gpu_winograd4", None),
        (WINOGRAD, "gpu_winograd4", LAST),
    ],
)
@pytest.mark.parametrize("stages", [2, 3])
def test_a_module_on_the_fake_driver(driver, monkeypatch, wanted, algorithm, reads, stages):
    """It copies as late as it may, and nothing to or from where a whole copy is not aligned."""
    prefer(algorithm, monkeypatch, reads)

    class Config(DefaultConfig):
        def choose(self, knob, options, default):
            return super().choose(knob, options, stages if knob == "stages" else default)

    module = pipeline.compile(
        wanted, target="cuda-sm80", cache=False, accuracy=1e-4, pick_config=lambda task: Config()
    )
    assert module.plan is not None
    assert algorithm == "tiles" or any(algorithm in step.kernel for step in module.plan.steps)
    exact = burnish.compile(wanted, accuracy=0)
    x = integers(exact.inputs[0].shape)
    tolerance = {"atol": 1e-3} if "winograd" in algorithm else {"rtol": 0}
    np.testing.assert_allclose(module.run({"x": x})["y"], exact.run({"x": x})["y"], **tolerance)


def test_neighbours_are_there_or_zero_together():
    i, j, zero = Var("i"), Var("j"), const(0.0, F32)
    row, ragged = Axis("j", 8), Axis("j", 6)
    plain = Load("x", (i, j), F32)
    assert lies_along(plain, row) and not lies_along(plain, ragged)
    assert lies_along(select(lt(i, 3), plain, zero), row)
    assert not lies_along(select(lt(j, 3), plain, zero), row)
    assert lies_along(Load("x", (i, i * 4 + j), F32), row)
    for index in ((j, i), (i, j * 2), (j, j), (i, i), (i, (j + i) % 8)):
        assert not lies_along(Load("x", index, F32), row)
