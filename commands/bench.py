"""`burnish bench`: one process, interleaved rounds, same inputs, threads and precision for every contestant.

For each network and number of threads, every contestant loads the network, shows that its outputs are
right, and is then timed in rounds: each round has fresh inputs and an order of its own, and runs each
contestant for long enough to be measured. Libraries let idle threads spin for a while in the hope of more
work: before each measurement the process waits until its threads have gone to sleep, so that nobody
competes with another's spinning, while within its own turn each keeps its default behaviour. Where there is
a thread for each core, and the host of a virtual machine lets two share one for a while (`own_cores`), that
is done again.

A ratio is taken within each round, where both sides met the same conditions, and then its median.
"""

from __future__ import annotations

import datetime
import functools
import os
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx

from ..compiler.target import allowed_cpus
from ..errors import InputError
from ..models.zoo import random_inputs
from ..op_tuner.own_cores import OwnCores
from .cuda_machine import CudaMachine
from .flops import nominal_flops
from .intervals import Interval, median_interval
from .machine import Limits, Machine, describe_machine, measure_limits
from .outputs import defined_outputs, judged_error, least_tolerance, reason_of, reference_outputs, wrong
from .peers import Network, Peer, Runner
from .peers.base import PRECISION_TOLERANCE
from .report import threads_text

REFERENCE, DEFINITIONS = "the reference", "the operators' definitions"  # in place of a contestant's name
NOT_MEASURED = "not measured: "  # begins the reason of a row where nothing was wrong
QUIET = 0.1  # share of one core that counts as "asleep"
MOST_REPEATS = 200_000
WAITING = 1.0  # of the time that measurements take, at most, is added where cores are shared


@dataclass(frozen=True)
class Row:
    """One contestant on one network with one number of threads.

    `seconds` holds one inference's time in each round. `speed` is the time of the fastest right peer over
    this row's (above 1: this row is faster), with the interval of its median; None on a failed row and where
    there is no peer. That peer's precision is `rivals`: a subject's own or a more exact one; f32 for peers.
    `reason` says why a row failed.
    """

    contestant: str
    version: str
    precision: str
    subject: bool = False  # compared with the peers, and none itself
    seconds: tuple[float, ...] = ()
    repeats: int = 0  # inferences per round
    prepare_seconds: float | None = None  # from the model in memory to the first outputs
    error: float | None = None  # largest difference from the reference, relative to the output's scale
    median_seconds: Interval | None = None
    speed: Interval | None = None
    reason: str | None = None
    algorithm: str = ""  # which the contestant chose, where it says so
    tuning_seconds: float | None = None  # before it was prepared
    tuning_overhead_seconds: float | None = None  # of these, while nothing was built or measured
    rivals: str = "f32"  # precision of the peers that it is compared with

    @property
    def failed(self) -> bool:
        """Not so if there was nothing to measure it on."""
        return self.reason is not None and not self.reason.startswith(NOT_MEASURED)


@dataclass(frozen=True)
class Group:
    """Rows that compare with each other. `flops` is None where the model's shapes do not give them; `shared`
    are measurements during which cores were shared."""

    network: str
    threads: int  # 0: on a GPU
    flops: int | None
    checked: bool  # against onnxruntime, or the operators' definitions where it fails
    fastest_peer: str | None  # of f32
    rows: tuple[Row, ...]
    shared: int = 0

    def gflops(self, row: Row) -> float | None:
        if self.flops is None or row.median_seconds is None:
            return None
        return self.flops / row.median_seconds.middle / 1e9


@dataclass(frozen=True)
class BenchResult:
    date: str  # ISO 8601, UTC
    machine: Machine
    limits: Limits
    rounds: int
    seed: int
    load: float = 0.0  # average number of running threads in the machine's last minute, at the start
    groups: tuple[Group, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)  # of the contestants
    device: CudaMachine | None = None
    on_cpu: bool = True  # where the subjects run
    complete: bool = True  # not so while there is more to compare

    def share_of_peak(self, group: Group, row: Row) -> float | None:
        """Of the measured peak in its precision, with as many threads; None where that is not known."""
        gflops = group.gflops(row)
        if row.subject and not self.on_cpu and self.device is None:
            return None
        if self.device is not None:
            peak = self.device.gflops.get(row.precision)
        else:
            peak = self.limits.gflops[group.threads] if row.precision == "f32" else None
        return None if gflops is None or peak is None else gflops / peak


def bench(
    models: Sequence[tuple[str, onnx.ModelProto]],
    contestants: Sequence[Peer],
    *,
    threads: Sequence[int] = (1, 2),
    rounds: int = 7,
    seed: int = 0,
    min_seconds: float = 0.1,
    progress: Callable[[str], None] = lambda message: None,
    device: CudaMachine | None = None,
    on_cpu: bool = True,
    compare: Compare | None = None,
    ahead: Callable[[str, onnx.ModelProto], None] = lambda name, model: None,
    keep: Callable[[BenchResult], None] = lambda found: None,
) -> BenchResult:
    """Compare `contestants`: subjects (Burnish) and peers, of which the fastest is what all are held against.

    A contestant that is not installed, fails or gives wrong outputs is a row that says so.

    progress  is told what happens next
    device    limits of the NVIDIA GPU that all run on; without a `name` there is none, and every row says so
    on_cpu    False where subjects run on a GPU, whose limits are not known without `device`
    compare   takes a session's measurements elsewhere (`bench_apart`)
    ahead     is called before each model
    keep      is called behind each model and number of threads, with what there is so far

    InputError for fewer than 1 round or thread.
    """
    if rounds < 1 or min(threads, default=0) < 1:
        raise InputError(f"bench needs at least 1 round and 1 thread, not rounds={rounds}, threads={threads}")
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if device is None:
        progress("measuring this machine's peak")
    limits = Limits({}, {}) if device else measure_limits(threads)
    missing = f"{NOT_MEASURED}no GPU here" if device and not device.name else None
    versions = {peer.name: peer.version() for peer in contestants if peer.available() is None}
    groups: list[Group] = []
    machine = describe_machine()
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")

    def found(complete: bool) -> BenchResult:
        return BenchResult(
            date=date,
            machine=machine,
            limits=limits,
            rounds=rounds,
            seed=seed,
            load=load,
            groups=tuple(groups),
            complete=complete,
            versions=versions,
            device=device,
            on_cpu=on_cpu,
        )

    for name, model in models:
        ahead(name, model)
        network = Network(name, model)
        for count in (0,) if device else threads:
            session = Session(
                network=network,
                threads=count,
                rounds=rounds,
                seed=seed,
                min_seconds=min_seconds,
                progress=progress,
                missing=missing,
            )
            groups.append((compare or Session.compare)(session, contestants, versions))
            keep(found(complete=False))
    if device is None:
        progress("measuring this machine's peak again")
        limits = _best(limits, measure_limits(threads))
    return found(complete=True)


def _best(first: Limits, second: Limits) -> Limits:
    """What the machine can do does not sink because something else ran during one measurement."""
    return Limits(
        {count: max(value, second.gflops[count]) for count, value in first.gflops.items()},
        {count: max(value, second.read_gbs[count]) for count, value in first.read_gbs.items()},
    )


@dataclass
class _Entry:
    """A contestant that is still in the running, and its row so far."""

    peer: Peer
    row: Row
    runner: Runner | None = None

    def fail(self, error: BaseException | str) -> None:
        self.row = replace(self.row, reason=reason_of(error))
        self.close()

    def close(self) -> None:
        runner, self.runner = self.runner, None
        if runner is not None:
            runner.close()


class SpoiltError(Exception):
    """A contestant failed, and this process runs nobody's code any more. Arguments: its name, the reason."""


@dataclass
class Session:
    """One network with one number of threads.

    missing  why nothing can be measured
    failed   why contestants, the reference or the definitions are not to be tried
    begins   is told whose code, or which of the latter, runs from now on
    usable   whether others can still be measured here, after a contestant failed
    """

    network: Network
    threads: int
    rounds: int
    seed: int
    min_seconds: float
    progress: Callable[[str], None]
    missing: str | None = None
    failed: Mapping[str, str] = field(default_factory=dict)
    begins: Callable[[str], None] = lambda name: None
    usable: Callable[[], bool] = lambda: True

    def compare(self, contestants: Sequence[Peer], versions: Mapping[str, str]) -> Group:
        """Raises SpoiltError."""
        title = f"{self.network.name}, {place(self.threads)}"
        entries = [
            _Entry(peer, Row(peer.name, versions.get(peer.name, ""), peer.precision, peer.subject))
            for peer in contestants
        ]
        cores = OwnCores(self.threads if self.threads == len(allowed_cpus()) else 0, share=WAITING)
        inputs = random_inputs(self.network.model, self.seed)
        expected: Mapping[str, np.ndarray] | None = None
        if not self.missing and REFERENCE not in self.failed:
            self.begins(REFERENCE)
            expected = reference_outputs(self.network, inputs)

        @functools.cache
        def judge() -> Mapping[str, np.ndarray] | None:
            if DEFINITIONS in self.failed:
                return None
            self.begins(DEFINITIONS)
            return defined_outputs(self.network, inputs)

        if expected is None and not self.missing:
            self.progress(f"{title}: computing what the operators' definitions give")
            expected = judge()
        for entry in entries:
            if not self.missing:
                self.progress(f"{title}: preparing {entry.peer.name}")
            self._prepare(entry, inputs, expected, judge)
            settle()
            cores.look()
        orders = in_turns(len(entries), self.seed)
        for index in range(0 if self.missing else self.rounds):
            self.progress(f"{title}: round {index + 1} of {self.rounds}")
            self._round([entries[n] for n in next(orders)], index, cores)
        for entry in entries:
            entry.close()
        rows, fastest = _with_speeds([entry.row for entry in entries])
        return Group(
            network=self.network.name,
            threads=self.threads,
            flops=nominal_flops(self.network.model, inputs),
            checked=expected is not None,
            fastest_peer=fastest,
            rows=rows,
            shared=cores.shared,
        )

    def _prepare(
        self,
        entry: _Entry,
        inputs: Mapping[str, np.ndarray],
        expected: Mapping[str, np.ndarray] | None,
        judge: Callable[[], Mapping[str, np.ndarray] | None],
    ) -> None:
        """`judge` is asked where f32 outputs are not those expected: onnxruntime takes shortcuts, too."""
        reason = self.missing or entry.peer.available() or self.failed.get(entry.peer.name)
        if reason is not None:
            return entry.fail(reason)
        self.begins(entry.peer.name)
        try:
            start = time.perf_counter()
            entry.runner = entry.peer.prepare(self.network, max(1, self.threads))
            found = entry.runner.run(inputs)  # here, at the latest, everything is compiled and packed
            tuning = entry.peer.tuning.get((self.network.name, max(1, self.threads)))
            entry.row = replace(
                entry.row,
                prepare_seconds=time.perf_counter() - start,
                tuning_seconds=tuning.whole if tuning else None,
                tuning_overhead_seconds=tuning.overhead if tuning else None,
            )
            if expected is not None:
                least = least_tolerance(self.network.model)
                limit = max(entry.peer.tolerance, least)
                strict = entry.peer.precision == "f32"
                exact = strict and not least  # indices follow what was rounded
                error = judged_error(found, expected, limit, exact, judge if strict else lambda: None)
                self.begins(entry.peer.name)
                entry.row = replace(entry.row, error=error)
                if not error <= limit:
                    return entry.fail(wrong(found, expected, error, limit))
            entry.row = replace(entry.row, algorithm=entry.runner.algorithm)
            settle()
            entry.row = replace(entry.row, repeats=_calibrate(entry.runner, inputs, self.min_seconds))
        except Exception as error:  # whatever another library raises is a row, not the end of the run
            self._fail(entry, error)
        return None

    def _fail(self, entry: _Entry, error: Exception) -> None:
        entry.fail(error)
        if not self.usable():
            raise SpoiltError(entry.peer.name, entry.row.reason)

    def _round(self, entries: Sequence[_Entry], index: int, cores: OwnCores) -> None:
        inputs = random_inputs(self.network.model, self.seed + 1 + index)
        for entry in entries:
            if entry.runner is None:
                continue
            self.begins(entry.peer.name)
            run = functools.partial(entry.runner.time, inputs, entry.row.repeats)
            try:
                seconds = cores.during(run, settle) / entry.row.repeats
            except Exception as error:
                self._fail(entry, error)
                continue
            entry.row = replace(entry.row, seconds=(*entry.row.seconds, seconds))


Compare = Callable[[Session, Sequence[Peer], Mapping[str, str]], Group]


def place(threads: int) -> str:
    """Threads in words; 0 is a GPU."""
    return threads_text(threads) if threads else "GPU"


def in_turns(count: int, seed: int) -> Iterator[Sequence[int]]:
    """Orders of `count` contestants, round by round: by chance, so that none always comes behind the same
    one and what that leaves in caches and clocks; none follows itself."""
    chance, order = random.Random(seed), list(range(count))
    while True:
        last = order[-1:]
        chance.shuffle(order)
        if order[:1] == last and count > 1:
            other = chance.randrange(1, count)
            order[0], order[other] = order[other], order[0]
        yield tuple(order)


def settle(longest: float = 2.0) -> None:
    """Wait until the other threads of this process sleep, at most `longest` seconds."""
    slice_seconds = 0.01
    end = time.perf_counter() + longest
    while time.perf_counter() < end:
        busy = time.process_time()
        time.sleep(slice_seconds)
        if time.process_time() - busy < QUIET * slice_seconds:
            return


def _calibrate(runner: Runner, inputs: Mapping[str, np.ndarray], min_seconds: float) -> int:
    """Inferences that last about `min_seconds` together."""
    repeats = 1
    runner.time(inputs, repeats)
    while (seconds := runner.time(inputs, repeats)) < min_seconds / 4 and repeats < MOST_REPEATS:
        repeats *= 4
    return max(1, min(MOST_REPEATS, round(repeats * min_seconds / seconds)))


def _with_speeds(rows: Sequence[Row]) -> tuple[tuple[Row, ...], str | None]:
    """Rows with their medians and paired ratios, and the name of the fastest f32 peer."""
    done = [
        replace(row, median_seconds=median_interval(row.seconds))
        if row.reason is None and row.seconds
        else replace(row, seconds=())
        for row in rows
    ]
    peers = [row for row in done if row.median_seconds and not row.subject]
    exact = tuple(PRECISION_TOLERANCE)
    best = _fastest(peers, exact[:1])

    def compared(row: Row) -> Row:
        base = _fastest(peers, exact[: exact.index(row.precision) + 1]) if row.subject else best
        if row.median_seconds is None or base is None:
            return row
        ratios = [theirs / own for theirs, own in zip(base.seconds, row.seconds)]
        return replace(row, rivals=base.precision, speed=median_interval(ratios))

    return tuple(map(compared, done)), best.contestant if best else None


def _fastest(peers: Sequence[Row], precisions: Collection[str]) -> Row | None:
    those = [row for row in peers if row.precision in precisions]
    return min(those, key=lambda row: row.median_seconds.middle, default=None)  # type: ignore[union-attr]
