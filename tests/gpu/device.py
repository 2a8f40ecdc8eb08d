"""Scheduled programs on an OpenCL device, each operand in a buffer of exactly its size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from burnish.compiler.build_kernel import generate
from burnish.compiler.codegen.c_dialect import module_source
from burnish.compiler.codegen.device_code import OPTIONS
from burnish.compiler.codegen.opencl import DIALECT
from burnish.compiler.ir.loops import Program
from burnish.compiler.lower.lower import finished
from burnish.compiler.target import Target
from burnish.errors import RunError


@lru_cache(maxsize=1)
def queue() -> Any:
    """Of the first device; None without an OpenCL driver or pyopencl."""
    try:
        import pyopencl as cl

        devices = [d for p in cl.get_platforms() for d in p.get_devices()]
    except (ImportError, cl.Error):
        return None
    return cl.CommandQueue(cl.Context(devices[:1])) if devices else None


class Kernels:
    """Programs lowered and built together, since starting the driver's compiler is most of the time."""

    def __init__(self, programs: Iterable[Program], target: Target):
        import pyopencl as cl

        self.programs = {p.name: finished(p, target) for p in programs}
        self.code = {name: generate(p, target) for name, p in self.programs.items()}
        source = module_source(DIALECT, [code.ir for code in self.code.values()])
        self.built = cl.Program(queue().context, source).build(OPTIONS["opencl"], cache_dir=False)

    def run(self, name: str, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """The params that are no inputs. RunError where a kernel reports one."""
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
