"""`burnish bench`: speed beside other libraries. bench.py measures, bench_report.py prints; where there is no
board, bench_counts.py counts instructions and bench_counts_report.py prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import onnx
from rich.console import Console

from ..compiler.target import Target, get_target, runs_here
from ..errors import InputError
from ..module import Module
from ..op_tuner.measure import find_gpu
from ..op_tuner.records import default_path
from ..op_tuner.simulated import ARCHITECTURES
from ..pipeline import compile as compile_model
from ..pipeline import records_path
from ..tuning import tune
from . import bench_counts_report, bench_report, peers
from .bench import BenchResult, bench
from .bench_counts import CountResult
from .bench_counts import count as count_instructions
from .files import check_writable, write_file
from .options import SEED, compile_options, parse_counts, parse_duration, parse_files
from .progress import show_progress
from .source import find_source, static_model

Networks = Sequence[tuple[str, onnx.ModelProto]]


@click.command("bench")
@click.argument("models", metavar="MODEL…", nargs=-1, required=True)
@click.option(
    "--against",
    metavar="NAMES",
    help=f"Other libraries: {', '.join(peers.NAMES)}, all, none. Those not installed are rows that say so. "
    f"Default: {','.join(peers.DEFAULT)}.",
)
@click.option("--threads", default="1,2", show_default=True, callback=parse_counts, metavar="N,…")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=7, show_default=True, help="Interleaved rounds."
)
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), metavar="FILE", help="Every time taken."
)
@click.option("--markdown", type=click.Path(path_type=Path), metavar="FILE", help="The tables as a page.")
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
@click.option(
    "--tune",
    "trials",
    type=click.IntRange(min=1),
    metavar="N",
    help="A row that is tuned first: so many configs for each model and number of threads.",
)
@click.option(
    "--budget",
    callback=parse_duration,
    metavar="TIME",
    help="The same by time for each model and number of threads: 90s, 15m.",
)
@click.option(
    "--records",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where measurements are kept; alone, a row with the plan and configs that a tuning has found.",
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
    tflite,
    root,
    measure,
    trials,
    budget,
    records,
    shapes,
    dims,
    target,
    cache,
    seed,
):
    """Time each MODEL (.onnx files or names from the zoo) here and in other libraries.

    All run in this process, in turns, on the same inputs, threads and precision; outputs are checked first.
    For an AArch64 --target on another machine, instructions are counted instead, under an emulator.
    """
    for path in (json_file, markdown):
        if path:
            check_writable(path)
    machine = get_target(target)
    emulated = machine.kind == "cpu" and machine.arch in ARCHITECTURES and not runs_here(machine)
    tuning = {"trials": trials, "budget": budget} if trials is not None or budget is not None else {}
    if emulated and (measure or tuning):
        raise InputError(f"{target} is not this machine, so nothing is timed; tune before, give --records")
    if root is not None and not emulated:
        raise InputError("--root is for targets that run under an emulator; see --target")
    sources = [find_source(model, only_model=True) for model in models]
    unknown = [name for name in tflite if name not in {source.name for source in sources}]
    if unknown:
        raise InputError(f"--tflite {unknown[0]}: that is none of the models")
    networks = [(source.name, static_model(source.read(), shapes, dims)) for source in sources]
    own = partial(compile_model, target=target, cache=cache)
    if against is None:
        against = "onnxruntime" if emulated else ",".join(peers.DEFAULT)
    names = [name.strip() for name in against.split(",") if name.strip() not in ("", "none")]
    report: Any = bench_counts_report if emulated else bench_report
    result: Any
    if emulated:
        others = peers.find_emulated(names, peers.System.find(root, machine), tflite) if names else []
        result = _counted(networks, own, others, machine, rounds=rounds, records=records, seed=seed)
    else:
        contestants = _subjects(own, measure, bool(tuning), records) + peers.find(names, tflite)
        if tuning:
            _tune(networks, threads, **tuning, records=records, target=target)
        result = _timed(networks, contestants, machine, threads=threads, rounds=rounds, seed=seed)
    if json_file:
        write_file(json_file, report.to_json(result))
    if markdown:
        write_file(markdown, report.to_markdown(result))
    report.show(result)


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
    with _status() as progress:
        return count_instructions(
            networks, [*subjects, *others], machine, runs=rounds, seed=seed, progress=progress
        )


def _subjects(
    own: Callable[..., Module], measure: bool, tuning: bool, records: Path | None
) -> list[peers.Peer]:
    """This compiler, with what it plans and finds in the ways that were asked for."""
    subjects: list[peers.Peer] = [peers.Burnish(own)]
    if measure:
        measured = partial(own, measure=True, records=records)
        subjects.append(peers.Burnish(measured, name="burnish-measured"))
    if tuning and records is not None:
        check_writable(records, (".jsonl",))
    if tuning or (records is not None and not measure):
        tuned = partial(own, records=records_path(records or default_path(), tuning))
        subjects.append(peers.Burnish(tuned, name="burnish-tuned"))
    return subjects


def _timed(
    networks: Networks,
    contestants: Sequence[peers.Peer],
    machine: Target,
    *,
    threads: Sequence[int],
    rounds: int,
    seed: int,
) -> BenchResult:
    """What `contestants` take here, in turns."""
    device = {"device": str(find_gpu(machine))} if machine.gpu else {}
    with _status() as progress:
        result = bench(networks, contestants, threads=threads, rounds=rounds, seed=seed, progress=progress)
    return replace(result, versions={**result.versions, **device})


@contextmanager
def _status() -> Iterator[Callable[[str], None]]:
    """Where what happens next is told: in a line that changes, on a terminal."""
    console = Console(stderr=True)
    with console.status("starting") as status:

        def progress(message: str) -> None:
            if console.is_terminal:
                status.update(message)
            elif "round" not in message:
                console.print(message, highlight=False, soft_wrap=True, markup=False)

        yield progress


def _tune(networks: Networks, threads: Sequence[int], **how: Any) -> None:
    console = Console(stderr=True)
    for name, model in networks:
        for count in threads:
            with show_progress(console) as progress:
                found = tune(model, threads=count, progress=progress, **how)
            speed = f"{1e3 * found.before:.3f} ms before, {1e3 * found.after:.3f} ms after"
            what = f"tuned {name} for {count} thread{'s' * (count > 1)}: {speed}, {found.seconds:.0f} s"
            console.print(what, highlight=False, soft_wrap=True, markup=False)
            if found.interrupted:
                raise KeyboardInterrupt
