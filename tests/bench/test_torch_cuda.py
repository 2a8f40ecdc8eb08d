"""The peers on NVIDIA GPUs, on the CPU and with a torch.cuda that is made up: no GPU is needed."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from burnish.commands import bench_report, cuda_machine, peers
from burnish.commands.bench import BenchResult, Group, Row, _with_speeds, bench
from burnish.commands.cuda_machine import CudaMachine, clocks, measure_with
from burnish.commands.machine import Limits, describe_machine
from burnish.commands.peers import Network, TorchCuda
from burnish.compiler.cuda_device import CudaDevice
from burnish.errors import InputError

from .networks import convolution, convolution_reference

DEVICE = CudaDevice("NVIDIA H200", "550.54.14, CUDA 12.4", 90, 132, 1980, 3201, "0000:05:00.0")


@pytest.fixture
def torch():
    torch = pytest.importorskip("torch")
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    generated = cudnn.fp32_precision
    yield torch
    matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before
    cudnn.fp32_precision = generated


@pytest.fixture
def waits(torch, monkeypatch) -> list[str]:
    """What happened on a GPU that is the CPU; a recorded graph replays what it recorded."""
    log: list[str] = []
    current: list[Graph] = []

    class Graph:
        def replay(self):
            log.append("replay")

    @contextmanager
    def record(graph):
        current.append(graph)
        log.append("record")
        yield
        current.pop()

    def stream(*_):
        wait = lambda: log.append("synchronize")  # noqa: E731
        return SimpleNamespace(wait_stream=lambda other: log.append("wait"), synchronize=wait)

    fake = {
        "CUDAGraph": Graph,
        "graph": record,
        "Stream": stream,
        "current_stream": stream,
        "stream": lambda stream: nullcontext(),
        "empty_cache": lambda: None,
    }
    for name, value in fake.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return log


def run(peer: TorchCuda) -> tuple[dict, object]:
    network = Network("convolution", convolution())
    runner = peer.prepare(network, 1)
    x = np.random.default_rng(1).standard_normal((1, 3, 6, 7), np.float32)
    found = runner.run({"x": x})
    expected = convolution_reference(network.model, x)
    np.testing.assert_allclose(found["y"], expected, atol=peer.tolerance * np.abs(expected).max())
    return {"x": x}, runner


@pytest.mark.parametrize("precision", ["f32", "tf32"])
def test_eager_takes_the_faster_layout_and_sets_its_precision(torch, precision):
    inputs, runner = run(TorchCuda("eager", precision, device="cpu"))
    assert runner.algorithm in ("channels first", "channels last")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "tf32"
    assert runner.time(inputs, 3) > 0
    assert torch.backends.cuda.matmul.allow_tf32 is torch.backends.cudnn.allow_tf32 is (precision == "tf32")
    assert torch.backends.cudnn.fp32_precision == {"f32": "ieee", "tf32": "tf32"}[precision]
    runner.close()


@pytest.mark.parametrize("way", ["compile", "max-autotune"])
def test_compiled_modules_have_inputs_that_stay(torch, monkeypatch, way):
    asked, static = [], []
    monkeypatch.setattr(torch, "compile", lambda module, mode: asked.append(mode) or module)
    monkeypatch.setattr(torch._dynamo, "mark_static_address", static.append)
    inputs, runner = run(TorchCuda(way, device="cpu"))
    assert asked == [None if way == "compile" else "max-autotune"]
    places = [x.data_ptr() for x in runner.inputs]
    runner.time({"x": 2 * inputs["x"]}, 2)
    assert [x.data_ptr() for x in runner.inputs] == places == [x.data_ptr() for x in static]
    runner.close()


def test_a_graph_is_recorded_after_warming_up_and_every_replay_is_waited_for(torch, waits, monkeypatch):
    network = Network("convolution", convolution())
    runner = TorchCuda("graph", device="cpu").prepare(network, 1)
    runner.device = "cuda"
    monkeypatch.setattr(runner, "_placed", lambda tensor, layout: tensor.to(memory_format=layout))
    monkeypatch.setattr(runner, "_module", on_the_host(runner))
    x = np.ones((1, 3, 6, 7), np.float32)
    call = runner.bind({"x": x})
    assert waits.count("record") == 2  # one for each layout
    del waits[:]
    for _ in range(3):
        call()
    assert waits == ["replay", "synchronize"] * 3
    np.testing.assert_allclose(
        runner.outputs(call())["y"], convolution_reference(network.model, x), atol=1e-4
    )
    runner.close()


def on_the_host(runner):
    def module(layout):
        runner.device = "cpu"
        made = type(runner)._module(runner, layout)
        runner.device = "cuda"
        return made

    return module


def test_without_a_gpu_torch_says_why(torch):
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    assert TorchCuda().available() in (
        f"torch {torch.__version__} is built without CUDA",
        f"torch {torch.__version__} finds no GPU",
    )


def test_find_by_name():
    f32 = ["torch", "torch-graph", "torch-compile", "torch-max-autotune"]
    tf32 = [f"{name}-tf32" for name in f32]
    assert [peer.name for peer in peers.find_cuda()] == f32 + tf32
    assert [peer.precision for peer in peers.find_cuda(["torch"], ["f16", "bf16"])][8:] == ["f16"] * 4
    everything = peers.find_cuda(["all"])
    assert [peer.precision for peer in everything] == ["f32"] * 4 + ["tf32"] * 4 + ["f16"] * 4
    some = peers.find_cuda(["torch-graph", "torch-max-autotune"], ["f32", "f16", "bf16"])
    assert [peer.name for peer in some] == [
        *("torch-graph", "torch-graph-f16"),
        *("torch-max-autotune", "torch-max-autotune-f16"),
    ]
    assert len(peers.find_cuda(["torch", "torch-graph"])) == 8, "each once"
    with pytest.raises(InputError, match="no peer 'openvino' on an NVIDIA GPU: choose from torch, torch-f16"):
        peers.find_cuda(["openvino"])


def test_the_gpus_rates_are_the_fastest_of_a_few_tries(monkeypatch):
    """By the GPU's clock; the first two do not count."""
    times = iter(())
    done: list[str] = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            done.append("event")

        def elapsed_time(self, end):
            return next(times)

    matmul = SimpleNamespace(allow_tf32=True)
    tensor = SimpleNamespace(copy_=lambda source: done.append("copy"))
    torch = SimpleNamespace(
        uint8=1, float16=2, float32=3,
        empty=lambda *size, **how: tensor,
        randn=lambda *size, **how: tensor,
        mm=lambda a, b: done.append(f"product {matmul.allow_tf32}"),
        cuda=SimpleNamespace(Event=Event, synchronize=lambda: None, empty_cache=lambda: None),
        backends=SimpleNamespace(cuda=SimpleNamespace(matmul=matmul)),
    )  # fmt: skip
    times = iter([0.5, 0.5, 1.0, 2.0, *[3.0] * 6] + 3 * [0.5, 0.5, 1100.0, 1000.0, *[1200.0] * 6])
    monkeypatch.setattr(cuda_machine, "clocks", lambda device: "clocks")
    found = measure_with(torch, DEVICE)
    assert found.copy_gbs == pytest.approx(2 * 2**30 / 1e-3 / 1e9)
    assert found.gflops == pytest.approx(dict.fromkeys(("f32", "tf32", "f16"), 2 * 8192**3 / 1e9))
    assert matmul.allow_tf32 is True and done.count("product True") == 10
    assert found.describe() == [
        "GPU: NVIDIA H200, sm_90, driver 550.54.14, CUDA 12.4; clocks",
        "measured on the GPU: copy 2147 GB/s; matrix product f32 1.1, tf32 1.1, f16 1.1 TFLOP/s",
    ]


def test_clocks(monkeypatch):
    asked = []

    def smi(command, **how):
        asked.append(command)
        return SimpleNamespace(stdout="1830, 1980, 3201, 3201\n")

    monkeypatch.setattr(cuda_machine.subprocess, "run", smi)
    assert clocks(DEVICE) == "clocks 1830 of 1980 MHz, of the memory 3201 of 3201 MHz"
    assert asked[0][-2:] == ["-i", "0000:05:00.0"]
    monkeypatch.setattr(cuda_machine.subprocess, "run", lambda *a, **k: SimpleNamespace(stdout="none\n"))
    assert clocks(DEVICE) == "clocks at most 1980 MHz, of the memory 3201 MHz"


def test_without_a_gpu_every_row_says_so():
    machine = CudaMachine(reason="this machine has no NVIDIA GPU")
    contestants = [peers.Burnish(lambda *a, **k: 1 / 0, cuda=True), *peers.find_cuda(["all"])]
    result = bench([("convolution", convolution())], contestants, device=machine)
    (group,) = result.groups
    assert len(group.rows) == 13
    assert all(row.reason == "not measured: no GPU here" and not row.seconds for row in group.rows)
    text = bench_report.report(result).to_text()
    assert "GPU: not measured: this machine has no NVIDIA GPU" in text
    assert "convolution, GPU" in text and "burnish was not measured: convolution (GPU)" in text
    assert '"name": ""' in bench_report.to_json(result)


def test_a_gpus_rows_show_shares_of_its_rates_and_the_time_of_tuning():
    machine = CudaMachine("NVIDIA H200", "clocks", 4000.0, {"f32": 50e3, "tf32": 400e3})
    rows = (
        Row("burnish-tuned", "1", "f32", True, (1e-3,), 100, 2.0, 1e-6, tuning_seconds=900.0),
        Row("torch-tf32", "2", "tf32", False, (2e-3,), 100, 1.0, 1e-3),
    )
    group = Group("net", 0, 5_000_000_000, True, None, _with_speeds(rows)[0])
    limits = Limits({}, {})
    result = BenchResult("today", describe_machine(), limits, 1, 0, 0.0, (group,), {}, machine)
    assert [result.share_of_peak(group, row) for row in group.rows] == pytest.approx([0.1, 2500 / 400e3])
    text = bench_report.report(result).to_text()
    assert "tuned for 900 s" in text and "(10%)" in text and "net, GPU" in text
