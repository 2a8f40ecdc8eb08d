"""`burnish pretrain`: the cost model that searches begin with, fitted to measurements of many networks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import click
from rich import box
from rich.table import Table

from ..compiler.target import Target, get_target, host_threads
from ..errors import InputError
from ..models import zoo
from ..models.convolutions import WORKLOADS
from ..op_tuner import features
from ..op_tuner.collect import Collector, samples_of
from ..op_tuner.hardware import this_hardware
from ..op_tuner.measure import require_runnable
from ..op_tuner.model import load_xgboost
from ..op_tuner.pretrained import (
    About,
    Quality,
    Samples,
    chosen,
    fit,
    hold_out,
    quality,
    read_samples,
    save,
    spread,
)
from ..op_tuner.records import Records
from ..op_tuner.space import Space
from ..workloads import Workload, choices, distinct, planned, zoo_networks
from .files import check_different, check_writable
from .options import RECORDS, parse_duration, thread_counts
from .progress import Progress, show_progress
from .report import console_of

WIDTH = 120
MARGINS = (4.0, 2.0, 1.0, 0.5, 0.0)
LEAST, MOST = 8, 256
"""Samples that a task must have to say how well it is ranked, and those of one that are learnt from."""


@click.command("pretrain")
@click.argument("networks", nargs=-1)
@click.option(
    "--samples", type=click.IntRange(min=2), default=64, show_default=True, help="Configs of a task."
)
@click.option(
    "--budget",
    callback=parse_duration,
    metavar="TIME",
    help="Time to measure: 90s, 10m, 1.5h (default: until there are enough samples).",
)
@click.option("--no-measure", is_flag=True, help="Fit to the records as they are.")
@thread_counts("Numbers of threads that tasks are laid out for.")
@click.option(
    "--folds",
    type=click.IntRange(min=2),
    default=8,
    show_default=True,
    help="Models, each of which holds a part of the tasks out.",
)
@click.option("--target", default="host", show_default=True, metavar="NAME", help="See `burnish targets`.")
@click.option(
    "-o",
    "output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    required=True,
    help="File to write; what ships is in op_tuner/data.",
)
@RECORDS
def command(networks, samples, budget, no_measure, threads, folds, target, output, records):
    """Measure configs of the tasks of NETWORKS (default: the whole zoo), and fit a cost model to them.

    First every task is ranked by a model that has not seen it, nor any other of the same operator. Ctrl-C
    keeps what was measured, and the next `burnish pretrain` goes on from there; `--no-measure` fits to it.
    """
    machine = get_target(target)
    require_runnable(machine)
    if machine.gpu:
        raise InputError(f"target {target}: there is no learned model for GPUs")
    check_writable(output)
    if records is not None:
        check_writable(records, (".jsonl",))
    check_different(output, records)
    load_xgboost()
    known = Records(records, shipped=False)
    with show_progress() as progress:
        tasks = _tasks(zoo_networks(networks), machine, threads, progress)
        if not no_measure:
            _measure(tasks, known, samples, budget, progress)
        found = _samples(tasks, known, progress)
        progress("ranking what is held out", 0, 1)
        workers = host_threads()
        ranked = hold_out([s for s, _ in found], folds, threads=workers)
        defaults = {id(s): default for s, default in found}
        qualities = [quality(s, scores, defaults[id(s)]) for s, scores in ranked if len(s.seconds) >= LEAST]
        model = fit([s for s, _ in found], threads=workers)
    count = sum(len(s.seconds) for s, _ in found)
    about = About(
        features=features.FEATURES,
        columns=len(features.NAMES),
        arch=machine.triple.partition("-")[0],
        samples=count,
        tasks=len(found),
        cpus=(this_hardware().cpu,),
    )
    size = save(output, model, about)
    console = console_of(WIDTH)
    console.print(_table(qualities))
    console.print(_margins([q for q in qualities if not math.isnan(q.default)]))
    click.echo(f"wrote {output}: {size / 1e6:.2f} MB, {about}")


def _tasks(
    networks: Sequence[str], target: Target, threads: Sequence[int], progress: Progress
) -> list[Workload]:
    """Of networks what their plans choose, of single convolutions all that there is to choose from."""
    found: list[Workload] = []
    for n, name in enumerate(networks):
        progress(f"reading {name}", n, len(networks))
        model = zoo.build(name)
        for workers in threads:
            find = choices if name in WORKLOADS else planned
            found += find(name, model, target, workers)
    return distinct(found)


def _measure(
    tasks: Sequence[Workload], records: Records, samples: int, budget: float | None, progress: Progress
) -> None:
    collector = Collector([(w.task, w.evict) for w in tasks], records, samples, progress=progress)
    try:
        collector.run(budget)
    except KeyboardInterrupt:
        click.echo(f"{collector.measured} measurements are kept", err=True)
        raise


def _samples(
    tasks: Sequence[Workload], records: Records, progress: Progress
) -> list[tuple[Samples, int | None]]:
    """Of tasks with at least two configs; and which of its rows is the default config's."""
    known, found = samples_of(records), []
    for n, w in enumerate(tasks):
        progress(f"reading samples of {w.task.name}", n, len(tasks))
        times = known.get((w.task.digest, w.evict), {})
        if len(times) > 1:
            name = f"{w.network} {w.task.name} {w.task.algorithm}"
            default = Space(w.task).default()
            points = [p for p in spread(times, MOST) if p != default]
            if default in times:
                points = [default, *points]
            samples = read_samples(w.task, name, {p: times[p] for p in points})
            found.append((samples, 0 if default in times else None))
    if not found:
        raise InputError(f"{records.path} has no measurements of these networks' tasks on this machine")
    return found


def _table(qualities: Sequence[Quality]) -> Table:
    table = Table(box=box.SIMPLE, title="Tasks that the model has not seen", title_justify="left")
    table.add_column("algorithm")
    for name in ("tasks", "pairs in order", "speed of the first", "of the best of eight", "of the default"):
        table.add_column(name, justify="right")
    names = [q.name.rsplit(" ", 1)[1] for q in qualities]
    for name in (*sorted(set(names)), "all"):
        own = [q for q, its in zip(qualities, names) if name in (its, "all")]
        if own:
            table.add_row(name, str(len(own)), *_means(own))
    worst = min(qualities, key=lambda q: q.first, default=None)
    if worst is not None:
        table.caption = f"the lowest first: {worst.first:.2f}, {worst.name}"
    return table


def _margins(qualities: Sequence[Quality]) -> Table:
    """What it would give to take the highest score instead of the default."""
    title = "Leaving the default config where another one's score is higher by"
    table = Table(box=box.SIMPLE, title=title, title_justify="left")
    for name in ("more than", "tasks", "speed of all", "lowest", "faster", "slower"):
        table.add_column(name, justify="right")
    for margin in (math.inf, *MARGINS):
        speeds = [chosen(q, margin) for q in qualities]
        if speeds:
            changes = [round(s - q.default, 2) for s, q in zip(speeds, qualities)]
            row = [f"{statistics.mean(speeds):.3f}", f"{min(speeds):.3f}"]
            row += [str(sum(c > 0 for c in changes)), str(sum(c < 0 for c in changes))]
            table.add_row("never" if math.isinf(margin) else f"{margin:g}", str(len(speeds)), *row)
    return table


def _means(own: Sequence[Quality]) -> list[str]:
    columns = [[q.pairs for q in own], [q.first for q in own], [q.eighth for q in own]]
    columns.append([q.default for q in own if not math.isnan(q.default)])
    return [f"{statistics.mean(c):.3f}" if c else "–" for c in columns]
