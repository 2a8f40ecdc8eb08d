"""Measuring on other machines: dask.distributed hands candidates to workers that offer a `device` each.

A task of dask is a few candidates and takes a device for itself. What a worker had not answered when it
ended is measured by another one. Whoever reaches a scheduler or a worker can run code there: they listen on
loopback unless told otherwise.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
import re
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

from ..compiler.target import Target, host
from ..errors import BurnishError, InputError, RunError, ToolError
from .clock import at_usual_pace
from .device import Answer, Device, Request, measure_on_worker, this_device
from .isolate import TIME_LIMIT, Candidate, Spans
from .measure import SECONDS, Measurement
from .record import made_by

RESOURCE = "device"
LOOPBACK = "127.0.0.1"
CONNECT = 30.0  # seconds to find the scheduler
LONELY = 30.0  # seconds without any worker after which a measurement fails
LARGEST = 8  # candidates that a worker is given at once
_POLL = 1.0
_SAME = "install the same Burnish on all"


class Workers:
    """Measures candidates as `isolate.Local` does, on the workers of the scheduler at `address` (tcp://HOST:PORT).

    They must be of one kind: the same hardware and the same Burnish. InputError if they are not, have fewer
    cores than `threads` or cannot be reached; ToolError without dask.distributed. One of another kind that
    joins later is not asked, nor is one whose measuring process has ended.
    """

    def __init__(
        self,
        address: str,
        threads: int,
        target: Target | None = None,
        *,
        evict: int = 0,
        seconds: float = SECONDS,
        check: bool = True,
        time_limit: float = TIME_LIMIT,
    ):
        self._distributed = distributed()
        self.options = {"threads": threads, "evict": evict, "seconds": seconds, "check": check}
        self.options["time_limit"] = time_limit
        self.address = checked_address(address)
        try:
            self._client = self._distributed.Client(address, timeout=CONNECT, set_as_default=False)
        except (OSError, ValueError, TypeError, TimeoutError, asyncio.TimeoutError) as error:
            raise InputError(f"no dask scheduler at {address}: {error}") from None
        self._unable: dict[str, str] = {}  # why, by address
        self._asked: dict[Any, list[str] | None] = {}  # the workers that alone may do it, by future
        try:
            self.device = self._agree(target or host())
        except BaseException:
            self._client.close()
            raise
        self.hardware = self.device.hardware
        self.spans = Spans()
        self.idle = None  # forking does not go well with the threads of a client
        self.ready = 0

    def close(self) -> None:
        self._client.close()

    def __call__(
        self, candidates: Sequence[Candidate], alone: bool = False
    ) -> Generator[tuple[int, Measurement], None, None]:
        """(position, measurement) of each; RunError if no worker is left, or the scheduler ends. `ready` says
        how many more at least have been measured already. All are given at one usual pace, this machine's."""
        if not candidates:
            return
        size = min(LARGEST, math.ceil(len(candidates) / max(1, len(self._addresses()))))
        parts = {
            self._submit(candidates[n : n + size], alone): (n, candidates[n : n + size])
            for n in range(0, len(candidates), size)
        }
        try:
            while parts:
                futures = self._next(list(parts))
                for others, future in zip(reversed(range(len(futures))), futures):
                    first, part = parts.pop(future)
                    found, again = self._heard(future, len(part))
                    for some in again:
                        parts[self._submit(part[some], alone)] = (first + some.start, part[some])
                    for left, (n, result) in zip(reversed(range(len(found))), found):
                        self.ready = left + others
                        yield first + n, at_usual_pace(result, self.hardware)
        except self._distributed.CancelledError:
            parts.clear()
            raise RunError(f"the scheduler at {self.address} has ended, or cannot be reached") from None
        finally:
            self.ready = 0
            self._asked.clear()
            if parts:
                self._client.cancel(list(parts), force=True)

    def _submit(self, candidates: Sequence[Candidate], alone: bool) -> Any:
        able = self._addresses() if self._unable else None
        if able == []:
            raise RunError(f"no worker is left at {self.address}: {'; '.join(set(self._unable.values()))}")
        future = self._client.submit(
            measure_on_worker,
            Request(candidates, alone, self.options, self.device),
            resources={RESOURCE: 1},
            workers=able,
            pure=False,
        )
        self._asked[future] = able
        return future

    def _heard(self, future: Any, count: int) -> tuple[list[tuple[int, Measurement]], list[slice]]:
        """Of `count` candidates the results, and the parts of them that are to be measured elsewhere, or each
        by itself, where they ended one worker after the other."""
        del self._asked[future]
        if not future.done():
            future.cancel(force=True)
            return [], [slice(0, count)]
        try:
            answer: Answer = future.result()
        except self._distributed.KilledWorker as error:
            if count > 1:
                return [], [slice(n, n + 1) for n in range(count)]
            return [(0, Measurement.failed("crash", f"every worker that tried it ended: {error}"))], []
        except OSError as error:  # the scheduler ends while the result is fetched
            raise self._distributed.CancelledError(str(error)) from None
        except (BurnishError, self._distributed.CancelledError):
            raise
        except Exception as error:  # what was asked or answered means nothing there or here
            why = f"{type(error).__name__}: {error}"
            raise RunError(f"a worker cannot do what it was asked to ({why}): {_SAME}") from None
        if answer.device != self.device:
            self._unable[answer.worker] = (
                "a measuring process has ended; start its worker again"
                if answer.device is None
                else f"a worker of another kind: {answer.device}; the others are {self.device}"
            )
            return [], [slice(0, count)]
        self.spans.add(answer.busy)
        return answer.results, []

    def _next(self, futures: list[Any]) -> list[Any]:
        """Those that are done, or whose workers have all left while others are there; one at least."""
        lonely: float | None = None
        while True:
            with self._client.as_current(), suppress(TimeoutError, asyncio.TimeoutError):  # two before 3.11
                return list(self._distributed.wait(futures, _POLL, "FIRST_COMPLETED").done)
            there = set(self._addresses())
            left = [f for f in futures if (able := self._asked[f]) and not there.intersection(able)]
            if there and left:
                return left
            lonely = None if there else lonely or time.monotonic()
            if lonely is not None and time.monotonic() - lonely > LONELY:
                raise RunError(f"no worker with a device is left at {self.address}")

    def _addresses(self) -> list[str]:
        workers = self._client.scheduler_info(n_workers=-1).get("workers", {})
        return [a for a, info in workers.items() if RESOURCE in info["resources"] and a not in self._unable]

    def _agree(self, target: Target) -> Device:
        end = time.monotonic() + CONNECT
        while not (addresses := self._addresses()):
            if time.monotonic() > end:
                raise InputError(f"the scheduler at {self.address} has no worker; start some: burnish worker")
            time.sleep(0.1)
        found = self._client.run(this_device, target, workers=addresses, on_error="return")
        for address, answer in found.items():
            if not isinstance(answer, Device):
                why = f"{type(answer).__name__}: {answer}"
                raise InputError(f"the worker {address} cannot say what it is ({why}): {_SAME}")
        kinds = set(found.values())
        if len(kinds) > 1:
            raise InputError(f"workers of different kinds: {'; '.join(sorted(map(str, kinds)))}")
        device = kinds.pop()
        if device.made_by != made_by():
            raise InputError(f"the workers run Burnish {device.made_by}, this is {made_by()}: {_SAME}")
        cores, threads = min(answer.usable for answer in found.values()), self.options["threads"]
        if target.gpu is None and threads > cores:
            raise InputError(
                f"{threads} threads, but a worker may use {cores} cores: ask for {cores} or fewer"
            )
        return device


def distributed() -> ModuleType:
    """ToolError if it is missing."""
    try:
        import distributed
    except ImportError:
        raise ToolError("measuring on workers needs dask: pip install 'burnish[dist]'") from None
    logging.getLogger("distributed").setLevel(logging.ERROR)
    return distributed


def checked_address(text: str) -> str:
    """InputError unless it is a scheduler's address; a client that fails on one would not end."""
    match = re.fullmatch(r"(?:tcp|tls)://(?:\[[^]]+\]|[^:/\[\]]+):(\d{1,5})", text)
    if match is None or int(match[1]) >= 1 << 16:
        raise InputError(
            f"scheduler {text!r}: expected tcp://HOST:PORT, as `burnish worker --listen PORT` prints it"
        )
    return text


def serve(
    scheduler: str | None,
    host: str = LOOPBACK,
    port: int | None = None,
    ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Offers this machine as a device until it is interrupted or the scheduler ends.

    scheduler  address to join; None to begin a scheduler here, at `port` (0: any that is free)
    host       address that this process listens on
    ready      told the scheduler's address

    `device.start` must have been called. InputError if the scheduler cannot be reached, or is on another
    machine that could not reach this one; ToolError without dask.distributed.
    """
    tool = distributed()
    import dask

    host = _checked_host(host)
    if scheduler is not None and _is_loopback(host) != _is_loopback(_host_of(checked_address(scheduler))):
        raise InputError(f"scheduler {scheduler} and host {host}: expected both on loopback, or neither")
    with (
        tempfile.TemporaryDirectory(prefix="burnish-worker-") as folder,
        dask.config.set({"temporary-directory": folder}),
    ):
        try:
            asyncio.run(_serve(tool, scheduler, host, port or 0, ready))
        except RuntimeError as error:  # of dask, with its reason behind it
            raise InputError(f"cannot listen on {host}: {error.__cause__ or error}") from None


async def _serve(
    tool: ModuleType, scheduler: str | None, host: str, port: int, ready: Callable[[str], None]
) -> None:
    silent = {"dashboard": False, "dashboard_address": f"{host}:0"}
    begun = tool.Scheduler(host=host, port=port, **silent) if scheduler is None else None
    try:
        if begun is not None:
            await begun
            scheduler = begun.address
        worker = tool.Worker(
            scheduler,
            host=host,
            nthreads=1,
            resources={RESOURCE: 1},
            memory_limit=0,
            death_timeout=CONNECT,
            **silent,
        )
        try:
            await worker
            ready(str(scheduler))
            await worker.finished()
        finally:
            await worker.close()
    except (OSError, TimeoutError, asyncio.TimeoutError) as error:
        raise InputError(f"no dask scheduler at {scheduler or f'{host}:{port}'}: {error}") from None
    finally:
        if begun is not None:
            await begun.close()


def _host_of(address: str) -> str:
    return address.rpartition("://")[2].rpartition(":")[0].strip("[]")


def _checked_host(host: str) -> str:
    """As dask names it. An empty one would stand for all addresses of this machine."""
    if host == "localhost":
        return host
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        raise InputError(f"host {host!r}: expected an IP address of this machine, or localhost") from None
    return f"[{address}]" if address.version == 6 else str(address)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
