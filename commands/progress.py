"""Progress of long work on standard error: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

EVERY = 5.0  # seconds between plain lines

Report = Callable[[str, int, int], None]


@contextmanager
def show_progress(console: Console | None = None) -> Iterator[Report]:
    """A function (what is done, done, total) for `pipeline.compile`: measuring first, then compiling."""
    console = console or Console(stderr=True, markup=False, emoji=False)
    if not console.is_terminal:
        yield _plain(console)
        return
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    columns = (BarColumn(), MofNCompleteColumn(), *times, TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("importing", total=None)
        before = 0

        def report(name: str, done: int, total: int) -> None:
            nonlocal before
            if done < before:
                progress.reset(bar)
            before = done
            progress.update(bar, description=name, completed=done, total=total)

        yield report


def _plain(console: Console) -> Report:
    last = started = time.monotonic()
    before = first = 0

    def report(name: str, done: int, total: int) -> None:
        nonlocal last, started, before, first
        now = time.monotonic()
        if done < before or not before:
            started, first = now, done
        before = done
        if now - last >= EVERY:
            last = now
            left = (now - started) / (done - first) * (total - done) if done > first else 0.0
            about = f", about {left:.0f} s left" if left else ""
            console.print(f"{done} of {total}{about}: {name}", highlight=False, soft_wrap=True, markup=False)

    return report
