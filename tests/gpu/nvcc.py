"""Kernels compiled for NVIDIA GPUs, without one.

python -m tests.gpu.nvcc NETWORK[:PRECISION]…   those of networks of the zoo with the configs that ship, for
                                                sm_80 and sm_90: what ptxas says of each
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from burnish.compiler.build_kernel import build_kernel
from burnish.compiler.codegen.c_dialect import module_source
from burnish.compiler.codegen.cuda import DIALECT, OPTIONS
from burnish.compiler.kernel_task import Config, DefaultConfig, KernelTask
from burnish.compiler.target import Target, get_target
from burnish.frontends.onnx.importer import import_onnx
from burnish.graph_passes.make_tasks import kernel_tasks
from burnish.graph_passes.plan_layout import PlanOptions
from burnish.models import zoo
from burnish.op_tuner.records import tuned_configs
from burnish.pipeline import optimise
from burnish.runtime.nvcc import find_nvcc, find_packaged

_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores")
_USED = re.compile(r"Used (\d+) registers")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(.*?) ;", re.MULTILINE)


@dataclass(frozen=True)
class Resources:
    """What a kernel needs: registers of a thread, bytes of its stack, bytes spilt to it."""

    name: str
    registers: int
    stack: int
    spilt: int


def compiled(sources: Iterable[str], target: Target) -> list[Resources]:
    """RuntimeError with the compiler's messages where it refuses the sources."""
    with tempfile.TemporaryDirectory() as folder:
        said = _compile(sources, target, Path(folder, "cubin"))
    found = []
    for part in said.split("ptxas info    : Compiling entry function '")[1:]:
        entry = part.partition("'")[0]
        spills, used = _SPILLS.search(part), _USED.search(part)
        assert spills and used
        found.append(Resources(entry, int(used[1]), int(spills[1]), int(spills[2])))
    return found


def instructions(sources: Iterable[str], target: Target) -> dict[str, list[str]]:
    """Of each kernel, in the order of its machine code; RuntimeError as of `compiled`."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder, "cubin")
        _compile(sources, target, cubin)
        command = [find_nvdisasm(), "-c", cubin]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    parts = re.split(r"^\.text\.(\w+):$", text, flags=re.MULTILINE)
    return {name: _INSTRUCTION.findall(code) for name, code in zip(parts[1::2], parts[2::2])}


def find_nvdisasm() -> str:
    found = shutil.which("nvdisasm") or find_packaged("nvdisasm")
    assert found, "nvdisasm is missing: pip install nvidia-cuda-nvdisasm"
    return found


def _compile(sources: Iterable[str], target: Target, cubin: Path) -> str:
    """What the compiler says of the kernels."""
    path = cubin.with_name("kernels.cu")
    path.write_text(module_source(DIALECT, list(sources)))
    how = [*OPTIONS, "-cubin", f"-arch={target.cpu}", "-Xptxas", "-v"]
    done = subprocess.run([*find_nvcc(), *how, "-o", cubin, path], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stderr


def default(task: KernelTask) -> Config:
    return DefaultConfig()


def sources_of(network: str, target: Target, configs: Callable[[KernelTask], Config] = default) -> list[str]:
    """Every different kernel of a network of the zoo, NAME or NAME:PRECISION."""
    name, _, precision = network.partition(":")
    options = PlanOptions(precision=precision or "f32")
    graph = optimise(import_onnx(zoo.build(name)), target, 1, options=options)
    tasks = {task.key: task for task in kernel_tasks(graph, target, 1).values()}
    symbols = ((task, f"{task.name}_{task.digest[:8]}") for task in tasks.values())
    return [build_kernel(task, configs(task), symbol).object.decode() for task, symbol in symbols]


def main() -> int:
    worst = 0
    for network in sys.argv[1:]:
        for name in ("cuda-sm80", "cuda-sm90"):
            target = get_target(name)
            kernels = compiled(sources_of(network, target, tuned_configs(None)), target)
            for k in kernels:
                if k.stack or k.spilt:
                    print(f"  {k.name}: {k.registers} registers, stack {k.stack}, spilt {k.spilt} bytes")
            worst = max(worst, *(k.spilt for k in kernels))
            most = max(k.registers for k in kernels)
            print(f"{network} for {target.cpu}: {len(kernels)} kernels, at most {most} registers")
    return int(worst > 0)


if __name__ == "__main__":
    raise SystemExit(main())
