"""Depthwise convolution and pooling by windows: what the loops mean, on a driver, and under oclgrind."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from burnish.compiler.ir.types import Layout
from burnish.compiler.kernel_task import DefaultConfig
from burnish.compiler.ops.conv import Conv
from burnish.compiler.ops.pool import AveragePool, MaxPool
from burnish.compiler.target import TARGETS
from burnish.compiler.templates.gpu.window import main_window, params, patch_size
from burnish.graph_passes.make_tasks import task_of

from ..ops.case import Case, build_graph
from .cases import Drawn, check_all, check_meaning, laid_out
from .oclgrind import report

SMALL = [
    Case(Conv((1, 1), (1, 1, 1, 1), (1, 1), 3), ("f32[1,3,4,5]", "f32[3,1,3,3]", "f32[3]"), widen=20),
    Case(Conv((2, 1), (0, 2, 1, 0), (1, 2), 2), ("f32[2,2,5,6]", "f32[4,1,2,3]"), widen=20),
    Case(MaxPool((2, 3), (2, 1), (0, 1, 0, 1), (1, 1)), ("f32[1,2,5,6]",)),
]
"""For the interpreter, which takes a microsecond an operation."""
CASES = [
    Case(Conv((1, 1), (1, 1, 1, 1), (1, 1), 17), ("f32[2,17,13,11]", "f32[17,1,3,3]", "f32[17]"), widen=20),
    Case(Conv((2, 2), (0, 0, 1, 1), (1, 1), 5), ("f32[1,5,31,29]", "f32[5,1,3,3]"), widen=20),
    Case(Conv((1, 2), (2, 4, 1, 0), (2, 3), 4), ("f32[1,4,19,23]", "f32[8,1,3,2]"), "multiplier", widen=20),
    Case(Conv((1, 1), (3, 3, 3, 3), (1, 1), 6), ("f32[1,6,7,7]", "f32[6,1,7,7]"), widen=50),
    Case(Conv((3,), (1, 2), (1,), 7), ("f32[3,7,40]", "f32[7,1,5]"), widen=20),
    Case(Conv((1, 1), (1, 1, 1, 1), (1, 1), 8), ("f16[1,8,6,7]", "f16[8,1,3,3]"), widen=4),
    Case(AveragePool((3, 3), (2, 2), (1, 1, 1, 1), (1, 1)), ("f32[1,5,13,14]",), widen=20),
    Case(MaxPool((3, 3), (2, 2), (1, 1, 1, 1), (1, 1), True), ("f32[2,3,14,15]",)),
    Case(Conv((1, 1), (64, 64, 64, 64), (64, 64), 2), ("f32[1,2,70,70]", "f32[2,1,3,3]"), "wide", widen=20),
    Case(Conv((1,), (2048, 2048), (2048,), 2), ("f32[1,2,2100]", "f32[2,1,3]"), "long", widen=20),
    Case(MaxPool((3, 3), (1, 1), (60, 60, 60, 60), (60, 60)), ("f32[1,2,64,65]",), "wide"),
]
LAYOUTS = [Layout.channel_blocked(4, 4), Layout((0, 2, 3, 1))]


@pytest.mark.parametrize("target", ["opencl", "mali-t860", "cuda-sm90"])
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.op.name)
def test_the_loops_mean_the_window(case, target):
    check_meaning(case, TARGETS[target], "window")


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_the_loops_mean_the_window_on_layouts(layout):
    check_meaning(SMALL[0], TARGETS["opencl"], "window", layout=layout)


def test_awkward_shapes(every_device):
    check_all(CASES, every_device, only="window")


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_awkward_shapes_on_layouts(device, layout):
    check_all(CASES[:3], device, only="window", layout=layout)


def test_drawn_configs(device):
    rng = Random(1)
    check_all(CASES[::2], device, lambda: Drawn(rng), "window")


def test_oclgrind_finds_no_races(opencl, require_tool, tmp_path):
    program = Path(require_tool("oclgrind"))
    assert report(program, tmp_path, "-m", "tests.gpu.test_window") == ""


@pytest.mark.parametrize("layout", [None, *LAYOUTS], ids=str)
@pytest.mark.parametrize("target", ["opencl", "mali-t860", "mali-g76", "amd-rdna3", "cuda-sm90"])
def test_the_default_stays_within_the_targets_limits(target, layout):
    case = Case(Conv((1, 1), (1, 1, 1, 1), (1, 1), 512), ("f32[1,512,14,14]", "f32[512,1,3,3]"))
    graph, gpu = laid_out(build_graph(case), layout), TARGETS[target].gpu
    task = task_of(graph, graph.nodes[0], TARGETS[target], 1)
    p, w = params(task, DefaultConfig()), main_window(task)
    threads, elements = p.channels, 1
    for t, e in zip(p.threads, p.elements):
        threads, elements = threads * t, elements * e
    assert threads <= gpu.block_threads and elements < gpu.registers
    assert not p.shared or patch_size(w, p) * 4 <= gpu.shared


if __name__ == "__main__":
    check_all([SMALL[1], SMALL[2]], TARGETS["opencl"], only="window")
    check_all(SMALL[:1], TARGETS["opencl"], only="window", layout=LAYOUTS[0])
