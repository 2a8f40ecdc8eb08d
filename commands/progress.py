"""Progress of long work on standard error: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

EVERY = 5.0  # seconds between plain lines

Report = Callable[[str, int, int], None]


@contextmanager
def kernel_progress(console: Console | None = None) -> Iterator[Report]:
    """A function (kernel name, done, total) for `pipeline.compile`."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield _plain(console)
        return
    columns = (TextColumn("compiling"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=console, transient=True) as progress:
        bar = progress.add_task("importing", total=None)

        def report(name: str, done: int, total: int) -> None:
            progress.update(bar, description=name, completed=done, total=total)

        yield report


def _plain(console: Console) -> Report:
    last = time.monotonic()

    def report(name: str, done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY:
            last = time.monotonic()
            console.print(f"compiling: {done} of {total} kernels", highlight=False, soft_wrap=True)

    return report
