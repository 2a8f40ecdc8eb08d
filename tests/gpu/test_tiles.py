"""Sums of products by tiles: what the loops mean, on a driver, and under oclgrind."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from burnish.compiler.build_kernel import build_kernel
from burnish.compiler.ir.scalar import Load, Var, const, lt, select
from burnish.compiler.ir.types import F16, F32, I64, Layout
from burnish.compiler.kernel_task import DefaultConfig, FixedConfig
from burnish.compiler.lower.lower import scheduled
from burnish.compiler.ops.conv import Conv
from burnish.compiler.ops.matmul import Einsum, MatMul
from burnish.compiler.target import TARGETS
from burnish.compiler.templates.gpu import staging
from burnish.compiler.templates.gpu.product import main_product
from burnish.compiler.templates.gpu.staging import MOST_BLOCKS, is_copy
from burnish.compiler.templates.gpu.tiles import params, shared_shapes
from burnish.graph_passes.make_tasks import task_of
from burnish.workloads import planned

from ..ops.case import Case, build_graph
from .cases import Drawn, check_all, check_meaning
from .oclgrind import report
from .test_copies import model
from .test_tensor_cores import prefer

SMALL = [
    Case(MatMul(), ("f32[5,11]", "f32[11,7]"), widen=20),
    Case(Conv((2, 1), (0, 1, 1, 0), (1, 2), 1), ("f32[1,2,5,6]", "f32[3,2,3,2]"), widen=20),
]
"""For the interpreter, which takes a microsecond an operation."""
LAST = Layout((0, 2, 3, 1))
INNER = [
    Case(Conv((1, 1), (1, 1, 0, 1), (1, 1), 1), ("f32[1,32,7,5]", "f32[13,32,3,2]"), widen=80),
    Case(Conv((2, 1), (0, 0, 0, 0), (1, 1), 1), ("f32[2,64,5,3]", "f32[9,64,2,2]", "f32[9]"), widen=80),
]
LONG = Case(MatMul(), ("f32[3,71]", "f32[71,5]"), "whose sum may be split", widen=40)
CASES = [
    LONG,
    Case(MatMul(), ("f32[37,129]", "f32[129,67]"), widen=100),
    Case(MatMul(trans_a=True), ("f32[64,31]", "f32[64,97]"), widen=60),
    Case(MatMul(trans_b=True), ("f32[2,300]", "f32[133,300]"), widen=200),
    Case(MatMul(), ("f32[2,3,17,33]", "f32[3,33,19]"), "batches", widen=40),
    Case(MatMul(), ("f16[33,16]", "f16[16,40]"), widen=4),
    Case(MatMul(), ("i32[16,64]", "i32[64,16]"), low=-1000, high=1000),
    Case(Einsum("bhqd,bhkd->bhqk"), ("f32[2,3,9,16]", "f32[2,3,13,16]"), widen=20),
    Case(Conv((1, 1), (1, 1, 1, 1), (1, 1), 1), ("f32[2,17,9,11]", "f32[13,17,3,3]", "f32[13]"), widen=80),
    Case(Conv((2, 3), (3, 0, 2, 1), (1, 2), 1), ("f32[1,5,13,17]", "f32[19,5,5,2]"), widen=80),
    Case(Conv((1, 1), (0, 0, 0, 0), (1, 1), 2), ("f32[1,8,6,7]", "f32[6,4,1,1]"), "groups", widen=20),
    Case(Conv((2,), (1, 2), (3,), 1), ("f32[3,6,40]", "f32[10,6,4]"), widen=40),
]
VECTORS = [
    Case(MatMul(), ("f32[24,33]", "f32[33,36]"), widen=40),
    Case(MatMul(trans_a=True), ("f32[70,20]", "f32[70,44]"), widen=60),
    Case(MatMul(trans_a=True), ("f32[2,5,12]", "f32[2,5,4]"), "batches", widen=20),
    Case(Conv((1, 1), (1, 0, 1, 0), (1, 1), 1), ("f32[2,6,7,8]", "f32[20,6,3,1]"), "guarded", widen=40),
]
"""Factors of which four neighbours are read at once."""


@pytest.mark.parametrize("target", ["opencl", "mali-t860", "cuda-sm80"])
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.op.name)
def test_the_loops_mean_the_product(case, target):
    check_meaning(case, TARGETS[target], "tiles")


def test_the_loops_mean_the_product_on_channels_last():
    case = Case(Conv((1, 1), (1, 0, 0, 0), (1, 1), 1), ("f32[1,8,3,3]", "f32[8,8,2,1]"), widen=40)
    check_meaning(case, TARGETS["cuda-sm80"], "tiles", layout=LAST)


def test_awkward_shapes(every_device):
    check_all(CASES, every_device, only="tiles")


@pytest.mark.parametrize("target", ["mali-t860", "mali-g76"])
def test_vectors_of_neighbours(opencl, target):
    rng = random.Random(3)
    check_all(VECTORS, TARGETS[target], only="tiles")
    check_all(VECTORS, TARGETS[target], lambda: Drawn(rng), "tiles")
    check_meaning(Case(MatMul(trans_a=True), ("f32[7,4]", "f32[7,12]"), widen=20), TARGETS[target], "tiles")


@pytest.mark.parametrize("pixels, kinds", [(64, {"const float4 *", "float4 *"}), (63, {"const float4 *"})])
def test_neighbours_are_read_and_written_by_vectors(pixels, kinds):
    """Where no vector is half outside: weights always, data and results where rows are whole vectors."""
    wanted = model("Conv", (1, 48, pixels, pixels), (64, 48, 1, 1))
    (found,) = planned("model", wanted, TARGETS["mali-g76"], 1)
    source = build_kernel(found.task, DefaultConfig(), "k").object.decode()
    assert set(re.findall(r"(?:const |\b)float4 \*|\bv(?:load|store)4", source)) == kinds


def test_whole_steps_along_inner_axes(device):
    """Channels last: a step's terms are of one place of the window, and more than one step's."""
    rng = random.Random(2)
    for config in (DefaultConfig, lambda: Drawn(rng), lambda: Drawn(rng)):
        check_all(INNER, device, config, "tiles", layout=LAST)


def test_drawn_configs(device):
    rng = random.Random(1)
    check_all(CASES[::2], device, lambda: Drawn(rng), "tiles")


def test_grids_beyond_cudas_limits_are_of_one_axis(device, monkeypatch):
    for size in ("f32[70000,8,8]", "f32[4000000,16]"):
        graph = build_graph(Case(MatMul(), (size, size.replace("4000000,16", "16,8"))))
        task = task_of(graph, graph.nodes[0], TARGETS["cuda-sm80"], 1)
        (step,) = build_kernel(replace(task, algorithm="tiles"), DefaultConfig(), "k").steps
        blocks, *others = step.launch.grid
        assert others == [1, 1] and blocks > MOST_BLOCKS
    monkeypatch.setattr(staging, "MOST_BLOCKS", 1)
    check_all(CASES, device, only="tiles")
    check_meaning(SMALL[0], TARGETS["cuda-sm80"], "tiles")


@pytest.mark.parametrize("reads", [None, LAST])
def test_what_is_added_to_a_sum_joins_its_kernel_in_any_layout(monkeypatch, reads):
    prefer("implicit_gemm", monkeypatch, reads)
    residual = model("Conv", (1, 16, 9, 9), (16, 16, 3, 3), pads=[1, 1, 1, 1])
    residual.graph.node[0].output[0] = "sum"
    residual.graph.node.add(op_type="Add", input=["sum", "x"], output=["y"])
    (found,) = (w.task for w in planned("residual", residual, TARGETS["cuda-sm80"], 1) if w.task.op.algorithm)
    assert len(scheduled(found, FixedConfig({"parts": 1})).body) == 1


def test_what_reads_memory_to_find_its_place_is_no_copy():
    i, zero = Var("i"), const(0.0, F32)
    assert is_copy(select(lt(i, 3), Load("x", (i,), F32), zero))
    assert not is_copy(select(lt(i, 3), Load("x", (Load("at", (i,), I64),), F32), zero))
    assert not is_copy(select(lt(i, 3), Load("x", (i,), F16), const(0.0, F16)))
    assert not is_copy(select(lt(Load("mask", (i,), F32), zero), Load("x", (i,), F32), zero))


def test_oclgrind_finds_no_races(opencl, require_tool, tmp_path):
    program = Path(require_tool("oclgrind"))
    assert report(program, tmp_path, "-m", "tests.gpu.test_tiles") == ""


@pytest.mark.parametrize("size", [(8, 64, 4096), (512, 512, 512), (2, 3, 100000), (4096, 4096, 16)])
@pytest.mark.parametrize("target", ["opencl", "mali-t860", "mali-g76", "amd-rdna3", "cuda-sm90"])
def test_the_default_stays_within_the_targets_limits(size, target):
    m, n, k = size
    graph = build_graph(Case(MatMul(), (f"f32[{m},{k}]", f"f32[{k},{n}]")))
    gpu = TARGETS[target].gpu
    task = task_of(graph, graph.nodes[0], TARGETS[target], 1)
    p = params(task, DefaultConfig())
    product = main_product(task)
    assert product is not None
    rows, columns = p.tile.block
    elements = p.tile.elements[0] * p.tile.elements[1]
    assert p.tile.threads[0] * p.tile.threads[1] <= gpu.block_threads
    assert elements + sum(p.tile.elements) < gpu.registers
    shapes = shared_shapes(product, p.tile, p.depth, p.terms)
    assert not p.shared or 4 * p.stages * sum(a * b for a, b in shapes) <= gpu.shared
    assert -(-m // rows) * -(-n // columns) * p.parts >= min(gpu.units, m * n * k // 2**14) / 2


if __name__ == "__main__":
    check_all([SMALL[0], CASES[8]], TARGETS["opencl"], only="tiles")
    check_all(SMALL, TARGETS["mali-t860"], only="tiles")
    check_all([LONG], TARGETS["opencl"], lambda: FixedConfig({"parts": 2}), "tiles")
