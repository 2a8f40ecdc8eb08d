"""Winograd convolutions for GPUs against float64: what the loops mean, on a driver, under oclgrind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest
from burnish import pipeline
from burnish.compiler.ir import loops_interpreter
from burnish.compiler.ir.graph import interpret
from burnish.compiler.ir.loops import Program
from burnish.compiler.ir.loops_verifier import verify
from burnish.compiler.ir.types import Layout
from burnish.compiler.kernel_task import DefaultConfig
from burnish.compiler.lower.lower import scheduled
from burnish.compiler.target import TARGETS
from burnish.compiler.templates.gpu.winograd import VARIANTS
from burnish.compiler.templates.registry import ALGORITHMS
from burnish.frontends.onnx.importer import import_onnx
from burnish.graph_passes.alternatives import alternatives
from burnish.graph_passes.pairs import KEPT
from burnish.graph_passes.predict_gpu import PredictedGpuCost

from ..compiled.programs import run_program
from ..compiled.test_conv_algorithms import Case, Item, arrays_of, expected, graph_of, items_of, physical
from ..passes import test_plan_layout
from .cases import Drawn, MakeConfig
from .device import kernels
from .oclgrind import report

NAMES = list(VARIANTS)
SMALL = [Case(4, 8, (3, 4), pads=(0, 1, 2, 0), batch=2)]
"""For the interpreter, which takes a microsecond an operation."""
CASES = [
    Case(1, 1, (1, 1), pads=(1, 1, 1, 1)),
    Case(17, 13, (11, 7), pads=(1, 1, 1, 1)),
    Case(5, 31, (9, 13), pads=(2, 0, 1, 3), batch=3),
    Case(16, 32, (14, 5), pads=(2, 2, 2, 2), batch=2, epilogue=False),
    Case(96, 64, (7, 7), pads=(1, 1, 1, 1)),
    Case(8, 4, (30, 29)),
]


class Least(DefaultConfig):
    """The smallest tiles, for the interpreter."""

    def choose(self, knob, options, default):
        if knob == "tile":
            return min(options, key=lambda o: np.prod(o))
        return min(options) if knob == "depth" else default


def items(cases: Sequence[Case], target: str, names: Sequence[str] = NAMES) -> list[Item]:
    """Each on every layout that it may have."""
    found = [i for case in cases for name in names for i in items_of(case, TARGETS[target], name)]
    return [replace(i, task=replace(i.task, name=f"k{n}")) for n, i in enumerate(found)]


def check(item: Item, run: Callable[[list[np.ndarray]], Sequence[np.ndarray]]) -> None:
    want = expected(item.case, *arrays_of(item.case))
    layout = item.task.layout(item.task.expr.outputs[0]) or Layout((0, 1, 2, 3))
    (got,) = run(physical(item))
    got = layout.unpack(got.reshape(layout.physical_shape(want.shape)), want.shape)
    error = np.abs(got - want).max() / np.abs(want).max()
    assert error <= ALGORITHMS[item.algorithm].error, (item.algorithm, item.task.layouts, item.case, error)


def check_all(found: Sequence[Item], target: str, config: MakeConfig = DefaultConfig) -> None:
    programs = [scheduled(item.task, config()) for item in found]
    code = kernels(programs, TARGETS[target])
    for item in found:
        check(item, partial(code.run, item.task.name))


def interpreted(program: Program, order: str, arrays: list[np.ndarray]) -> Sequence[np.ndarray]:
    return run_program(program, arrays, order)


@pytest.mark.parametrize(
    ("name", "target"), [*zip(NAMES, ("opencl", "mali-t860")), *((name, "cuda-sm90") for name in NAMES)]
)
def test_the_loops_mean_the_convolution(name, target):
    """With the smallest tiles of the product, whose configs `test_tiles` draws."""
    for item in items(SMALL, target, [name]):
        program = scheduled(item.task, Least())
        verify(program)
        for order in loops_interpreter.ORDERS:
            check(item, partial(interpreted, program, order))


def test_awkward_shapes(every_device):
    check_all(items(CASES, every_device.name), every_device.name)


def test_drawn_configs(device):
    rng = Random(1)
    check_all(items(CASES[1::2], device.name), device.name, lambda: Drawn(rng))


def test_oclgrind_finds_no_races(opencl, require_tool, tmp_path):
    program = Path(require_tool("oclgrind"))
    assert report(program, tmp_path, "-m", "tests.gpu.test_winograd") == ""


@pytest.mark.parametrize(
    "case",
    [
        Case(16, 32, (8, 8), strides=(2, 2)),
        Case(16, 32, (8, 8), dilations=(2, 2)),
        Case(16, 32, (8, 8), (5, 5)),
        Case(16, 32, (8, 8), (1, 3)),
        Case(16, 32, (8, 8), group=2),
    ],
)
def test_other_convolutions_are_refused(case):
    assert not items([case], "opencl")


def offered(accuracy: float, kind: str) -> set[str]:
    _, w, bias, _ = arrays_of(CASES[1])
    graph = graph_of(CASES[1], w, bias)
    return {d.algorithm for d in alternatives(graph, graph.nodes[0], 4, accuracy, kind)} & set(NAMES)


def test_only_plans_for_gpus_that_allow_the_error_may_choose_it():
    assert offered(1e-5, "gpu") == set(NAMES)
    assert offered(3e-6, "gpu") == {"gpu_winograd2"}
    assert offered(1e-6, "gpu") == offered(1e-5, "cpu") == set()


@pytest.mark.parametrize("name", NAMES)
def test_in_a_network(device, name, monkeypatch):
    """Where its cost forces it on a plan, between operators in layouts of their own."""

    def node(self, graph, node, decision):
        if KEPT in (decision.reads, decision.writes):
            return np.inf
        return 0.0 if decision.algorithm == name else 1.0

    monkeypatch.setattr(PredictedGpuCost, "node", node)
    module = pipeline.compile(model := test_plan_layout.network(), target=device.name, cache=False)
    assert module.plan is not None and sum(name in kernel for kernel in module.plan.kernels) == 2 * 3
    x = np.random.default_rng(3).standard_normal((1, 3, 9, 7)).astype(np.float32)
    got = module.run({"x": x})
    for output, want in interpret(import_onnx(model), {"x": x}).items():
        np.testing.assert_allclose(got[output], want, rtol=0, atol=2e-5 * np.abs(want).max())


@pytest.mark.parametrize("name", NAMES)
def test_tiles_and_weights_are_packed_for_it(name):
    """As many products of matrices as points, each of the channels and of all tiles."""
    (item, *_) = items(CASES[2:3], "cuda-sm90", [name])
    n, m = VARIANTS[name].transform.n, VARIANTS[name].m
    tiles = 3 * -(-10 // m) * -(-14 // m)
    assert physical(item)[1].shape == (n * n * 5, 31)
    shapes = [b.shape for b in scheduled(item.task, DefaultConfig()).temps]
    assert shapes == [(n * n, 5, tiles), (n * n, 31, tiles)]


if __name__ == "__main__":
    check_all(items(SMALL, "opencl"), "opencl", Least)
