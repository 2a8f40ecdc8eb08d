"""`burnish bench`: speed beside other libraries. bench.py measures, bench_report.py prints."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click
from rich.console import Console

from ..errors import InputError
from ..pipeline import compile as compile_model
from . import peers
from .bench import bench
from .bench_report import show, to_json, to_markdown
from .files import check_writable, write_file
from .options import SEED, compile_options, parse_counts, parse_files
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
    "--records", type=click.Path(path_type=Path), metavar="FILE", help="Where measurements are kept."
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
    names = [name.strip() for name in against.split(",") if name.strip() not in ("", "none")]
    own = partial(compile_model, target=target, cache=cache)
    contestants: list[peers.Peer] = [peers.Burnish(own)]
    if measure:
        contestants.append(
            peers.Burnish(partial(own, measure=True, records=records), name="burnish-measured")
        )
    contestants += peers.find(names, tflite)
    sources = [find_source(model, only_model=True) for model in models]
    unknown = [name for name in tflite if name not in {source.name for source in sources}]
    if unknown:
        raise InputError(f"--tflite {unknown[0]}: that is none of the models")
    networks = [(source.name, static_model(source.read(), shapes, dims)) for source in sources]
    console = Console(stderr=True)
    with console.status("starting") as status:

        def progress(message: str) -> None:
            if console.is_terminal:
                status.update(message)
            elif "round" not in message:
                console.print(message, highlight=False, soft_wrap=True, markup=False)

        result = bench(networks, contestants, threads=threads, rounds=rounds, seed=seed, progress=progress)
    if json_file:
        write_file(json_file, to_json(result))
    if markdown:
        write_file(markdown, to_markdown(result))
    show(result)
