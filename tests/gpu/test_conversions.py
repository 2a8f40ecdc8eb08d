"""Values copied from one layout into another: what the loops mean, on a driver, under oclgrind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from burnish.compiler.ir import loops_interpreter
from burnish.compiler.ir.loops import Program
from burnish.compiler.ir.loops_verifier import verify
from burnish.compiler.ir.types import Layout, TensorType
from burnish.compiler.kernel_task import DefaultConfig
from burnish.compiler.lower.lower import scheduled
from burnish.compiler.target import TARGETS, Target
from burnish.op_tuner.costs import conversion_task

from ..compiled.programs import run_program
from .device import kernels
from .oclgrind import report

PLAIN = Layout((0, 1, 2, 3))
LAYOUTS = [PLAIN, Layout.channel_blocked(4, 4), Layout((0, 2, 3, 1))]
SMALL = ["f32[2,5,3,2]"]
TYPES = [*SMALL, "f32[1,1,1,1]", "f32[1,17,1,9]", "f32[3,8,7,5]"]


@dataclass(frozen=True)
class Copy:
    type: TensorType
    source: Layout
    wanted: Layout
    program: Program


def copies(types: Sequence[str], target: Target) -> Iterator[Copy]:
    for n, spec in enumerate(types):
        for source, wanted in permutations(LAYOUTS, 2):
            type = TensorType.parse(spec)
            layouts = (None if lay == PLAIN else lay for lay in (source, wanted))
            task = conversion_task(type, *layouts, target, 1)
            task = replace(task, name=f"copy{n}_{source}_{wanted}")
            yield Copy(type, source, wanted, scheduled(task, DefaultConfig()))


def check(copy: Copy, run: Callable[[list[np.ndarray]], Sequence[np.ndarray]]) -> None:
    x = np.random.default_rng(0).standard_normal(copy.type.dims).astype(np.float32)
    (y,) = run([copy.source.pack(x)])
    y = y.reshape(copy.wanted.physical_shape(x.shape))
    assert np.array_equal(copy.wanted.unpack(y, x.shape), x), copy.program.name


def check_all(types: Sequence[str], target: Target) -> None:
    found = list(copies(types, target))
    code = kernels([copy.program for copy in found], target)
    for copy in found:
        check(copy, partial(code.run, copy.program.name))


def interpreted(program: Program, order: str, arrays: list[np.ndarray]) -> Sequence[np.ndarray]:
    return run_program(program, arrays, order)


@pytest.mark.parametrize("target", ["opencl", "cuda-sm90"])
@pytest.mark.parametrize("order", loops_interpreter.ORDERS)
def test_the_loops_mean_a_copy(order, target):
    for copy in copies(SMALL, TARGETS[target]):
        verify(copy.program)
        check(copy, partial(interpreted, copy.program, order))


def test_awkward_shapes(device):
    check_all(TYPES, device)


def test_oclgrind_finds_no_races(opencl, require_tool, tmp_path):
    program = Path(require_tool("oclgrind"))
    assert report(program, tmp_path, "-m", "tests.gpu.test_conversions") == ""


if __name__ == "__main__":
    check_all(TYPES, TARGETS["opencl"])
