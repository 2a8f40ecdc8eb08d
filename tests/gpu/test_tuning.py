"""Measuring and tuning on an OpenCL device. In processes of their own: what has used OpenCL cannot fork."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys

import burnish
import numpy as np
import pytest
from burnish.compiler.build_kernel import outline
from burnish.compiler.ir.plan import Copy
from burnish.compiler.kernel_task import DefaultConfig
from burnish.compiler.ops.matmul import MatMul
from burnish.compiler.target import TARGETS, get_target
from burnish.errors import InputError
from burnish.op_tuner.hardware import hardware_of
from burnish.op_tuner.measure import FEW_RUNS, Built, find_gpu, middle, plan_of, require_runnable
from burnish.op_tuner.operands import operands
from onnx import TensorProto, helper, numpy_helper, save

from ..op_tuner.tasks import op_task

MEASURE = """
from dataclasses import replace
from burnish.compiler.kernel_task import DefaultConfig, FixedConfig
from burnish.compiler.ops.matmul import MatMul
from burnish.compiler.target import get_target
from burnish.compiler.templates.gpu import tiles
from burnish.graph_passes.make_tasks import task_of
from burnish.op_tuner.isolate import Candidate, Local
from tests.ops.case import Case, build_graph

graph = build_graph(Case(MatMul(), ("f32[33,40]", "f32[40,24]")))
task = task_of(graph, graph.nodes[0], get_target("opencl"), 1)
local = Local(1, seconds=0.001, evict=1 << 16)

def measured(config=None):
    (_, result), = local([Candidate(task, config or DefaultConfig())])
    print(result.error, result.runs, result.seconds > 0, result.detail)

measured()
measured(FixedConfig({"lane": 3}))
right = tiles._Builder.add
tiles._Builder.add = lambda self, *at: replace(right(self, *at), value=right(self, *at).value * 2)
measured()
tiles._Builder.add = right
tiles.tiled = lambda *args: 1 / 0
measured()
"""


def model() -> bytes:
    w = np.random.default_rng(0).standard_normal((48, 40)).astype(np.float32)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (32, 48))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (32, 40))
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(w, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(*command: str) -> str:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=240)
    assert not done.returncode, done.stderr
    return done.stdout


def test_outcomes(opencl):
    right, rejected, wrong, failed = run("-c", MEASURE).splitlines()
    assert right.split()[0] == "None" and int(right.split()[1]) >= FEW_RUNS and right.split()[2] == "True"
    assert rejected.startswith("rejected") and "lane=3" in rejected
    assert wrong.startswith("wrong") and failed.startswith("build")


def test_tuning_names_the_device_and_compiling_takes_its_configs(opencl, tmp_path):
    path, records = tmp_path / "product.onnx", tmp_path / "records.jsonl"
    save(model(), path)
    how = ("--target", "opencl", "--records", str(records))
    text = run("-m", "burnish", "tune", str(path), *how, "--trials", "4", "--strategy", "random")
    assert "matmul" in text and "tiles" in text
    made = [json.loads(line) for line in records.read_text().splitlines()]
    times = [r for r in made if r.get("seconds")]
    assert len(times) >= 2 and all(opencl in r["hardware"]["cpu"] for r in times)
    x = np.random.default_rng(1).standard_normal((32, 48)).astype(np.float32)
    module = burnish.compile(path, target="opencl", records=records)
    want = burnish.compile(path).run({"x": x})["y"]
    np.testing.assert_allclose(module.run({"x": x})["y"], want, atol=1e-4)


def test_hardware_is_the_device(opencl):
    found = hardware_of(get_target("opencl"))
    assert opencl in found.cpu and "driver" in found.cpu and found.core == "opencl"


def test_a_process_that_has_used_opencl_does_not_measure(opencl):
    with pytest.raises(InputError, match="this process has used OpenCL"):
        require_runnable(get_target("opencl"))


def test_copies_pass_through_the_caches_before_a_kernel():
    task = op_task(MatMul(), "f32[16,24]", "f32[24,20]", target=TARGETS["cuda-sm80"])
    kernel, given = outline(task, DefaultConfig()), operands(task)
    sizes = tuple(a.nbytes for a in given.arrays)
    plan = plan_of(task.target, Built(kernel, sizes, {}), given, 1, evict=1 << 20)
    copies = [step for step in plan.steps if isinstance(step, Copy)]
    inputs = [io.type.nbytes for io in plan.inputs]
    assert [c.source.nbytes for c in copies] == [1 << 19, *inputs] and inputs
    assert plan.steps[: len(copies)] == tuple(copies) and not any(c.node for c in copies)
    written = sorted((c.target.offset, c.target.end) for c in copies)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(written))
    plan = plan_of(task.target, Built(kernel, sizes, {}), given, 1, evict=0)
    assert plan.steps and not any(isinstance(step, Copy) for step in plan.steps)


@pytest.mark.parametrize(("target", "named"), [("cuda-sm80", 1), ("opencl", 6)])
def test_what_is_repeated_stands_between_two_events_of_cuda(target, named):
    task = op_task(MatMul(), "f32[8,4096]", "f32[4096,9]", target=TARGETS[target])
    kernel, given = outline(task, DefaultConfig()), operands(task)
    assert len(kernel.steps) == 2  # the sum is split
    sizes = tuple(a.nbytes for a in given.arrays)
    plan = plan_of(task.target, Built(kernel, sizes, {}), given, 1, evict=0, turns=(0, 1, 0))
    assert [step.kernel for step in plan.steps] == [step.symbol for step in kernel.steps] * 3
    assert [bool(step.node) for step in plan.steps] == [True] * named + [False] * (6 - named)


def test_a_clock_that_ticks_slowly_tells_of_what_lies_between():
    ticks = [3.0] * 14 + [3.5] * 5 + [40.0]
    assert 3.0 < middle(ticks, TARGETS["cuda-sm90"]) < 3.25
    assert middle(ticks, TARGETS["x86-64-v3"]) == 3.0
    assert middle([2.0], TARGETS["cuda-sm90"]) == 2.0


def test_another_gpu_is_an_error(opencl):
    with pytest.raises(InputError, match="target mali-g76: the OpenCL device of this machine is"):
        find_gpu(TARGETS["mali-g76"])


def test_bench_says_which_device(opencl):
    how = ("--target", "opencl", "--against", "none", "--threads", "1", "--rounds", "1")
    text = run("-m", "burnish", "bench", "digits", *how)
    assert f"device {opencl}" in text and "implicit_gemm" in text
