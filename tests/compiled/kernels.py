"""Kernels of one operator or expression: built for a target, executed in this process between guard pages."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

import numpy as np
from burnish.compiler.codegen.kernel_code import KernelCode
from burnish.compiler.codegen.llvm import LoadedCode, generate, object_code
from burnish.compiler.ir.loops import Program
from burnish.compiler.kernel_task import DefaultConfig, KernelTask, RejectedConfig
from burnish.compiler.lower.lower import finished, scheduled
from burnish.compiler.target import TARGETS, Target, host, runs_here
from burnish.errors import InternalError, RunError

from .guarded import GuardedMemory

T = TypeVar("T")
DRAWS = 20
"""Of which one should fit."""


def runnable_targets() -> list[str]:
    """host, and the named targets with narrower vectors, which this CPU runs too."""
    return [
        "host",
        *(t.name for t in TARGETS.values() if runs_here(t) and t.vector_bits < host().vector_bits),
    ]


@dataclass(frozen=True)
class Build:
    """Two stages of one task's code: as the template built it, and as machine code."""

    scheduled: Program
    lowered: Program
    code: KernelCode


class DrawnConfig(DefaultConfig):
    """Any of the options, drawn by the seed."""

    def __init__(self, seed: str):
        super().__init__()
        self._rng = random.Random(seed)

    def choose(self, knob: str, options: Sequence[T], default: T) -> T:
        self.chosen[knob] = self._rng.choice(options)
        return self.chosen[knob]  # type: ignore[return-value]


def build_drawn(task: KernelTask, symbol: str, number: int = 0) -> Build:
    """By the task's drawing of this number; answers that the template rejects are drawn again. AssertionError
    where it rejects them all."""
    for n in range(DRAWS * number, DRAWS * (number + 1)):
        cfg = DrawnConfig(f"{n} {task.key}")
        try:
            return build_program(replace(scheduled(task, cfg), name=symbol), task.target)
        except RejectedConfig:
            continue
        except InternalError as error:
            raise InternalError(f"{cfg.chosen}: {error}") from error
    raise AssertionError(f"{task.algorithm} rejects {DRAWS} drawings for {task.key}")


def build(task: KernelTask, symbol: str) -> Build:
    return build_program(replace(scheduled(task, DefaultConfig()), name=symbol), task.target)


def build_program(program: Program, target: Target) -> Build:
    lowered = finished(program, target)
    return Build(program, lowered, generate(lowered, target))


def load(builds: Sequence[Build], target: Target) -> LoadedCode:
    return LoadedCode([object_code(b.code, target) for b in builds], target)


_BARRIER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32)
_KERNEL = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int32)


class _Call(ctypes.Structure):
    _fields_ = [
        ("buffers", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("scratch_stride", ctypes.c_int64),
        ("next_weights", ctypes.c_void_p),
        ("next_weights_size", ctypes.c_int64),
        ("barrier", _BARRIER),
        ("gang", ctypes.c_void_p),
        ("workers", ctypes.c_int32),
    ]


def ranges(tasks: int, whole: bool) -> list[tuple[int, int, int]]:
    """(begin, end, worker): the whole range at once, or cut into uneven pieces from the last to the first."""
    if whole or tasks < 2:
        return [(0, tasks, 0)]
    cuts = sorted({0, 1, tasks // 3, tasks // 3 + 1, tasks - 1, tasks} & set(range(tasks + 1)))
    pieces = [(a, b, n % 2) for n, (a, b) in enumerate(pairwise(cuts))]
    return pieces[::-1]


def execute(
    built: Build, code: LoadedCode, inputs: Sequence[np.ndarray], *, at_end: bool
) -> tuple[np.ndarray, ...]:
    """Runs all steps; returns the params that are no inputs. RunError where a step reports an error.

    With `at_end` the guard pages stand directly behind every buffer and each step runs as one range; without,
    directly before it, and the range is cut into pieces that run backwards on two workers.
    """
    program = built.lowered
    memories: list[GuardedMemory] = []

    def take(nbytes: int, align: int) -> GuardedMemory:
        memories.append(GuardedMemory(nbytes, at_end, align))
        return memories[-1]

    params = [take(b.nbytes, b.dtype.bytes) for b in program.params]
    for memory, array in zip(params, inputs):
        memory.fill(array)
    temps = [take(b.nbytes, 64) for b in program.temps]
    stride = -(-max(s.scratch for s in built.code.steps) // 64) * 64 if built.code.steps else 0
    scratch = take(2 * stride, 64)
    pointers = (ctypes.c_void_p * (len(params) + len(temps)))(*(m.address for m in (*params, *temps)))
    call = _Call(
        ctypes.addressof(pointers),
        scratch.address,
        stride,
        None,
        0,
        _BARRIER(lambda call, worker: None),
        None,
        1,
    )
    for step in built.code.steps:
        kernel = _KERNEL(code.address(step.symbol))
        for begin, end, worker in ranges(step.tasks, at_end or program.gang) if step.tasks else ():
            if kernel(ctypes.addressof(call), begin, end, worker):
                raise RunError(f"kernel {step.symbol}: index out of range")
    assert all(m.slack_is_untouched() for m in memories), "bytes beside a buffer were written"
    outputs = tuple(
        memory.read(b.dtype.numpy, b.shape) for memory, b in list(zip(params, program.params))[len(inputs) :]
    )
    for memory in memories:
        memory.close()
    return outputs
