"""`burnish records`: measurements that were kept, looked at and carried between machines."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from ..compiler.target import get_target
from ..errors import InputError
from ..op_tuner.record import NOISY, Record
from ..op_tuner.records import append, best_per_task, default_path, merge, read, vectors, vectors_of
from .files import check_writable

FILE = click.Path(path_type=Path)
RECORDS = click.option(
    "--records", type=FILE, metavar="FILE", help="Instead of the user's own (`burnish records path`)."
)


@click.group("records")
def command():
    """Look at measured times, and carry them from one file or machine to another."""


@command.command("path")
def path():
    """Print the file that holds this user's measurements."""
    click.echo(default_path())


@command.command("list")
@RECORDS
def summary(records):
    """Count measurements and tasks by machine, failures by kind, and disturbed ones."""
    found = _read(records)
    click.echo(
        f"{records or default_path()}: {len(found)} measurements of {len({r.task for r in found})} tasks"
    )
    for machine, count in Counter(f"{r.hardware.cpu} ({r.hardware.core})" for r in found).most_common():
        click.echo(f"  {machine}: {count}")
    for error, count in Counter(r.error for r in found if r.error).most_common():
        click.echo(f"  failed by {error}: {count}")
    if noisy := sum(r.error is None and r.spread > NOISY for r in found):
        click.echo(f"  disturbed, with half of the runs {NOISY:.0%} of the median apart or more: {noisy}")


@command.command("top")
@click.option("-n", "count", type=click.IntRange(min=1), default=20, show_default=True, help="Tasks to show.")
@RECORDS
def top(count, records):
    """Show the slowest tasks with the best config of each: its time and how far half of the runs are apart,
    machine and threads, kernel, algorithm, config."""
    best = sorted(best_per_task(_read(records)), key=lambda r: -(r.seconds or 0.0))
    for r in best[:count]:
        name = r.key.split(" ", 1)[0]
        config = " ".join(f"{knob}={value}" for knob, value in r.config.items())
        time = f"{(r.seconds or 0) * 1e6:10.1f} µs ±{r.spread:4.0%}"
        click.echo(f"{time}  {r.hardware.core} x{r.threads}  {name}  {r.algorithm}  {config}")


@command.command("merge")
@click.argument("into", type=FILE)
@click.argument("sources", type=FILE, nargs=-1, required=True, metavar="SOURCE…")
def merge_files(into, sources):
    """Add to INTO what it lacks of every SOURCE."""
    check_writable(into, (".jsonl",))
    click.echo(f"{into}: {merge(into, sources)} added")


@command.command("export")
@click.argument("output", type=FILE)
@click.option(
    "--target",
    metavar="NAME",
    help="Only for CPUs of its architecture with vectors as wide, or GPUs of its language.",
)
@RECORDS
def export(output, target, records):
    """Write the best measurement of each task on each machine to OUTPUT, a new file."""
    check_writable(output, (".jsonl",))
    if output.exists() and output.stat().st_size:
        raise InputError(f"{output} exists; expected a new file, or use `burnish records merge`")
    found, wanted = _read(records), get_target(target) if target else None
    if wanted:
        found = [r for r in found if vectors(r) == vectors_of(wanted)]
    best = best_per_task(found)
    append(output, best)
    click.echo(f"{output}: {len(best)} records")


@command.command("import")
@click.argument("source", type=FILE)
@RECORDS
def import_file(source, records):
    """Add the measurements of SOURCE to the user's own."""
    into = records or default_path()
    check_writable(into, (".jsonl",))
    click.echo(f"{into}: {merge(into, [source])} added")


def _read(records: Path | None) -> list[Record]:
    if records is not None and not records.exists():
        raise InputError(f"there is no file {str(records)!r}; expected records (.jsonl)")
    return read(records or default_path(), whole=True)[0]
