"""Modules of one network that differ in their kernels' configs, run in turns in a child process.

    prepare   one module after the other is made, loaded and run once
    turn      of each module: one run that nobody times, so that caches hold what is its own, and one profiled
    round     a turn of each, beginning with another one each time, so that a drift of the machine is the same
              for all; none follows itself, since it would find more in the caches than others do. It is taken
              again if threads shared a core (`own_cores`)

What a module does wrong is heard as the end of its child, with the number of the module. If time is over
while one is being made, none of them is to blame: the number is that of the first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..runtime.binding import Context
from .child import Child, Ending, Parent, memory_limit
from .cores import divide
from .own_cores import OwnCores

LEAST_ROUNDS, MOST_ROUNDS = 6, 60
TURN = 0.25  # seconds before a round in which another process may measure on the same cores
WAITING = 0.25  # of the time that rounds take, at most, is added where threads share a core

Times = dict[str, float]
"""Seconds of all calls of a task in one run, by digest."""


@dataclass(frozen=True)
class Loaded:
    """A module's memory to run in, and the digest of the task of each step; "" for a copy."""

    context: Context
    steps: Sequence[str]


Make = Callable[[int], Loaded]


@dataclass(frozen=True)
class Turns:
    """What was heard: the times of each module by round. `failed` is the module that ended it, if one did."""

    rounds: list[list[Times]] = field(default_factory=list)
    failed: int | None = None
    error: str = ""
    detail: str = ""
    preparing: float = 0.0  # seconds
    blameless: bool = False  # memory was short, or time was over while modules were made


def take_turns(
    make: Make, count: int, *, threads: int, seconds: float, time_limit: float, on_gpu: bool = False
) -> Turns:
    """Rounds of `count` modules until `seconds` or MOST_ROUNDS are over, LEAST_ROUNDS at least.

    It is ended when preparing and rounds have taken `time_limit` seconds more than that. Where modules run
    `on_gpu`, nobody asks whether threads share a core.
    """
    child = Child(
        partial(_act, make, count, threads, seconds, on_gpu),
        seconds=time_limit + seconds,
        memory=memory_limit(),
        cpus=divide(threads).measuring,
        rest=MOST_ROUNDS * TURN,
    )
    return heard(child.outcome())


def _act(make: Make, count: int, threads: int, seconds: float, on_gpu: bool, parent: Parent) -> None:
    started = time.monotonic()
    loaded: list[Loaded] = []
    cores = OwnCores(0 if on_gpu else threads, share=WAITING)
    try:
        for n in range(count):
            parent.send({"making": n})
            loaded.append(make(n))
            parent.send(n)
            _times(loaded[n])
            cores.look()
        parent.send({"preparing": time.monotonic() - started})
        end = time.monotonic() + seconds
        for done in range(MOST_ROUNDS):
            if done >= LEAST_ROUNDS and time.monotonic() > end:
                break
            turn = partial(_round, loaded, _order(count, done), parent)
            with parent.reserved(divide(threads).measuring, TURN):
                times = cores.during(turn)
            parent.send(times)
        parent.send({"done": True})
    except Exception as error:
        parent.send({"error": "memory" if isinstance(error, MemoryError) else "run", "detail": str(error)})


def _round(loaded: Sequence[Loaded], order: Sequence[int], parent: Parent) -> list[Times]:
    times: dict[int, Times] = {}
    for n in order:
        parent.send(n)
        loaded[n].context.run()
        times[n] = _times(loaded[n])
    return [times[n] for n in range(len(loaded))]


def _order(count: int, done: int) -> list[int]:
    """Of the modules in the round behind so many."""
    first = done if count > 2 else 0
    return [(first + n) % count for n in range(count)]


def _times(loaded: Loaded) -> Times:
    times: Times = {}
    for digest, step in zip(loaded.steps, loaded.context.run_profiled(), strict=True):
        times[digest] = times.get(digest, 0.0) + step.ns / 1e9
    return times


def heard(ending: Ending) -> Turns:
    """What a child said, which may be anything if its memory was spoilt."""
    rounds: list[list[Times]] = []
    said: dict[str, Any] = {}
    last, making = 0, False
    for message in ending.messages:
        making = False
        if isinstance(message, int):
            last = message
        elif isinstance(message, list):
            rounds.append(message)
        elif isinstance(message, dict) and "making" in message:
            last, making = int(message["making"]), True
        elif isinstance(message, dict):
            said |= message
    preparing = float(said.get("preparing", ending.seconds))
    if "done" in said:
        return Turns(rounds, preparing=preparing)
    error, detail = said.get("error", ending.error), said.get("detail", ending.detail)
    late = making and error == "timeout"
    if late:
        last, detail = 0, f"the modules were not made within {ending.seconds:.0f} s"
    detail = " ".join(str(detail).split())[:400]
    return Turns(rounds, last, str(error), detail, preparing, late or error == "memory")
