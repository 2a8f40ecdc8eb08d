"""Hand-written C kernels, as an object to link and as addresses to call."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from burnish.compiler.ir.plan import BufferRef, KernelCall, Plan, PlanIO, encode, verify
from burnish.compiler.ir.types import F32, TensorType
from burnish.runtime.binding import Module, module_from_memory
from burnish.runtime.build import find_compiler, include_dir

ROWS = TensorType(F32, (64, 16))
NBYTES = ROWS.nbytes
WEIGHTS = np.arange(1024, dtype=np.float32) - 500


class Kernels:
    """tests/runtime/kernels.c, compiled."""

    def __init__(self, folder: Path):
        compiler = find_compiler().command
        flags = ["-std=c11", "-O1", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-I{include_dir()}"]
        source = str(Path(__file__).parent / "kernels.c")
        subprocess.run([*compiler, *flags, "-c", source, "-o", folder / "kernels.o"], check=True)
        subprocess.run([*compiler, "-shared", folder / "kernels.o", "-o", folder / "kernels.so"], check=True)
        self.object = (folder / "kernels.o").read_bytes()
        self.library = ctypes.CDLL(str(folder / "kernels.so"))

    def addresses(self, plan: Plan) -> list[int]:
        return [self.address(k) for k in plan.kernels]

    def address(self, kernel: str) -> int:
        return ctypes.cast(getattr(self.library, kernel), ctypes.c_void_p).value or 0

    def module(self, plan: Plan, weights: np.ndarray | bytes | None = None) -> Module:
        verify(plan)
        return module_from_memory(encode(plan), self.addresses(plan), weights, self.library)


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return Kernels(tmp_path_factory.mktemp("kernels"))


def chain_plan(features: tuple[str, ...] = (), tasks: int = 64) -> Plan:
    """y = reverse((x + 1) · weights), row by row."""
    first, second = BufferRef.arena(0, NBYTES, "sum"), BufferRef.arena(NBYTES, NBYTES, "product")
    steps = (
        KernelCall("add_one", "Add_0", (BufferRef.input(0, NBYTES), first), (1,), tasks),
        KernelCall("multiply", "Mul_1", (first, BufferRef.weights(0, NBYTES), second), (2,), tasks),
        KernelCall("reverse", "Rev_2", (second, BufferRef.output(0, NBYTES)), (1,), tasks, scratch=64),
    )
    io = (PlanIO("x", ROWS),), (PlanIO("y", ROWS),)
    return Plan("chain", "x86-64", features, *io, 2 * NBYTES, NBYTES, steps)


def prepared_plan() -> Plan:
    """y = reverse((x + 1) · (weights + 1)): the weights are added to when the module is opened."""
    plan = chain_plan()
    stored, made = BufferRef.weights(0, NBYTES, "stored"), BufferRef.prepared(0, NBYTES, "made")
    add, multiply, reverse = plan.steps
    assert isinstance(add, KernelCall) and isinstance(multiply, KernelCall)
    setup = (
        replace(add, node="Copy", args=(stored, BufferRef.arena(0, NBYTES, "copied"))),
        replace(
            add, kernel="reverse", node="There", args=(BufferRef.arena(0, NBYTES, "copied"), made), scratch=64
        ),
        replace(add, kernel="reverse", node="Back", args=(made, made), scratch=64),
    )
    product = replace(multiply, args=(multiply.args[0], made, multiply.args[2]))
    return replace(plan, steps=(add, product, reverse), setup=setup, prepared_size=NBYTES)


def chain_meaning(x: np.ndarray, weights: np.ndarray = WEIGHTS) -> np.ndarray:
    return ((x + 1) * weights.reshape(64, 16))[:, ::-1]


def some_rows(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((64, 16), np.float32)
