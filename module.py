"""A compiled model in Python: runs from memory, can be saved as one file and loaded again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .compiler.build_kernel import Kernel
from .compiler.codegen.llvm import LoadedCode
from .compiler.ir.plan import Plan, encode
from .errors import InputError
from .graph_passes.make_plan import Packed
from .runtime import binding
from .runtime.build import link_module


class Module:
    """A model that runs. `inputs` and `outputs` describe its tensors by name (dtype, shape)."""

    def __init__(
        self,
        runner: binding.Module,
        threads: int = 1,
        packed: Packed | None = None,
        kernels: Sequence[Kernel] = (),
    ):
        self._runner = runner
        self._packed = packed
        self._kernels = kernels
        self.threads = threads

    @staticmethod
    def from_code(packed: Packed, code: LoadedCode, kernels: Sequence[Kernel], threads: int) -> Module:
        addresses = [code.address(symbol) for symbol in packed.plan.kernels]
        runner = binding.module_from_memory(encode(packed.plan), addresses, packed.weights, code)
        return Module(runner, threads, packed, kernels)

    @property
    def inputs(self) -> Any:
        return self._runner.inputs

    @property
    def outputs(self) -> Any:
        return self._runner.outputs

    @property
    def steps(self) -> tuple[binding.StepInfo, ...]:
        """The kernel calls in order, with their operations and bytes."""
        return self._runner.steps

    @property
    def plan(self) -> Plan | None:
        """What runs, step by step; None for a module loaded from a file."""
        return self._packed.plan if self._packed else None

    def run(self, feeds: Mapping[str, Any], threads: int | None = None) -> dict[str, np.ndarray]:
        """Outputs by name, for arrays (numpy or DLPack) by input name. InputError says what was expected."""
        return self._runner.run(feeds, threads or self.threads)

    def context(self, threads: int | None = None) -> binding.Context:
        """Bound memory and threads for repeated runs; several contexts may run at once."""
        return self._runner.context(threads or self.threads)

    def run_profiled(self, feeds: Mapping[str, Any], threads: int | None = None) -> list[binding.StepTime]:
        """Nanoseconds of every kernel of one run."""
        return self._runner.run_profiled(feeds, threads or self.threads)

    def save(self, path: str | Path) -> None:
        """Writes the module: `.so` (one loadable file) or `.a` (an archive, with a header beside it)."""
        out = Path(path)
        if self._packed is None:
            raise InputError(f"{out}: a module loaded from a file cannot be saved again; copy the file")
        if out.suffix not in (".so", ".a"):
            raise InputError(f"{out}: a module's name ends in .so or .a")
        objects = [k.object for k in self._kernels]
        weights = self._packed.weights.tobytes()
        link_module(
            objects, encode(self._packed.plan), weights, list(self._packed.plan.kernels), out, out.suffix[1:]
        )


def load(path: str | Path, threads: int = 1, verify_digest: bool = False) -> Module:
    """A module from its file; InputError if it is damaged, of another version, or needs another CPU."""
    return Module(binding.open_module(path, verify_digest), threads)
