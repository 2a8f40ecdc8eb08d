"""`burnish profile --offline`: what a GPU's own compiler counts in every kernel, without the GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from ..compiler.codegen.c_dialect import kernel_programs
from ..compiler.codegen.opencl import DIALECT
from ..compiler.target import TARGETS, Target, get_target
from ..errors import InputError
from ..frontends.onnx.importer import import_onnx
from ..graph_passes.make_tasks import kernel_tasks
from ..kernel_cache import KernelStore
from ..op_tuner.records import tuned_configs
from ..pipeline import optimise
from ..runtime.mali import MaliCompiler, Shader
from .progress import show_progress
from .source import Source


@dataclass(frozen=True)
class OfflineLine:
    kernel: str
    calls: int  # in a run
    shader: Shader


@dataclass(frozen=True)
class OfflineProfile:
    lines: tuple[OfflineLine, ...]
    chip: str
    target: str  # that the code is for


def offline_target(chip: str, name: str) -> Target:
    """The target of that name; where it is "host", the one that is nearest to the chip."""
    if name == "host":
        midgard = chip.startswith("mali-t")
        return TARGETS[chip] if chip in TARGETS else TARGETS["mali-t860" if midgard else "mali-g76"]
    target = get_target(name)
    if target.gpu is None or target.gpu.language != "opencl":
        raise InputError(f"--offline {chip} compiles OpenCL; target {target.name} is something else")
    return target


def profile_offline(
    source: Source,
    chip: str,
    root: Path | None,
    target_name: str,
    shapes: Mapping[str, Any],
    dims: Mapping[str, int],
    cache: bool,
) -> OfflineProfile:
    """Every kernel of the model's plan once, in the order of the first calls."""
    target, compiler = offline_target(chip, target_name), MaliCompiler(chip, root)
    with show_progress() as progress:
        graph = optimise(import_onnx(source.model, shapes=shapes, dims=dims), target, 1)
        kernels = KernelStore(cache).build_all(kernel_tasks(graph, target, 1), tuned_configs(None), progress)
        calls = Counter(step.symbol for kernel in kernels.values() for step in kernel.steps)
        programs = {
            symbol: text
            for kernel in kernels.values()
            for symbol, text in zip(
                dict.fromkeys(step.symbol for step in kernel.steps),
                kernel_programs(DIALECT, kernel.object.decode()),
                strict=True,
            )
        }
        lines = []
        for symbol, shader in zip(programs, compiler.compile(list(programs.values())), strict=True):
            lines.append(OfflineLine(symbol, calls[symbol], shader))
            progress(f"{chip}: {symbol}", len(lines), len(programs))
    return OfflineProfile(tuple(lines), chip, target.name)


def offline_table(result: OfflineProfile) -> Table:
    pipes = list(dict.fromkeys(pipe for line in result.lines for pipe in line.shader.pipes))
    timed = any(line.shader.cycles is not None for line in result.lines)
    made = Table(box=box.SIMPLE)
    made.add_column("kernel", overflow="fold")
    counted = ("calls", "instructions", *(["cycles"] if timed else []), *pipes)
    for name in (*counted, "registers", "spills", "fills"):
        made.add_column(name, justify="right", no_wrap=True)
    for line in result.lines:
        s = line.shader
        busy = [] if s.cycles is None else [s.cycles]
        cycles = [f"{number:.4g}" for number in (*busy, *(s.pipes.get(pipe, 0.0) for pipe in pipes))]
        counts = map(str, (s.registers, s.spills, s.fills))
        made.add_row(line.kernel, str(line.calls), str(s.instructions), *cycles, *counts)
    return made


def offline_totals(result: OfflineProfile) -> str:
    spilling = sum(1 for line in result.lines if line.shader.spills or line.shader.fills)
    most = max((line.shader.registers for line in result.lines), default=0)
    return (
        f"{len(result.lines)} kernels for {result.target}, compiled for {result.chip} by Mesa, loops counted "
        f"once: at most {most} registers a thread, {spilling or 'none'} with spills"
    )
