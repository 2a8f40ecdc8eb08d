"""Memory of the GPU as inputs and outputs, on the fake driver, where it is memory of the host."""

from __future__ import annotations

import ctypes
from copy import copy
from functools import partial
from typing import Any

import burnish
import numpy as np
import pytest
from burnish.commands import peers
from burnish.errors import InputError
from burnish.runtime.dlpack import CUDA, LEGACY_STREAM, lend

from .cuda_model import X, check, feeds, gather
from .fake_driver import FakeDriver


class DeviceTensor:
    """What torch and cupy give: memory of a device that speaks DLPack."""

    def __init__(self, driver: FakeDriver, array: np.ndarray, dtype: str, device: int = 0):
        self.driver, self.device = driver, device
        self.dtype, self.type, self.shape = dtype, array.dtype, array.shape
        self.address = driver.library.fake_allocate(max(1, array.nbytes), device)
        ctypes.memmove(self.address, array.ctypes.data, array.nbytes)
        self.streams: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.device

    def __dlpack__(self, *, stream: Any = None) -> Any:
        self.streams.append(stream)
        return lend(self.address, self.dtype, 8 * self.type.itemsize, self.shape, CUDA, self)

    def read(self) -> np.ndarray:
        size = int(np.prod(self.shape)) * self.type.itemsize
        return np.frombuffer(ctypes.string_at(self.address, size), self.type).reshape(self.shape)


@pytest.fixture
def on_device(driver):
    made: list[DeviceTensor] = []

    def make(array: np.ndarray, dtype: str = "f32", device: int = 0) -> DeviceTensor:
        made.append(DeviceTensor(driver, array, dtype, device))
        return made[-1]

    yield make
    for tensor in made:
        driver.library.fake_free(tensor.address)


def copies(driver: FakeDriver) -> tuple[int, int]:
    """To the device and back, recorded or made."""
    return driver.calls.count("cuMemcpyHtoDAsync_v2"), driver.calls.count("cuMemcpyDtoHAsync_v2")


def test_arrays_on_the_device_are_read_and_written_in_place(driver, saved, on_device):
    x, i = on_device(X), on_device(np.array([2, -1, 0]), "i64")
    y, z = on_device(np.zeros((3, 5), np.float32)), on_device(np.zeros((4, 2), np.float32))
    module = burnish.load(saved)
    driver.reset()
    outputs = module.run({"x": x, "i": i}, out={"y": y, "z": z})
    assert copies(driver) == (0, 0)
    assert outputs == {"y": y, "z": z}
    check({name: tensor.read() for name, tensor in outputs.items()})
    assert x.streams == [LEGACY_STREAM]


def test_host_and_device_mix(driver, saved, on_device):
    module = burnish.load(saved)
    y = on_device(np.zeros((3, 5), np.float32))
    driver.reset()
    outputs = module.run({**feeds(), "x": on_device(X)}, out={"y": y})
    assert copies(driver) == (1, 1)
    assert isinstance(outputs["z"], np.ndarray)
    check({"y": y.read(), "z": outputs["z"]})
    check(module.run(feeds((0, 1, 2))), (0, 1, 2))  # the same context without them


def test_bound_once_a_run_is_recorded_once(driver, saved, on_device):
    context = burnish.load(saved).context()
    tensors = {"x": on_device(X), "i": on_device(np.array([2, -1, 0]), "i64")}
    driver.reset()
    for _ in range(3):
        context.bind(tensors)
        context.run()
    assert context.input("x") is tensors["x"]
    assert driver.calls.count("cuStreamBeginCapture_v2") == 1 and driver.calls.count("cuGraphLaunch") == 3
    context.bind_input("x", on_device(X))
    context.run()
    assert driver.calls.count("cuStreamBeginCapture_v2") == 2
    check({name: context.output(name) for name in ("y", "z")})


def test_operands_that_take_turns_need_not_be_recorded_again(driver, saved, on_device):
    """Four graphs are kept; the one that was not wanted for longest goes first."""
    context = burnish.load(saved).context()
    context.bind(feeds())
    places = [on_device(n * X) for n in range(5)]

    def graphs_for(*which: int) -> int:
        before = driver.calls.count("cuGraphInstantiateWithFlags")
        for n in which:
            context.bind_input("x", places[n])
            context.run()
            np.testing.assert_array_equal(context.output("z"), n * X)
        return driver.calls.count("cuGraphInstantiateWithFlags") - before

    assert graphs_for(0, 1, 2, 3, 0, 1, 2, 3) == 4
    assert [graphs_for(4), graphs_for(1, 2, 3, 4), graphs_for(0, 1)] == [1, 0, 2]


def test_a_contexts_own_memory_on_the_device_is_lent(driver, saved):
    module = burnish.load(saved)
    context = module.context()
    context.bind(feeds())
    context.run()  # uploads the inputs
    for name in ("x", "i"):
        context.bind_input(name, context.device_input(name))
    context.bind_output("y", context.device_output("y"))
    driver.reset()
    context.run()
    assert copies(driver) == (0, 1)  # z
    lent = context.device_output("y")
    assert lent.__dlpack_device__() == (CUDA, 0) and lent.shape == (3, 5)
    address = lent.address
    capsule = lent.__dlpack__(stream=None)
    del module, context, lent
    y = np.frombuffer(ctypes.string_at(address, 60), np.float32).reshape(3, 5)
    check({"y": y, "z": X})
    assert driver.alive  # the capsule keeps the context
    del capsule
    assert not driver.alive


def test_what_does_not_fit_is_refused(driver, saved, on_device):
    context = burnish.load(saved).context()
    with pytest.raises(InputError, match=r"'x': expected x: f32\[4,2\], found f16\[4,2\]"):
        context.bind_input("x", on_device(X.astype(np.float16), "f16"))
    with pytest.raises(InputError, match=r"found f32\[2,4\]"):
        context.bind_input("x", on_device(X.reshape(2, 4)))
    with pytest.raises(BufferError, match="does not copy"):
        context.device_input("x").__dlpack__(copy=True)
    context.bind({**feeds(), "x": on_device(X, device=1)})
    with pytest.raises(InputError, match="x lies on CUDA device 1, but this module runs on device 0"):
        context.run()
    part = copy(on_device(np.concatenate([X[:1], X])))
    part.address, part.shape = part.address + X[0].nbytes, X.shape
    context.bind_input("x", part)
    with pytest.raises(InputError, match="x begins at an address that is no multiple of 16 bytes"):
        context.run()
    context.bind_input("x", context.device_output("z"))
    for _ in range(2):
        with pytest.raises(InputError, match="output z overlaps input x in memory"):
            context.run()
    context.bind_input("x", X)
    context.run()
    check({name: context.output(name) for name in ("y", "z")})


def test_modules_for_cpus_refuse_memory_of_a_gpu(driver, saved, on_device):
    context = burnish.compile(gather()).context()
    with pytest.raises(InputError, match="'x': lies on a GPU, where only modules for CUDA use it"):
        context.bind_input("x", on_device(X))
    with pytest.raises(InputError, match="have no memory on an NVIDIA GPU"):
        context.device_output("y")


def test_bench_times_runs_whose_inputs_and_outputs_stay_on_the_device(driver):
    peer = peers.Burnish(partial(burnish.compile, target="cuda-sm80"), cuda=True)
    runner = peer.prepare(peers.Network("gather", gather()), 1)
    check(runner.run(feeds()))
    check(runner.run(feeds((0, 1, 2))), (0, 1, 2))
    call = runner.bind(feeds())
    driver.reset()
    call()
    call()
    assert driver.calls.count("cuGraphLaunch") == 2 and copies(driver) == (0, 0)
    assert runner.time(feeds(), 3) > 0
    runner.close()
