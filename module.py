"""A compiled model in Python: runs from memory, can be saved as one file and loaded again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from .compiler.build_kernel import Kernel, device_program
from .compiler.codegen.llvm import LoadedCode
from .compiler.ir.plan import Copy, Plan, PlanIO, Step, encode
from .compiler.target import TARGETS, Target, host_threads, runs_here
from .errors import InputError
from .graph_passes.make_plan import Packed
from .runtime import binding
from .runtime.build import DeviceCode, link_module
from .runtime.emulated import EmulatedModule
from .runtime.late import LateModule
from .runtime.nvcc import fatbin
from .runtime.toolchain import THIS_ARCH


class Module:
    """A model that runs. `inputs` and `outputs` describe its tensors by name (dtype, shape).

    `threads` is how many a run takes that does not say so itself; 0 or None mean all cores. `operations` are
    the floating-point operations by algorithm, `recorded` is how many kernels have a config from records,
    `origins` how many of these were measured on another machine, by that machine; a module loaded from a file
    knows none of them.
    """

    def __init__(
        self,
        runner: binding.Module | EmulatedModule | LateModule,
        threads: int | None = None,
        link: Callable[[Path, str], None] | None = None,
        plan: Plan | None = None,
        operations: Mapping[str, int] | None = None,
        arch: str = THIS_ARCH,
        recorded: int = 0,
        origins: Mapping[str, int] | None = None,
    ):
        self._runner = runner
        self._arch = arch
        self._link = link
        self.plan = plan
        self.operations = dict(operations or {})
        self.recorded, self.origins = recorded, dict(origins or {})
        self.threads = binding.thread_count(threads) or host_threads()

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(str, infos)) for infos in (self.inputs, self.outputs))
        return f"<burnish.Module {self._runner.name}: {inputs or 'no inputs'} -> {outputs}>"

    def __reduce__(self) -> Any:
        raise InputError("a module cannot be pickled or copied; save it to a file and load that")

    def _count(self, threads: int | None) -> int:
        return self.threads if threads is None else threads

    @staticmethod
    def from_kernels(
        packed: Packed,
        kernels: Sequence[Kernel],
        target: Target,
        threads: int | None,
        operations: Mapping[str, int] | None = None,
        recorded: int = 0,
        origins: Mapping[str, int] | None = None,
        *,
        cache: bool,
    ) -> Module:
        """Runs in this process, or on its GPU; where the target is another CPU, under an emulator if there is
        one. `cache`: whether programs for GPUs are kept.
        """
        plan = packed.plan
        if target.gpu:
            data = device_program(kernels, plan.kernels, target, partial(fatbin, keep=cache))
            code: DeviceCode | None = DeviceCode(target.gpu.language, data)
            objects: list[bytes] = []
        else:
            code, objects = None, [k.object for k in kernels]
        encoded = encode(plan)

        arch = target.arch or THIS_ARCH

        def link(out: Path, kind: str) -> None:
            link_module(objects, encoded, packed.weights.data, plan.kernels, out, kind, arch, code)

        about = [_tensor(io) for io in plan.inputs], [_tensor(io) for io in plan.outputs]
        steps = [_step(step) for step in plan.steps]
        runner: binding.Module | EmulatedModule | LateModule
        if code:
            opened = partial(binding.device_module_from_memory, encoded, code, packed.weights)
            runner = LateModule(plan.name, target.name, *about, steps, opened)
        elif runs_here(target):
            loaded = LoadedCode(objects, target)
            addresses = [loaded.address(symbol) for symbol in plan.kernels]
            runner = binding.module_from_memory(encoded, addresses, packed.weights, loaded)
        else:
            program = partial(link, kind="program")
            runner = EmulatedModule(plan.name, target.arch, target.cpu, *about, steps, program)
        return Module(runner, threads, link, plan, operations, arch, recorded, origins)

    @property
    def inputs(self) -> tuple[binding.TensorInfo, ...]:
        return self._runner.inputs

    @property
    def outputs(self) -> tuple[binding.TensorInfo, ...]:
        return self._runner.outputs

    @property
    def steps(self) -> tuple[binding.StepInfo, ...]:
        """The kernel calls in order, with their operations and bytes."""
        return self._runner.steps

    @property
    def emulated(self) -> bool:
        """Whether runs need an emulator, since the target is not this machine."""
        return isinstance(self._runner, EmulatedModule)

    @property
    def on_cpu(self) -> bool:
        """Whether its kernels run on a CPU, and not on a GPU."""
        target = TARGETS.get(self._runner.target)
        return target is None or target.kind == "cpu"

    @property
    def foreign(self) -> bool:
        """Whether its file is for machines of another architecture than this one."""
        return self._arch != THIS_ARCH

    def run(
        self, feeds: Mapping[str, Any], threads: int | None = None, out: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Outputs by name, for arrays (numpy or DLPack) by input name. InputError says what was expected.

        Outputs are new numpy arrays, but for those of `out`, which are written into. Modules for CUDA read
        and write arrays of torch or cupy on their GPU in place.
        """
        return self._runner.run(feeds, self._count(threads), out)

    def context(self, threads: int | None = None) -> binding.Context:
        """Bound memory and threads for repeated runs; several contexts may run at once."""
        return self._runner.context(self._count(threads))

    def run_profiled(self, feeds: Mapping[str, Any], threads: int | None = None) -> list[binding.StepTime]:
        """Nanoseconds of every kernel of one run."""
        return self._runner.run_profiled(feeds, self._count(threads))

    def save(self, path: str | Path) -> None:
        """Writes the module: `.so` (one loadable file) or `.a` (an archive, with a header beside it)."""
        out = binding.file_path(path)
        if self._link is None:
            raise InputError(f"{out}: a module loaded from a file cannot be saved again; copy the file")
        if out.suffix not in (".so", ".a"):
            raise InputError(f"{out}: a module's name ends in .so or .a")
        self._link(out, out.suffix[1:])

    def save_program(self, path: Path) -> None:
        """Writes a static program of the target that runs the module on a file of inputs (src/runner.c)."""
        if self._link is None:
            raise InputError(f"{path}: a module loaded from a file cannot be saved again")
        self._link(path, "program")


def _tensor(io: PlanIO) -> binding.TensorInfo:
    return binding.TensorInfo(io.name, io.type.dtype.numpy, io.type.dtype.name, io.type.dims, io.type.nbytes)


def _step(step: Step) -> binding.StepInfo:
    if isinstance(step, Copy):
        return binding.StepInfo("copy", step.node, 1, 0, 2 * step.source.nbytes, False)
    return binding.StepInfo(step.kernel, step.node, step.tasks, step.flops, step.bytes, step.gang)


def load(path: str | Path, threads: int | None = None, verify_digest: bool = False) -> Module:
    """A module from its file; InputError if it is damaged, of another version, or needs another CPU,
    ToolError if it needs a driver that is not there, NoMemoryError if its weights do not fit.

    threads  how many its runs take (default: all cores)
    """
    return Module(binding.open_module(path, verify_digest), threads)
