"""Measuring in child processes: whatever a candidate does, it ends as a recorded outcome.

    build   one process a candidate, on cores that do not measure; it then waits
    run     the same process, one at a time, alone on its cores: checks, warms up, repeats; for a GPU one
            process for all of a batch, as long as none fails: a context takes longer to make than most of
            them run

Either candidates are built on spare cores while others are measured, or all of a batch are built first on
every core: whichever takes less time, by what building and running have taken so far.
"""

from __future__ import annotations

import base64
import gc
import math
import os
import pickle
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from ..compiler.build_kernel import Kernel
from ..compiler.codegen.kernel_code import Launch, Step
from ..compiler.cuda_device import keep_context
from ..compiler.kernel_task import Config, KernelTask
from ..errors import RunError
from ..runtime import capi
from ..settings import GPU_POISON, OPENCL_CACHE
from .child import Act, Child, Ending, Parent, memory_limit
from .clock import at_usual_pace, usual_pace
from .cores import Cores, divide, keeping_to, pin
from .hardware import Hardware, this_hardware
from .measure import (
    SECONDS,
    Built,
    Measurement,
    Recorder,
    build,
    pacing,
    require_runnable,
    run,
    touching,
)
from .operands import operands
from .own_cores import multiply_adds
from .record import tuples

TIME_LIMIT = 30.0  # seconds for one candidate, building and checking included
MOST_BUILDERS = 8
USUAL = (0.3, 0.1)  # seconds of building and running one candidate, before any is known
RECENT = 0.2  # weight of the latest one
TURN = 0.25  # of a candidate's time limit that another process may measure on the same cores meanwhile
PATIENCE = 1.0  # seconds that a candidate may wait for cores of its own
WAITING = 0.25  # of the time that candidates run, at most, is added by that
STUCK = 30.0  # seconds in which no process can begin, after which nothing can be measured
_CONFUSED = (TypeError, ValueError, LookupError)  # by what a process says whose memory was spoilt


@dataclass(frozen=True)
class Candidate:
    """A config to measure; what is clearly slower than `beat` seconds need not be measured well. An earlier
    measurement may have told what it is `built` to."""

    task: KernelTask
    config: Config
    beat: float = math.inf
    built: Built | None = None


class Measurer(Protocol):
    """Measures candidates, in this process's children (`Local`) or on other machines.

    hardware   that the times are of
    spans      when candidates were being built or run
    idle       CPUs of this machine that do not measure meanwhile; None where no process may be forked
    ready      results that cost no more than to ask for them
    """

    hardware: Hardware
    spans: Spans
    ready: int

    @property
    def idle(self) -> Collection[int] | None: ...

    def __call__(
        self, candidates: Sequence[Candidate], alone: bool = False
    ) -> Generator[tuple[int, Measurement], None, None]:
        """(position, measurement) of each in the order in which they end; `alone` is slower and precise."""


class Local:
    """Measures candidates on this machine.

    memory   bytes that a candidate may take (default: half of what is there, at most 8 GiB)
    hardware that the times are of (default: this machine)
    paced    whether times are given at this machine's usual pace (`clock`)
    crowding the least that candidates met so far (`own_cores`), and the seconds of `patience` that are left
    stopped  asked again and again; once it is true, candidates are ended and nothing more is measured
    """

    def __init__(
        self,
        threads: int,
        *,
        evict: int = 0,
        seconds: float = SECONDS,
        check: bool = True,
        time_limit: float = TIME_LIMIT,
        memory: int | None = None,
        hardware: Hardware | None = None,
        paced: bool = True,
        stopped: Callable[[], bool] = lambda: False,
    ):
        self.threads, self.check, self.time_limit, self.memory = threads, check, time_limit, memory
        self.options = {"threads": threads, "evict": evict, "seconds": seconds, "check": check}
        self.hardware = hardware or this_hardware()
        self.paced, self.stopped = paced, stopped
        self.spans = Spans()
        self.ready = 0
        self.crowding, self.patience = math.inf, 0.0
        self.idle = divide(threads).spare
        self._took = USUAL

    def __call__(
        self, candidates: Sequence[Candidate], alone: bool = False
    ) -> Generator[tuple[int, Measurement], None, None]:
        """(position, measurement) of each, as they are done. With `alone` nothing is built meanwhile.

        InputError if this machine cannot run a task's target, ToolError without a C compiler. Whoever stops
        listening ends what is under way.
        """
        for target in {c.task.target for c in candidates}:
            require_runnable(target)
            if target.gpu is None:
                touching(target)
                pacing()
                multiply_adds()
                multiply_adds(chain=True)
        capi.library()  # as these, so that children find it
        cores = divide(self.threads)
        in_turn = alone or self._in_turn(cores)
        with keeping_to(cores.spare):
            for position, result in _Batch(self, candidates, cores, in_turn):
                if result.running and candidates[position].built is None:
                    self._took = (
                        (1 - RECENT) * self._took[0] + RECENT * result.building,
                        (1 - RECENT) * self._took[1] + RECENT * result.running,
                    )
                self.crowding = min(self.crowding, result.crowding)
                self.patience += WAITING * result.running - result.waited
                yield position, at_usual_pace(result, self.hardware) if self.paced else result

    def _in_turn(self, cores: Cores) -> bool:
        """Whether building everything first is faster."""
        if not cores.spare:
            return True
        building, running = self._took
        spare = min(MOST_BUILDERS, len(cores.spare))
        every = min(MOST_BUILDERS, len(cores.spare) + len(cores.measuring))
        return building / every + running < max(building / spare, running)


class Spans:
    """The time during which candidates were being built or run, however many at once."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []

    def add(self, seconds: float) -> None:
        """Until now."""
        now = time.monotonic()
        self._spans.append((now - seconds, now))

    def taken(self) -> list[tuple[float, float]]:
        """What was added since this was last asked, no longer kept: for `extend` in another process."""
        spans, self._spans = self._spans, []
        return spans

    def extend(self, spans: Sequence[tuple[float, float]]) -> None:
        self._spans += spans

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
    config: dict[str, object] = field(default_factory=dict)
    built: Built | None = None
    building: float = 0.0
    messages: int = 0  # that were heard before it ran

    @property
    def on_gpu(self) -> bool:
        return self.candidate.task.target.gpu is not None


class _Batch:
    def __init__(self, measurer: Local, candidates: Sequence[Candidate], cores: Cores, in_turn: bool):
        self.measurer, self.cores, self.in_turn = measurer, cores, in_turn
        self.building_on = cores.spare | cores.measuring if in_turn else cores.spare
        self.builders = min(MOST_BUILDERS, len(self.building_on))
        self.waiting = deque(_job(n, c) for n, c in enumerate(candidates))
        self.building: list[tuple[Child, _Job]] = []
        self.built: deque[tuple[Child | None, _Job]] = deque()
        self.running: list[tuple[Child, _Job]] = []
        self.leaving: list[Child] = []  # with nothing left to do but to end
        self.standing: _Standing | None = None
        self.hopeless: list[tuple[int, Measurement]] = []  # without operands
        self.stuck: float | None = None  # since when nothing could begin

    def __iter__(self) -> Generator[tuple[int, Measurement], None, None]:
        try:
            self._start()
            while self._goes_on() and not self.measurer.stopped():
                Child.wait([child for child, _ in self.building + self.running])
                found = [*self.hopeless, *self._collect()]
                self.hopeless = []
                self._start()  # while someone listens, and what has been measured ends
                yield from found
        finally:
            children = [c for c, _ in (*self.building, *self.built, *self.running)]
            for child in {*self.leaving, *(c for c in children if c is not None)}:
                if not self._stands(child):
                    child.end()
            if self.standing is not None:
                self.standing.end()

    def _goes_on(self) -> bool:
        return bool(self.waiting or self.building or self.built or self.running or self.hopeless)

    def _start(self) -> None:
        """RunError where no process could begin for long, though none of these was there."""
        try:
            self._begin()
        except OSError as error:  # others may have all processes, files or memory at the moment
            now = time.monotonic()
            self.stuck = now if self.stuck is None or self.building or self.running else self.stuck
            if now - self.stuck > STUCK:
                raise RunError(f"nothing can be measured, since no process can begin: {error}") from None
        else:
            self.stuck = None

    def _begin(self) -> None:
        while self.waiting and len(self.building) < self.builders and not (self.in_turn and self.running):
            job = self.waiting[0]
            if not self._has_operands(job):
                pass
            elif job.built and job.on_gpu:
                self.built.append((None, job))
            else:
                self.building.append((self._child(job), job))
            self.waiting.popleft()
        if self.built and not self.running and not (self.in_turn and (self.waiting or self.building)):
            child, job = self.built[0]
            if child is None:
                child = self._given_to_standing(job)
            else:
                child.go()
            self.running.append((child, job))
            self.built.popleft()
        elif self.building and self.waiting:
            with suppress(Exception):  # said in its turn
                operands(self.waiting[0].candidate.task, self.measurer.check)

    def _has_operands(self, job: _Job) -> bool:
        """In this process, so that the child finds them. A task without them cannot be measured."""
        try:
            operands(job.candidate.task, self.measurer.check)
        except Exception as error:
            kind = "memory" if isinstance(error, MemoryError) else "build"
            detail = f"operands to measure on: {type(error).__name__}: {error}"
            self.hopeless.append((job.position, Measurement.failed(kind, detail, job.config)))
            return False
        return True

    def _child(self, job: _Job) -> Child:
        measurer = self.measurer
        left = len(self.waiting) + len(self.building) + len(self.built) + len(self.running)
        patience = min(PATIENCE, measurer.patience / left)
        usual = usual_pace(measurer.hardware) if measurer.paced else 0.0
        options = {
            **measurer.options,
            "usual": usual,
            "crowding": measurer.crowding,
            "patience": patience,
        }
        turn = TURN * measurer.time_limit
        act = _acting(job.candidate, options, self.cores.measuring, turn)
        memory = measurer.memory or memory_limit()
        return Child(act, seconds=measurer.time_limit, memory=memory, cpus=self.building_on, rest=turn)

    def _given_to_standing(self, job: _Job) -> Child:
        if self.standing is None:
            measurer, cuda = self.measurer, job.candidate.task.target.cuda
            turn = TURN * measurer.time_limit
            act = partial(_stand, measurer.options, self.cores.measuring, turn, cuda)
            memory = measurer.memory or memory_limit()
            self.standing = _Standing(act, measurer.time_limit, memory, self.cores.measuring)
        self.standing.measures(job)
        return self.standing.child

    def _collect(self) -> Generator[tuple[int, Measurement], None, None]:
        for entry in [e for e in self.building if e[0].over()]:
            self.building.remove(entry)
            child, job = entry
            messages = child.heard()
            if child.waits and _built_of(job, messages):
                job.building = self._took(messages, 0.0)
                job.messages = len(messages)
                self.built.append((None, job) if job.on_gpu else entry)
                if job.on_gpu:
                    child.end()
            else:
                confused = child.waits  # what fails to be built does not wait
                ending = child.end()
                how = (
                    ("exit", "what the process said is no kernel")
                    if confused
                    else (ending.error, ending.detail)
                )
                result = _result(job, ending.messages, *how)
                yield job.position, replace(result, building=self._took(ending.messages, ending.seconds))
        while self.leaving:
            self.leaving.pop().end()
        for child, job in [e for e in self.running if e[0].over()]:
            self.running.clear()
            ending = self._leave(child)
            messages = ending.messages[job.messages :]
            result = _result(job, messages, ending.error, ending.detail)
            if result.error and self.standing is not None:
                self.standing.end()
                self.standing = None
            running = self._took(messages, ending.seconds)
            yield job.position, replace(result, building=job.building, running=running, built=job.built)

    def _leave(self, child: Child) -> Ending:
        """Of a child that is ended, or that has said what it measured and may take its time to end, or stand
        for more."""
        if not child.waits and self.standing is not None and self._stands(child):
            ending, self.standing = self.standing.end(), None
            return ending
        if not child.waits:
            return child.end()
        found = Ending(child.heard(), "exit", "", child.seconds)
        if not self._stands(child):
            child.go()
            self.leaving.append(child)
        return found

    def _stands(self, child: Child) -> bool:
        return self.standing is not None and child is self.standing.child

    def _took(self, messages: Sequence[object], whole: float) -> float:
        """Seconds that the candidate took; without those that its process did, where it says so."""
        said = [m.get("seconds") for m in messages if isinstance(m, dict)]
        seconds = next((x for x in reversed(said) if isinstance(x, float)), whole)
        self.measurer.spans.add(seconds)
        return seconds


class _Standing:
    """A child that measures what is built for a GPU, one candidate after the other."""

    def __init__(
        self, act: Callable[[int, Parent], None], seconds: float, memory: int, cpus: Collection[int]
    ):
        self.seconds = seconds
        self._jobs = os.memfd_create("burnish")
        try:
            act = partial(act, self._jobs)
            self.child = Child(act, seconds=seconds, memory=memory, cpus=cpus, rest=TURN * seconds)
        except BaseException:
            os.close(self._jobs)
            raise
        try:
            while not self.child.over():
                Child.wait([self.child])
        except BaseException:
            self.end()
            raise

    def measures(self, job: _Job) -> None:
        os.ftruncate(self._jobs, 0)
        os.pwrite(self._jobs, pickle.dumps((job.candidate.task, job.built, job.candidate.beat)), 0)
        job.messages = len(self.child.heard())
        if self.child.waits:  # else it has ended, or its time is over
            self.child.go(self.seconds)

    def end(self) -> Ending:
        os.close(self._jobs)
        return self.child.end()


def _stand(
    options: dict[str, Any], measuring: Collection[int], turn: float, cuda: bool, jobs: int, parent: Parent
) -> None:
    gc.freeze()  # collecting touches no memory that is the parent's, too
    os.environ[OPENCL_CACHE.name] = "0"  # nobody asks for most candidates again
    os.environ[GPU_POISON.name] = "1"
    if cuda:
        keep_context()
    while True:
        parent.wait()
        task, built, beat = pickle.loads(os.pread(jobs, os.fstat(jobs).st_size, 0))
        with parent.reserved(measuring, turn):
            _timed(parent, partial(run, task, built, beat=beat, **options))
        gc.collect()  # modules hold memory of the GPU


def _job(position: int, candidate: Candidate) -> _Job:
    built = candidate.built
    return _Job(position, candidate, dict(built.config) if built else {}, built)


def _built_of(job: _Job, messages: Sequence[object]) -> bool:
    """Whether a kernel has been built; learns the config's answers."""
    with suppress(*_CONFUSED):
        for message in messages:
            if isinstance(message, list):
                job.config[str(message[0])] = tuples(message[1])
            elif isinstance(message, dict):
                job.built = _built(message["built"], job.config)
    return job.built is not None


def _result(job: _Job, messages: Sequence[object], error: str, detail: str) -> Measurement:
    """What the candidate says, else how its process ended."""
    with suppress(*_CONFUSED):
        for message in messages:
            if isinstance(message, dict):
                return Measurement(**{**message["measured"], "config": job.config})
            if isinstance(message, list):
                job.config[str(message[0])] = tuples(message[1])
    return Measurement.failed(error, detail, job.config)


def _acting(candidate: Candidate, options: dict[str, Any], measuring: Collection[int], turn: float) -> Act:
    """Builds a candidate, unless it is built, waits, and measures it on these CPUs."""

    def act(parent: Parent) -> None:
        result: Built | Measurement | None = candidate.built
        if result is None:
            result = _timed(parent, lambda: build(candidate.task, _Telling(candidate.config, parent)))
        if isinstance(result, Built):
            parent.wait()
            pin(measuring)
            with parent.reserved(measuring, turn):
                _timed(parent, lambda: run(candidate.task, result, beat=candidate.beat, **options))
            parent.wait()

    return act


def _timed(parent: Parent, work: Callable[[], Built | Measurement]) -> Built | Measurement:
    """Does it, and tells what came out and how long that took."""
    started = time.monotonic()
    result: Built | Measurement
    try:
        result = work()
    except MemoryError as error:
        result = Measurement.failed("memory", str(error))
    except Exception as error:
        result = Measurement.failed("build", f"{type(error).__name__}: {error}")
    said = {"built": _plain(result)} if isinstance(result, Built) else {"measured": _bare(result)}
    parent.send({**said, "seconds": time.monotonic() - started})
    return result


def _bare(result: Measurement) -> dict[str, Any]:
    """Without its config, whose answers have been told."""
    return {**asdict(replace(result, config={}, built=None)), "config": None}


class _Telling(Recorder):
    """Tells every answer as it is given, so that a crash can be put down to them."""

    def __init__(self, config: Config, parent: Parent):
        super().__init__(config)
        self._parent = parent

    def choose(self, knob, options, default):  # type: ignore[no-untyped-def]
        answer = super().choose(knob, options, default)
        self._parent.send([knob, self.chosen[knob]])
        return answer


def _plain(built: Built) -> dict[str, Any]:
    """Without its config, whose answers have been told."""
    kernel = {**asdict(built.kernel), "object": base64.b64encode(built.kernel.object).decode()}
    return {"kernel": kernel, "sizes": built.sizes, "program": base64.b64encode(built.program).decode()}


def _built(data: dict[str, Any], config: dict[str, object]) -> Built:
    program = base64.b64decode(data["program"])
    return Built(_kernel(data["kernel"]), tuple(data["sizes"]), config, program)


def _launch(data: dict[str, Any] | None) -> Launch | None:
    if data is None:
        return None
    return Launch(**{**data, "grid": tuple(data["grid"]), "block": tuple(data["block"])})


def _kernel(data: dict[str, Any]) -> Kernel:
    steps = tuple(Step(**{**step, "launch": _launch(step["launch"])}) for step in data["steps"])
    return Kernel(data["name"], base64.b64decode(data["object"]), steps, tuple(data["temps"]), data["gang"])
