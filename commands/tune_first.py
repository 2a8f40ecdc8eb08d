"""A tuning before something else, told in a line."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Console

from ..tuning import Tuning, tune
from .progress import announce, show_progress
from .report import say, threads_text


def tune_first(name: str, model: Any, threads: int | None, **how: Any) -> Tuning:
    """`burnish.tune` with its progress and outcome on standard error; what ended it early ends this, too."""
    console = Console(stderr=True)
    with show_progress(console) as progress:
        found = tune(model, threads=threads, progress=progress, announce=announce, **how)
    said = f"tuned {name} for {threads_text(found.threads)} in {found.seconds:.0f} s"
    say(console, f"{said}: {_speed(found)}; {found.spent}")
    if found.interrupted:
        raise KeyboardInterrupt
    return found


def _speed(found: Tuning) -> str:
    """What a tuning found, and whether the network says so."""
    failing = [k.name for k in found.kernels if k.count and k.trials and k.after == math.inf]
    if failing:
        return f"no config of {failing[0]} works ({found.measured} configs)"
    if not found.after < math.inf:
        return f"not all default configs were measured ({found.measured} configs); give it more time"
    if not found.before < math.inf:
        return f"kernels take {1e3 * found.after:.3f} ms; not all default configs work, or were measured"
    speed = f"kernels of {1e3 * found.before:.3f} ms take {1e3 * found.after:.3f} ms"
    return f"{speed}; not compared in the network: {found.unconfirmed}" if found.unconfirmed else speed
