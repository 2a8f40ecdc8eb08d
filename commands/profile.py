"""`burnish profile`: where a run's time goes, kernel by kernel."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich import box
from rich.table import Table

from ..compiler.target import host_threads
from ..errors import InputError
from ..pipeline import Module
from ..runtime.mali import CHIPS
from .files import check_different, check_writable, write_file
from .machine import Limits, measure_limits
from .options import SEED, THREADS, compile_options
from .profile_offline import offline_table, offline_totals, profile_offline
from .report import NAME, console_of, say, threads_text
from .source import find_source, open_module, random_feeds

WIDTH = 150  # where there is no terminal
SECONDS = 0.5  # of profiled runs, about
MOST_RUNS = 200


@dataclass(frozen=True)
class Line:
    """One kernel call. Times are in seconds: the median, and one run's start since the run's beginning."""

    kernel: str
    node: str
    seconds: float
    start: float
    flops: int
    bytes: int
    tasks: int

    @property
    def gflops(self) -> float:
        return self.flops / self.seconds / 1e9 if self.seconds else 0.0


@dataclass(frozen=True)
class Profile:
    lines: tuple[Line, ...]
    run_seconds: float  # median of whole runs without profiling
    threads: int
    runs: int


@click.command("profile")
@click.argument("source", metavar="MODULE|MODEL")
@click.option(
    "--trace", type=click.Path(path_type=Path), metavar="FILE", help="Write one for chrome://tracing."
)
@click.option("--sort", type=click.Choice(["order", "time"]), default="order", show_default=True)
@click.option(
    "--offline",
    type=click.Choice(list(CHIPS)),
    help="Run nothing: what Mesa's compiler for it counts.",
)
@click.option(
    "--root",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="AArch64 system with that compiler (BURNISH_MALI_ROOT).",
)
@compile_options
@THREADS
@SEED
def command(source, trace, sort, offline, root, shapes, dims, values, target, cache, threads, seed):
    """Time every kernel of a module (.so) or a model, on random inputs.

    GFLOP/s count the operations of sums of products; the peak is this CPU's, measured now; GB/s count
    every buffer that a kernel reads or writes once.

    With --offline an ARM Mali GPU need not be there: instructions, cycles by pipe, registers and spills of
    every kernel as Mesa counts them, each loop once.
    """
    console = console_of(WIDTH)
    if offline:
        if trace or threads or sort == "time":
            raise InputError("--offline has no times: leave out --trace, --threads and --sort")
        found = find_source(source, dims, only_model=True, values=values)
        counted = profile_offline(found, offline, root, target, shapes, dims, cache)
        console.print(offline_table(counted), soft_wrap=True)
        say(console, offline_totals(counted))
        return
    if root:
        raise InputError("--root is where --offline finds its compiler; give both")
    if trace:
        check_writable(trace)
    check_different(trace, Path(source))
    found = find_source(source, dims, values=values)
    threads = threads or host_threads()
    module = open_module(found, shapes, dims, threads, target=target, cache=cache)
    result = profile(module, random_feeds(found, module.inputs, seed), threads)
    limits = measure_limits([threads]) if module.on_cpu else None
    console.print(table(result, limits, sort == "time"), soft_wrap=True)
    for line in totals(result, limits):
        say(console, line)
    if trace:
        write_file(trace, chrome_trace(found.name, result))
        say(console, f"wrote {trace}")


def profile(module: Module, feeds: Mapping[str, np.ndarray], threads: int) -> Profile:
    """Medians over repeated runs on the same memory, after one untimed run."""
    context = module.context(threads)
    for name, array in feeds.items():
        context.bind_input(name, array)
    context.run()
    whole: list[float] = []
    times: list[list[int]] = []
    end = time.perf_counter() + SECONDS
    while not times or (time.perf_counter() < end and len(times) < MOST_RUNS):
        start = time.perf_counter()
        context.run()
        whole.append(time.perf_counter() - start)
        times.append([step.ns for step in context.run_profiled()])
    medians = np.median(np.asarray(times, np.float64).reshape(len(times), -1), axis=0) / 1e9
    starts = np.cumsum([0.0, *medians])
    lines = [
        Line(
            kernel=step.kernel,
            node=step.node,
            seconds=float(s),
            start=float(at),
            flops=step.flops,
            bytes=step.bytes,
            tasks=step.tasks,
        )
        for step, s, at in zip(module.steps, medians, starts)
    ]
    return Profile(tuple(lines), float(np.median(whole)), threads, len(times))


def table(result: Profile, limits: Limits | None, by_time: bool) -> Table:
    """`limits` are what kernels are held against, if anything."""
    total = sum(line.seconds for line in result.lines) or 1.0
    peak = limits.gflops[result.threads] if limits else None
    made = Table(box=box.SIMPLE)
    for name in ("kernel", "node"):
        made.add_column(name, overflow="fold", min_width=NAME)
    for name in ("µs", "share", "GFLOP/s", "of peak", "GB/s", "tasks"):
        made.add_column(name, justify="right", no_wrap=True)
    for line in sorted(result.lines, key=lambda x: -x.seconds) if by_time else result.lines:
        share = f"{line.gflops / peak:.0%}" if peak else ""
        rate = (f"{line.gflops:.1f}", share) if line.flops else ("", "")
        speed = f"{line.bytes / line.seconds / 1e9:.1f}" if line.bytes and line.seconds else ""
        cells = (f"{line.seconds * 1e6:.1f}", f"{line.seconds / total:.1%}", *rate, speed, str(line.tasks))
        made.add_row(line.kernel, line.node, *cells)
    return made


def totals(result: Profile, limits: Limits | None) -> list[str]:
    """The whole run, the machine's limits, and what the kernels' sum leaves over. Of a GPU there are none."""
    flops = sum(line.flops for line in result.lines)
    kernels = sum(line.seconds for line in result.lines)
    rate = flops / result.run_seconds / 1e9 if result.run_seconds else 0.0
    threads = f", {threads_text(result.threads)}" if limits else ""
    lines = [
        f"one run: {result.run_seconds * 1e3:.3f} ms{threads}, median of {result.runs}; "
        f"kernels {kernels * 1e3:.3f} ms in {len(result.lines)} calls",
        f"{flops / 1e9:.3g} GFLOP at {rate:.1f} GFLOP/s",
    ]
    if limits:
        peak, read = limits.gflops[result.threads], limits.read_gbs[result.threads]
        lines[-1] += (
            f", {rate / peak:.0%} of this machine's measured {peak:.0f} GFLOP/s (f32 multiply-add); "
            f"it reads {read:.0f} GB/s from memory"
        )
    return lines


def chrome_trace(name: str, result: Profile) -> str:
    """JSON in the Trace Event Format: the kernels of one run, one after another, in microseconds."""
    events: Sequence[Mapping[str, Any]] = [
        {
            "name": line.kernel,
            "cat": "kernel",
            "ph": "X",
            "ts": line.start * 1e6,
            "dur": line.seconds * 1e6,
            "pid": 1,
            "tid": 1,
            "args": {
                "node": line.node,
                "flops": line.flops,
                "bytes": line.bytes,
                "tasks": line.tasks,
                "GFLOP/s": line.gflops,
            },
        }
        for line in result.lines
    ]
    title = {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": name}}
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": [title, *events]}, indent=1) + "\n"
