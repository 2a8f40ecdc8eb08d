"""Scheduled programs on a device: by OpenCL, each operand in a buffer of exactly its size, or by CUDA."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, Protocol

import numpy as np
from burnish.compiler.build_kernel import assemble, device_program, generate
from burnish.compiler.codegen.c_dialect import module_source
from burnish.compiler.codegen.device_code import OPTIONS
from burnish.compiler.codegen.opencl import DIALECT
from burnish.compiler.cuda_device import find_cuda_device
from burnish.compiler.ir.loops import Program
from burnish.compiler.ir.plan import encode
from burnish.compiler.ir.types import TensorType
from burnish.compiler.lower.lower import finished
from burnish.compiler.target import TARGETS, Target
from burnish.errors import RunError
from burnish.op_tuner.measure import Built, plan_of, weights_of
from burnish.op_tuner.operands import Operands
from burnish.runtime.binding import device_module_from_memory
from burnish.runtime.build import DeviceCode
from burnish.runtime.nvcc import fatbin


@lru_cache(maxsize=1)
def queue() -> Any:
    """Of the first device; None without an OpenCL driver or pyopencl."""
    try:
        import pyopencl as cl
    except ImportError:
        return None
    try:
        devices = [d for p in cl.get_platforms() for d in p.get_devices()]
    except cl.Error:
        return None
    return cl.CommandQueue(cl.Context(devices[:1])) if devices else None


def cuda_targets() -> list[str]:
    """The target of this machine's NVIDIA GPU, if there is one."""
    return ["cuda"] if find_cuda_device() else []


def waiting(name: str) -> Target:
    """A target of CUDA as `cuda` is on a GPU with its units: blocks may wait for each other."""
    target = TARGETS[name]
    assert target.gpu is not None
    return replace(target, gpu=replace(target.gpu, together=True))


class Kernels(Protocol):
    def run(self, name: str, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """The params that are no inputs. RunError where a kernel reports one."""


def kernels(programs: Iterable[Program], target: Target) -> Kernels:
    """Programs lowered and built together, since starting a compiler is most of the time."""
    return (CudaKernels if target.cuda else OpenCLKernels)(programs, target)


@cache
def keep_context() -> None:
    """Of the GPU, until the process ends: what the last module releases takes long to make again."""
    driver = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int32(), ctypes.c_void_p()
    for code in (
        driver.cuInit(0),
        driver.cuDeviceGet(ctypes.byref(device), 0),
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
    ):
        assert not code


class CudaKernels:
    def __init__(self, programs: Iterable[Program], target: Target):
        self.target = target
        self.programs = {p.name: finished(p, target) for p in programs}
        self.kernels = {name: assemble(p, target) for name, p in self.programs.items()}
        self.nvcc = cache(fatbin)
        if find_cuda_device():
            keep_context()

    def run(self, name: str, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        kernel, params = self.kernels[name], self.programs[name].params
        symbols = list(dict.fromkeys(step.symbol for step in kernel.steps))
        program = device_program(list(self.kernels.values()), symbols, self.target, self.nvcc)
        results = [TensorType(b.dtype, b.shape) for b in params[len(inputs) :]]
        given = Operands(tuple(inputs), frozenset(), tuple(results), None)
        built = Built(kernel, tuple(b.nbytes for b in params), {}, program)
        plan, weights = plan_of(self.target, built, given, threads=1, evict=0), weights_of(given)
        context = device_module_from_memory(encode(plan), DeviceCode("cuda", program), weights).context()
        for n, array in enumerate(inputs):
            if array.size:
                context.input(f"in{n}")[...] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        found = [context.output(f"out{n}") for n in range(len(results))]
        for output in found:
            output.fill(0xFF)
        context.run()
        return tuple(np.array(o).view(t.dtype.numpy).reshape(t.dims) for o, t in zip(found, results))


class OpenCLKernels:
    def __init__(self, programs: Iterable[Program], target: Target):
        import pyopencl as cl

        self.programs = {p.name: finished(p, target) for p in programs}
        self.code = {name: generate(p, target) for name, p in self.programs.items()}
        source = module_source(DIALECT, [code.ir for code in self.code.values()])
        self.built = cl.Program(queue().context, source).build(OPTIONS["opencl"], cache_dir=False)

    def run(self, name: str, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        import pyopencl as cl

        q, program = queue(), self.programs[name]
        buffers = (*program.params, *program.temps)
        memory = [cl.Buffer(q.context, cl.mem_flags.READ_WRITE, max(1, b.nbytes)) for b in buffers]
        for m, array in zip(memory, inputs):
            if array.nbytes:
                cl.enqueue_copy(q, m, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        errors = cl.Buffer(q.context, cl.mem_flags.READ_WRITE, 4)
        noted = np.zeros(1, np.int32)
        cl.enqueue_copy(q, errors, noted)
        args = [x for m in memory for x in (m, np.uint64(0))]
        for step in self.code[name].steps:
            assert step.launch is not None
            sizes = [g * b for g, b in zip(step.launch.grid, step.launch.block)]
            kernel = cl.Kernel(self.built, step.symbol)
            kernel(q, sizes, step.launch.block, *args, errors, np.uint32(0))
        cl.enqueue_copy(q, noted, errors)
        if noted[0]:
            raise RunError(f"kernel {name}: index out of range")
        results = []
        for b, m in list(zip(program.params, memory))[len(inputs) :]:
            found = np.empty(b.nbytes, np.uint8)
            if b.nbytes:
                cl.enqueue_copy(q, found, m)
            results.append(found.view(b.dtype.numpy).reshape(b.shape))
        return tuple(results)
