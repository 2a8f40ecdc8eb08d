"""Measuring and tuning for CUDA on the fake driver, in processes of their own: CUDA survives no fork."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from burnish.compiler.cuda_device import CudaDevice
from burnish.compiler.target import TARGETS
from burnish.errors import InputError
from burnish.op_tuner import hardware, measure
from onnx import TensorProto, helper, numpy_helper, save

from .test_tuning import MEASURE

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
    assert all(r["hardware"]["cpu"] == "Fake A100, sm_80, driver CUDA 12.4" for r in times)
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
    assert text.splitlines() == ["Fake A100, sm_80, driver CUDA 12.4", str(loaded)]


def test_a_process_that_has_used_cuda_does_not_measure(driver, monkeypatch):
    monkeypatch.setattr(measure, "find_cuda_device", lambda: DEVICE)
    with pytest.raises(InputError, match="this process has used CUDA"):
        measure.require_runnable(TARGETS["cuda-sm80"])
