"""Modules for CUDA on a driver without a GPU, which checks how it is used and fails on demand."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import burnish
import numpy as np
import onnx
import pytest
from burnish.compiler.codegen import device_code
from burnish.compiler.codegen.kernel_code import Launch
from burnish.compiler.cuda_device import is_usable
from burnish.compiler.ir.plan import encode
from burnish.compiler.kernel_task import DefaultConfig
from burnish.compiler.ops.matmul import MatMul
from burnish.compiler.target import TARGETS
from burnish.errors import BurnishError, NoMemoryError, RunError, ToolError
from burnish.models import zoo
from burnish.op_tuner import measure
from burnish.op_tuner.operands import operands
from burnish.op_tuner.records import RecordedConfig
from burnish.runtime.binding import device_module_from_memory
from burnish.runtime.build import HERE, DeviceCode, include_dir, source_dir
from burnish.runtime.nvcc import fatbin, find_nvcc

from ..compiled.forked import run_forked
from ..op_tuner.tasks import op_task
from .cuda_model import X, check, feeds, gather
from .device import waiting
from .fake_driver import NVCC, FakeDriver, has_real_driver
from .test_lanes import lstm

ILLEGAL_ADDRESS, OUT_OF_MEMORY = 700, 2
LSTM = lstm(1, 40)


@pytest.mark.parametrize("network", ["digits", "dqn"])
def test_networks_agree_with_the_cpu(driver, network):
    model = zoo.build(network)
    inputs = zoo.random_inputs(model, 0)
    module = burnish.compile(model, target="cuda-sm80")
    found, expected = module.run(inputs), burnish.compile(model).run(inputs)
    for name, array in expected.items():
        assert np.abs(found[name] - array).max() <= 1e-5 * np.abs(array).max(), name
    assert driver.launches == len(module.steps)
    del module
    assert not driver.alive


def test_kernels_behind_kernels_may_begin_early_on_sm90(driver):
    model = zoo.build("dqn")
    inputs = zoo.random_inputs(model, 0)
    driver.reset(arch=90)
    module = burnish.compile(model, target="cuda-sm90")
    context = module.context()
    for name, array in inputs.items():
        context.bind_input(name, array)
    context.run()
    assert driver.overlaps == len(module.steps) - 1  # the first one follows a copy
    found = {o.name: context.output(o.name).copy() for o in module.outputs}
    context.run_profiled()
    assert driver.overlaps == len(module.steps) - 1  # events stand between
    for name, array in burnish.compile(model).run(inputs).items():
        assert np.abs(found[name] - array).max() <= 1e-5 * np.abs(array).max(), name


def test_kernels_before_sm90_begin_one_after_the_other(driver):
    model = zoo.build("digits")
    burnish.compile(model, target="cuda-sm80").run(zoo.random_inputs(model, 0))
    assert driver.launches and not driver.overlaps


EARLY = """
import ctypes, burnish
from burnish.models import zoo
driver = ctypes.CDLL("libcuda.so.1")
driver.fake_set_arch(90)
driver.fake_set_version({version})
model = zoo.build("digits")
burnish.compile(model, target="cuda-sm90").run(zoo.random_inputs(model, 0))
print(driver.fake_launches() - driver.fake_overlaps())
"""


@pytest.mark.parametrize(("version", "all"), [(12020, True), (12030, False)])
def test_graphs_of_older_drivers_know_of_no_early_beginnings(fake_gpu, version, all):
    command = [sys.executable, "-c", EARLY.format(version=version)]
    done = subprocess.run(command, capture_output=True, text=True, env=fake_gpu, timeout=240)
    assert not done.returncode, done.stderr
    assert (int(done.stdout) > 1) is all


@pytest.mark.parametrize(
    ("short", "evict", "turns"), [(0.0, 0, 1), (1e9, 0, measure.REPEATS), (1e9, 2 << 20, 16)]
)
def test_a_measurement_has_two_events_whatever_it_repeats(driver, monkeypatch, short, evict, turns):
    """An event takes longer than a small kernel. Fifteen copies of 4096 x 9 weights are 2 MiB."""
    monkeypatch.setattr(measure, "SHORT", short)
    task = op_task(MatMul(), "f32[8,4096]", "f32[4096,9]", target=TARGETS["cuda-sm80"])
    task = replace(task, constants=frozenset({"p1"}))
    built, given = measure.build(task, measure.Recorder(DefaultConfig())), operands(task)
    assert isinstance(built, measure.Built) and len(built.kernel.steps) == 2
    runner = measure._Runner(task.target, built, given, threads=1, evict=evict)
    assert not runner.first(given)
    runner.warm(given)
    recording = " ".join(driver.calls).rpartition("cuStreamBeginCapture")[2]
    assert recording.count("cuEventRecord") == 2
    driver.reset()
    times = runner.context.run_profiled()
    assert not runner.changed() and len(runner.turns) == turns
    assert driver.launches == 2 * turns
    assert times[0].ns > 0 and not any(step.ns for step in times[1:])


def test_runs_in_turns_read_copies_of_the_weights():
    task = op_task(MatMul(), "f32[8,64]", "f32[64,9]", target=TARGETS["cuda-sm80"])
    task = replace(task, constants=frozenset({"p1"}))
    given = operands(task)
    kernel = measure.build(task, measure.Recorder(DefaultConfig()))
    assert isinstance(kernel, measure.Built) and given.weights
    size = sum(given.arrays[n].nbytes for n in given.weights)
    turns = measure.turns_of(given, evict=2 * size)
    assert list(turns) == [0, 1, 2] * 3 + [0]
    plan = measure.plan_of(task.target, kernel, given, 1, 0, turns=turns)
    read = [ref.offset for step in plan.steps for ref in step.args if ref.space == "weights"]
    assert [offset // size for offset in read[:: len(kernel.kernel.steps)]] == list(turns)
    weights = measure.weights_of(given, turns)
    assert plan.weights_size == len(weights) == 3 * size
    assert np.array_equal(weights.reshape(3, -1), np.tile(measure.weights_of(given), (3, 1)))
    assert set(measure.turns_of(given, evict=1 << 40)) == set(range(measure.MOST_COPIES))


def test_more_shared_memory_than_a_kernel_may_declare_comes_with_its_launch(driver):
    """Three steps of tiles of 128 rows and columns take 60 KiB."""
    a, b = (np.random.default_rng(n).standard_normal((256, 256)).astype(np.float32) for n in range(2))
    infos = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, (256, 256)) for n in "aby"]
    node = onnx.helper.make_node("MatMul", ["a", "b"], ["y"], "product")
    graph = onnx.helper.make_graph([node], "g", infos[:2], infos[2:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    answers = {"tile": ((16, 16), (8, 8)), "depth": 16, "parts": 1, "terms": 4, "stages": 3}
    module = burnish.compile(model, target="cuda-sm80", pick_config=lambda task: RecordedConfig(answers))
    expected = a @ b
    assert np.abs(module.run({"a": a, "b": b})["y"] - expected).max() <= 1e-5 * np.abs(expected).max()
    assert "cuFuncSetAttribute" in driver.calls


@pytest.mark.parametrize("narrow", [onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16])
def test_narrow_floats_round_as_on_the_cpu(driver, narrow):
    """By instructions of the GPU, emulated; and every half is widened."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 20_000, dtype=np.uint64).astype(np.uint32)
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    values = np.concatenate([bits.view(np.float32), (bits & 0xFFFF0000 | 0x8000).view(np.float32)])
    with np.errstate(invalid="ignore"):
        values = np.concatenate([values, halves.astype(np.float32)])
    x = np.concatenate([values, np.array([65519.99, 65520, 2.0**-25, 1e-45, 3.4e38], np.float32)])
    info = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)
    result = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, x.shape)
    nodes = [
        onnx.helper.make_node("Cast", ["x"], ["n"], to=narrow),
        onnx.helper.make_node("Cast", ["n"], ["y"], to=onnx.TensorProto.FLOAT),
    ]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "narrow", [info], [result]),
        opset_imports=[onnx.helper.make_opsetid("", 17)],
    )
    found, expected = (burnish.compile(model, target=t).run({"x": x})["y"] for t in ("cuda-sm80", "host"))
    np.testing.assert_array_equal(found, expected)
    assert not np.array_equal(found, x)


def test_a_run_is_recorded_once_and_replayed(driver, saved):
    module = burnish.load(saved)
    for index in ((0, 1, 2), (3, 3, 3), (-4, 0, 1)):  # new arrays are bound each time
        check(module.run(feeds(index)), index)
    calls = driver.calls
    begin, end = calls.index("cuStreamBeginCapture_v2"), calls.index("cuStreamEndCapture")
    launches = [n for n, name in enumerate(calls) if name == "cuLaunchKernel"]
    assert launches and all(begin < n < end for n in launches)
    assert calls.count("cuStreamBeginCapture_v2") == 1 and calls.count("cuGraphLaunch") == 3
    assert driver.launches == 3 * len(launches)
    assert calls.count("cuMemcpyHtoD_v2") == 1  # the weights
    del module
    assert not driver.alive


def test_contexts_have_memory_of_their_own(driver, saved):
    module = burnish.load(saved)
    contexts = [module.context(), module.context()]
    for n, context in enumerate(contexts):
        context.input("x")[...] = X  # pinned memory, in place
        context.input("i")[...] = (n, n, n)
        context.run()
    for n, context in enumerate(contexts):
        check({name: context.output(name) for name in ("y", "z")}, (n, n, n))
    assert driver.calls.count("cuModuleLoadDataEx") == 1
    del module, context, contexts
    assert not driver.alive


def test_an_index_out_of_range_names_the_node_and_the_next_run_is_right(driver, saved):
    module = burnish.load(saved)
    for _ in range(2):
        with pytest.raises(RunError, match="node pick: an index is out of range"):
            module.run(feeds((0, 9, 1)))
        check(module.run(feeds()))


def test_what_a_kernel_noted_in_a_run_that_failed_otherwise_is_forgotten(driver, saved):
    context = burnish.load(saved).context()
    context.run_profiled()
    context.bind(feeds())
    driver.reset()
    context.run_profiled()
    times = driver.calls.index("cuEventElapsedTime")
    context.bind(feeds((0, 9, 1)))
    driver.reset(times, ILLEGAL_ADDRESS)
    with pytest.raises(RunError, match="cuEventElapsedTime"):
        context.run_profiled()
    driver.reset()
    context.bind(feeds())
    context.run()
    check({name: context.output(name) for name in ("y", "z")})


def test_a_process_whose_context_is_lost_says_so(driver, saved):
    module = burnish.load(saved)
    check(module.run(feeds()))
    driver.reset()
    assert is_usable()
    calls = driver.calls
    for call in ("cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuCtxSynchronize"):
        driver.reset(calls.index(call), ILLEGAL_ADDRESS)
        assert not is_usable()
    driver.reset()
    check(module.run(feeds()))
    del module
    assert not driver.alive


def test_steps_are_timed_in_the_graph(driver, saved):
    module = burnish.load(saved)
    assert [t.ns for t in module.run_profiled(feeds())] == [500_000] * len(module.steps)
    check(module.run(feeds()))


def test_timed_runs_and_others_take_turns_without_being_recorded_anew(driver, saved):
    context = burnish.load(saved).context()
    context.bind(feeds())
    for _ in range(3):
        context.run()
        assert all(t.ns for t in context.run_profiled())
    calls = driver.calls
    assert calls.count("cuStreamBeginCapture_v2") == 2 and calls.count("cuGraphLaunch") == 6
    context.bind(feeds((3, 3, 3)))
    context.run()
    check({name: context.output(name) for name in ("y", "z")}, (3, 3, 3))
    assert driver.calls.count("cuStreamBeginCapture_v2") == 2
    del context
    assert not driver.alive


def test_every_failure_of_the_driver_is_an_error_and_leaks_nothing(driver, saved):
    def use() -> list[str]:
        context = burnish.load(saved).context()
        context.bind(feeds())
        context.run_profiled()
        context.run()
        check({name: context.output(name) for name in ("y", "z")})
        return driver.calls

    calls = use()
    assert len(calls) > 50 and not driver.alive
    unnoticed = [name for n, name in enumerate(calls) if not fails(driver, use, n)]
    assert not unnoticed


def fails(driver: FakeDriver, use: Callable[[], object], call: int) -> bool:
    """Whether it is an error if that call fails. In any case nothing stays alive."""
    driver.reset(call, ILLEGAL_ADDRESS)
    try:
        use()
    except (RunError, ToolError) as error:
        message = str(error)
        assert "\n" not in message and 20 < len(message) < 500
        failed = True
    else:
        failed = False
    name = driver.calls[call]
    assert not driver.alive, f"{name} (call {call}): {driver.alive}"
    return failed


@pytest.mark.parametrize(
    ("call", "which", "message"),
    [
        ("cuMemAlloc_v2", 0, "cuMemAlloc of the weights failed with code 2, CUDA_ERROR_OUT_OF_MEMORY"),
        (
            "cuModuleLoadDataEx",
            0,
            "cuModuleLoadDataEx failed .* is for CUDA 12.4: .* update it; it says: log",
        ),
        ("cuModuleGetFunction", 0, "kernel gather_.*: CUDA: cuModuleGetFunction failed"),
        ("cuLaunchKernel", 0, "node pick, kernel gather_.*: CUDA: launching the kernel failed with code 2"),
        ("cuStreamSynchronize", -1, "a run failed with code 2.*CUDA_LAUNCH_BLOCKING=1 to see which kernel"),
    ],
)
def test_errors_say_what_failed(driver, saved, call, which, message):
    burnish.load(saved).run(feeds())
    driver.reset([n for n, name in enumerate(driver.calls) if name == call][which], OUT_OF_MEMORY)
    with pytest.raises(RunError, match=message):
        burnish.load(saved).run(feeds())


def test_with_launch_blocking_an_error_of_a_kernel_names_it(driver, saved, monkeypatch):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    module = burnish.load(saved)
    check(module.run(feeds()))
    calls = driver.calls
    assert "cuGraphLaunch" not in calls
    driver.reset()
    module.run(feeds())
    driver.reset(driver.calls.index("cuStreamSynchronize"), ILLEGAL_ADDRESS)
    with pytest.raises(RunError, match=r"kernel .*: CUDA: its run failed with code 700.* start it anew"):
        module.run(feeds())


def test_a_driver_without_a_device_and_an_older_device(driver, saved):
    driver.reset(devices=0)
    with pytest.raises(ToolError, match=r"the driver offers none .*CUDA_VISIBLE_DEVICES"):
        burnish.load(saved)
    driver.reset()
    assert not driver.alive
    newer = burnish.compile(gather(), target="cuda-sm90")
    with pytest.raises(RunError, match="is for NVIDIA GPUs from sm_90 on, but the Fake A100 is sm_80"):
        newer.run(feeds())
    assert not driver.alive


@pytest.mark.parametrize(("poison", "byte"), [("0", 0), ("1", 0xFF)])
def test_what_no_kernel_writes_shows(driver, monkeypatch, poison, byte):
    monkeypatch.setenv("BURNISH_GPU_POISON", poison)
    plan = replace(burnish.compile(gather(), target="cuda-sm80").plan, steps=())
    data = device_code.encode("cuda", [], [], {}, "sm_80", lambda text: fatbin("", "sm_80"))
    module = device_module_from_memory(
        encode(plan), DeviceCode("cuda", data), np.zeros(plan.weights_size, np.uint8)
    )
    context = module.context(1)
    context.run()
    for result in plan.outputs:
        found = context.output(result.name)
        assert found.size and (np.frombuffer(found.tobytes(), np.uint8) == byte).all()


@pytest.mark.parametrize("poison", ["0", "1"])
def test_networks_need_no_zeros(driver, monkeypatch, poison):
    """Neither they nor what tells of errors."""
    monkeypatch.setenv("BURNISH_GPU_POISON", poison)
    inputs = zoo.random_inputs(model := zoo.build("lstm_lm_step"), 0)
    found, expected = (burnish.compile(model, target=t).run(inputs) for t in ("cuda-sm80", "host"))
    for name, array in expected.items():
        assert np.abs(found[name] - array).max() <= 1e-5 * np.abs(array).max(), name


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory) -> Path:
    """A module whose blocks wait for each other."""
    path = tmp_path_factory.mktemp("modules") / "lstm.so"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDACXX", NVCC)
        burnish.compile(LSTM, target=waiting("cuda-sm80")).save(path)
    return path


def test_blocks_that_wait_for_each_other_are_launched_together(driver, recurrent):
    x = np.random.default_rng(0).standard_normal((3, 1, 3)).astype(np.float32)
    expected = burnish.compile(LSTM).run({"x": x})["y"]

    def use() -> list[str]:
        module = burnish.load(recurrent)
        for _ in range(2):
            np.testing.assert_allclose(module.run({"x": x})["y"], expected, rtol=1e-5, atol=1e-6)
        return driver.calls

    calls = use()
    assert calls.count("cuLaunchCooperativeKernel") == 1
    unnoticed = [name for n, name in enumerate(calls) if not fails(driver, use, n)]
    assert not unnoticed


@pytest.mark.parametrize(
    ("units", "message"),
    [
        (0, r"blocks of kernel \w+ wait for each other, which the driver .*compile .*--target cuda-sm80"),
        (3, r"kernel \w+ needs 40 blocks at once, but this GPU has room for 3; compile .*--target cuda"),
    ],
)
def test_a_gpu_without_room_for_all_blocks(driver, recurrent, units, message):
    module = burnish.load(recurrent)
    driver.reset(units=units)
    with pytest.raises(RunError, match=message):
        module.context()


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        (Launch(block=(2048, 1, 1)), "needs 2048 threads"),
        (Launch(shared=1 << 20), "1048576 bytes of shared memory"),
        (Launch(grid=(1, 1 << 16, 1)), "needs 65536 blocks along y; the CUDA device Fake A100 allows 65535"),
    ],
)
def test_kernels_beyond_the_devices_limits_are_refused(driver, launch, message):
    plan = burnish.compile(gather(), target="cuda-sm80").plan
    launches = dict.fromkeys(plan.kernels, launch)
    data = device_code.encode("cuda", [], plan.kernels, launches, "sm_80", lambda text: b"EMULATED")
    with pytest.raises(RunError, match=message):
        device_module_from_memory(
            encode(plan), DeviceCode("cuda", data), np.zeros(plan.weights_size, np.uint8)
        )


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("/nonexistent/nvcc", "does not run; correct or unset CUDACXX"),
        ("true", "true made nothing: is it nvcc"),
    ],
)
def test_a_wrong_compiler_is_an_error(monkeypatch, command, message):
    monkeypatch.setenv("CUDACXX", command)
    with pytest.raises(BurnishError, match=message):
        burnish.compile(gather(), target="cuda-sm80")


def test_without_nvcc_one_line_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.delenv("CUDACXX", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("sysconfig.get_path", lambda name: tmp_path)
    with pytest.raises(ToolError, match=r"need nvcc .*, and none is found: pip install 'burnish\[cuda\]'"):
        burnish.compile(gather(), target="cuda-sm80")
    for version in ("cu13", "cu14"):
        (tmp_path / "nvidia" / version / "bin").mkdir(parents=True)
        (tmp_path / "nvidia" / version / "bin" / "nvcc").touch()
    assert find_nvcc() == (str(tmp_path / "nvidia/cu14/bin/nvcc"),)


def test_a_compilers_complaint_is_shown(monkeypatch):
    monkeypatch.setenv("CUDACXX", NVCC)
    with pytest.raises(ToolError, match=r"compiling the kernels: .*nvcc.* failed: .*error.*nonsense"):
        fatbin("nonsense;", "sm_80")


@pytest.fixture(scope="module")
def program(tmp_path_factory, require_tool) -> Path:
    """The example in C that runs a module."""
    folder = tmp_path_factory.mktemp("program")
    source = HERE.parent / "examples" / "c" / "main.c"
    command = [require_tool("gcc"), "-std=c11", "-g", f"-I{include_dir()}", source, source_dir() / "open.c"]
    subprocess.run([*command, "-o", "main", "-pthread", "-ldl"], cwd=folder, check=True)
    (folder / "x.raw").write_bytes(X.tobytes())
    return folder / "main"


def test_a_forked_child_is_told_that_it_cannot_run(driver, saved):
    module = burnish.load(saved)
    module.run(feeds((0, 1, 2)))

    def ask(call: Callable[[], object]) -> str | None:
        try:
            call()
        except RunError as error:
            return None if "CUDA was opened before this process was forked" in str(error) else str(error)
        return "it ran"

    calls = [lambda: module.run(feeds((0, 1, 2))), lambda: burnish.load(saved).run(feeds())]
    assert run_forked(calls, ask) == [None, None]
    check(module.run(feeds((0, 1, 2))), (0, 1, 2))


def test_a_forked_child_lets_a_module_go_without_the_driver(driver, saved):
    held = [burnish.load(saved)]
    check(held[0].run(feeds()))

    def let_go(_: object) -> str | None:
        held.clear()
        gc.collect()
        return driver.violations or None

    assert run_forked([None], let_go) == [None]
    check(held[0].run(feeds()))


@pytest.mark.parametrize(("code", "kind"), [(46, ToolError), (OUT_OF_MEMORY, NoMemoryError)])
def test_a_gpu_that_another_process_has(driver, saved, code, kind):
    check(burnish.load(saved).run(feeds()))
    at = driver.calls.index("cuDevicePrimaryCtxRetain")
    driver.reset(at, code)
    with pytest.raises(kind, match=r"the driver offers none \(|cuDevicePrimaryCtxRetain failed"):
        burnish.load(saved).run(feeds())
    driver.reset()
    check(burnish.load(saved).run(feeds()))


@pytest.mark.skipif(has_real_driver(), reason="a driver is here")
def test_without_a_driver_one_line_says_what_to_install(program, saved):
    done = subprocess.run([program, saved], capture_output=True, text=True)
    assert done.returncode == 1
    assert "this module needs an NVIDIA GPU, but there is no libcuda.so.1 here; install" in done.stderr


def test_valgrind_finds_nothing(program, driver_file, saved, require_tool):
    """With the driver where the system's loader finds it."""
    valgrind = [require_tool("valgrind"), "-q", "--error-exitcode=9", "--leak-check=full"]
    done = subprocess.run(
        [*valgrind, program, saved, f"x={program.parent / 'x.raw'}", "--repeat", "3"],
        env={**os.environ, "LD_LIBRARY_PATH": str(driver_file.parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mean" in done.stdout
