"""`burnish bench`: speed beside other libraries. bench.py measures, bench_report.py prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import onnx
from rich.console import Console

from ..compiler.target import get_target
from ..errors import InputError
from ..op_tuner.measure import find_gpu
from ..op_tuner.records import default_path
from ..pipeline import compile as compile_model
from ..pipeline import records_path
from ..tuning import tune
from . import peers
from .bench import bench
from .bench_report import show, to_json, to_markdown
from .files import check_writable, write_file
from .options import SEED, compile_options, parse_counts, parse_duration, parse_files
from .progress import show_progress
from .source import find_source, static_model


@click.command("bench")
@click.argument("models", metavar="MODEL…", nargs=-1, required=True)
@click.option(
    "--against",
    default=",".join(peers.DEFAULT),
    show_default=True,
    metavar="NAMES",
    help=f"Other libraries: {', '.join(peers.NAMES)}, all, none. Those not installed are rows that say so.",
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
    """
    for path in (json_file, markdown):
        if path:
            check_writable(path)
    machine = get_target(target)
    device = {"device": str(find_gpu(machine))} if machine.gpu else {}
    names = [name.strip() for name in against.split(",") if name.strip() not in ("", "none")]
    own = partial(compile_model, target=target, cache=cache)
    contestants: list[peers.Peer] = [peers.Burnish(own)]
    if measure:
        contestants.append(
            peers.Burnish(partial(own, measure=True, records=records), name="burnish-measured")
        )
    tuning = trials is not None or budget is not None
    if tuning and records is not None:
        check_writable(records, (".jsonl",))
    if tuning or (records is not None and not measure):
        tuned = partial(own, records=records_path(records or default_path(), tuning))
        contestants.append(peers.Burnish(tuned, name="burnish-tuned"))
    contestants += peers.find(names, tflite)
    sources = [find_source(model, only_model=True) for model in models]
    unknown = [name for name in tflite if name not in {source.name for source in sources}]
    if unknown:
        raise InputError(f"--tflite {unknown[0]}: that is none of the models")
    networks = [(source.name, static_model(source.read(), shapes, dims)) for source in sources]
    if tuning:
        _tune(networks, threads, trials=trials, budget=budget, records=records, target=target)
    console = Console(stderr=True)
    with console.status("starting") as status:

        def progress(message: str) -> None:
            if console.is_terminal:
                status.update(message)
            elif "round" not in message:
                console.print(message, highlight=False, soft_wrap=True, markup=False)

        result = bench(networks, contestants, threads=threads, rounds=rounds, seed=seed, progress=progress)
    result = replace(result, versions={**result.versions, **device})
    if json_file:
        write_file(json_file, to_json(result))
    if markdown:
        write_file(markdown, to_markdown(result))
    show(result)


def _tune(networks: Sequence[tuple[str, onnx.ModelProto]], threads: Sequence[int], **how: Any) -> None:
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
