"""A process that measures for a tuner, forked while little is in memory: candidates of a process that holds
networks, records and models would take long to begin and to end.

It does what it is asked to: the next result, until there is none or it is told to stop.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from typing import Any

from ..compiler.kernel_task import KernelTask
from ..errors import BurnishError, InternalError, RunError
from .child import begin_server, interrupts_later, kill_server
from .cores import keeping_to
from .isolate import Candidate, Local
from .measure import Measurement
from .space import Space

NEXT, STOP = "next", "stop"


class Process:
    """It begins with this and ends with `close`. RunError if it has ended of itself."""

    def __init__(self) -> None:
        self.pid, self._stream = begin_server(_serve)

    def close(self) -> None:
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
        self._stream.poll(None)
        with interrupts_later():
            try:
                return self._stream.recv()
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
        process.send((threads, {**options, "hardware": local.hardware}))

    def __call__(
        self, candidates: Sequence[Candidate], alone: bool = False
    ) -> Generator[tuple[int, Measurement], None, None]:
        """As `Local`. This process keeps to the CPUs that do not measure meanwhile."""
        new = {c.task.digest: c.task for c in candidates if c.task.digest not in self._known}
        wanted = [(c.task.digest, c.config, c.beat, c.built) for c in candidates]
        with keeping_to(self.idle):
            self._process.send((list(new.values()), wanted, alone))
            self._known |= set(new)
            answer: Any = ()
            try:
                while (answer := self._process.ask(NEXT)) is not None:
                    if isinstance(answer, Exception):
                        raise answer
                    position, result, spans = answer
                    self.spans.extend(spans)
                    yield position, result
            finally:
                if answer is not None:
                    self._process.send(STOP)
                    while self._process.hear() != STOP:
                        pass


def _ended() -> RunError:
    return RunError("the process that measures has ended; was it killed?")


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
