"""Measuring in a child process: whatever a candidate does, it ends as a recorded outcome.

The child is forked, so that it needs no start-up and shares the operands; it dies with its parent.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..compiler.kernel_task import Config, KernelTask
from .measure import Measurement, Recorder, measure, require_runnable, touching
from .operands import operands
from .records import tuples

_NO_MEMORY = "the process was killed, as the system does when memory ends"
_PR_SET_PDEATHSIG = 1


def measure_isolated(
    task: KernelTask,
    cfg: Config,
    *,
    threads: int,
    time_limit: float = 30.0,
    memory_limit: int = 8 << 30,
    cores: Sequence[int] | None = None,
    check: bool = True,
    **options: Any,
) -> Measurement:
    """`measure` in a child that is killed after `time_limit` seconds, building included.

    `memory_limit` is what it may take in bytes, `cores` the CPUs that it is pinned to.
    """
    require_runnable(task.target)
    operands(task, check)  # here, so that every candidate's child finds them
    touching(task.target)
    parent = os.getpid()
    read_end, write_end = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read_end)
            _silence()
            _confine(parent, memory_limit, cores)
            _child(write_end, task, cfg, {"threads": threads, "check": check, **options})
        finally:
            os._exit(0)
    os.close(write_end)
    try:
        data, late = _receive(pid, read_end, time.monotonic() + time_limit)
    finally:
        os.close(read_end)
        _kill(pid)
        _, status = os.waitpid(pid, 0)
    return _outcome(data, late, status, time_limit)


def _silence() -> None:
    """What dying code prints belongs to no terminal; how it died is told by its status."""
    faulthandler.disable()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)


def _confine(parent: int, memory_limit: int, cores: Sequence[int] | None) -> None:
    os.setpgid(0, 0)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends this child
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = _data_bytes() + memory_limit
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))
    if cores is not None:
        os.sched_setaffinity(0, cores)


def _data_bytes() -> int:
    """Private writable memory that this process has already, as RLIMIT_DATA counts it."""
    try:
        with open("/proc/self/status") as f:
            return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmData"))
    except (OSError, StopIteration):
        return 0


def _child(stream: int, task: KernelTask, cfg: Config, options: dict[str, Any]) -> None:
    """Sends the answers as they are given, so that a crash can be put down to them; then the result."""
    asked = _Telling(cfg, stream)
    try:
        result = measure(task, asked, **options)
    except MemoryError as error:
        result = Measurement.failed("memory", str(error), asked.chosen)
    except Exception as error:
        result = Measurement.failed("build", f"{type(error).__name__}: {error}", asked.chosen)
    _send(stream, asdict(result))


class _Telling(Recorder):
    """Tells every answer to the parent as it is given."""

    def __init__(self, config: Config, stream: int):
        super().__init__(config)
        self._stream = stream

    def choose(self, knob, options, default):  # type: ignore[no-untyped-def]
        answer = super().choose(knob, options, default)
        _send(self._stream, [knob, self.chosen[knob]])
        return answer


def _send(stream: int, message: object) -> None:
    view = memoryview(json.dumps(message).encode() + b"\n")
    while view:
        view = view[os.write(stream, view) :]


def _receive(pid: int, stream: int, deadline: float) -> tuple[bytes, bool]:
    """All that the child sent until it ended; whether it was too late for more.

    Another child, forked meanwhile, may hold this pipe open: so the child itself is looked at as well.
    """
    data, ended = b"", False
    while (left := deadline - time.monotonic()) > 0:
        if select.select([stream], [], [], 0 if ended else min(left, 0.1))[0]:
            part = os.read(stream, 1 << 16)
            if not part:
                return data, False
            data += part
        elif ended:
            return data, False
        else:
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return data, True


def _kill(pid: int) -> None:
    """The child and what it started; none of them may be left."""
    for kill, number in ((os.killpg, pid), (os.kill, pid)):
        try:
            kill(number, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def _outcome(data: bytes, late: bool, status: int, time_limit: float) -> Measurement:
    config: dict[str, object] = {}
    for line in data.split(b"\n")[:-1]:
        try:
            message = json.loads(line)
            if isinstance(message, dict):
                return Measurement(
                    **{**message, "config": {k: tuples(v) for k, v in message["config"].items()}}
                )
            config[str(message[0])] = tuples(message[1])
        except (ValueError, TypeError, KeyError, IndexError):
            break  # what a process writes whose memory a candidate has spoilt
    if late:
        return Measurement.failed("timeout", f"more than {time_limit:g} s", config)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL:
            return Measurement.failed("memory", _NO_MEMORY, config)
        return Measurement.failed("crash", signal.Signals(number).name, config)
    return Measurement.failed(
        "exit", f"the process ended with code {os.waitstatus_to_exitcode(status)}", config
    )
