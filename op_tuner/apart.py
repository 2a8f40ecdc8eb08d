"""A process that measures for a tuner, forked while little is in memory: candidates of a process that holds
networks, records and models would take long to begin and to end.

It does what it is asked to: the next result, until there is none or it is told to stop. Where it has ended,
as where memory is short, another one measures what is left.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from typing import Any

from ..compiler.kernel_task import KernelTask
from ..errors import BurnishError, InternalError, RunError
from .child import begin_server, hear, interrupts_later, kill_server
from .cores import keeping_to
from .isolate import Candidate, Local
from .measure import Measurement
from .space import Space

NEXT, STOP = "next", "stop"
RESTARTS = 2  # of the process, for what is asked at once


class Ended(RunError):
    """The process has."""


class Process:
    """It begins with this and ends with `close`. Ended if it has ended of itself."""

    def __init__(self) -> None:
        self.pid, self._stream = begin_server(_serve)

    def again(self) -> None:
        """Another one in its place; OSError if there can be no more processes."""
        self.close()
        self.pid, self._stream = begin_server(_serve)

    def close(self) -> None:
        if not self._stream.closed:
            kill_server(self.pid)
            self._stream.close()

    def send(self, message: object) -> None:
        with interrupts_later():
            try:
                self._stream.send(message)
            except OSError:
                raise _ended() from None

    def hear(self) -> Any:
        """Ctrl-C counts while nothing has come."""
        try:
            return hear(self.pid, self._stream)
        except (EOFError, OSError):
            raise _ended() from None

    def ask(self, message: object) -> Any:
        self.send(message)
        return self.hear()


class Apart:
    """`isolate.Local` in such a process, of which the last one that was made may use it. Candidates' configs
    must pickle."""

    def __init__(self, process: Process, threads: int, **options: Any):
        local = Local(threads, **options)
        self.hardware, self.spans, self.idle = local.hardware, local.spans, local.idle
        self.ready, self._process = 0, process
        self._known: set[str] = set()  # digests of tasks that it has
        self._how = (threads, {**options, "hardware": local.hardware})
        process.send(self._how)

    def __call__(
        self, candidates: Sequence[Candidate], alone: bool = False
    ) -> Generator[tuple[int, Measurement], None, None]:
        """As `Local`. This process keeps to the CPUs that do not measure meanwhile. RunError if the process
        ends again and again."""
        left = dict(enumerate(candidates))
        with keeping_to(self.idle):
            for restarts in reversed(range(1 + RESTARTS)):
                try:
                    with closing(self._results(left, alone)) as results:
                        for position, result in results:
                            del left[position]
                            yield position, result
                    return
                except Ended:
                    self._again()
                    if not restarts:
                        raise

    def _results(
        self, candidates: Mapping[int, Candidate], alone: bool
    ) -> Generator[tuple[int, Measurement], None, None]:
        positions = list(candidates)
        tasks = {c.task.digest: c.task for c in candidates.values()}
        new = [task for digest, task in tasks.items() if digest not in self._known]
        wanted = [(c.task.digest, c.config, c.beat, c.built) for c in candidates.values()]
        self._process.send((new, wanted, alone))
        self._known |= set(tasks)
        answer: Any = ()
        try:
            while (answer := self._process.ask(NEXT)) is not None:
                if isinstance(answer, Exception):
                    raise answer
                position, result, spans = answer
                self.spans.extend(spans)
                yield positions[position], result
        except Ended:
            answer = None
            raise
        finally:
            if answer is not None:
                self._stop()

    def _stop(self) -> None:
        """Whoever listened does so no more."""
        try:
            self._process.send(STOP)
            while self._process.hear() != STOP:
                pass
        except Ended:
            self._again()

    def _again(self) -> None:
        try:
            self._process.again()
        except OSError as error:
            raise RunError(
                f"the process that measures has ended, and there can be no other: {error}"
            ) from None
        self._known = set()
        self._process.send(self._how)


def _ended() -> Ended:
    return Ended("the process that measures has ended; was it killed?")


def _serve(stream: Connection) -> None:
    """Every STOP is answered by STOP, every NEXT by a result, an error or None for the end."""
    tasks: dict[str, KernelTask] = {}
    while True:
        message = stream.recv()
        if message == STOP:
            stream.send(STOP)
            continue
        if len(message) == 2:
            threads, options = message
            # Whoever waits for a result says nothing but that this should stop.
            local = Local(threads, **options, stopped=stream.poll)
            continue
        new, wanted, alone = message
        for task in new:
            tasks[task.digest] = task
            with suppress(Exception):  # that is for candidates to say
                Space(task).default()  # what a template finds out of a task, so that children need not
        candidates = [Candidate(tasks[digest], *how) for digest, *how in wanted]
        with closing(local(candidates, alone)) as results:
            while stream.recv() == NEXT:
                answer = _next(results, local)
                stream.send(answer)
                if answer is None:
                    break
            else:
                results.close()
                stream.send(STOP)


def _next(results: Generator[tuple[int, Measurement], None, None], local: Local) -> object:
    try:
        found = next(results, None)
    except BurnishError as error:
        return error
    except Exception as error:
        return InternalError(f"measuring: {type(error).__name__}: {error}")
    return None if found is None else (*found, local.spans.taken())
