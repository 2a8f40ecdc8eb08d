"""Recurrent cells, a kernel a step or one for all: what the loops mean, on a driver, under oclgrind."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from burnish.compiler.build_kernel import generate
from burnish.compiler.kernel_task import DefaultConfig, KernelTask
from burnish.compiler.lower.lower import lower, scheduled
from burnish.compiler.ops.recurrence import GruRecurrence, LstmRecurrence, RnnRecurrence
from burnish.compiler.target import TARGETS, Target, get_target
from burnish.compiler.templates.gpu.cells import params, sizes
from burnish.graph_passes.gpu_time import ALL_MEET, program_time
from burnish.graph_passes.make_tasks import task_of

from ..ops.case import Case, all_cases, build_graph
from .cases import Drawn, check_all, check_meaning
from .device import waiting
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


class Stepwise(DefaultConfig):
    def choose(self, knob, options, default):
        return super().choose(knob, options, False if knob == "resident" else default)


def task(recurrence: Case, target: Target | str) -> KernelTask:
    graph = build_graph(recurrence)
    return task_of(graph, graph.nodes[0], get_target(target), 1)


SM80, SM90 = waiting("cuda-sm80"), waiting("cuda-sm90")


RESIDENT = [c for c in CASES if params(task(c, SM80), DefaultConfig()).resident]


@pytest.mark.parametrize("target", [*map(get_target, ("opencl", "mali-t860")), SM90], ids=lambda t: t.name)
@pytest.mark.parametrize("n", [1, 2, 8, 9, 13])
def test_the_loops_mean_the_recurrence(n, target):
    check_meaning(SMALL[n], target, "cells", configs=2)


def test_awkward_shapes(device):
    check_all([SMALL[4], SMALL[9], SMALL[13], *CASES], device, only="cells")


def test_drawn_configs(device):
    rng = Random(1)
    check_all([SMALL[8], *CASES[::2]], device, lambda: Drawn(rng), "cells")


def test_weights_stay_where_blocks_may_wait_for_each_other():
    assert len(RESIDENT) == len(CASES) - 1  # one step has nobody to wait for
    for n in CASES:
        for portable in ("opencl", "cuda-sm80"):
            assert not params(task(n, portable), DefaultConfig()).resident
        assert not params(task(n, SM80), Stepwise()).resident
    for size in ((35, 1, 650), (35, 4, 650), (35, 16, 256)):
        assert params(task(case(LstmRecurrence(), *size), SM90), DefaultConfig()).resident
    for size in ((35, 64, 650), (35, 1, 2048)):  # more registers than there are
        assert not params(task(case(LstmRecurrence(), *size), SM90), DefaultConfig()).resident


@pytest.mark.parametrize("config", [DefaultConfig, Stepwise])
def test_both_kinds_on_the_fake_driver(driver, config):
    check_all([SMALL[1], SMALL[4], SMALL[8], SMALL[9], *CASES], SM80, config, only="cells")
    together = driver.calls.count("cuLaunchCooperativeKernel")
    assert together >= len(RESIDENT) if config is DefaultConfig else not together
    assert not driver.alive


def test_drawn_configs_on_the_fake_driver(driver):
    rng = Random(2)
    check_all([SMALL[13], *RESIDENT[::2]], SM80, lambda: Drawn(rng), "cells")


def test_one_launch_is_predicted_to_be_faster_than_many():
    lm = task(case(LstmRecurrence(), 35, 1, 650), SM90)
    resident, stepwise = (
        program_time(scheduled(lm, config), lm.target.gpu) for config in (DefaultConfig(), Stepwise())
    )
    launches = 36 * lm.target.gpu.launch
    assert ALL_MEET * launches < resident < 0.8 * stepwise and stepwise > launches


def test_oclgrind_finds_no_races(opencl, require_tool, tmp_path):
    program = Path(require_tool("oclgrind"))
    assert report(program, tmp_path, "-m", "tests.gpu.test_cells") == ""


def test_all_steps_are_the_same_kernels():
    gru = task(case(GruRecurrence(), 101, 1, 5), "opencl")
    steps = generate(lower(gru, DefaultConfig()), gru.target).steps
    assert len(steps) == 1 + 2 * 101
    assert len({step.symbol for step in steps}) == 5


@pytest.mark.parametrize("size", [(35, 1, 650), (35, 16, 650), (10, 3, 7), (2, 64, 2048), (2, 2000, 8)])
@pytest.mark.parametrize("target", ["opencl", "mali-t860", "mali-g76", "amd-rdna3", "cuda-sm90", SM90])
def test_the_default_stays_within_the_targets_limits(size, target):
    lstm, gpu = task(case(LstmRecurrence(), *size), target), get_target(target).gpu
    p, n = params(lstm, DefaultConfig()), sizes(lstm)
    threads, sums = p.units * p.shares, n.gates * p.units * p.rows
    assert threads <= gpu.block_threads
    held = 0
    if p.resident:
        held = n.gates * -(-n.hidden // (p.shares * p.lane)) * p.lane
        assert -(-n.hidden // p.units) * -(-n.batch // p.rows) <= gpu.units
        assert threads * gpu.registers <= 1 << 16 and (threads < 32 or threads % 32 == 0)
    assert held + n.gates * p.rows + (n.gates + p.rows) * p.lane < gpu.registers
    assert (p.shares * (sums | 1) + sums) * 4 <= max(gpu.shared, 16 * 1024)


if __name__ == "__main__":
    check_all([SMALL[2], SMALL[8], CASES[4], case(RnnRecurrence(), 3, 2, 9)], TARGETS["opencl"], only="cells")
