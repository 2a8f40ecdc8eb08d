"""Progress of long work on standard error: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Display

from ..op_tuner.forecast import Forecast
from .report import say

EVERY = 5.0  # seconds between plain lines

Progress = Callable[[str, int, int], None]
"""(what, done, total)"""


def announce(forecast: Forecast) -> None:
    """What a tuning will take and gain, on standard error, where progress is shown."""
    what = f"about {forecast.seconds:.0f} s in all, {forecast.trials} trials; "
    if not forecast.calibration:
        what += f"as with other networks, {forecast.gain:.2f}× over default configs is expected; "
        what += "more is known after the first trials"
    elif forecast.after < math.inf:
        before = f"{1e3 * forecast.before:.3f} ms" if forecast.before < math.inf else "time, yet unknown,"
        what += f"the network's {before} is expected to become {1e3 * forecast.after:.3f} ms"
        what += f" ({forecast.gain:.2f}×), by the trials of {forecast.calibration:.0f} s"
    else:
        what += "what it will gain is not known: a kernel of the network has no config that works yet"
    say(Console(stderr=True), what)


@contextmanager
def show_progress(console: Console | None = None) -> Iterator[Progress]:
    """For `pipeline.compile`: measuring first, then compiling."""
    console = console or Console(stderr=True, markup=False, emoji=False)
    if not console.is_terminal:
        yield _plain(console)
        return
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    columns = (BarColumn(), MofNCompleteColumn(), *times, TextColumn("{task.description}", markup=False))
    with Display(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("importing", total=None)
        before = 0

        def report(name: str, done: int, total: int) -> None:
            nonlocal before
            if done < before:
                progress.reset(bar)
            before = done
            progress.update(bar, description=name, completed=done, total=total)

        yield report


def _plain(console: Console) -> Progress:
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
            say(console, f"{done} of {total}{about}: {name}")

    return report
