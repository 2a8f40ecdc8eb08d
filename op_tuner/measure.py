"""How long a kernel takes, as a module of one node that the runtime runs: its threads, scratch and gangs.

    touch    workers read `evict` bytes of other memory, then what lies in a network's arena, the inputs
             last; on a GPU copies read other memory and the inputs
    steps    of the kernel; only these are counted
    pace     a chain of multiply-adds, each of which waits for the one before: the core's clock. Twice, since
             the first one finds cold caches, the colder the more a candidate touches; the second one counts

So caches hold what they do in a network: of the weights as much as the other kernels leave, what the one
before would have written, and the places of outputs and temporaries, which kernels before had for theirs.
(`METHOD` in `record` counts ways of measuring, whose times do not compare.) The outputs are checked. A GPU
tells of no pace; it works before it is timed, since its clocks rest while a candidate is built. CUDA runs the
steps of short kernels several times over between two events, which take as long as a small kernel; in place
of copies before them, each run then reads its weights from another place.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TypeVar

import numpy as np

from ..compiler.build_kernel import Kernel, assemble, device_program
from ..compiler.codegen.llvm import LoadedCode
from ..compiler.cuda_device import LIBRARY, CudaDevice, find_cuda_device
from ..compiler.in_child import is_loaded
from ..compiler.ir.loops import Buffer, Program, Store, loop
from ..compiler.ir.plan import ALIGNMENT, BufferRef, Copy, KernelCall, Plan, PlanIO, Step, encode
from ..compiler.ir.scalar import Load, Var, const
from ..compiler.ir.types import F32, I32, U8, TensorType
from ..compiler.kernel_task import Config, KernelTask, RejectedConfig
from ..compiler.lower.lower import finished, lower
from ..compiler.opencl_device import OpenCLDevice, find_device
from ..compiler.target import Target, host, host_features
from ..errors import InputError, InternalError, RunError, ToolError
from ..runtime import binding
from ..runtime.build import DeviceCode
from ..runtime.nvcc import fatbin, find_nvcc
from .operands import Operands, operands
from .own_cores import OwnCores
from .record import NOISY, plain

T = TypeVar("T")
SECONDS = 0.05  # of a kernel's own time that a measurement takes, about
LEAST_RUNS, MOST_RUNS = 5, 2000
FEW_RUNS = 3  # of a candidate whose fastest run takes LOSES times what is to be beaten, at the clock of now
LOSES = 1.3
QUIET = 0.005  # spread over the root of the runs at which nothing more is to be learnt
PATIENCE = 3  # times `seconds` for what is not quiet
AROUND = 4  # times `seconds` for what is not the kernel
TRIMMED = 0.1  # of a GPU's times, at both ends
WARMING = 0.05  # seconds of work before a GPU is timed
REPEATS, SHORT = 10, 1e-4  # of the steps between two events, where they take fewer seconds
MOST_COPIES, COPIED = 40, 128 << 20  # of the weights, and their bytes, at most
_ROW = 256  # bytes of one task of the touching kernel
_SUMS = 256
ONCE = (0,)
PACE = "burnish_pace"
_LINKS = 4096  # of the chain that tells the clock: some microseconds


@dataclass(frozen=True)
class Built:
    """A candidate's machine code. `sizes` are the bytes of its parameters, `program` is what a GPU's module
    holds."""

    kernel: Kernel
    sizes: tuple[int, ...]
    config: Mapping[str, object]
    program: bytes = b""


@dataclass(frozen=True)
class Measurement:
    """`seconds` is the lower quartile of the runs, since whatever else a machine does makes them slower; of a
    GPU, whose clock ticks every half microsecond, the trimmed mean. `spread` is (upper - lower quartile) /
    median; `error` is None or one of

    rejected  the config contradicts itself      run      the kernel reported an error
    build     lowering or code generation fails  wrong    it computes something else
    memory    there was not enough               crash, exit, timeout  of the child process (`isolate`)
    """

    seconds: float
    spread: float
    runs: int
    error: str | None = None
    detail: str = ""
    config: Mapping[str, object] = field(default_factory=dict)
    building: float = 0.0  # seconds, in a child process
    running: float = 0.0  # seconds, checking included
    pace: float = 0.0  # multiply-adds of a chain that the core made a second meanwhile; 0 if not known
    crowding: float = math.inf  # the least that is known of (`own_cores`)
    waited: float = 0.0  # seconds, for threads to have cores of their own
    built: Built | None = field(default=None, repr=False, compare=False)  # what a child measured

    @property
    def noisy(self) -> bool:
        """The machine did other things meanwhile: take it with care."""
        return self.error is None and self.spread > NOISY

    @staticmethod
    def failed(error: str, detail: str, config: Mapping[str, object] | None = None) -> Measurement:
        line = " ".join(detail.split())[:400]
        return Measurement(float("inf"), 0.0, 0, error, line, dict(config or {}))


class Recorder:
    """A config that remembers its answers, in the plain form of records."""

    def __init__(self, config: Config):
        self._config = config
        self.chosen: dict[str, object] = {}

    def choose(self, knob: str, options: Sequence[T], default: T) -> T:
        answer = self._config.choose(knob, options, default)
        self.chosen[knob] = plain(answer)
        return answer

    def require(self, condition: bool, reason: str = "") -> None:
        self._config.require(condition, reason)


def measure(
    task: KernelTask,
    cfg: Config,
    *,
    threads: int,
    seconds: float = SECONDS,
    check: bool = True,
    evict: int = 0,
) -> Measurement:
    """Builds and times one candidate in this process, for about `seconds` of its own time.

    What a candidate does wrong is its Measurement's error, short of bringing down the process; InputError if
    this CPU cannot run the task's target.
    """
    require_runnable(task.target)
    built = build(task, Recorder(cfg))
    if isinstance(built, Measurement):
        return built
    return run(task, built, threads=threads, seconds=seconds, check=check, evict=evict)


def build(task: KernelTask, asked: Recorder) -> Built | Measurement:
    """The machine code of a candidate, or what is wrong with it."""
    try:
        program = lower(replace(task, name=f"{task.name}_{task.digest[:8]}"), asked)
        kernel = assemble(program, task.target)
        device = _device_program(kernel, task.target) if task.target.gpu else b""
    except RejectedConfig as error:
        return Measurement.failed("rejected", str(error), asked.chosen)
    except MemoryError as error:
        return Measurement.failed("memory", str(error), asked.chosen)
    except Exception as error:  # whatever a template does with an odd config is the candidate's failure
        return Measurement.failed("build", f"{type(error).__name__}: {error}", asked.chosen)
    return Built(kernel, tuple(b.nbytes for b in program.params), asked.chosen, device)


def _device_program(kernel: Kernel, target: Target) -> bytes:
    symbols = list(dict.fromkeys(step.symbol for step in kernel.steps if step.tasks))
    return device_program([kernel], symbols, target, partial(fatbin, keep=False))


def run(
    task: KernelTask,
    built: Built,
    *,
    threads: int,
    seconds: float = SECONDS,
    check: bool = True,
    evict: int = 0,
    beat: float = math.inf,
    usual: float = 0.0,
    crowding: float = math.inf,
    patience: float = 0.0,
) -> Measurement:
    """Checks and times a candidate. One that is clearly slower than `beat` seconds, at the `usual` pace if
    that is known, is not run often. `crowding` is the least that is known of (`own_cores`)."""
    given = operands(task, check)
    try:
        runner = _Runner(task.target, built, given, threads, evict)
    except ToolError as error:  # the GPU is not there at the moment: not the candidate's failure
        return Measurement.failed("exit", str(error), built.config)
    except (MemoryError, RunError) as error:
        short = not task.target.gpu or isinstance(error, MemoryError)
        what = "memory" if short else "build"
        return Measurement.failed(what, str(error), built.config)
    try:
        wrong = runner.first(given)
        if task.target.gpu and not wrong:
            runner.warm(given)
        cores = OwnCores(0 if task.target.gpu else threads, crowding, patience)
        repeat = partial(
            _repeat, runner.once, seconds, lambda: beat * runner.slowed(usual), len(runner.turns)
        )
        times = [] if wrong else cores.during(repeat)
        wrong = wrong or runner.changed()
    except RunError as error:
        what = "memory" if isinstance(error, MemoryError) else "run"
        return Measurement.failed(what, str(error), built.config)
    if wrong:
        return Measurement.failed("wrong", wrong, built.config)
    found = measurement_of(runner.steady(times), task.target, built.config)
    return replace(found, pace=runner.pace(), crowding=cores.usual, waited=patience - cores.patience)


def measurement_of(
    times: Sequence[float] | np.ndarray, target: Target, config: Mapping[str, object]
) -> Measurement:
    """Of a candidate by the seconds of its runs."""
    low, median, high = np.percentile(times, (25, 50, 75))
    spread = float((high - low) / max(median, 1e-12))
    seconds = float(low) if target.gpu is None else middle(times, target)
    return Measurement(seconds, spread, len(times), config=config)


def require_runnable(target: Target) -> None:
    """InputError unless this CPU has the target's instructions, or is beside a GPU of the kind."""
    if target.gpu is not None:
        _require_gpu(target)
        return
    lacking = [name for name in target.features if name not in host_features()]
    if lacking:
        what = ", ".join(lacking)
        raise InputError(f"target {target.name}: this machine lacks {what}; measure on one that has it")


def _require_gpu(target: Target) -> None:
    """InputError unless candidates for it can be measured in children of this process."""
    find_gpu(target)
    assert target.gpu is not None
    if target.cuda:
        find_nvcc()
    library, name = _DRIVERS[target.gpu.language]
    if is_loaded(library):
        raise InputError(
            f"target {target.name}: this process has used {name}, and the drivers' threads do not survive in "
            "children that measure; measure before the first run, or by `burnish tune`"
        )


_DRIVERS = {"opencl": ("libOpenCL", "OpenCL"), "cuda": (LIBRARY, "CUDA")}


def find_gpu(target: Target) -> OpenCLDevice | CudaDevice:
    """This machine's; InputError unless it runs code for the target."""
    return _find_cuda(target) if target.cuda else _find_opencl(target)


def _find_cuda(target: Target) -> CudaDevice:
    device = find_cuda_device()
    if device is None:
        raise InputError(
            f"target {target.name}: this machine has no NVIDIA GPU to measure on, or no driver of it "
            "(libcuda.so.1); see nvidia-smi and CUDA_VISIBLE_DEVICES"
        )
    if device.arch < int(target.cpu.removeprefix("sm_")):
        raise InputError(
            f"target {target.name}: the GPU of this machine is {device.name}, sm_{device.arch}; "
            f"measure on one from {target.cpu} on"
        )
    return device


def _find_opencl(target: Target) -> OpenCLDevice:
    device = find_device()
    if device is None:
        raise InputError(
            f"target {target.name}: this machine has no OpenCL device to measure on; install its driver"
        )
    if target.name != "opencl" and target.cpu not in device.name.lower():
        raise InputError(
            f"target {target.name}: the OpenCL device of this machine is {device.name}; "
            "measure on one that has it, or for the target opencl"
        )
    return device


def _repeat(
    run: Callable[[], float],
    seconds: float,
    beat: Callable[[], float] = lambda: math.inf,
    repeats: int = 1,
) -> list[float]:
    """Times of single runs, which are means of so many `repeats`, until these add up to `seconds`, or take a
    few times as long with what stands between them, and the spread is small; or until patience ends, or
    `beat()` is out of reach."""
    times: list[float] = []
    spent = 0.0
    started = time.perf_counter()
    while len(times) < MOST_RUNS:
        times.append(run())
        spent += times[-1] * repeats
        used = max(spent, (time.perf_counter() - started) / AROUND) / seconds
        if len(times) >= FEW_RUNS and (used > PATIENCE or min(times) > LOSES * beat()):
            break
        if used > 1 and len(times) >= LEAST_RUNS:
            low, median, high = np.percentile(times, (25, 50, 75))
            if high - low <= QUIET * median * len(times) ** 0.5:
                break
    return times


def middle(times: Sequence[float] | np.ndarray, target: Target) -> float:
    """The median; of a GPU the mean without what is least and most."""
    if target.gpu is None:
        return float(np.median(times))
    cut = int(TRIMMED * len(times))
    return float(np.mean(np.sort(times)[cut : len(times) - cut]))


def _module(target: Target, built: Built, plan: Plan, weights: np.ndarray) -> binding.Module:
    if target.gpu is not None:
        code = DeviceCode(target.gpu.language, built.program)
        return binding.device_module_from_memory(encode(plan), code, weights)
    loaded = LoadedCode([k.object for k in (built.kernel, touching(target), pacing())], target)
    addresses = [loaded.address(symbol) for symbol in plan.kernels]
    return binding.module_from_memory(encode(plan), addresses, weights, loaded)


class _Runner:
    """The kernel between its operands in a module of its own."""

    def __init__(self, target: Target, built: Built, given: Operands, threads: int, evict: int):
        self.target, self.paced, self.evict = target, target.gpu is None, evict
        self.load = partial(self._load, built, given, threads)
        self.chains: list[float] = []  # seconds
        self.kept: list[np.ndarray] = []
        self.load(evict, ONCE)

    def _load(self, built: Built, given: Operands, threads: int, evict: int, turns: Sequence[int]) -> None:
        target, self.turns = self.target, turns
        plan = plan_of(target, built, given, threads, evict, self.paced, turns)
        self.context = _module(target, built, plan, weights_of(given, turns)).context(threads)
        for n, array in enumerate(given.arrays):
            if n not in given.weights and array.size:
                self.context.input(f"in{n}")[...] = array.reshape(-1).view(np.uint8)
        self.outputs = [self.context.output(f"out{n}") for n in range(len(given.outputs))]
        self.own = [n for n, s in enumerate(plan.steps) if s.node]

    def once(self) -> float:
        """Seconds of the kernel's steps in one run."""
        times = self.context.run_profiled()
        if self.paced:
            self.chains.append(times[-1].ns / 1e9)
        return sum(times[n].ns for n in self.own) / 1e9 / len(self.turns)

    def warm(self, given: Operands) -> None:
        """A short kernel runs several times in later runs."""
        seconds, end = math.inf, time.perf_counter() + WARMING
        while time.perf_counter() < end:
            seconds = self.once()
        if self.target.cuda and seconds < SHORT:
            self.load(0, turns_of(given, self.evict))
            self.once()

    def steady(self, times: Sequence[float]) -> np.ndarray:
        """(n,) seconds that the last n runs would have taken at the clock of `pace`: it changes within a
        measurement."""
        chains = np.array(self.chains[-len(times) :])
        if not self.paced or not chains.all():
            return np.array(times)
        return np.array(times) * np.median(self.chains) / chains

    def pace(self) -> float:
        """Of the median run."""
        chain = np.median(self.chains or [0.0])
        return _LINKS / float(chain) if chain > 0 else 0.0

    def slowed(self, usual: float) -> float:
        """How many times as long everything takes now as at that pace; 1 where either is not known."""
        now = self.pace()
        return usual / now if usual > 0 and now > 0 else 1.0

    def first(self, given: Operands) -> str:
        """What is wrong after one run into memory that holds NaN, or -1."""
        for output in self.outputs:
            output.fill(0xFF)
        self.once()
        self.kept = [output.copy() for output in self.outputs] if given.expected else []
        return given.error([o.view(t.dtype.numpy) for o, t in zip(self.kept, given.outputs)])

    def changed(self) -> str:
        """Whether later runs gave something else, padding aside: tasks that race."""
        same = all(np.array_equal(a, b) for a, b in zip(self.kept, self.outputs))
        return "" if same else "the outputs differ from run to run"


def plan_of(
    target: Target,
    built: Built,
    given: Operands,
    threads: int,
    evict: int,
    paced: bool = False,
    turns: Sequence[int] = ONCE,
) -> Plan:
    """Steps that touch memory, without a node's name, then the kernel's for each of the `turns`, which say
    which copy of the weights is read; if it is `paced`, the last one tells the clock, and the one before
    warms it up. For CUDA the first of the kernel's steps alone has a name: it counts the time of those
    behind it.
    """
    kernel = built.kernel
    arena, (places, size_of_weights) = _Space(), _places(given)
    inputs: list[PlanIO] = []
    args: list[BufferRef] = []
    for n, (array, size) in enumerate(zip(given.arrays, built.sizes)):
        if array.nbytes != size:
            raise InternalError(f"{kernel.name}: operand {n} has {array.nbytes} bytes, not {size}")
        if n in given.weights:
            args.append(BufferRef.weights(places[n], array.nbytes))
        else:
            args.append(BufferRef.input(len(inputs), array.nbytes))
            inputs.append(PlanIO(f"in{n}", TensorType(U8, (array.nbytes,))))
    results = tuple(PlanIO(f"out{n}", TensorType(U8, (t.nbytes,))) for n, t in enumerate(given.outputs))
    args += [BufferRef.output(n, io.type.nbytes) for n, io in enumerate(results)]
    args += [BufferRef.arena(arena.take(size), size) for size in kernel.temps]
    steps = _copies(args, arena, evict) if target.gpu else _touching(args, arena, threads, evict)
    writes = tuple(range(len(given.arrays), len(args)))
    own = [
        KernelCall(
            *(step.symbol, kernel.name, tuple(_of_copy(a, turn * size_of_weights) for a in args), writes),
            *(step.tasks, kernel.gang, step.scratch),
        )
        for turn in turns
        for step in kernel.steps
        if step.tasks
    ]
    steps += timed_as_one(own) if target.cuda else own
    if paced:
        sums = BufferRef.arena(arena.take(ALIGNMENT), ALIGNMENT)
        steps += [KernelCall(PACE, "", (sums,), (0,), 1)] * 2
    return Plan(
        *(kernel.name, target.name, target.features, tuple(inputs), results),
        *(arena.size, (1 + max(turns)) * size_of_weights, tuple(steps)),
    )


def weights_of(given: Operands, turns: Sequence[int] = ONCE) -> np.ndarray:
    """The bytes of the plan's weights."""
    places, size = _places(given)
    data = np.zeros(size, np.uint8)
    for n, offset in places.items():
        raw = given.arrays[n].reshape(-1).view(np.uint8)
        data[offset : offset + raw.nbytes] = raw
    return np.tile(data, 1 + max(turns)) if max(turns) else data


def turns_of(given: Operands, evict: int) -> Sequence[int]:
    """Runs one behind the other, which read copies of the weights in turns: between two runs that read the
    same one lie as many bytes as are to be evicted, unless it would take too many copies (small weights stay
    in the cache, as do inputs).
    """
    _, size = _places(given)
    copies = max(1, min(1 - -evict // size, MOST_COPIES, COPIED // size)) if size else 1
    return [n % copies for n in range(max(REPEATS, copies))]


def _places(given: Operands) -> tuple[dict[int, int], int]:
    """Where each of the weights lies in one copy, and its bytes."""
    space = _Space()
    return {n: space.take(given.arrays[n].nbytes) for n in sorted(given.weights)}, space.size


def _of_copy(ref: BufferRef, ahead: int) -> BufferRef:
    return replace(ref, offset=ref.offset + ahead) if ref.space == "weights" else ref


def timed_as_one(steps: Sequence[KernelCall]) -> list[KernelCall]:
    """Without events between them: the first one's time is that of all (runtime/src/cuda.c, `is_timed`)."""
    return [*steps[:1], *(replace(step, node="") for step in steps[1:])]


class _Space:
    """Takes places one behind the other."""

    def __init__(self) -> None:
        self.size = 0

    def take(self, nbytes: int) -> int:
        offset = self.size
        self.size += -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        return offset


def _copies(args: Sequence[BufferRef], arena: _Space, evict: int) -> list[Step]:
    """They read and write `evict` bytes, then read the inputs."""
    other = BufferRef.arena(arena.take(evict // 2), evict // 2)
    read = [other, *(a for a in args if a.space == "in")] if evict else []
    return [Copy(ref, BufferRef.arena(arena.take(ref.nbytes), ref.nbytes)) for ref in read]


def _touching(args: Sequence[BufferRef], arena: _Space, threads: int, evict: int) -> list[Step]:
    size = max(evict, 4 * threads * _ROW)
    other = BufferRef.arena(arena.take(size), size)
    near = [a for space in ("arena", "out", "in") for a in args if a.space == space and a.nbytes >= _ROW]
    return [_touch(ref, arena) for ref in (other, *(near if evict else ()))]


def _touch(ref: BufferRef, arena: _Space) -> KernelCall:
    sums = BufferRef.arena(arena.take(_SUMS * ALIGNMENT), _SUMS * ALIGNMENT)
    return KernelCall("burnish_touch", "", (ref, sums), (1,), ref.nbytes // _ROW)


@lru_cache(maxsize=4)
def touching(target: Target) -> Kernel:
    """Task n reads row n, for as many rows as a plan says. The sums are of no use: tasks may share one."""
    lanes = ALIGNMENT // I32.bytes
    rows = 1 << 40
    x = Buffer("x", I32, (rows, _ROW // ALIGNMENT, lanes))
    y = Buffer("y", I32, (_SUMS, lanes))
    n, k, lane = Var("n"), Var("k"), Var("lane")
    place = (n % _SUMS, lane)
    total = Load("y", place, I32) + Load("x", (n, k, lane), I32)
    add = loop("lane", lanes, Store("y", place, total), kind="vector")
    body = loop("n", rows, loop("k", x.shape[1], add), kind="parallel")
    program = Program("burnish_touch", (x, y), (body,))
    return assemble(finished(program, target), target)


@lru_cache(maxsize=1)
def pacing() -> Kernel:
    """Takes a number of the core's clocks that nothing changes, whatever memory and other cores do: the same
    code beside candidates for every target that this machine runs."""
    target = host()
    y = Buffer("y", F32, (1,))
    first = (const(0),)
    chain = loop("k", _LINKS, Store("y", first, Load("y", first, F32) * 0.5 + 1.0))
    body = loop("n", 1, chain, kind="parallel")
    return assemble(finished(Program(PACE, (y,), (body,)), target), target)
