"""Reductions by blocks of threads: what the loops mean, on a driver, and under oclgrind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from burnish.compiler.kernel_task import DefaultConfig
from burnish.compiler.lower.lower import scheduled
from burnish.compiler.ops.matmul import MatMul
from burnish.compiler.ops.normalization import LayerNormalization
from burnish.compiler.ops.pool import GlobalAveragePool
from burnish.compiler.ops.reduction import ArgReduce, Reduce, Softmax
from burnish.compiler.target import TARGETS

from ..op_tuner.tasks import op_task
from ..ops.case import Case
from .cases import Drawn, check_all, check_meaning
from .oclgrind import report

SMALL = [
    Case(Softmax(1), ("f32[3,37]",), widen=20),
    Case(Reduce("max", (0,)), ("f32[33,3]",)),
    Case(ArgReduce("argmax", 1, True, True), ("i32[2,40]",)),
]
"""For the interpreter, which takes a microsecond an operation."""
CASES = [
    *SMALL,
    Case(Softmax(1), ("f32[5,300,3]",), "in the middle", widen=20),
    Case(Softmax(-1), ("f16[7,65]",), widen=4),
    Case(LayerNormalization(-1, 1e-5), ("f32[9,5,129]", "f32[129]", "f32[129]"), widen=100),
    Case(GlobalAveragePool(), ("f32[2,7,13,11]",), widen=20),
    Case(Reduce("sum", (0, 1, 2), False), ("f32[5,31,7]",), "to one value", widen=200),
    Case(Reduce("prod", (1,)), ("f32[1,64]",), low=0.9, high=1.1, widen=60),
    Case(Reduce("sum", (0, 2)), ("i64[17,6,19]",), low=-(2**40), high=2**40),
    Case(ArgReduce("argmin", 0, False, False), ("f32[100,9]",)),
    Case(MatMul(), ("f32[1,257]", "f32[257,33]"), "row vector", widen=200),
    Case(MatMul(trans_b=True), ("f32[1,257]", "f32[33,257]"), "dot products", widen=200),
    Case(MatMul(), ("f32[31,130]", "f32[130,1]"), "column vector", widen=200),
]


@pytest.mark.parametrize("target", ["opencl", "cuda-sm90"])
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.op.name)
def test_the_loops_mean_the_reduction(case, target):
    check_meaning(case, TARGETS[target], "blocks")


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (Case(Reduce("sum", (0,)), ("f32[4096,40000]",)), {"rows0": 32, "threads0": 8}),
        (Case(MatMul(), ("f32[1,4096]", "f32[4096,1000]")), {"rows0": 8, "threads0": 32}),
        (Case(MatMul(trans_b=True), ("f32[1,4096]", "f32[1000,4096]")), {"rows0": 1, "threads0": 256}),
    ],
    ids=["wide", "few blocks", "rows"],
)
def test_threads_of_a_warp_read_neighbours(case, expected):
    """By default: as many blocks as units, if there are lines of memory for them."""
    task = replace(op_task(case.op, *case.inputs, algorithm="blocks"), target=TARGETS["cuda-sm90"])
    config = DefaultConfig()
    scheduled(task, config)
    assert config.chosen == expected


def test_awkward_shapes(device):
    check_all(CASES, device, only="blocks")


def test_drawn_configs(device):
    rng = Random(1)
    check_all(CASES[3::3], device, lambda: Drawn(rng), "blocks")


def test_oclgrind_finds_no_races(opencl, require_tool, tmp_path):
    program = Path(require_tool("oclgrind"))
    assert report(program, tmp_path, "-m", "tests.gpu.test_blocks") == ""


if __name__ == "__main__":
    check_all([SMALL[0], CASES[5], CASES[11]], TARGETS["opencl"], only="blocks")
