"""`burnish tune`: the fastest configs of a model's kernels, found by measuring them."""

from __future__ import annotations

import math
from pathlib import Path

import click
from rich import box
from rich.table import Table

from ..compiler.target import get_target, runs_here
from ..graph_passes.plan_layout import MODES
from ..op_tuner.measure import require_runnable
from ..op_tuner.model import OBJECTIVES
from ..op_tuner.tuner import STRATEGIES
from ..op_tuner.workers import checked_address
from ..pipeline import require_precision
from ..tuning import Tuning, simulates, tune
from .files import check_different, check_writable, write_file
from .machine import measure_limits
from .options import (
    ACCURACY,
    MEMORY_LIMIT,
    PRECISION,
    RECORDS,
    SEARCH_SEED,
    STORED,
    THREADS,
    compile_line,
    model_options,
    parse_duration,
)
from .progress import announce, show_progress
from .report import NAME, console_of, say
from .source import find_source
from .tune_page import page

WIDTH = 150
INTERRUPTED = 130  # exit code


@click.command("tune")
@click.argument("model")
@click.option("--trials", type=click.IntRange(min=1), metavar="N", help="Configs to measure in this run.")
@click.option(
    "--budget",
    callback=parse_duration,
    metavar="TIME",
    help="Time to spend: 90s, 1.5h (default: 10m, or with --trials no limit).",
)
@RECORDS
@THREADS
@click.option(
    "--strategy",
    type=click.Choice(STRATEGIES),
    default=STRATEGIES[0],
    show_default=True,
    help="How configs are chosen; annealing is on a learned model, and needs xgboost.",
)
@click.option(
    "--objective",
    type=click.Choice(OBJECTIVES),
    default=OBJECTIVES[0],
    show_default=True,
    help="What the learned model is fitted to.",
)
@SEARCH_SEED
@click.option("--target", default="host", show_default=True, metavar="NAME", help="See `burnish targets`.")
@model_options
@click.option(
    "--plan", type=click.Choice(MODES), default="global", show_default=True, help="As of `burnish compile`."
)
@ACCURACY
@PRECISION
@MEMORY_LIMIT
@STORED
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Draw what happened as a page.")
@click.option(
    "--workers", metavar="ADDRESS", help="Measure on the workers of this dask scheduler (`burnish worker`)."
)
def command(
    model,
    trials,
    budget,
    records,
    threads,
    strategy,
    objective,
    seed,
    target,
    shapes,
    dims,
    values,
    plan,
    accuracy,
    precision,
    memory_limit,
    weights,
    html,
    workers,
):
    """Measure configs of the kernels of MODEL on this machine, and keep every measurement.

    For a --target of another architecture, measure in a simulation: instructions and cache misses under qemu.

    Ctrl-C ends it; the next `burnish tune` goes on from what was measured. `burnish compile --records FILE`,
    with the same target, threads and plan, uses the fastest configs.
    """
    require_precision(get_target(target), precision)  # before anything is said
    if workers is not None:
        checked_address(workers)
    if workers is None and not simulates(get_target(target)):
        require_runnable(get_target(target))
    if records is not None:
        check_writable(records, (".jsonl",))
    if html:
        check_writable(html)
    check_different(html, records, Path(model))
    source = find_source(model, dims, only_model=True, values=values)
    search = {"trials": trials, "budget": budget, "strategy": strategy, "objective": objective, "seed": seed}
    planning = {"plan": plan, "accuracy": accuracy, "precision": precision}
    planning |= {"memory_limit": memory_limit, "weights": weights}
    sizes = {"shapes": shapes, "dims": dims, "target": target, "threads": threads, "workers": workers}
    with show_progress() as progress:
        told = {**search, **planning, **sizes}
        found = tune(source.model, records=records, progress=progress, announce=announce, **told)
    console = console_of(WIDTH)
    console.print(_table(found), soft_wrap=True)
    how = {"shapes": shapes, "dims": dims, "values": values, "target": target, **planning}
    for text in (*_changes(found), _summary(found, compile_line(model, found.threads, found.records, **how))):
        say(console, text)
    if html:
        here = workers is None and runs_here(get_target(target))
        write_file(html, page(found, source.name, measure_limits((found.threads,)) if here else None))
        say(console, f"wrote {html}")
    return INTERRUPTED if found.interrupted else 0


def _changes(found: Tuning) -> list[str]:
    """What the plan does otherwise, a line for each kind of change."""
    nodes: dict[tuple[str, str], list[str]] = {}
    for change in found.changes:
        nodes.setdefault((change.before, change.after), []).append(change.node)
    titles = {kind: names[0] if len(names) == 1 else f"{len(names)} nodes" for kind, names in nodes.items()}
    return [f"{titles[before, after]}: {before}  ⇒  {after}" for before, after in nodes]


def _table(found: Tuning) -> Table:
    table = Table(box=box.SIMPLE, show_footer=True)
    network = _times(found.before, found.after)
    compared = [(k.count, *k.inside) for k in found.kernels if k.count and k.inside]
    inside = (sum(k[0] * k[n] for k in compared) for n in (1, 2))
    table.add_column("kernel", "network", overflow="fold", min_width=NAME)
    table.add_column("algorithm", overflow="fold", min_width=9)
    for name, footer in (
        ("calls", ""),
        ("trials", ""),
        ("of configs", ""),
        *zip(("before µs", "after µs", "speed-up"), network),
        ("in the network µs", _inside(*inside) if compared else "–"),
    ):
        table.add_column(name, footer, justify="right", no_wrap=True)
    for k in sorted(found.kernels, key=lambda k: -(k.count * k.after if k.count else 0.0)):
        calls = str(k.count) if k.count == k.predicted_count else f"{k.predicted_count} → {k.count}"
        tried = (str(k.trials), f"{k.configs:.2g}")
        times = (*_times(k.before, k.after), _inside(*k.inside) if k.inside else "–")
        table.add_row(k.name, k.algorithm, calls, *tried, *times)
    return table


def _times(before: float, after: float) -> tuple[str, str, str]:
    texts = ["–" if math.isinf(s) else f"{1e6 * s:.1f}" for s in (before, after)]
    ratio = f"{before / after:.2f}×" if 0 < after <= before < math.inf else "–"
    return texts[0], texts[1], ratio


def _inside(before: float, after: float) -> str:
    """Seconds in the network's module with default configs, and with those that are taken."""
    return f"{1e6 * before:.1f} → {1e6 * after:.1f}" if before > after else f"{1e6 * before:.1f}"


def _summary(found: Tuning, command: str) -> str:
    what = "interrupted; " if found.interrupted else ""
    what += f"{found.measured} configs measured in {found.seconds:.0f} s, kept in {found.records}"
    if found.forecast is not None and not found.interrupted:
        what += f"; forecast {found.forecast.seconds:.0f} s and {found.forecast.gain:.2f}×"
    what += f"\n{found.spent}"
    if found.unconfirmed:
        what += f"\nwhat is fastest alone was not compared in the network: {found.unconfirmed}"
    if found.by_chance:
        what += f"\nconfigs were drawn by chance, since {found.by_chance}"
    for machine, count in found.hints.items():
        what += f"\n{count} kernels began with what was the best on {machine}"
    if found.prior:
        what += f"\n{found.prior}"
    return f"{what}\nto use them: {command}"
