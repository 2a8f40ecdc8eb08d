"""`burnish bench`: speed beside other libraries. bench.py measures, bench_report.py prints; where there is no
board, bench_counts.py counts instructions and bench_counts_report.py prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import onnx
from rich.console import Console
from rich.status import Status

from ..compiler.cuda_device import CudaDevice, is_usable
from ..compiler.target import Target, get_target
from ..errors import BurnishError, InfeasibleError, InputError, ModelError, UnsupportedError
from ..graph_passes.plan_layout import PRECISIONS
from ..module import Module
from ..op_tuner.child import ChildEnded, answer_of
from ..op_tuner.measure import find_gpu
from ..op_tuner.records import default_path
from ..pipeline import compile as compile_model
from ..pipeline import records_path, require_precision
from ..tuning import simulates
from . import bench_counts_report, bench_report, peers
from .bench import BenchResult, bench
from .bench_apart import compare_apart
from .bench_counts import CountResult
from .bench_counts import count as count_instructions
from .cuda_machine import CudaMachine, measure_cuda
from .files import check_different, check_writable, write_file
from .options import (
    SEED,
    compile_options,
    parse_files,
    parse_optional_counts,
    parse_precisions,
    thread_counts,
    tuning_options,
)
from .source import find_source, static_model
from .tune_first import tune_first

Networks = Sequence[tuple[str, onnx.ModelProto]]


@click.command("bench")
@click.argument("models", metavar="MODEL…", nargs=-1, required=True)
@click.option(
    "--against",
    metavar="NAMES",
    help=f"Other libraries: {', '.join(peers.HOST)}, all, none. Those not installed are rows that say so. "
    f"Default: {','.join(peers.DEFAULT)}. For CUDA targets: {', '.join(peers.CUDA)}; default: torch. "
    f"Under an emulator: {', '.join(peers.EMULATED)}; default: onnxruntime.",
)
@click.option(
    "--batch",
    "batches",
    callback=parse_optional_counts,
    metavar="N,…",
    help="Inputs in one run, for networks of the zoo. Files have --dim and --shape.",
)
@thread_counts("Numbers of threads, a table each; on GPUs and under an emulator one.")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=7, show_default=True, help="Interleaved rounds."
)
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), metavar="FILE", help="Every time taken."
)
@click.option("--markdown", type=click.Path(path_type=Path), metavar="FILE", help="The tables in Markdown.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="The tables as a page.")
@click.option(
    "--tflite",
    multiple=True,
    callback=parse_files,
    metavar="MODEL=FILE",
    help="The same network for LiteRT.",
)
@click.option(
    "--root",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="An AArch64 system with other libraries, for a target that this machine is not: instructions are "
    f"counted under an emulator. Peers: {', '.join(peers.EMULATED)}.",
)
@click.option("--measure", is_flag=True, help="A second row, whose plan comes from measured costs.")
@tuning_options("A row that is tuned first", " for each model and number of threads")
@click.option(
    "--records",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where measurements are kept; alone, a row with the plan and configs that a tuning has found.",
)
@click.option(
    "--precision",
    "precisions",
    default="f32",
    show_default=True,
    callback=parse_precisions,
    metavar="NAME,…",
    help=f"A row for each of {', '.join(PRECISIONS)}: what a GPU's tensor cores may round factors to.",
)
@compile_options
@SEED
def command(
    *,
    models,
    against,
    threads,
    rounds,
    json_file,
    markdown,
    html,
    tflite,
    root,
    batches,
    measure,
    trials,
    budget,
    records,
    precisions,
    shapes,
    dims,
    values,
    target,
    cache,
    seed,
):
    """Time each MODEL (.onnx files or names from the zoo) here and in other libraries.

    All run in one process, in turns, on the same inputs, threads and precision; outputs are checked first.
    For an AArch64 --target on another machine, instructions are counted instead, under an emulator. For a
    CUDA --target all run on the GPU, where inputs and outputs lie, too. Rows that cannot be measured say why,
    which is no error, nor is a failure of another library; what Burnish cannot compile, or gives wrong
    results for, is one: the exit code is 1.
    """
    for path in (json_file, markdown, html):
        if path:
            check_writable(path)
    check_different(json_file, markdown, html, records, *(Path(m) for m in dict.fromkeys(models)))
    machine = get_target(target)
    emulated = simulates(machine)
    tuning = {"trials": trials, "budget": budget} if trials is not None or budget is not None else {}
    if emulated and (measure or tuning):
        raise InputError(f"{target} is not this machine, so nothing is timed; tune before, give --records")
    if root is not None and not emulated:
        raise InputError("--root is for targets that run under an emulator; see --target")
    sources = [
        find_source(model, dims, only_model=True, batch=batch, values=values)
        for model in models
        for batch in batches or (None,)
    ]
    if twice := [name for name, count in Counter(s.name for s in sources).items() if count > 1]:
        raise InputError(
            f"two of the models are called {twice[0]}: rename a file, so that rows can be told apart"
        )
    if tflite and machine.cuda:
        raise InputError(f"--tflite: LiteRT is not compared with on {target}")
    unknown = [name for name in tflite if name not in {source.name for source in sources}]
    if unknown:
        raise InputError(f"--tflite {unknown[0]}: that is none of the models")
    for precision in precisions:
        require_precision(machine, precision)
    networks = [(source.name, static_model(source.read(), shapes, dims)) for source in sources]
    own = partial(compile_model, target=target, cache=cache)
    if against is None:
        against = "onnxruntime" if emulated else "torch" if machine.cuda else ",".join(peers.DEFAULT)
    names = [name.strip() for name in against.split(",") if name.strip() not in ("", "none")]
    reports: Any = bench_counts_report if emulated else bench_report

    def write(found: Any, so_far: bool = False) -> None:
        """Whatever ends a long comparison, its rows until then are in all files."""
        report = reports.report(found)
        texts = {json_file: reports.to_json(found), markdown: report.to_markdown(), html: report.to_html()}
        for path, text in texts.items():
            if path and not (so_far and path.exists() and not path.is_file()):  # a pipe takes one document
                write_file(path, text)

    result: Any
    if emulated:
        others = peers.find_emulated(names, peers.System.find(root, machine), tflite) if names else []
        result = _counted(networks, own, others, machine, rounds=rounds, records=records, seed=seed)
    else:
        gpu = _find_cuda(machine) if machine.cuda else None
        threads = (1,) if machine.cuda else threads
        took: dict[str, dict[tuple[str, int], float]] = {kind: {} for kind in precisions}
        contestants: list[peers.Peer] = []
        for kind in precisions:
            rounded = partial(own, precision=kind)
            contestants += _subjects(rounded, measure, bool(tuning), records, machine.cuda, took[kind], kind)
        contestants += peers.find_cuda(names, precisions) if machine.cuda else peers.find(names, tflite)

        def prepare(name: str, model: onnx.ModelProto, kind: str) -> None:
            if tuning:
                how = {**tuning, "records": records, "precision": kind}
                took[kind].update(_tune(name, model, threads, target, **how))
            if measure and machine.gpu:  # contestants' processes cannot: the driver is in use there
                click.echo(f"{name}: measuring its kernels", err=True)
                for count in threads:
                    own(model, threads=count, measure=True, records=records, precision=kind)

        def ahead(name: str, model: onnx.ModelProto) -> None:
            for kind in () if isinstance(gpu, str) else precisions:
                try:
                    prepare(name, model, kind)
                except (ModelError, UnsupportedError, InfeasibleError) as error:  # its row says so, too
                    click.echo(f"{name}: {error}", err=True)

        timed = partial(_timed, networks, contestants, machine, gpu)
        keep = partial(write, so_far=True)
        result = timed(threads=threads, rounds=rounds, seed=seed, ahead=ahead, keep=keep)
    reports.report(result).show()
    write(result)
    if failed := [row for group in result.groups for row in group.rows if row.subject and row.failed]:
        raise BurnishError(
            f"{len(failed)} of our own rows failed; {failed[0].contestant}: {failed[0].reason}"
        )


def _counted(
    networks: Networks,
    own: Callable[..., Module],
    others: Sequence[peers.EmulatedPeer],
    machine: Target,
    *,
    rounds: int,
    records: Path | None,
    seed: int,
) -> CountResult:
    """What this compiler's modules and `others` execute under an emulator."""
    subjects = [peers.EmulatedBurnish(own)]
    if records is not None:
        tuned = partial(own, records=records_path(records, False))
        subjects.append(peers.EmulatedBurnish(tuned, name="burnish-tuned"))
    with _status() as (progress, _):
        return count_instructions(
            networks, [*subjects, *others], machine, runs=rounds, seed=seed, progress=progress
        )


def _subjects(
    own: Callable[..., Module],
    measure: bool,
    tuning: bool,
    records: Path | None,
    on_cuda: bool,
    took: Mapping[tuple[str, int], float],
    precision: str,
) -> list[peers.Peer]:
    """This compiler, with what it plans and finds in the ways that were asked for; tuning `took` so long."""
    burnish = partial(peers.Burnish, cuda=on_cuda, precision=precision)
    subjects: list[peers.Peer] = [burnish(own)]
    if measure:
        measured = partial(own, measure=True, records=records)
        subjects.append(burnish(measured, "burnish-measured"))
    if tuning and records is not None:
        check_writable(records, (".jsonl",))
    if tuning or (records is not None and not measure):
        tuned = partial(own, records=records_path(records or default_path(), tuning))
        subjects.append(burnish(tuned, "burnish-tuned", tuning=took))
    return subjects


def _timed(
    networks: Networks,
    contestants: Sequence[peers.Peer],
    machine: Target,
    gpu: CudaDevice | str | None,
    *,
    threads: Sequence[int],
    rounds: int,
    seed: int,
    ahead: Callable[[str, onnx.ModelProto], None],
    keep: Callable[[BenchResult], None],
) -> BenchResult:
    """What `contestants` take here, in turns; `gpu` is that of a CUDA target, or why there is none."""
    device = {"device": str(find_gpu(machine))} if machine.gpu and gpu is None else {}
    with _status() as (progress, status):

        def aside(name: str, model: onnx.ModelProto) -> None:
            status.stop()  # it has a display of its own
            try:
                ahead(name, model)
            finally:
                status.start()

        limits = None
        if gpu is not None:
            progress("measuring the GPU's peak")
            limits = CudaMachine(reason=gpu) if isinstance(gpu, str) else _limits(gpu)
        result = bench(
            *(networks, contestants),
            threads=threads,
            rounds=rounds,
            seed=seed,
            progress=progress,
            device=limits,
            on_cpu=not machine.gpu,
            ahead=aside,
            keep=keep,
            compare=partial(compare_apart, usable=is_usable),
        )
    return replace(result, versions={**result.versions, **device})


def _find_cuda(target: Target) -> CudaDevice | str:
    """The GPU that runs the target's code, or why there is none."""
    try:
        device = find_gpu(target)
    except InputError as error:
        return str(error)
    assert isinstance(device, CudaDevice)
    return device


def _limits(gpu: CudaDevice) -> CudaMachine:
    """Measured in a child: a driver that this process uses is lost to the children that compare."""
    try:
        return answer_of(lambda tell: measure_cuda(gpu))
    except ChildEnded as ending:
        return CudaMachine(str(gpu), reason=str(ending))
    except Exception as error:  # of torch
        return CudaMachine(str(gpu), reason=f"{type(error).__name__}: {error}".splitlines()[0])


@contextmanager
def _status() -> Iterator[tuple[Callable[[str], None], Status]]:
    """Where what happens next is told: in a line that changes, on a terminal; and that line."""
    console = Console(stderr=True, markup=False, emoji=False)
    with console.status("starting") as status:

        def progress(message: str) -> None:
            if console.is_terminal:
                status.update(message)
            elif "round" not in message:
                console.print(message, highlight=False, soft_wrap=True, markup=False)

        yield progress, status


def _tune(
    name: str, model: onnx.ModelProto, threads: Sequence[int], target: str, **how: Any
) -> dict[tuple[str, int], float]:
    """Seconds that it took, by network and threads; a GPU's kernels are the same for all."""
    gpu = get_target(target).gpu is not None
    took: dict[tuple[str, int], float] = {}
    for count in threads[:1] if gpu else threads:
        found = tune_first(name, model, count, target=target, **how)
        took |= {(name, n): found.seconds for n in (threads if gpu else (count,))}
    return took
