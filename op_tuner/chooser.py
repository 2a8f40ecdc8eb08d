"""Strategies in a process of their own, which chooses what to measure next while others measure.

What is told is sent at once, and what is asked for is answered in the order of asking. While nothing is asked
for, the process learns what choosing needs to know of the spaces that are wanted next. Without a CPU of its
own it does nothing but what is waited for.

It makes programs of configs that nobody has tried, which may do anything. So its memory and its time are
limited, and which config it is at stands in memory that both processes share: where it ends over one, it
begins anew, and that one is avoided.
"""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from ..compiler.kernel_task import KernelTask
from ..errors import BurnishError, InternalError
from .child import begin_server, has_ended, hear, kill_server, limit_memory, memory_limit, silence
from .cores import one_blas_thread, pin
from .search import Random
from .space import Point, Space

Make = Callable[[KernelTask], Random]
CHANCE = 1 << 20  # seeds from here on are of chance here: strategies of that process draw with others
RESTARTS = 2  # of the process, which may end where memory is short
FAULTS = 16  # more restarts, where a config was to blame
LOWERING, WORKING = 20.0, 300.0  # seconds that making one program, and anything else that is asked, may take
POLITE = 5  # by which other processes go first: what is built is waited for


class ChooserEnded(InternalError):
    """Again and again, as where memory is short."""


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
    cpus   where it may run while others measure; without any it runs while it is waited for
    seed   of what is drawn by chance beside it
    """

    def __init__(self, make: Make, cpus: Collection[int], seed: int = 0):
        self._make, self._cpus, self.chance = make, cpus, CHANCE * (1 + seed)
        self._told: list[tuple[str, int, Any]] = []
        self._wanted: list[int] = []
        self._count = 0
        self._pid: int | None = None
        self._stream: Connection
        self._sent = 0  # of what is told, to the process of now
        self._answers: dict[int, Choice | bool | BurnishError] = {}
        self._asked: dict[int, tuple[str, int]] = {}  # of each strategy, and how many
        self._restarts, self._faults = RESTARTS, FAULTS
        self._note = _Note()

    def strategy(self, task: KernelTask) -> Elsewhere | InTurn:
        self._count += 1
        self.tell("begin", self._count, task)
        return (Elsewhere if self._cpus else InTurn)(self, self._count, Space(task))

    def prepare(self, wanted: Sequence[Elsewhere]) -> None:
        """These will be asked next, the first before the others; what was said before counts no more."""
        numbers = [strategy.number for strategy in wanted]
        if numbers != self._wanted:
            self._begin()
            self._wanted = numbers
            self._send(("prepare", 0, numbers))

    def tell(self, what: str, number: int, message: object) -> None:
        self._told.append((what, number, message))
        if self._pid is not None and self._cpus:
            self._begin()

    def ask(self, number: int, count: int, what: str = "propose") -> None:
        """Once, until the answer is fetched."""
        self._begin()
        if number not in self._asked:
            self._asked[number] = what, count
            self._send((what, number, count))

    def answered(self, number: int) -> bool:
        """Whether `answer` would not wait for what was asked for. ChooserEnded as for that."""
        while number not in self._answers:
            pid = self._begin()
            if not self._stream.poll() and not has_ended(pid):
                return False
            self._hear()
        return True

    def answer(self, number: int) -> Any:
        """What was asked for. ChooserEnded if the process has ended, another one too, and so on."""
        while number not in self._answers:
            self._hear()
        del self._asked[number]
        result = self._answers.pop(number)
        if isinstance(result, BurnishError):
            raise result
        return result

    def close(self) -> None:
        """What was asked for is forgotten."""
        self._end()
        self._answers, self._asked, self._wanted = {}, {}, []

    def _end(self) -> None:
        if self._pid is not None:
            kill_server(self._pid)
            self._stream.close()
        self._pid = None

    def _begin(self) -> int:
        """Its id. It is told all, and a new one asked everything again. OSError if there can be none."""
        new = self._pid is None
        if self._pid is None:
            self._note.write(None)
            self._pid, self._stream = begin_server(self._serve)
            self._sent = 0
        for message in self._told[self._sent :]:
            self._send(message)
        self._sent = len(self._told)
        if new:
            self._send(("prepare", 0, self._wanted))
            for number in self._asked.keys() - self._answers.keys():
                what, count = self._asked[number]
                self._send((what, number, count))
        return self._pid

    def _hear(self) -> None:
        pid = self._begin()
        try:
            number, found = hear(pid, self._stream)
        except (EOFError, OSError):
            self._again()
            return
        self._answers[number] = found

    def _again(self) -> None:
        """It has ended: another one avoids the config that it ended over, if it did."""
        self._end()
        if (made := self._note.read()) is None:
            self._restarts -= 1
        else:
            self._faults -= 1
            self._told.append(("avoid", *made))
        if self._restarts < 0 or self._faults < 0:
            raise ChooserEnded("the process that chooses configs has ended") from None
        self._begin()

    def _serve(self, stream: Connection) -> None:
        """In the process."""
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which ends the process
        silence()
        limit_memory(memory_limit())
        if self._cpus:
            pin(self._cpus)
            one_blas_thread()
            os.nice(POLITE)
        strategies: dict[int, Random] = {}
        unknown: deque[int] = deque()  # strategies whose spaces are to be learnt
        while True:
            if unknown and not stream.poll():
                _within(WORKING)
                if not _prepare(strategies[unknown[0]]):
                    unknown.popleft()
                continue
            _within(0)
            try:
                what, number, message = stream.recv()
            except EOFError:
                return
            _within(WORKING)
            if what == "begin":
                strategies[number] = self._make(message)
                strategies[number].watched = partial(self._watched, number)
            elif what == "tell":
                strategies[number].tell(*message)
            elif what == "avoid":
                strategies[number].avoid(message)
            elif what == "prepare":
                unknown = deque(message)
            elif what == "study":
                stream.send((number, _prepare(strategies[number])))
            else:
                stream.send((number, _choose(strategies[number], message)))

    @contextmanager
    def _watched(self, number: int, point: Point) -> Iterator[None]:
        """In the process, while it makes a program."""
        self._note.write((number, point))
        _within(LOWERING)
        try:
            yield
        finally:
            _within(WORKING)
            self._note.write(None)

    def _send(self, message: tuple[str, int, object]) -> None:
        with suppress(OSError):  # that it has ended is heard when an answer is missing
            self._stream.send(message)


class _Remote(Random):
    """A strategy of a chooser. What is drawn by chance is drawn here."""

    def __init__(self, chooser: Chooser, number: int, space: Space):
        super().__init__(space, chooser.chance + number)
        self.number = number
        self._chooser = chooser
        self._scores: dict[Point, float] = {}
        self.took = 0.0  # seconds, to choose what was proposed last

    def tell(self, point: Point, seconds: float | None, error: str | None = None) -> None:
        super().tell(point, seconds)
        self._chooser.tell("tell", self.number, (point, seconds, error))

    def avoid(self, point: Point) -> None:
        self._chooser.tell("avoid", self.number, point)

    def propose(self, count: int) -> list[Point]:
        """As many as were asked for before, if anything was; without those that were measured since."""
        while True:
            self._chooser.ask(self.number, count)
            found = self._chooser.answer(self.number)
            self._scores, self.took = dict(zip(found.points, found.scores or ())), found.seconds
            points = [point for point in found.points if point not in self.times]
            if points or not found.points:
                return points

    def expected(self, points: Sequence[Point]) -> list[float] | None:
        """Of what was proposed last."""
        return [self._scores[p] for p in points] if all(p in self._scores for p in points) else None


class Elsewhere(_Remote):
    """Chooses while others measure."""

    def ask(self, count: int) -> None:
        """Begins to choose, by what has been told until now."""
        self._chooser.ask(self.number, count)

    @property
    def ready(self) -> bool:
        """Whether what was asked for has been chosen."""
        return self._chooser.answered(self.number)


class InTurn(_Remote):
    """Chooses and measures in turns."""

    def prepare(self) -> bool:
        self._chooser.ask(self.number, 0, "study")
        return bool(self._chooser.answer(self.number))


class _Note:
    """Something small that a process and the one that forked it know of."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 1 << 16)

    def write(self, what: object) -> None:
        data = pickle.dumps(what)
        self._memory[: len(data)] = data

    def read(self) -> Any:
        """None if that was being written."""
        with suppress(Exception):
            return pickle.loads(self._memory)
        return None


def _within(seconds: float) -> None:
    """This process ends unless it says this again within so many seconds; 0: it need not."""
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _prepare(strategy: Random) -> bool:
    """What is wrong with a space is told by those who are asked."""
    with suppress(Exception):
        return strategy.prepare()
    return False


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
