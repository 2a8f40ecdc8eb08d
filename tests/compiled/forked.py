"""Work in a forked child process: a crash of generated code is a failed item and not the end of the tests."""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import struct
import traceback
from collections.abc import Callable, Sequence
from typing import BinaryIO, TypeVar

T = TypeVar("T")

TIME_LIMIT = 120  # seconds for one item


def run_forked(items: Sequence[T], work: Callable[[T], str | None], processes: int = 1) -> list[str | None]:
    """For every item what `work` returns (None: passed), a traceback, or how the child died on it."""
    results: list[str | None] = [None] * len(items)
    queues = [list(range(n, len(items), processes)) for n in range(processes)]
    while any(queues):
        children = [(queue, *_start([items[n] for n in queue], work)) for queue in queues if queue]
        for queue, pid, stream in children:
            found = _finish(pid, stream, len(queue))
            for n, message in zip(queue, found):
                results[n] = message
            del queue[: len(found)]
    return results


def _start(items: Sequence[T], work: Callable[[T], str | None]) -> tuple[int, BinaryIO]:
    """A child's process id and where its results arrive."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        try:
            _child(items, work, os.fdopen(write_end, "wb"))
        finally:
            os._exit(0)
    os.close(write_end)
    return pid, os.fdopen(read_end, "rb")


def _finish(pid: int, stream: BinaryIO, count: int) -> list[str | None]:
    """The results up to the end or up to the item on which the child died."""
    results: list[str | None] = []
    with stream:
        while (message := _receive(stream)) is not None:
            results.append(message or None)
    _, status = os.waitpid(pid, 0)
    if len(results) < count:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        name = signal.Signals(number).name if number else f"exit {os.waitstatus_to_exitcode(status)}"
        results.append(f"the process died: {name}")
    return results


def _child(items: Sequence[T], work: Callable[[T], str | None], stream: BinaryIO) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    faulthandler.disable()  # a crash is reported by the parent
    for item in items:
        signal.alarm(TIME_LIMIT)
        try:
            message = work(item) or ""
        except Exception:
            message = traceback.format_exc()
        data = pickle.dumps(message)
        stream.write(struct.pack("<q", len(data)) + data)
        stream.flush()


def _receive(stream: BinaryIO) -> str | None:
    head = stream.read(8)
    if len(head) < 8:
        return None
    (size,) = struct.unpack("<q", head)
    data = stream.read(size)
    return pickle.loads(data) if len(data) == size else None
