"""`burnish bench`: speed beside other libraries. bench.py measures, bench_report.py prints; where there is no
board, bench_counts.py counts instructions and bench_counts_report.py prints."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
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
    tuning_of,
    tuning_options,
)
from .peers.base import TuningTime
from .report import say
from .source import Source, find_source, static_model
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
@thread_counts("Numbers of threads, a table each; for CUDA targets and under an emulator one.")
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
    files = _Files(json_file, markdown, html)
    files.check(records, *map(Path, dict.fromkeys(models)))
    machine = get_target(target)
    emulated = simulates(machine)
    tuning = tuning_of(trials, budget)
    _check_options(target, precisions, timed=measure or bool(tuning), root=root, tflite=tflite)
    sources = _sources(models, dims, batches, values, tflite)
    networks = [(source.name, static_model(source.read(), shapes, dims)) for source in sources]
    own = partial(compile_model, target=target, cache=cache)
    if against is None:
        against = "onnxruntime" if emulated else "torch" if machine.cuda else ",".join(peers.DEFAULT)
    names = _names(against)
    reports: Any = bench_counts_report if emulated else bench_report
    result: Any
    if emulated:
        emulated_peers = _emulated_subjects(own, records)
        if names or tflite:
            emulated_peers += peers.find_emulated(names, peers.System.find(root, machine), tflite)
        how = {"runs": rounds, "seed": seed, "keep": partial(files.write, reports, so_far=True)}
        with _status() as (progress, _):
            result = count_instructions(networks, emulated_peers, machine, progress=progress, **how)
    else:
        threads = (1,) if machine.cuda else threads
        ahead = _Ahead(own, machine, threads, precisions, tuning=tuning, measure=measure, records=records)
        contestants = [subject for kind in precisions for subject in _subjects(ahead, kind)]
        contestants += peers.find_cuda(names, precisions) if machine.cuda else peers.find(names, tflite)
        keep = partial(files.write, reports, so_far=True)
        result = _timed(networks, contestants, ahead, rounds=rounds, seed=seed, keep=keep)
    reports.report(result).show()
    files.write(reports, result)
    if failed := [row for group in result.groups for row in group.rows if row.subject and row.failed]:
        raise BurnishError(
            f"{len(failed)} of our own rows failed; {failed[0].contestant}: {failed[0].reason}"
        )


@dataclass(frozen=True)
class _Files:
    """Where the result goes, beside standard output."""

    json: Path | None
    markdown: Path | None
    html: Path | None

    def check(self, *others: Path | None) -> None:
        """InputError if one cannot be written, or is another one or one of the `others`."""
        for path in (self.json, self.markdown, self.html):
            if path:
                check_writable(path)
        check_different(self.json, self.markdown, self.html, *others)

    def write(self, reports: Any, found: Any, so_far: bool = False) -> None:
        """Whatever ends a long comparison, its rows until then are in all files."""
        report = reports.report(found)
        texts = (
            (self.json, reports.to_json(found)),
            (self.markdown, report.to_markdown()),
            (self.html, report.to_html()),
        )
        for path, text in texts:
            if path and not (so_far and path.exists() and not path.is_file()):  # a pipe takes one document
                write_file(path, text)


def _check_options(
    target: str, precisions: Sequence[str], *, timed: bool, root: Path | None, tflite: Collection[str]
) -> None:
    """InputError for what the target does not take; `timed` is whether to tune or measure."""
    machine = get_target(target)
    emulated = simulates(machine)
    if emulated and timed:
        raise InputError(f"{target} is not this machine, so nothing is timed; tune before, give --records")
    if root is not None and not emulated:
        raise InputError("--root is for targets that run under an emulator; see --target")
    if tflite and machine.cuda:
        raise InputError(f"--tflite: LiteRT is not compared with on {target}")
    for precision in precisions:
        require_precision(machine, precision)


def _sources(
    models: Sequence[str],
    dims: Mapping[str, int],
    batches: Sequence[int] | None,
    values: Mapping[str, str],
    tflite: Iterable[str],
) -> list[Source]:
    """Each model with each batch; InputError where two have one name, or a name of `tflite` is not theirs."""
    sources = [
        find_source(model, dims, only_model=True, batch=batch, values=values)
        for model in models
        for batch in batches or (None,)
    ]
    if twice := [name for name, count in Counter(s.name for s in sources).items() if count > 1]:
        raise InputError(
            f"two of the models are called {twice[0]}: rename a file, so that rows can be told apart"
        )
    names = {source.name for source in sources}
    if unknown := [name for name in tflite if name not in names]:
        raise InputError(f"--tflite {unknown[0]}: that is none of the models")
    return sources


@dataclass
class _Ahead:
    """What this compiler does before a network is compared: it tunes, and measures what plans choose from."""

    compile: Callable[..., Module]
    machine: Target
    threads: Sequence[int]
    precisions: Sequence[str]
    tuning: Mapping[str, Any]
    measure: bool
    records: Path | None
    took: dict[str, dict[tuple[str, int], TuningTime]] = field(default_factory=lambda: defaultdict(dict))
    """Tuning, by precision; network and number of threads."""

    def __call__(self, name: str, model: onnx.ModelProto) -> None:
        for precision in self.precisions:
            try:
                self._prepare(name, model, precision)
            except (ModelError, UnsupportedError, InfeasibleError) as error:  # its row says so, too
                click.echo(f"{name}: {error}", err=True)

    def _prepare(self, name: str, model: onnx.ModelProto, precision: str) -> None:
        if self.tuning:
            self._tune(name, model, precision)
        if self.measure and self.machine.gpu:  # contestants' processes cannot: the driver is in use there
            click.echo(f"{name}: measuring its kernels", err=True)
            for count in self.threads:
                self.compile(model, threads=count, measure=True, records=self.records, precision=precision)

    def _tune(self, name: str, model: onnx.ModelProto, precision: str) -> None:
        """A GPU's kernels are the same for all numbers of threads."""
        alike = self.machine.gpu is not None
        for count in self.threads[:1] if alike else self.threads:
            how = {"target": self.machine, "records": self.records, "precision": precision, **self.tuning}
            found = tune_first(name, model, count, **how)
            took = TuningTime(found.seconds, found.spent.overhead)
            self.took[precision] |= {(name, n): took for n in (self.threads if alike else (count,))}


def _names(against: str) -> list[str]:
    """Of peers. InputError for "none" beside others."""
    names = [name.strip() for name in against.split(",") if name.strip()]
    if "none" in names and len(names) > 1:
        raise InputError(f"--against {against}: give none alone, or other libraries")
    return [name for name in names if name != "none"]


def _emulated_subjects(own: Callable[..., Module], records: Path | None) -> list[peers.EmulatedPeer]:
    """As `_subjects`, under an emulator."""
    subjects: list[peers.EmulatedPeer] = [peers.EmulatedBurnish(own)]
    if records is not None:
        tuned = partial(own, records=records_path(records, False))
        subjects.append(peers.EmulatedBurnish(tuned, name="burnish-tuned"))
    return subjects


def _subjects(ahead: _Ahead, precision: str) -> list[peers.Peer]:
    """This compiler, with what it plans and finds in the ways that were asked for."""
    own, records = partial(ahead.compile, precision=precision), ahead.records
    burnish = partial(peers.Burnish, cuda=ahead.machine.cuda, precision=precision)
    subjects: list[peers.Peer] = [burnish(own)]
    if ahead.measure:
        measured = partial(own, measure=True, records=records)
        subjects.append(burnish(measured, "burnish-measured"))
    if ahead.tuning and records is not None:
        check_writable(records, (".jsonl",))
    if ahead.tuning or (records is not None and not ahead.measure):
        tuned = partial(own, records=records_path(records or default_path(), bool(ahead.tuning)))
        subjects.append(burnish(tuned, "burnish-tuned", tuning=ahead.took[precision]))
    return subjects


def _timed(
    networks: Networks,
    contestants: Sequence[peers.Peer],
    ahead: _Ahead,
    *,
    rounds: int,
    seed: int,
    keep: Callable[[BenchResult], None],
) -> BenchResult:
    """What `contestants` take here, in turns."""
    machine = ahead.machine
    gpu = _find_cuda(machine) if machine.cuda else None
    device = {"device": str(find_gpu(machine))} if machine.gpu and gpu is None else {}
    with _status() as (progress, status):

        def aside(name: str, model: onnx.ModelProto) -> None:
            if isinstance(gpu, str):  # there is none
                return
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
            networks,
            contestants,
            threads=ahead.threads,
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
    """Where what happens next is told: in a line that changes, on a terminal; and that line. It is drawn
    seldom: contestants run meanwhile."""
    console = Console(stderr=True, markup=False, emoji=False)
    with console.status("starting", refresh_per_second=1) as status:

        def progress(message: str) -> None:
            if console.is_terminal:
                status.update(message)
            elif not re.search(r": round \d+ of \d+$", message):
                say(console, message)

        yield progress, status
