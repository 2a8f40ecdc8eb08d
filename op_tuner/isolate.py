"""Measuring in child processes: whatever a candidate does, it ends as a recorded outcome.

    build   one process a candidate, on cores that do not measure
    run     one at a time, alone on its cores: checks, warms up, repeats

Either candidates are built on spare cores while others are measured, or all of a batch are built first on
every core: whichever takes less time, by what building and running have taken so far.
"""

from __future__ import annotations

import base64
import math
import os
import time
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..compiler.build_kernel import Kernel
from ..compiler.codegen.kernel_code import Launch, Step
from ..compiler.kernel_task import Config, KernelTask
from ..settings import OPENCL_CACHE
from .child import Child, Ending, Send, memory_limit
from .cores import Cores, divide, keeping_to
from .hardware import Hardware, this_hardware
from .measure import SECONDS, Built, Measurement, Recorder, build, require_runnable, run, touching
from .operands import operands
from .records import tuples

TIME_LIMIT = 30.0  # seconds for one candidate, building and checking included
MOST_BUILDERS = 8
USUAL = (0.3, 0.1)  # seconds of building and running one candidate, before any is known
RECENT = 0.2  # weight of the latest one


@dataclass(frozen=True)
class Candidate:
    """A config to measure. What is clearly slower than `beat` seconds need not be measured well."""

    task: KernelTask
    config: Config
    beat: float = math.inf


class Local:
    """Measures candidates on this machine.

    memory   bytes that a candidate may take (default: half of what is there, at most 8 GiB)
    hardware that the times are of (default: this machine)
    """

    def __init__(
        self,
        threads: int,
        *,
        cold: bool = False,
        seconds: float = SECONDS,
        check: bool = True,
        time_limit: float = TIME_LIMIT,
        memory: int | None = None,
        hardware: Hardware | None = None,
    ):
        self.threads, self.check, self.time_limit, self.memory = threads, check, time_limit, memory
        self.options = {"threads": threads, "cold": cold, "seconds": seconds, "check": check}
        self.hardware = hardware or this_hardware()
        self.spans = Spans()
        self.idle = divide(threads).spare
        self._took = USUAL

    def __call__(
        self, candidates: Sequence[Candidate], alone: bool = False
    ) -> Generator[tuple[int, Measurement], None, None]:
        """(position, measurement) of each, as they are done. With `alone` nothing is built meanwhile.

        InputError if this machine cannot run a task's target. Whoever stops listening ends what is under way.
        """
        for target in {c.task.target for c in candidates}:
            require_runnable(target)
            if target.gpu is None:
                touching(target)
        cores = divide(self.threads)
        in_turn = alone or self._in_turn(cores)
        with keeping_to(cores.spare):
            for position, result in _Batch(self, candidates, cores, in_turn):
                if result.running:
                    self._took = (
                        (1 - RECENT) * self._took[0] + RECENT * result.building,
                        (1 - RECENT) * self._took[1] + RECENT * result.running,
                    )
                yield position, result

    def _in_turn(self, cores: Cores) -> bool:
        """Whether building everything first is faster."""
        if not cores.spare:
            return True
        building, running = self._took
        spare = min(MOST_BUILDERS, len(cores.spare))
        every = min(MOST_BUILDERS, len(cores.spare) + len(cores.measuring))
        return building / every + running < max(building / spare, running)


def measure_isolated(
    task: KernelTask,
    cfg: Config,
    *,
    threads: int,
    time_limit: float = TIME_LIMIT,
    memory: int | None = None,
    **options: Any,
) -> Measurement:
    """`measure` in child processes that are killed after `time_limit` seconds, building included."""
    measurer = Local(threads, time_limit=time_limit, memory=memory, **options)
    return next(measurer([Candidate(task, cfg)]))[1]


class Spans:
    """The time during which candidates were being built or run, however many at once."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []

    def add(self, seconds: float) -> None:
        """Until now."""
        now = time.monotonic()
        self._spans.append((now - seconds, now))

    @property
    def seconds(self) -> float:
        total, end = 0.0, -math.inf
        for first, last in sorted(self._spans):
            total += max(0.0, last - max(first, end))
            end = max(end, last)
        return total


@dataclass
class _Job:
    """One candidate on its way."""

    position: int
    candidate: Candidate
    left: float  # seconds
    config: dict[str, object] = field(default_factory=dict)
    built: Built | None = None
    building: float = 0.0


class _Batch:
    def __init__(self, measurer: Local, candidates: Sequence[Candidate], cores: Cores, in_turn: bool):
        self.measurer, self.cores, self.in_turn = measurer, cores, in_turn
        self.building_on = cores.spare | cores.measuring if in_turn else cores.spare
        self.builders = min(MOST_BUILDERS, len(self.building_on))
        self.waiting = deque(_Job(n, c, measurer.time_limit) for n, c in enumerate(candidates))
        self.built: deque[_Job] = deque()
        self.building: list[tuple[Child, _Job]] = []
        self.running: list[tuple[Child, _Job]] = []

    def __iter__(self) -> Generator[tuple[int, Measurement], None, None]:
        try:
            while self.waiting or self.built or self.building or self.running:
                self._start()
                Child.wait([child for child, _ in self.building + self.running])
                yield from self._collect()
        finally:
            for child, _ in self.building + self.running:
                child.end()

    def _start(self) -> None:
        while self.waiting and len(self.building) < self.builders and not (self.in_turn and self.running):
            job = self.waiting.popleft()
            self.building.append((self._child(job, _building(job), self.building_on), job))
            operands(
                job.candidate.task, self.measurer.check
            )  # here, so that the child that runs it finds them
        if self.built and not self.running and not (self.in_turn and (self.waiting or self.building)):
            job = self.built.popleft()
            assert job.built is not None
            act = _running(job.candidate, job.built, self.measurer.options)
            self.running.append((self._child(job, act, self.cores.measuring), job))

    def _child(self, job: _Job, act: Any, cpus: frozenset[int]) -> Child:
        memory = self.measurer.memory or memory_limit()
        return Child(act, seconds=job.left, memory=memory, cpus=cpus)

    def _collect(self) -> Generator[tuple[int, Measurement], None, None]:
        for entry in [e for e in self.building if e[0].over()]:
            self.building.remove(entry)
            child, job = entry
            ending = child.end()
            result = self._heard(job, ending)
            job.building = self._took(ending)
            job.left -= ending.seconds
            if isinstance(result, Built):
                job.built = result
                self.built.append(job)
            else:
                yield job.position, replace(result, building=job.building)
        for child, job in [e for e in self.running if e[0].over()]:
            self.running.clear()
            ending = child.end()
            result = self._heard(job, ending)
            assert isinstance(result, Measurement) and job.built is not None
            kernel = job.built.kernel
            yield (
                job.position,
                replace(result, building=job.building, running=self._took(ending), kernel=kernel),
            )

    def _took(self, ending: Ending) -> float:
        """Seconds that the candidate took; without those that its process did, where it says so."""
        said = [m["seconds"] for m in ending.messages if isinstance(m, dict) and "seconds" in m]
        seconds = float(said[-1]) if said else ending.seconds
        self.measurer.spans.add(seconds)
        return seconds

    def _heard(self, job: _Job, ending: Ending) -> Built | Measurement:
        with suppress(TypeError, ValueError, KeyError):  # a process whose memory was spoilt may say anything
            for message in ending.messages:
                if isinstance(message, list):
                    job.config[str(message[0])] = tuples(message[1])
                elif isinstance(message, dict) and "built" in message:
                    return _built(message["built"], job.config)
                elif isinstance(message, dict):
                    return Measurement(**{**message["measured"], "config": job.config})
        return Measurement.failed(ending.error, ending.detail, job.config)


def _building(job: _Job) -> Any:
    task, config = job.candidate.task, job.candidate.config

    def act(send: Send) -> None:
        started = time.monotonic()
        asked = _Telling(config, send)
        try:
            result = build(task, asked)
        except MemoryError as error:
            result = Measurement.failed("memory", str(error))
        message = {"built": _plain(result)} if isinstance(result, Built) else {"measured": asdict(result)}
        send({**message, "seconds": time.monotonic() - started})

    return act


def _running(candidate: Candidate, built: Built, options: dict[str, Any]) -> Any:
    def act(send: Send) -> None:
        started = time.monotonic()
        os.environ[OPENCL_CACHE.name] = "0"  # nobody asks for most candidates again
        try:
            result = run(candidate.task, built, beat=candidate.beat, **options)
        except MemoryError as error:
            result = Measurement.failed("memory", str(error))
        except Exception as error:
            result = Measurement.failed("build", f"{type(error).__name__}: {error}")
        send({"measured": {**asdict(result), "config": None}, "seconds": time.monotonic() - started})

    return act


class _Telling(Recorder):
    """Tells every answer as it is given, so that a crash can be put down to them."""

    def __init__(self, config: Config, send: Send):
        super().__init__(config)
        self._send = send

    def choose(self, knob, options, default):  # type: ignore[no-untyped-def]
        answer = super().choose(knob, options, default)
        self._send([knob, self.chosen[knob]])
        return answer


def _plain(built: Built) -> dict[str, Any]:
    kernel = asdict(built.kernel)
    return {
        "kernel": {**kernel, "object": base64.b64encode(built.kernel.object).decode()},
        "sizes": built.sizes,
        "program": base64.b64encode(built.program).decode(),
    }


def _launch(data: dict[str, Any] | None) -> Launch | None:
    if data is None:
        return None
    return Launch(tuple(data["grid"]), tuple(data["block"]), data["shared"], data["reports"])


def _built(data: dict[str, Any], config: dict[str, object]) -> Built:
    k = data["kernel"]
    steps = tuple(Step(**{**step, "launch": _launch(step["launch"])}) for step in k["steps"])
    kernel = Kernel(k["name"], base64.b64decode(k["object"]), steps, tuple(k["temps"]), k["gang"])
    return Built(kernel, tuple(data["sizes"]), config, base64.b64decode(data["program"]))
