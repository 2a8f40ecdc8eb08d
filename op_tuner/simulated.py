"""Measuring without the machine: candidates run under qemu, whose plugin (counter.c) counts what they execute
and what they miss in caches of the target's sizes; the times are those of a simple machine.

    cycles = arithmetic / the target's multiply-adds a cycle + other instructions / 2
             + misses: from L2 13 and 4 in a stream, from memory 150 and 16 in a stream

Arithmetic is all of SIMD and floating point. Cores that reorder overlap the first two terms; what a config
saves in either counts all the same. Where llvm-mca is installed, the blocks that are executed most take the
cycles that it finds instead (pressure.py). Records of such times name the hardware "simulated CPU", with
llvm-mca's version where it took part, and are exact.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from ..compiler.ir.plan import encode
from ..compiler.kernel_task import KernelTask
from ..compiler.target import Target
from ..errors import BurnishError, RunError, ToolError
from ..runtime.build import link_module
from ..runtime.toolchain import find_compiler
from .child import Child, Ending, Parent, memory_limit
from .hardware import Hardware
from .isolate import Candidate, Spans
from .measure import Built, Measurement, Recorder, build, plan_of, touching, weights_of
from .operands import operands
from .pressure import Pressure
from .record import tuples

CLOCK = 1.5e9  # Hz, of every simulated core
ISSUED = 2.0  # instructions other than arithmetic that begin in a cycle
PENALTIES = {"l1_misses": 13.0, "l1_streams": 4.0, "l2_misses": 150.0, "l2_streams": 16.0}  # cycles each
TIME_LIMIT = 60.0  # seconds for a candidate
SHARE = 200  # blocks that are one of so many instructions at least are looked at

ARCHITECTURES = ("aarch64",)

Counts = Counter[str]


class Crashed(RunError):
    """A signal ended the emulated program."""


class Emulation:
    """Runs programs under qemu with the plugin. ToolError if there is none for the target's architecture.

    caches   whether misses are counted; they cost time
    blocks   whether blocks of code are, too
    """

    def __init__(self, target: Target, folder: Path, caches: bool, blocks: bool = False):
        self.target, self.folder = target, folder
        self.qemu = shutil.which(f"qemu-{target.arch}") or ""
        if target.arch not in ARCHITECTURES or not self.qemu:
            raise ToolError(f"there is no qemu-{target.arch} that counts; install qemu-user")
        self.plugin = f"{folder / 'counter.so'}"
        source = Path(__file__).with_name("counter.c")
        command = [*find_compiler().command, "-shared", "-fPIC", "-O2", "-o", self.plugin, str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise ToolError(f"compiling {source.name}: {done.stderr.strip()[:300]}")
        if caches:
            self.plugin += f",l1={target.l1},l2={target.l2}"
        if blocks:
            self.plugin += f",blocks={SHARE}"

    def try_out(self) -> None:
        """ToolError where programs cannot be linked for the target, or the emulator refuses the plugin."""
        source, program = self.folder / "nothing.c", self.folder / "nothing"
        source.write_text("int main(void) { return 0; }\n")
        command = [*find_compiler(self.target.arch, static=True).command, "-static", "-o", program, source]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        if done.returncode:
            raise ToolError(f"linking a program for {self.target.arch}: {done.stderr.strip()[:300]}")
        try:
            self.count([program])
        except RunError as error:
            raise ToolError(str(error)) from None

    def version(self) -> str:
        """What the emulator calls itself."""
        done = subprocess.run([self.qemu, "--version"], capture_output=True, text=True, errors="replace")
        return done.stdout.partition("\n")[0]

    def count(self, command: Sequence[object], options: Sequence[object] = ()) -> Counts:
        """What a process executes, by kind. RunError if it fails, `Crashed` if by a signal."""
        log = self.folder / "log"
        plugin = ["-d", "plugin", "-D", log, "-plugin", self.plugin]
        line = [self.qemu, "-cpu", self.target.cpu, *options, *plugin, *command]
        done = subprocess.run(list(map(str, line)), capture_output=True, text=True, errors="replace")
        if done.returncode < 0:
            raise Crashed(f"the emulated program ended by {signal.Signals(-done.returncode).name}")
        if done.returncode:
            raise RunError(f"the emulated program failed: {done.stderr.strip() or done.returncode}")
        counts: Counts = Counter()
        words = log.read_text().split()
        for kind, number in zip(words[::2], words[1::2]):
            counts[kind] += int(number)
        return counts


def cycles(target: Target, counts: Counts, pressure: Pressure | None = None) -> float:
    total = _issue(target, counts["instructions"], counts["fmla"] + counts["arithmetic"])
    if pressure:
        total += sum(_waits(pressure, block) for block in _blocks(counts))
    return total + sum(price * counts[kind] for kind, price in PENALTIES.items())


def _issue(target: Target, instructions: int, arithmetic: int) -> float:
    return arithmetic / target.multiply_adds + (instructions - arithmetic) / ISSUED


@dataclass(frozen=True)
class _Block:
    address: int
    code: bytes
    arithmetic: int
    executed: int


def _blocks(counts: Counts) -> list[_Block]:
    """Those that were executed. What the emulator cuts, since it takes some hundred instructions at once, is
    whole again: neighbours that were executed equally often.
    """
    found: list[_Block] = []
    for kind, executed in counts.items():
        if kind.startswith("block:") and executed > 0:
            _, address, arithmetic, code = kind.split(":")
            found.append(_Block(int(address, 16), bytes.fromhex(code), int(arithmetic), executed))
    whole: list[_Block] = []
    for b in sorted(found, key=lambda b: (b.executed, b.address)):
        a = whole[-1] if whole else None
        if a and a.executed == b.executed and a.address + len(a.code) == b.address:
            whole[-1] = replace(a, code=a.code + b.code, arithmetic=a.arithmetic + b.arithmetic)
        else:
            whole.append(b)
    return whole


def _waits(pressure: Pressure, block: _Block) -> float:
    """What a block takes more by llvm-mca than by its counts; less than zero where that is too much."""
    found = pressure.cycles(block.code)
    counted = _issue(pressure.target, len(block.code) // 4, block.arithmetic)
    return 0.0 if found is None else block.executed * (found - counted)


class Simulated:
    """Measures candidates for one target on one simulated core (`isolate.Measurer`)."""

    def __init__(self, target: Target):
        self.target = target
        caches = target.l1, target.l2, target.l3
        self.pressure = Pressure.find(target)
        how = f"simulated {target.cpu}" + (f", llvm-mca {self.pressure.version}" if self.pressure else "")
        self.hardware = Hardware(how, target.cpu, target.features, 1, *caches)
        self.spans = Spans()
        self.idle: tuple[int, ...] = ()
        self.ready = 0
        self._folder = tempfile.TemporaryDirectory(prefix="burnish-")
        self.folder = Path(self._folder.name)

    @cached_property
    def emulation(self) -> Emulation:
        found = Emulation(self.target, self.folder, caches=True, blocks=self.pressure is not None)
        found.try_out()  # else every candidate would be told to have failed
        return found

    def __call__(
        self, candidates: Sequence[Candidate], alone: bool = False
    ) -> Generator[tuple[int, Measurement], None, None]:
        """(position, measurement) of each in turn, each in a process of its own."""
        for position, candidate in enumerate(candidates):
            self.emulation  # noqa: B018  made once, here
            operands(candidate.task)  # the same for all configs of a task
            child = Child(partial(self._report, candidate), seconds=TIME_LIMIT, memory=memory_limit())
            ending = child.outcome()
            self.spans.add(ending.seconds)
            yield position, _measurement(ending)

    def _report(self, candidate: Candidate, parent: Parent) -> None:
        result = self.measure(candidate)
        parent.send(asdict(replace(result, built=None)))

    def measure(self, candidate: Candidate) -> Measurement:
        """Builds, checks and counts a candidate in this process."""
        started = time.monotonic()
        built = build(candidate.task, Recorder(candidate.config))
        building = time.monotonic() - started
        if isinstance(built, Measurement):
            return replace(built, building=building)
        try:
            result = self._run(candidate.task, built)
        except Crashed as error:
            result = Measurement.failed("crash", str(error), built.config)
        except RunError as error:
            result = Measurement.failed("run", str(error), built.config)
        except (BurnishError, OSError) as error:  # tools and files: not the candidate's failure
            result = Measurement.failed("exit", str(error), built.config)
        return replace(result, building=building, running=time.monotonic() - started - building)

    def _run(self, task: KernelTask, built: Built) -> Measurement:
        given = operands(task)
        plan, weights = plan_of(task.target, built, given, 1, evict=0), weights_of(given)
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            program, inputs, outputs = (Path(name, part) for part in ("program", "inputs", "outputs"))
            objects = [built.kernel.object, touching(task.target).object]
            link_module(
                objects, encode(plan), weights.data, plan.kernels, program, "program", task.target.arch
            )
            inputs.write_bytes(
                b"".join(a.tobytes() for n, a in enumerate(given.arrays) if n not in given.weights)
            )
            none, one = (self.emulation.count([program, inputs, outputs, 1, runs]) for runs in (0, 1))
            made = np.fromfile(outputs, np.uint8)
        ends = np.cumsum([type.nbytes for type in given.outputs])[:-1]
        arrays = [part.view(t.dtype.numpy) for part, t in zip(np.split(made, ends), given.outputs)]
        if wrong := given.error(arrays):
            return Measurement.failed("wrong", wrong, built.config)
        more = Counter({kind: one[kind] - none[kind] for kind in one})
        spent = cycles(task.target, more, self.pressure)
        return Measurement(spent / CLOCK, 0.0, 1, config=built.config)

    def close(self) -> None:
        self._folder.cleanup()


def _measurement(ending: Ending) -> Measurement:
    if not ending.messages:
        return Measurement.failed(ending.error, ending.detail)
    data: Any = ending.messages[0]
    return Measurement(
        **{**data, "config": {knob: tuples(answer) for knob, answer in data["config"].items()}}
    )
