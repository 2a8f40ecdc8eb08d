"""Modules for OpenCL through the C runtime: results, files, errors."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import burnish
import numpy as np
import onnx
import pytest
from burnish.compiler.codegen import device_code
from burnish.compiler.codegen.kernel_code import Launch
from burnish.compiler.ir.plan import encode
from burnish.compiler.target import get_target
from burnish.errors import InputError, InternalError, RunError, ToolError
from burnish.models import zoo
from burnish.runtime.binding import device_module_from_memory
from burnish.runtime.build import DeviceCode
from onnx import TensorProto, helper

RUN = """
import sys, numpy as np, burnish
try:
    burnish.load(sys.argv[1]).run({"images": np.ones((1, 1, 8, 8), np.float32)})
except burnish.BurnishError as error:
    print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def digits(opencl) -> burnish.Module:
    return burnish.compile(zoo.build("digits"), target="opencl")


@pytest.fixture(scope="module")
def saved(digits, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("modules") / "digits.so"
    digits.save(path)
    return path


def close(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    for name, array in expected.items():
        assert np.abs(found[name] - array).max() <= 1e-5 * np.abs(array).max(), name


@pytest.mark.parametrize("network", ["digits", "dqn"])
def test_networks_agree_with_the_cpu(opencl, network):
    model = zoo.build(network)
    feeds = zoo.random_inputs(model, 0)
    close(burnish.compile(model, target="opencl").run(feeds), burnish.compile(model).run(feeds))


def test_a_saved_module_gives_the_same_bits_in_several_contexts(digits, saved):
    images = np.random.default_rng(0).random((1, 1, 8, 8), np.float32)
    expected = digits.run({"images": images})["logits"]
    module = burnish.load(saved)
    contexts = [module.context(), module.context()]
    for context in contexts:
        context.bind_input("images", images)
        context.run()
    for context in contexts:
        assert context.output("logits").tobytes() == expected.tobytes()


def test_steps_are_timed(digits):
    times = digits.run_profiled({"images": np.ones((1, 1, 8, 8), np.float32)})
    assert len(times) == len(digits.steps) and all(t.ns > 0 for t in times)


def test_the_module_is_the_same_every_time(digits, saved, tmp_path):
    again = burnish.compile(zoo.build("digits"), target="opencl", cache=False)
    again.save(tmp_path / "again.so")
    assert (tmp_path / "again.so").read_bytes() == saved.read_bytes()


def gather(rows: int = 4) -> onnx.ModelProto:
    infos = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, (rows, 2)),
        helper.make_tensor_value_info("i", TensorProto.INT64, (3,)),
    ]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, (3, 2))
    node = helper.make_node("Gather", ["x", "i"], ["y"], name="pick")
    return helper.make_model(
        helper.make_graph([node], "gather", infos, [result]), opset_imports=[helper.make_opsetid("", 17)]
    )


def test_an_index_out_of_range_names_the_node_and_the_next_run_is_right(opencl):
    module = burnish.compile(gather(), target="opencl")
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    context = module.context()
    context.bind({"x": x, "i": np.array([0, 9, 1])})
    with pytest.raises(RunError, match="node pick: an index is out of range"):
        context.run()
    context.bind_input("i", np.array([0, -1, 2]))
    context.run()
    np.testing.assert_array_equal(context.output("y"), x[[0, -1, 2]])


def test_an_index_into_nothing_is_out_of_range(opencl):
    module = burnish.compile(gather(0), target="opencl")
    with pytest.raises(RunError, match="node pick: an index is out of range"):
        module.run({"x": np.zeros((0, 2), np.float32), "i": np.array([0, 0, 0])})


def test_a_forked_child_is_told_that_it_cannot_run(digits):
    context = digits.context()
    context.run()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            context.run()
        except RunError as error:
            os._exit(0 if "before this process was forked" in str(error) else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    context.run()


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("OCL_ICD_VENDORS", "/nonexistent", "ToolError this module needs an OpenCL device"),
        ("BURNISH_OPENCL_DEVICE", "no such", "ToolError BURNISH_OPENCL_DEVICE=no such names none of the"),
    ],
)
def test_a_missing_device_is_an_error_that_says_what_to_do(saved, variable, value, message):
    environment = {**os.environ, variable: value}
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(saved)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.startswith(message), done.stdout + done.stderr


def code_of(digits: burnish.Module, **changes: int) -> DeviceCode:
    plan = digits.plan
    assert plan is not None
    launch = Launch(**changes)  # type: ignore[arg-type]
    source = "\n\n".join(f"__kernel void {k}(__global char *a) {{\n}}" for k in plan.kernels)
    launches = dict.fromkeys(plan.kernels, launch)
    return DeviceCode("opencl", device_code.encode("opencl", [source], plan.kernels, launches))


def test_what_no_kernel_writes_shows(digits):
    """Memory begins as NaN where BURNISH_GPU_POISON is set, as it is here."""
    plan = replace(digits.plan, steps=())
    weights = np.zeros(plan.weights_size, np.uint8)
    code = DeviceCode("opencl", device_code.encode("opencl", ["__kernel void f() {}"], [], {}))
    context = device_module_from_memory(encode(plan), code, weights).context(1)
    context.run()
    for result in plan.outputs:
        assert np.isnan(context.output(result.name)).all()


@pytest.mark.parametrize("launch", [{"block": (1 << 20, 1, 1)}, {"shared": 1 << 30}])
def test_kernels_beyond_the_devices_limits_are_refused(digits, launch):
    weights = np.zeros(digits.plan.weights_size, np.uint8)
    with pytest.raises(RunError, match="bytes of shared memory in a block"):
        device_module_from_memory(encode(digits.plan), code_of(digits, **launch), weights)


def test_code_that_the_driver_does_not_compile_is_an_error(digits):
    data = device_code.encode(
        "opencl", ["__kernel void f( {"], digits.plan.kernels, dict.fromkeys(digits.plan.kernels, Launch())
    )
    weights = np.zeros(digits.plan.weights_size, np.uint8)
    with pytest.raises(RunError, match=r"does not compile this module .*: error"):
        device_module_from_memory(encode(digits.plan), DeviceCode("opencl", data), weights)


def test_another_gpu_cannot_be_measured_here():
    with pytest.raises(InputError, match="target mali-g76"):
        burnish.compile(zoo.build("digits"), target="mali-g76", measure=True)


def test_an_unknown_device_is_an_error(digits):
    code = DeviceCode("abacus", code_of(digits).data)
    with pytest.raises(InputError, match="no device abacus"):
        device_module_from_memory(encode(digits.plan), code, np.zeros(digits.plan.weights_size, np.uint8))


def test_damaged_code_is_refused(digits):
    """Every word of the header and the kernels' table, set to a number that is far too large."""
    plan = encode(digits.plan)
    good = code_of(digits).data
    weights = np.zeros(digits.plan.weights_size, np.uint8)
    for at in [*range(0, 40, 8), *range(40, 56, 4), 56]:
        if at in (44, 52):  # flags, reserved
            continue
        bad = bytearray(good)
        struct.pack_into("<I", bad, at, 0xFFFFFFFF)
        with pytest.raises((InternalError, RunError)):
            device_module_from_memory(plan, DeviceCode("opencl", bytes(bad)), weights)
    for size in (0, 8, 55, len(good) - 1):
        with pytest.raises((InternalError, ToolError)):
            device_module_from_memory(plan, DeviceCode("opencl", good[:size]), weights)


def test_the_target_has_the_limits_of_the_device(opencl):
    target = get_target("opencl")
    assert target.cpu == opencl and target.gpu is not None
    assert target.gpu.units >= 1 and 1 <= target.gpu.block_threads <= 256


def test_without_a_driver_the_target_is_what_any_device_has():
    code = "from burnish.compiler.target import *; assert get_target('opencl') == TARGETS['opencl']"
    environment = {**os.environ, "OCL_ICD_VENDORS": "/nonexistent"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120)
