"""Measuring and tuning for CUDA on the fake driver, in processes of their own: CUDA survives no fork."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import burnish
import numpy as np
import pytest
from burnish import network_turns
from burnish.compiler import cuda_device, target
from burnish.compiler.cuda_device import CudaDevice
from burnish.compiler.ops.matmul import MatMul
from burnish.compiler.target import TARGETS, get_target
from burnish.errors import InputError, NoMemoryError, ToolError
from burnish.models import zoo
from burnish.op_tuner import hardware, measure
from burnish.op_tuner.costs import PASSING
from onnx import TensorProto, helper, numpy_helper, save

from ..op_tuner.tasks import op_task
from .test_tuning import MEASURE

FAKE = f"Fake A100, sm_80, driver {cuda_device._kernel_module()}CUDA 12.4"
DEVICE = CudaDevice("NVIDIA A100", "550.54.14, CUDA 12.4", 80, 108, 1410, 1215, "0000:01:00.0")


@pytest.fixture
def run(fake_gpu):
    def run(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, timeout=240, env=fake_gpu
        )
        assert not done.returncode, done.stderr
        return done.stdout

    return run


def test_outcomes(run):
    right, rejected, wrong, failed = run("-c", MEASURE.replace('"opencl"', '"cuda-sm80"')).splitlines()
    assert right.split()[0] == "None" and int(right.split()[1]) >= 3 and right.split()[2] == "True"
    assert rejected.startswith("rejected") and "lane=3" in rejected
    assert wrong.startswith("wrong") and failed.startswith("build")


STANDING = """
import os, signal, time
from dataclasses import replace
from burnish.compiler.kernel_task import DefaultConfig
from burnish.compiler.ops.matmul import MatMul
from burnish.compiler.target import get_target
from burnish.op_tuner import isolate
from burnish.op_tuner.isolate import Candidate, Local
from tests.op_tuner.tasks import op_task

right = isolate.run
DIES, HANGS, WRONG = 1.0, 2.0, 3.0

def run(task, built, *, beat, **how):
    if beat == DIES:
        os.kill(os.getpid(), signal.SIGSEGV)
    if beat == HANGS:
        time.sleep(60)
    result = right(task, built, **how)
    return replace(result, detail=f"by {os.getpid()}", error="wrong" if beat == WRONG else result.error)

isolate.run = run
task = op_task(MatMul(), "f32[33,40]", "f32[40,24]", target=get_target("cuda-sm80"))
local = Local(1, seconds=0.001, time_limit=10)

def measured(*beats, built=None, alone=False):
    candidates = [Candidate(task, DefaultConfig(), beat, built) for beat in beats]
    found = sorted(local(candidates, alone), key=lambda pair: pair[0])
    print(*(f"{r.error} {r.detail}" for _, r in found), sep=";")
    return found[0][1].built

usual = float("inf")
built = measured(usual)
measured(usual, usual, DIES, usual, WRONG, usual, usual, built=built)
local.time_limit = 2
measured(usual, HANGS, usual, built=built, alone=True)
try:
    os.waitpid(-1, os.WNOHANG)
    print("a process is left")
except ChildProcessError:
    print("none is left")
"""


def test_one_process_measures_until_a_candidate_spoils_it(run):
    lines = run("-c", STANDING).splitlines()
    first, again = (line.split(";") for line in lines[1:3])
    assert [found.split()[0] for found in first] == ["None", "None", "crash", "None", "wrong", "None", "None"]
    assert first[2].endswith("SIGSEGV")
    by = [first[0], first[3], first[5]]
    assert first[1] == by[0] and first[4].split()[-1] == by[1].split()[-1] and first[6] == by[2]
    assert [found.split()[0] for found in again] == ["None", "timeout", "None"]
    assert len({*by, again[0], again[2]}) == 5, "five processes"
    assert lines[0].startswith("None by ") and lines[3] == "none is left"


def test_a_gpu_that_is_not_there_is_no_failure_of_the_candidate(monkeypatch):
    def gone(*arguments):
        raise ToolError("the driver offers none")

    monkeypatch.setattr(measure, "_Runner", gone)
    task = op_task(MatMul(), "f32[4,5]", "f32[5,6]", target=get_target("cuda-sm80"))
    result = measure.run(task, measure.Built(None, (), {}), threads=1)
    assert result.error in PASSING and "offers none" in result.detail


def test_recurrences_of_blocks_that_wait_have_records_of_their_own():
    apart = get_target("cuda-sm90")
    together = replace(apart, gpu=replace(apart.gpu, together=True))
    for algorithm, same in (("cells", False), ("tiles", True)):
        a, b = (
            replace(op_task(MatMul(), "f32[4,5]", "f32[5,6]", target=t), algorithm=algorithm)
            for t in (apart, together)
        )
        assert (a.digest == b.digest) is same


@pytest.fixture
def product(tmp_path):
    """A file with a matrix product."""
    path = tmp_path / "product.onnx"
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (16, 24))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (16, 20))
    w = np.random.default_rng(0).standard_normal((24, 20)).astype(np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(w, "w")])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return str(path)


def test_tuning_names_the_gpu_and_its_driver(run, product, tmp_path):
    records = tmp_path / "records.jsonl"
    how = ("--target", "cuda-sm80", "--records", str(records))
    text = run("-m", "burnish", "tune", product, *how, "--trials", "3", "--strategy", "random")
    assert "matmul" in text and "tiles" in text
    made = [json.loads(line) for line in records.read_text().splitlines()]
    times = [r for r in made if r.get("seconds")]
    assert len(times) >= 2
    assert {r["hardware"]["cpu"] for r in times} == {FAKE}
    run("-m", "burnish", "compile", product, *how, "-o", str(tmp_path / "product.so"))


def test_measured_plans_are_benched_beside_predicted_ones(run, product, tmp_path):
    records, table = tmp_path / "records.jsonl", tmp_path / "table.json"
    how = ("--target", "cuda-sm80", "--records", str(records), "--against", "none", "--rounds", "3")
    run("-m", "burnish", "bench", product, *how, "--measure", "--json", str(table))
    rows = json.loads(table.read_text())["groups"][0]["rows"]
    assert [row["contestant"] for row in rows] == ["burnish", "burnish-measured"]
    assert [row["reason"] for row in rows] == [None, None]
    assert all(row["median_seconds"] for row in rows)
    assert records.read_text()


def test_the_fingerprint_has_the_gpus_name_and_driver(monkeypatch):
    monkeypatch.setattr(hardware, "find_cuda_device", lambda: DEVICE)
    found = hardware.hardware_of(TARGETS["cuda-sm80"])
    assert found.cpu == "NVIDIA A100, sm_80, driver 550.54.14, CUDA 12.4"
    assert found.core == "cuda" and found.cores == 108
    monkeypatch.setattr(hardware, "find_cuda_device", lambda: None)
    assert hardware.hardware_of(TARGETS["cuda-sm90"]).cpu == "sm_90"


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024", "550.54.14, "),
        ("NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (root@b)", "580.159.04, "),
        ("something else", ""),
    ],
)
def test_the_version_of_the_drivers_part_in_the_kernel(tmp_path, monkeypatch, line, version):
    path = tmp_path / "version"
    path.write_text(f"NVRM version: {line}\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n")
    monkeypatch.setattr(cuda_device, "_VERSION", path)
    assert cuda_device._kernel_module() == version


def test_a_gpu_elsewhere_gets_what_it_would_make_itself(monkeypatch):
    monkeypatch.setattr(target, "find_cuda_device", lambda: DEVICE)
    assert get_target("cuda-sm80:108") == get_target("cuda") != get_target("cuda-sm80")
    assert get_target("cuda-sm80:107") != get_target("cuda")


@pytest.mark.parametrize(
    "name", ["cuda-sm80:", "cuda-sm80:0", "cuda-sm80:1e2", "cuda:108", "x86-64-v3:2", ":108"]
)
def test_units_that_are_none(name):
    with pytest.raises(InputError, match="also its units: cuda-sm90:132"):
        get_target(name)


@pytest.mark.parametrize(
    ("arch", "units", "name"),
    [(None, 0, "cuda-sm90"), (80, 108, "cuda-sm80"), (89, 142, "cuda-sm80"), (100, 148, "cuda-sm90")],
)
def test_cuda_is_the_newest_target_that_the_gpu_runs(monkeypatch, arch, units, name):
    found = None if arch is None else replace(DEVICE, arch=arch, units=units)
    monkeypatch.setattr(target, "find_cuda_device", lambda: found)
    whole, made = TARGETS[name], get_target("cuda")
    if found is None:
        assert made is whole
    else:
        assert made == replace(whole, gpu=replace(whole.gpu, units=units, together=True))


def test_a_gpu_that_is_too_old_is_an_error(monkeypatch):
    monkeypatch.setattr(target, "find_cuda_device", lambda: replace(DEVICE, name="V100", arch=70))
    with pytest.raises(
        InputError, match=r"the GPU of this machine is V100, sm_70, .*; expected one from sm_80 on"
    ):
        get_target("cuda")


def test_memory_that_is_short_is_no_fault_of_a_candidate(monkeypatch):
    """It may be there the next time."""

    def short(*args):
        raise NoMemoryError("CUDA: cuMemAlloc of a context failed with code 2")

    monkeypatch.setattr(measure, "_Runner", short)
    task = op_task(MatMul(), "f32[16,24]", "f32[24,20]", target=TARGETS["cuda-sm80"])
    built = SimpleNamespace(config={})
    found = measure.run(task, built, threads=1)
    assert (found.error, found.config) == ("memory", {})


@pytest.mark.parametrize(
    ("device", "message"),
    [
        (None, r"has no NVIDIA GPU to measure on, or no driver of it \(libcuda.so.1\); see nvidia-smi"),
        (DEVICE, "the GPU of this machine is NVIDIA A100, sm_80; measure on one from sm_90 on"),
    ],
)
def test_no_gpu_or_an_older_one_is_an_error(monkeypatch, device, message):
    monkeypatch.setattr(measure, "find_cuda_device", lambda: device)
    with pytest.raises(InputError, match=f"target cuda-sm90: .*{message}"):
        measure.find_gpu(TARGETS["cuda-sm90"])


@pytest.mark.parametrize("loaded", [True, False])
def test_the_driver_is_asked_here_only_if_it_is_in_use_anyway(run, loaded):
    text = run(
        "-c",
        "import ctypes\n"
        "from burnish.compiler.cuda_device import find_cuda_device\n"
        f"{loaded} and ctypes.CDLL('libcuda.so.1').cuInit(0)\n"
        "print(find_cuda_device())\n"
        "print('libcuda' in open('/proc/self/maps').read())",
    )
    assert text.splitlines() == [FAKE, str(loaded)]


def test_a_process_that_has_used_cuda_does_not_measure(driver, monkeypatch):
    monkeypatch.setattr(measure, "find_cuda_device", lambda: DEVICE)
    with pytest.raises(InputError, match="this process has used CUDA"):
        measure.require_runnable(TARGETS["cuda-sm80"])


def test_a_network_in_turns_has_one_event_for_a_node():
    plan = burnish.compile(zoo.build("dqn"), target="cuda-sm80").plan
    owners = {step.kernel: step.kernel.partition("_s")[0] for step in plan.steps}
    assert len(set(owners.values())) < len(plan.steps)  # sums in parts have two kernels
    found = network_turns._timed_by_node(plan, owners)
    assert [step.kernel for step in found.steps] == [step.kernel for step in plan.steps]
    named = [step.node for step in found.steps if step.node]
    assert named == list(dict.fromkeys(step.node for step in plan.steps))
