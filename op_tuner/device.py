"""A process that measures for others: what a worker of dask asks of it, one request after the other.

Forking does not go well with the threads that a worker has. So this process is forked before the worker
begins, and it alone starts candidates. It ends with the worker.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from threading import Lock
from typing import Any

from ..compiler.target import Target, host_threads
from ..errors import BurnishError, InputError, RunError
from .child import begin_server, hear, kill_server
from .costs import made_by
from .hardware import Hardware, hardware_of
from .isolate import Candidate, Local
from .measure import Measurement


@dataclass(frozen=True)
class Device:
    """What measures: times are comparable where these are equal."""

    hardware: Hardware
    made_by: str  # compiler
    usable: int = field(default=0, compare=False)  # cores

    def __str__(self) -> str:
        return (
            f"{self.hardware.cpu}, {self.hardware.core}, {self.hardware.cores} cores, Burnish {self.made_by}"
        )


@dataclass(frozen=True)
class Request:
    candidates: Sequence[Candidate]
    alone: bool
    options: dict[str, Any]  # of `Local`
    device: Device  # of no other one


@dataclass(frozen=True)
class Answer:
    """What came out, at the pace of then, unless this is another device, or None, one that has ended. `busy`
    are seconds during which candidates were being built or run."""

    device: Device | None
    results: list[tuple[int, Measurement]]
    busy: float = 0.0
    worker: str = ""  # address


def this_device(target: Target) -> Device:
    """What code for the target is measured on here."""
    return Device(hardware_of(target), made_by(), host_threads())


_cores: dict[int, tuple[float, float]] = {}
"""By threads, what the last request's measurer knew of `crowding`, and the `patience` that it had left."""


def measure_here(request: Request) -> Answer:
    device = this_device(request.candidates[0].task.target)
    if device != request.device:
        return Answer(device, [])
    measurer = Local(**request.options, hardware=device.hardware, paced=False)
    measurer.crowding, measurer.patience = _cores.get(measurer.threads, (math.inf, 0.0))
    results = [(n, replace(r, built=None)) for n, r in measurer(request.candidates, request.alone)]
    _cores[measurer.threads] = measurer.crowding, measurer.patience
    return Answer(device, results, measurer.spans.seconds)


class Server:
    """The measuring process, seen from the worker. Threads may call it; it does one thing after the other."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.pid, self._stream = begin_server(_serve)

    def measure(self, request: Request) -> Answer:
        """InputError and others as `Local` raises them."""
        with self._lock:
            try:
                self._stream.send(request)
                answer = hear(self.pid, self._stream)
            except (EOFError, OSError):
                return Answer(None, [])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        kill_server(self.pid)


def _serve(stream: Connection) -> None:
    while True:
        try:
            request = stream.recv()
        except EOFError:
            return
        try:
            answer: object = measure_here(request)
        except BurnishError as error:
            answer = error
        except Exception as error:
            answer = RunError(f"{type(error).__name__}: {error}")
        stream.send(answer)


_server: Server | None = None


def start() -> Server:
    """This process's; forks, so to be called before there are threads."""
    global _server
    _server = Server()
    return _server


def measure_on_worker(request: Request) -> Answer:
    """In a thread of a worker. InputError unless that is one of `burnish worker`."""
    if _server is None:
        raise InputError("a dask worker that cannot measure: start workers with `burnish worker`")
    from distributed import get_worker

    return replace(_server.measure(request), worker=get_worker().address)
