"""A child process for code that may do anything: it is confined, heard, and ended, and never left behind.

It is forked, so that it needs no start-up and shares its parent's memory; it dies with its parent.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from .cores import pin, reserved

NEARLY = 0.8  # share of its memory with which a crash is put down to the lack of more
LARGEST = 8 << 30  # bytes that a child may take where the machine has them twice
_GROUP = Path("/sys/fs/cgroup")  # of a container, where it has one
_NO_MEMORY = "killed, as the system does when memory ends"
_PR_SET_PDEATHSIG = 1
_LISTEN = 0.1  # seconds
_LOOK = 1.0  # seconds after which a server that says nothing is looked at
_MOST, _LINES = 64 << 20, 1 << 16  # bytes and lines that a child may say
_PAUSE = b"\n"  # an empty line
_REST, _WORK = b"\t\n", b" \n"


class Parent:
    """What a child may do besides its work: be heard, and wait for an answer."""

    def __init__(self, stream: int, ears: int):
        self._stream, self._ears = stream, ears

    def send(self, message: object) -> None:
        """A message must be JSON."""
        self._write(json.dumps(message).encode() + b"\n")

    def wait(self) -> None:
        """Until `Child.go`."""
        self._write(_PAUSE)
        os.read(self._ears, 1)

    @contextmanager
    def reserved(self, cpus: Collection[int], patience: float) -> Iterator[None]:
        """As `cores.reserved`; while others are waited for, the time that the child may rest passes first."""
        self._write(_REST)
        with reserved(cpus, patience):
            self._write(_WORK)
            yield

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._stream, view) :]


T = TypeVar("T")
Act = Callable[[Parent], None]


@dataclass(frozen=True)
class Ending:
    """What a child sent, and how it ended: crash, memory, exit (of itself) or timeout."""

    messages: list[object]
    error: str
    detail: str
    seconds: float  # from its start, or from when it was last told to go on, to its end


class Child:
    """Does `act(parent)` in a process of its own, for `seconds` at most; waiting for `go` does not count.

    memory   bytes that it may take beyond what this process has
    cpus     where it may run
    rest     seconds until it is next told to go on that it may wait for CPUs, which do not count either

    OSError if there can be no more processes or files.
    """

    def __init__(
        self, act: Act, *, seconds: float, memory: int, cpus: Collection[int] = (), rest: float = 0.0
    ):
        self.limit = self._left = seconds
        self._rest = self._resting = rest
        self._enough = _resident_bytes() + NEARLY * memory
        self._data, self._lines, self._ended = bytearray(), 0, False
        parent = os.getpid()
        self._stream, stream, ears, self._voice = _two_pipes()
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            with interrupts_later():
                self._pid = os.fork()
                if self._pid == 0:
                    self._live(parent, act, Parent(stream, ears), memory, cpus)
                self._started = self._seen = time.monotonic()  # a fork of much memory takes a while
        except KeyboardInterrupt:
            self.end()
            raise
        except OSError:  # there may be no more processes
            os.close(self._stream)
            os.close(self._voice)
            raise
        finally:
            os.close(stream)
            os.close(ears)

    def _live(self, parent: int, act: Act, to_parent: Parent, memory: int, cpus: Collection[int]) -> NoReturn:
        try:
            os.close(self._stream)
            os.close(self._voice)
            gc.disable()  # what the parent has would be copied page by page
            silence()
            _confine(parent, memory, cpus)
            act(to_parent)
        finally:
            os._exit(0)

    def over(self) -> bool:
        """Whether it ended or waits, or its time is over; takes what it has sent.

        Times at which this process was stopped do not count. Another child, forked meanwhile, may hold this
        one's pipe open: so the child itself is looked at as well.
        """
        now = time.monotonic()
        passed = min(now - self._seen, 2 * _LISTEN)
        if self._data.endswith(_REST) and self._resting > 0:
            self._resting -= passed
        else:
            self._left -= passed
        self._seen = now
        ended = has_ended(self._pid)
        if wait([self._stream], 0):  # once: it may say more without end
            part = os.read(self._stream, 1 << 20)
            ended = ended or not part
            self._data += part
            self._lines += part.count(b"\n")
        self._ended = self._ended or ended
        return self._ended or self.waits or self._left <= 0 or self._babbles

    @property
    def waits(self) -> bool:
        """Whether it did when it was last looked at: for `go`."""
        return self._data == _PAUSE or self._data.endswith(b"\n" + _PAUSE)

    @property
    def _babbles(self) -> bool:
        """Then nothing that it has said counts."""
        return len(self._data) > _MOST or self._lines > _LINES

    @property
    def seconds(self) -> float:
        """Since it began, or since it was last told to go on."""
        return time.monotonic() - self._started

    def heard(self) -> list[object]:
        """What it has sent until it was last looked at."""
        return [] if self._babbles else _messages(self._data)

    def go(self, seconds: float | None = None) -> None:
        """It need not wait any longer; what it does then may take as long as what it did before left, or
        `seconds`."""
        self._data = self._data.removesuffix(_PAUSE)
        if seconds is not None:
            self.limit = self._left = seconds
        self._resting = self._rest
        self._started = self._seen = time.monotonic()
        with suppress(BrokenPipeError):  # it has ended
            os.write(self._voice, b"!")

    def end(self) -> Ending:
        """Nothing of it is left when this returns."""
        seconds = self.seconds
        os.close(self._stream)
        os.close(self._voice)
        kill_all(self._pid)
        try:
            _, status, usage = os.wait4(self._pid, 0)
            error, detail = self._how(status, usage.ru_maxrss << 10)
        except ChildProcessError:
            error, detail = self._how(None, 0)
        return Ending(self.heard(), error, detail, seconds)

    def outcome(self) -> Ending:
        """Its ending, when it is over; nothing is left of it where that is interrupted."""
        try:
            while not self.over():
                Child.wait([self])
        except BaseException:
            self.end()
            raise
        return self.end()

    def _how(self, status: int | None, most: int) -> tuple[str, str]:
        if self._babbles:
            return "exit", f"the process said more than {_MOST >> 20} MiB, or {_LINES} lines"
        if not self._ended and self._left <= 0:
            return "timeout", f"more than {self.limit:g} s"
        if status is None:
            return "exit", "the process ended; how is not known, since SIGCHLD is ignored here"
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            if number == signal.SIGKILL:
                return "memory", f"the process was {_NO_MEMORY}"
            name = signal.Signals(number).name
            return ("memory", f"{name} with {most >> 20} MiB") if most > self._enough else ("crash", name)
        code = os.waitstatus_to_exitcode(status)
        return "exit", f"the process ended with code {code}"

    @staticmethod
    def wait(children: Sequence[Child]) -> None:
        """Until one of them says something or ends, or a tenth of a second is over."""
        wait([c._stream for c in children if not c._ended], _LISTEN)


def _two_pipes() -> tuple[int, int, int, int]:
    first = os.pipe()
    try:
        return (*first, *os.pipe())
    except OSError:
        for end in first:
            os.close(end)
        raise


def has_ended(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # where SIGCHLD is ignored, nothing is left of it
        return True


def kill_server(pid: int) -> int | None:
    """Ends what `begin_server` began, and what that started; the status with which it ended, by itself if it
    had. None where SIGCHLD is ignored. Any other signal is lost where it has not got so far."""
    kill_all(pid)
    with suppress(ChildProcessError):
        return os.waitpid(pid, 0)[1]
    return None


def hear(pid: int, stream: Connection) -> Any:
    """What a server says next; EOFError or OSError if it has ended, though what it has started may hold its
    end of the pipe. Ctrl-C counts while nothing has come."""
    while not stream.poll(_LOOK):
        if has_ended(pid) and not stream.poll():
            raise EOFError
    with interrupts_later():
        return stream.recv()


@contextmanager
def interrupts_later() -> Iterator[None]:
    """Ctrl-C counts from the end on: for what must not be half done, and for forks, which would lose it."""
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[Any] = []
    signal.signal(signal.SIGINT, lambda *given: came.append(given))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        before(*came[0])


def begin_server(serve: Callable[[Connection], None]) -> tuple[int, Connection]:
    """A child that answers on its end of a pipe until it is killed or its parent ends: (pid, our end)."""
    stream, theirs = Pipe()
    parent = os.getpid()
    with theirs, interrupts_later():
        pid = os.fork()
        if pid == 0:
            try:
                stream.close()
                end_with_parent(parent)
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                serve(theirs)
            finally:
                os._exit(0)
    return pid, stream


class ChildEnded(Exception):
    """A child ended before it had answered; says how."""


def answer_of(
    question: Callable[[Callable[[object], None]], T], heard: Callable[[Any], None] = lambda message: None
) -> T:
    """What `question(tell)` returns or raises, in a child process; `heard` takes what it tells meanwhile.

    Raises ChildEnded if there is no answer. All that is sent must pickle.
    """

    def serve(parent: Connection) -> None:
        try:
            parent.send(("answer", question(lambda message: parent.send(("told", message)))))
        except Exception as error:
            parent.send(("error", error))

    pid, stream = begin_server(serve)
    kind: str = "told"
    value: Any = None
    try:
        with stream:
            while kind == "told":
                kind, value = hear(pid, stream)
                if kind == "told":
                    heard(value)
    except (EOFError, ConnectionResetError):
        kind = "ended"
    finally:
        status = kill_server(pid)
    if kind == "answer":
        return value
    if kind == "error":
        raise value
    raise ChildEnded(_ending(status))


def _ending(status: int | None) -> str:
    if status is None:
        return "ended the process"
    if not os.WIFSIGNALED(status):
        return f"ended the process with code {os.waitstatus_to_exitcode(status)}"
    number = os.WTERMSIG(status)
    return _NO_MEMORY if number == signal.SIGKILL else f"crashed ({signal.Signals(number).name})"


def memory_limit() -> int:
    """Half of what the system can give, and no more than `LARGEST`."""
    free = _kilobytes("/proc/meminfo", "MemAvailable") << 10 or 2 * LARGEST
    with suppress(OSError, ValueError):  # no group, or no limit of its own
        most, now = (int((_GROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        stat = dict(line.split() for line in (_GROUP / "memory.stat").read_text().splitlines())
        kept = sum(int(stat.get(f"{kind}_file", 0)) for kind in ("active", "inactive"))  # files, given back
        free = min(free, most - now + kept)
    return min(LARGEST, max(0, free) // 2)


def silence() -> None:
    """What dying code prints belongs to no terminal; how it died is told by its status."""
    faulthandler.disable()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)


def end_with_parent(parent: int) -> None:
    """In a new child: a process group of its own, which the system ends when `parent` has ended."""
    os.setpgid(0, 0)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _confine(parent: int, memory: int, cpus: Collection[int]) -> None:
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends this child
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    limit_memory(memory)
    pin(cpus)


def limit_memory(memory: int) -> None:
    """Of this process: bytes that it may take beyond what it has."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = _data_bytes() + memory
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # where memory ends all the same, this one goes


def _data_bytes() -> int:
    """Private writable memory that this process has already, as RLIMIT_DATA counts it."""
    return _kilobytes("/proc/self/status", "VmData") << 10


def _resident_bytes() -> int:
    return _kilobytes("/proc/self/status", "VmRSS") << 10


def _kilobytes(file: str, name: str) -> int:
    """A number of a file of the system; 0 where it does not say."""
    try:
        with open(file, errors="replace") as f:
            return next(int(line.split()[1]) for line in f if line.startswith(name))
    except (OSError, StopIteration):
        return 0


def _messages(data: bytearray) -> list[object]:
    """Up to what is none: a process may write anything whose memory was spoilt."""
    found: list[object] = []
    for line in filter(None, (line.strip() for line in data.split(b"\n")[:-1])):
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found


def kill_all(pid: int) -> None:
    """The child and what it started; none of them may be left."""
    for kill, number in ((os.killpg, pid), (os.kill, pid)):
        with suppress(ProcessLookupError, PermissionError):
            kill(number, signal.SIGKILL)
