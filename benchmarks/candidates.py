"""Configs for an NVIDIA GPU that is at hand for minutes only: compiled elsewhere, measured all at once.

    python benchmarks/candidates.py compile FOLDER resnet18 mobilenet_v1:16 resnet50:1:tf32
    python benchmarks/candidates.py measure FOLDER --records sm90.jsonl

`compile` needs nvcc and no GPU; `FOLDER` then goes to the machine that has one. For each task of the networks
(NAME[:BATCH[:PRECISION]], as they are compiled by default) it takes the default config and others, more than
half of them those that are predicted to be fast, and makes one program of all. A folder that is there is
gone on with, but for what another version of the compiler made. `measure` runs a task's candidates one after
the other in a CUDA graph, each several times between two events, with weights from up to 40 copies in turns
where they come from memory in their network (small ones stay in the cache). The fastest one's results are
compared with the default's. All times become records; `burnish records export` keeps what is to be shipped. A
task that has records of this GPU is left out, so that it may be started again.
"""

from __future__ import annotations

import argparse
import pickle
import random
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from burnish.commands.outputs import relative_error
from burnish.commands.peers.base import PRECISION_TOLERANCE
from burnish.compiler.build_kernel import Kernel, build_kernel, device_program
from burnish.compiler.code_version import compiler_version
from burnish.compiler.cuda_device import is_usable
from burnish.compiler.ir.plan import BufferRef, KernelCall, Plan, PlanIO, Step, encode
from burnish.compiler.kernel_task import KernelTask, RejectedConfig
from burnish.compiler.lower.lower import scheduled
from burnish.compiler.target import TARGETS, Target, host_threads
from burnish.errors import BurnishError
from burnish.graph_passes.gpu_time import program_time
from burnish.graph_passes.plan_layout import DEFAULT_PLAN
from burnish.models import zoo
from burnish.op_tuner.costs import record_of
from burnish.op_tuner.hardware import hardware_of
from burnish.op_tuner.measure import (
    ONCE,
    Built,
    Measurement,
    find_gpu,
    measurement_of,
    plan_of,
    turns_of,
    weights_of,
)
from burnish.op_tuner.operands import operands
from burnish.op_tuner.records import Records, is_own
from burnish.op_tuner.space import Point, Space
from burnish.runtime.binding import Context, device_module_from_memory
from burnish.runtime.build import DeviceCode
from burnish.runtime.nvcc import fatbin
from burnish.runtime.whole_file import write_whole
from burnish.workloads import Workload, distinct, planned

COUNT = 24  # candidates of a task
LOOKED_AT = 150  # configs whose times are predicted, about
RUNS = 10
OTHER = "other "  # before the names of outputs that are compared


@dataclass(frozen=True)
class Compiled:
    """A task's candidates, the default first, as one program; `symbols` are all their kernels."""

    version: str  # of the compiler
    workload: Workload
    points: tuple[Point, ...]
    kernels: tuple[Kernel, ...]
    code: bytes  # what nvcc made

    @property
    def symbols(self) -> list[str]:
        return [step.symbol for kernel in self.kernels for step in kernel.steps if step.tasks]


# --- without a GPU --------------------------------------------------------------------------------------


def target_of(name: str, units: int) -> Target:
    """As `cuda` is on a GPU with so many units."""
    target = TARGETS[name]
    if not target.cuda:
        raise BurnishError(f"target {name} is not for CUDA")
    assert target.gpu is not None
    return replace(target, gpu=replace(target.gpu, units=units, together=True))


def workloads(network: str, target: Target) -> list[Workload]:
    """Of NAME[:BATCH[:PRECISION]]."""
    given = network.split(":")
    name, batch, precision = given + ["", "1", "f32"][len(given) :]
    model = zoo.build(name, batch=int(batch))
    return planned(network, model, target, 1, replace(DEFAULT_PLAN, precision=precision))


def drawn(task: KernelTask, count: int) -> list[Point]:
    """The default, then those that are predicted to be fast, then any of the faster half."""
    space, rng = Space(task), random.Random(task.digest)
    default = space.default()
    found = dict.fromkeys([default])
    for _ in range(min(LOOKED_AT, int(4 * space.size()))):
        found[space.draw(rng)] = None
        found[space.neighbour(default, rng)] = None
    for point in ranked(task, found)[:6]:
        found.update(dict.fromkeys(space.neighbour(point, rng) for _ in range(6)))
    order = ranked(task, found)
    fast = [default, *(p for p in order if p != default)][: 1 + count * 5 // 8]
    others = [p for p in order[: max(count, len(order) // 2)] if p not in fast]
    rng.shuffle(others)
    return [*fast, *others][:count]


def ranked(task: KernelTask, points: Iterable[Point]) -> list[Point]:
    assert task.target.gpu is not None
    times: dict[Point, float] = {}
    for point in points:
        try:
            times[point] = program_time(scheduled(task, Space.config(point)), task.target.gpu)
        except RejectedConfig:
            continue
    return sorted(times, key=times.__getitem__)


def compiled(workload: Workload, count: int) -> Compiled:
    task = workload.task
    points = drawn(task, count)
    kernels = tuple(build_kernel(task, Space.config(p), f"c{n}") for n, p in enumerate(points))
    kept: list[bytes] = []

    def nvcc(source: str, **how: object) -> bytes:
        kept.append(fatbin(source, keep=False, **how))  # type: ignore[arg-type]
        return kept[-1]

    result = Compiled(compiler_version(), workload, tuple(points), kernels, b"")
    device_program(kernels, result.symbols, task.target, nvcc)
    return replace(result, code=kept[0])


def save(workload: Workload, count: int, path: Path) -> str:
    """To the file; says what it is."""
    made = compiled(workload, count)
    write_whole(path, partial(pickle.dump, made))
    return f"{workload.task.name}: {len(made.points)} candidates"


def compile_all(folder: Path, networks: Sequence[str], target: Target, count: int, jobs: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tasks = distinct(w for network in networks for w in workloads(network, target))
    missing = [w for w in tasks if not is_made(folder, w)]
    print(f"{len(tasks)} tasks, {len(missing)} to be compiled", flush=True)
    with ProcessPoolExecutor(jobs) as pool:
        futures = [pool.submit(save, w, count, file_of(folder, w)) for w in missing]
        for done, future in enumerate(as_completed(futures), 1):
            print(f"{done} of {len(missing)}: {future.result()}", flush=True)


def is_made(folder: Path, w: Workload) -> bool:
    """By this version, for the same target."""
    path = file_of(folder, w)
    if not path.exists():
        return False
    made: Compiled = pickle.loads(path.read_bytes())
    return made.version == compiler_version() and made.workload.task.target == w.task.target


def file_of(folder: Path, w: Workload) -> Path:
    return folder / f"{w.task.digest}-{w.evict}.candidates"


# --- on the GPU -----------------------------------------------------------------------------------------


Times = list[list[float]]
"""Seconds of each candidate, by run."""


class Bench:
    """A task's candidates as steps of one plan."""

    def __init__(self, made: Compiled):
        self.made, self.task = made, made.workload.task
        self.given = operands(self.task, checked=False)

    @property
    def precision(self) -> str:
        return self.task.transformed.removeprefix("tensor_") if "tensor_" in self.task.transformed else "f32"

    def plan(self, number: int, turns: Sequence[int] = ONCE) -> Plan:
        """Of a candidate alone."""
        sizes = (*(a.nbytes for a in self.given.arrays), *(t.nbytes for t in self.given.outputs))
        built = Built(self.made.kernels[number], sizes, {})
        return plan_of(self.task.target, built, self.given, threads=1, evict=0, turns=turns)

    def times(self) -> Times:
        turns = turns_of(self.given, self.made.workload.evict)
        plans = [self.plan(n, turns) for n in range(len(self.made.kernels))]
        steps = [step for plan in plans for step in plan.steps]
        context = self.context(plans, steps, weights_of(self.given, turns))
        context.run()
        runs = [context.run_profiled() for _ in range(1 + RUNS)][1:]
        named = [n for n, step in enumerate(steps) if step.node]
        return [[run[n].ns / 1e9 / len(turns) for run in runs] for n in named]

    def wrong(self, number: int) -> str:
        """How a candidate's results differ from the default's; "" if they do not."""
        default, other = self.plan(0), self.plan(number)
        outputs = default.outputs

        def second(ref: BufferRef) -> BufferRef:
            return replace(ref, index=ref.index + len(outputs)) if ref.space == "out" else ref

        kernels = [step for step in other.steps if isinstance(step, KernelCall)]
        calls = [replace(call, args=tuple(map(second, call.args))) for call in kernels]
        both = (*outputs, *(PlanIO(OTHER + io.name, io.type) for io in outputs))
        plans = (replace(default, outputs=both), other)
        context = self.context(plans, [*default.steps, *calls], weights_of(self.given))
        context.run()

        def results(prefix: str) -> dict[str, np.ndarray]:
            kinds = zip(outputs, self.given.outputs)
            return {io.name: context.output(prefix + io.name).view(t.dtype.numpy) for io, t in kinds}

        error = relative_error(results(OTHER), results(""))
        if error <= PRECISION_TOLERANCE[self.precision]:
            return ""
        return f"differs from the default config's results by {error:.1e} of their scale"

    def context(self, plans: Sequence[Plan], steps: Sequence[Step], weights: np.ndarray) -> Context:
        """With the operands of the first of the plans, for steps of all of them."""
        plan = replace(plans[0], steps=tuple(steps), arena_size=max(p.arena_size for p in plans))
        program = device_program(
            self.made.kernels, plan.kernels, self.task.target, lambda source, **how: self.made.code
        )
        context = device_module_from_memory(encode(plan), DeviceCode("cuda", program), weights).context()
        fed = [a for n, a in enumerate(self.given.arrays) if n not in self.given.weights]
        for io, array in zip(plan.inputs, fed):
            if array.size:
                context.input(io.name)[...] = array.reshape(-1).view(np.uint8)
        return context


def measured(made: Compiled) -> list[Measurement]:
    """Of each candidate; the fastest one's results are right."""
    bench = Bench(made)
    target = bench.task.target
    found = [measurement_of(t, target, dict(p)) for p, t in zip(made.points, bench.times())]
    for n in sorted(range(len(found)), key=lambda n: found[n].seconds):
        if not n or not (what := bench.wrong(n)):
            break
        found[n] = Measurement.failed("wrong", what, dict(made.points[n]))
    return found


def measure_all(folder: Path, path: Path) -> int:
    """1 where a task could not be measured."""
    records = Records(path, shipped=False)
    shares: list[float] = []
    failed, started = 0, time.monotonic()
    files = sorted(folder.glob("*.candidates"))
    for number, file in enumerate(files, 1):
        made: Compiled = pickle.loads(file.read_bytes())
        task, evict = made.workload.task, made.workload.evict
        place = f"{number} of {len(files)}, {time.monotonic() - started:.0f} s: {task.name}"
        if made.version != compiler_version():
            print(f"{place}: left out, of another version of the compiler; compile it again", flush=True)
            failed += 1
            continue
        find_gpu(task.target)
        if any(is_own(r, hardware_of(task.target), evict) for r in records.of(task)):
            print(f"{place}: has records", flush=True)
            continue
        try:
            found = measured(made)
        except BurnishError as error:
            print(f"{place}: {error}", flush=True)
            failed += 1
            if not is_usable():
                raise BurnishError("the GPU's context is lost; start again without that file") from error
            continue
        records.add(*(record_of(task, m, task.threads, evict) for m in found))
        shares.append(min(m.seconds for m in found) / found[0].seconds)
        default = f"default {found[0].seconds * 1e6:.2f} µs"
        print(f"{place}: {default}, fastest {shares[-1]:.2f} of it", flush=True)
    mean = f": the fastest take {statistics.geometric_mean(shares):.3f} of the defaults" if shares else ""
    print(f"{len(shares)} tasks measured{mean}")
    return int(failed > 0)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    first = kinds.add_parser("compile")
    first.add_argument("folder", type=Path)
    first.add_argument("networks", nargs="+", metavar="NAME[:BATCH[:PRECISION]]")
    first.add_argument("--target", default="cuda-sm90")
    first.add_argument("--units", type=int, default=132, help="multiprocessors of the GPU (default: 132)")
    first.add_argument("--count", type=int, default=COUNT, help=f"candidates of a task (default: {COUNT})")
    first.add_argument("--jobs", type=int, default=host_threads())
    second = kinds.add_parser("measure")
    second.add_argument("folder", type=Path)
    second.add_argument("--records", type=Path, required=True)
    options = parser.parse_args(arguments)
    try:
        if options.kind == "compile":
            target = target_of(options.target, options.units)
            compile_all(options.folder, options.networks, target, options.count, options.jobs)
        else:
            return measure_all(options.folder, options.records)
    except BurnishError as error:
        sys.exit(f"candidates: {error}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
