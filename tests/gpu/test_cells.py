"""Recurrent cells, a kernel a step: what the loops mean, on a driver, under oclgrind."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from burnish.compiler.build_kernel import generate
from burnish.compiler.kernel_task import DefaultConfig
from burnish.compiler.lower.lower import lower
from burnish.compiler.ops.recurrence import GruRecurrence, LstmRecurrence, RnnRecurrence
from burnish.compiler.target import TARGETS
from burnish.compiler.templates.gpu.cells import params, sizes
from burnish.graph_passes.make_tasks import task_of

from ..ops.case import Case, all_cases, build_graph
from .cases import Drawn, check_all, check_meaning
from .oclgrind import report


def case(op, steps: int, batch: int, hidden: int) -> Case:
    width = type(op).gates * hidden
    spec = f"f32[{steps},{batch},{width}]", f"f32[{width},{hidden}]"
    return Case(op, spec, low=-0.5, high=0.5, widen=40)


SMALL = [c for c in all_cases() if c.op.name.endswith("Recurrence") and c.op.name[:6] != "Packed"]
CASES = [
    case(LstmRecurrence(), 3, 1, 129),
    case(LstmRecurrence(reverse=True), 4, 5, 64),
    case(LstmRecurrence(), 1, 9, 1),
    case(GruRecurrence(), 5, 2, 67),
    case(GruRecurrence(linear_before_reset=True), 2, 17, 40),
    case(RnnRecurrence(), 7, 1, 300),
]


@pytest.mark.parametrize("target", ["opencl", "mali-t860", "cuda-sm90"])
@pytest.mark.parametrize("n", [1, 2, 8, 9, 13])
def test_the_loops_mean_the_recurrence(n, target):
    check_meaning(SMALL[n], TARGETS[target], "cells", configs=2)


def test_awkward_shapes(device):
    check_all([SMALL[4], SMALL[9], SMALL[13], *CASES], device, only="cells")


def test_drawn_configs(device):
    rng = Random(1)
    check_all([SMALL[8], *CASES[::2]], device, lambda: Drawn(rng), "cells")


def test_oclgrind_finds_no_races(opencl, require_tool, tmp_path):
    program = Path(require_tool("oclgrind"))
    assert report(program, tmp_path, "-m", "tests.gpu.test_cells") == ""


def test_all_steps_are_the_same_kernels():
    graph = build_graph(case(GruRecurrence(), 101, 1, 5))
    task = task_of(graph, graph.nodes[0], TARGETS["opencl"], 1)
    steps = generate(lower(task, DefaultConfig()), task.target).steps
    assert len(steps) == 1 + 2 * 101
    assert len({step.symbol for step in steps}) == 5


@pytest.mark.parametrize("size", [(35, 1, 650), (35, 16, 650), (10, 3, 7), (2, 64, 2048)])
@pytest.mark.parametrize("target", ["opencl", "mali-t860", "mali-g76", "amd-rdna3", "cuda-sm90"])
def test_the_default_stays_within_the_targets_limits(size, target):
    graph = build_graph(case(LstmRecurrence(), *size))
    task, gpu = task_of(graph, graph.nodes[0], TARGETS[target], 1), TARGETS[target].gpu
    p, n = params(task, DefaultConfig()), sizes(task)
    threads, sums = p.units * p.shares, n.gates * p.units * p.rows
    assert threads <= gpu.block_threads
    assert n.gates * p.rows + (n.gates + p.rows) * p.lane < gpu.registers
    assert (p.shares * (sums | 1) + sums) * 4 <= max(gpu.shared, 16 * 1024)


if __name__ == "__main__":
    check_all([SMALL[2], SMALL[8], CASES[4], case(RnnRecurrence(), 3, 2, 9)], TARGETS["opencl"], only="cells")
