"""Strategies in a process of their own, which chooses what to measure next while others measure.

What is told is sent at once, and what is asked for is answered in the order of asking: a seed repeats its
choices.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from ..compiler.kernel_task import KernelTask
from ..errors import BurnishError, InternalError
from .child import begin_server
from .cores import pin
from .search import Random
from .space import Point

Make = Callable[[KernelTask], Random]
POLITE = 5  # by which other processes go first: what is built is waited for


@dataclass(frozen=True)
class Choice:
    """Points and their scores, and the seconds that choosing them took."""

    points: list[Point]
    scores: list[float] | None
    seconds: float


class Chooser:
    """The process, which begins with the first question. Once closed, a question begins another one, which is
    told everything again.

    make   the strategy of a task; called in that process
    cpus   where it may run
    """

    def __init__(self, make: Make, cpus: Collection[int]):
        self._make, self._cpus = make, cpus
        self._told: list[tuple[str, int, Any]] = []
        self._count = 0
        self._pid: int | None = None
        self._stream: Connection
        self._answers: dict[int, Choice | BurnishError] = {}
        self._asked: set[int] = set()

    def strategy(self, task: KernelTask) -> Elsewhere:
        self._count += 1
        self.tell("begin", self._count, task)
        return Elsewhere(self, self._count)

    def tell(self, what: str, number: int, message: object) -> None:
        self._told.append((what, number, message))
        if self._pid is not None:
            self._send(self._told[-1])

    def ask(self, number: int, count: int) -> None:
        """Once, until the answer is fetched."""
        if self._pid is None:
            self._start()
        if number not in self._asked:
            self._asked.add(number)
            self._send(("propose", number, count))

    def answer(self, number: int) -> Choice:
        """What was asked for. InternalError if the process has ended."""
        while number not in self._answers:
            try:
                other, found = self._stream.recv()
            except (EOFError, OSError):
                raise InternalError("the process that chooses configs has ended") from None
            self._answers[other] = found
        self._asked.remove(number)
        result = self._answers.pop(number)
        if isinstance(result, BurnishError):
            raise result
        return result

    def close(self) -> None:
        """What was asked for is forgotten."""
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._stream.close()
        self._pid = None
        self._answers, self._asked = {}, set()

    def _start(self) -> None:
        self._pid, self._stream = begin_server(self._serve)
        for message in self._told:
            self._send(message)

    def _serve(self, stream: Connection) -> None:
        """In the process."""
        pin(self._cpus)
        os.nice(POLITE)
        strategies: dict[int, Random] = {}
        while True:
            try:
                what, number, message = stream.recv()
            except EOFError:
                return
            if what == "begin":
                strategies[number] = self._make(message)
            elif what == "tell":
                strategies[number].tell(*message)
            else:
                stream.send((number, _choose(strategies[number], message)))

    def _send(self, message: tuple[str, int, object]) -> None:
        with suppress(OSError):  # that it has ended is heard when an answer is missing
            self._stream.send(message)


class Elsewhere:
    """A strategy of a chooser."""

    def __init__(self, chooser: Chooser, number: int):
        self._chooser, self._number = chooser, number
        self._scores: dict[Point, float] = {}
        self.took = 0.0  # seconds, to choose what was proposed last

    def tell(self, point: Point, seconds: float | None) -> None:
        self._chooser.tell("tell", self._number, (point, seconds))

    def ask(self, count: int) -> None:
        """Begins to choose, by what has been told until now."""
        self._chooser.ask(self._number, count)

    def propose(self, count: int) -> list[Point]:
        """As many as were asked for before, if anything was."""
        self.ask(count)
        found = self._chooser.answer(self._number)
        self._scores, self.took = dict(zip(found.points, found.scores or ())), found.seconds
        return found.points

    def expected(self, points: Sequence[Point]) -> list[float] | None:
        """Of what was proposed last."""
        return [self._scores[p] for p in points] if all(p in self._scores for p in points) else None


def _choose(strategy: Random, count: int) -> Choice | BurnishError:
    start = time.monotonic()
    try:
        points = strategy.propose(count)
        scores = strategy.expected(points)
        strategy.hold(points)
        return Choice(points, scores, time.monotonic() - start)
    except BurnishError as error:
        return error
    except Exception as error:
        return InternalError(f"choosing configs: {type(error).__name__}: {error}")
