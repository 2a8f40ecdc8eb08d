"""Hand-written C kernels, as an object to link and as addresses to call."""

from __future__ import annotations

import ctypes
import subprocess
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
        return [ctypes.cast(getattr(self.library, k), ctypes.c_void_p).value or 0 for k in plan.kernels]

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


def chain_meaning(x: np.ndarray) -> np.ndarray:
    return ((x + 1) * WEIGHTS.reshape(64, 16))[:, ::-1]


def some_rows(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((64, 16), np.float32)
