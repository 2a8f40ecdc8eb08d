"""Small tasks to measure, and configs that do what no candidate should."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from burnish.compiler.ir.expr import ExprBuilder, TensorExpr
from burnish.compiler.ir.types import F32, TensorType
from burnish.compiler.kernel_task import DefaultConfig, KernelTask
from burnish.compiler.ops.base import Op
from burnish.compiler.ops.fused import expression
from burnish.compiler.target import host
from burnish.compiler.templates.registry import algorithms
from burnish.op_tuner.record import Record
from burnish.op_tuner.records import this_hardware

T = TypeVar("T")


def expr_task(name: str, expr: TensorExpr, algorithm: str = "", **fields: object) -> KernelTask:
    task = KernelTask(name, expr, (), frozenset(), "", host(), 1)
    task = replace(task, **fields)  # type: ignore[arg-type]
    return replace(task, algorithm=algorithm or algorithms(task)[0])


def op_task(op: Op, *types: str, algorithm: str = "", **fields: object) -> KernelTask:
    """The task of an operator on operands of the types."""
    inputs = tuple(TensorType.parse(t) for t in types)
    name = f"{op.name.lower()}_test"
    if op.has("loops"):
        results = op.infer(*inputs)
        program = replace(op.loops(inputs, results), name=name)
        return KernelTask(
            name, None, (), frozenset(), "loops", host(), 1, program, op, inputs, tuple(results)
        )
    return expr_task(name, expression(op, inputs), algorithm, **fields)


def double(size: int = 100) -> KernelTask:
    """y = x + x."""
    b = ExprBuilder()
    x = b.param("x", TensorType(F32, (size,)))
    return expr_task("double", b.finish([b.compute(F32, (size,), lambda i: x[i] + x[i])]), "naive")


class Doing(DefaultConfig):
    """Does something at the first question, in the process that asks it."""

    def __init__(self, act: Callable[[], object]):
        super().__init__()
        self.act = act

    def choose(self, knob: str, options: Sequence[T], default: T) -> T:
        if self.chosen:
            self.act()
        return super().choose(knob, options, default)


def hang() -> None:
    time.sleep(1000)


def leave() -> None:
    os._exit(3)


def hoard() -> None:
    kept = []
    while True:
        kept.append(bytearray(64 << 20))


def wait_until(done: Callable[[], bool], seconds: float = 60.0) -> None:
    """A test that waits for what never comes should fail, not hang."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"waited {seconds:g} s in vain"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """A zombie that its new parent has not collected yet is dead."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def record(**fields: object) -> Record:
    """One that worked, but for `fields`."""
    base = Record(
        task="0123456789abcdef",
        key="double naive host/x threads=1\nx",
        algorithm="naive",
        target="host/x",
        threads=1,
        hardware=this_hardware(),
        config={"lanes": 16, "order": ("a", ("b", 2))},
        evict=1 << 20,
        seconds=1e-3,
        spread=0.01,
        runs=10,
        error=None,
        detail="",
        burnish="0" * 16,
        llvm="1.2.3",
    )
    return replace(base, **fields)  # type: ignore[arg-type]
