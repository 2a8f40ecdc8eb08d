"""What the code for AArch64 looks like: products take lanes, and register tiles fit the registers."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from burnish import pipeline
from burnish.compiler.build_kernel import kernel_assembly
from burnish.compiler.codegen.llvm_lanes import LaneLoads
from burnish.compiler.codegen.llvm_values import FunctionText
from burnish.compiler.ir.types import F32, I32, DType
from burnish.compiler.kernel_task import DefaultConfig, KernelTask
from burnish.compiler.target import get_target
from burnish.frontends.onnx.importer import import_onnx
from burnish.graph_passes.make_tasks import kernel_tasks
from burnish.models import zoo

from ..compiled import quantised


def loops(assembly: str) -> Iterator[list[str]]:
    """Instructions of every basic block that jumps back to its own begin."""
    blocks = re.split(r"^(\.LBB\w+):", assembly, flags=re.MULTILINE)
    for label, block in zip(blocks[1::2], blocks[2::2]):
        lines = [ln.strip() for ln in block.splitlines() if re.match(r"\t\w", ln)]
        again = re.compile(rf"(b\.|cbn?z|tbn?z).*\t(.*, )?{re.escape(label)}$")
        ends = [n for n, line in enumerate(lines) if again.match(line)]
        if ends:
            yield lines[: ends[0] + 1]


@pytest.mark.parametrize("target", ["cortex-a53", "cortex-a72", "neoverse-n1"])
@pytest.mark.parametrize(("network", "algorithm"), [("c2", "winograd4"), ("c3", "direct"), ("c11", "im2row")])
def test_sums_stay_in_registers_and_factors_are_lanes(target, network, algorithm):
    task = first_convolution(network, target)
    assert task.algorithm == algorithm
    check_loops(task, most_loads=0.3)


@pytest.mark.parametrize("network", ["c1", "mobilenet_v1"])
def test_pixels_side_by_side_are_lanes(network):
    task = first_convolution(network, "cortex-a72")
    assert task.algorithm == "direct" and "p0" not in dict(task.layouts)
    check_loops(task, most_loads=0.15)


def test_products_of_bytes_are_dots_by_lane():
    """Words of x are lanes of one load, as numbers are."""
    machine = get_target("cortex-a76")
    graph = pipeline.optimise(import_onnx(quantised.network(32)), machine, 1)
    tasks = [t for t in kernel_tasks(graph, machine, 1).values() if t.name.startswith("dotconv")]
    dense, _, _ = tasks
    dots = 0
    for lines in loops(kernel_assembly(dense, DefaultConfig())):
        own = [line for line in lines if line.startswith("sdot")]
        assert all(re.search(r"\.4b\[[0-3]\]$", line) for line in own)
        assert not own or not [line for line in lines if "[sp" in line]
        dots += len(own)
    assert dots >= 32


def first_convolution(network: str, target: str) -> KernelTask:
    machine = get_target(target)
    graph = pipeline.optimise(import_onnx(zoo.build(network)), machine, 1)
    tasks = kernel_tasks(graph, machine, 1).values()
    return next(t for t in tasks if t.name.startswith("conv"))


def check_loops(task: KernelTask, most_loads: float) -> None:
    """Of all loops over products: no sum leaves its register, loads for one product are so few."""
    inner = list(loops(kernel_assembly(task, DefaultConfig())))
    sums = [lines for lines in inner if len(products(lines)) >= 32]
    assert sums
    for lines in sums:
        assert not [line for line in lines if "[sp" in line]
        loads = [line for line in lines if re.match(r"ld[rpu]", line)]
        assert len(loads) <= most_loads * len(products(lines))


def products(lines: list[str]) -> list[str]:
    """Multiply-adds by a lane; transforms have others."""
    return [line for line in lines if re.match(r"fmla\t.*\.s\[[0-3]\]$", line)]


def joined(loads: list[tuple[str, str, int, DType]], stores: dict[int, str] | None = None) -> int:
    """How many vector loads become of scalar ones, given as (buffer, pointer, offset, type)."""
    fn = FunctionText()
    noted = LaneLoads(fn, 128)
    for n, (buffer, pointer, offset, dtype) in enumerate(loads):
        if stores and n in stores:
            noted.stored(stores[n])
        value = fn.assign(f"load of {pointer} {offset}", dtype)
        noted.note(buffer, pointer, offset, dtype, value.text)
    noted.join()
    text = "\n".join(fn.lines)
    assert text.count("load of") + text.count("extractelement") == len(loads)
    return text.count("load <4 x float>")


def test_neighbours_are_loaded_together():
    row = [("x", "%p", n, F32) for n in (3, 1, 2, 0)]
    assert joined(row) == 1
    assert joined([*row, *row]) == 1
    assert joined([("x", "%p", n, F32) for n in range(11)]) == 3
    assert joined([("x", "%p", n, F32) for n in (0, 1, 2, 3, 4, 7, 9, 10, 11, 12, 14)]) == 3
    assert joined(row[:3]) == 0
    assert joined([("x", "%p", 2 * n, F32) for n in range(8)]) == 0
    assert joined([("x", f"%p{n % 2}", n, F32) for n in range(8)]) == 0
    assert joined([("x", "%p", n, I32) for n in range(4)]) == 0


def test_a_store_between_loads_keeps_them_apart():
    row = [("x", "%p", n, F32) for n in range(4)]
    assert joined(row, {2: "x"}) == 0
    assert joined(row, {2: "y"}) == 1
    assert joined([*row, *row], {4: "x"}) == 2
