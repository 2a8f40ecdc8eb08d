"""Every measurement ever made (`record`), as JSON lines that are only appended to.

A line is one write() to a file opened for appending, so that processes need no lock and a record that was
acknowledged survives the process. A line torn by a full disk, or by a machine that stopped and left zeros
in it, is skipped by readers, and the next append begins a line of its own.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TypeVar

from ..compiler.kernel_task import Config, DefaultConfig, KernelTask, RejectedConfig
from ..compiler.target import TARGETS, Target, runs_here
from ..compiler.templates.registry import template
from ..errors import InputError
from ..settings import cache_dir
from .hardware import Hardware, hardware_of, this_hardware
from .record import PLAN, Record, made_by, parse_record, plain
from .verdict import CONFIRMED, WRONG, confirmed, fastest_nearby, sound, taken

T = TypeVar("T")
SHIPPED = Path(__file__).parents[1] / "models" / "records"


class RecordedConfig(DefaultConfig):
    """Plain answers by knob; the default where there is none, or one that is no longer offered.

    `origin` names the machine that they were measured on, if it is another one.
    """

    keyed = True

    def __init__(self, answers: Mapping[str, object], origin: str = ""):
        super().__init__()
        self.answers, self.origin = dict(answers), origin

    def choose(self, knob: str, options: Sequence[T], default: T) -> T:
        wanted = self.answers.get(knob, self)
        found = next((o for o in options if plain(o) == wanted), default)
        self.chosen[knob] = found
        return found


def default_path() -> Path:
    """The user's own records."""
    return cache_dir() / "records.jsonl"


def append(path: Path, records: Iterable[Record]) -> None:
    """Adds records; when this returns, no end of this process loses them. InputError if they do not fit."""
    append_lines(path, [r.line for r in records])


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Adds lines in one write; the first one again where it came behind what another process just tore."""
    data = [f"{line}\n".encode() for line in lines]
    with _opened(path) as handle:
        joined = not _ends_line(handle, os.fstat(handle).st_size)
        for part in (data, data[:1]):
            text = b"\n" * joined + b"".join(part)
            if os.write(handle, text) != len(text):
                raise InputError(f"cannot write records to {path}: the disk is full")
            if joined or _ends_line(handle, os.lseek(handle, 0, os.SEEK_CUR) - len(text)):
                break
            joined = True


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """The file for appending, made if need be. InputError where the system refuses anything."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            yield handle
        finally:
            os.close(handle)
    except OSError as error:
        raise InputError(f"cannot write records to {path}: {error.strerror}") from error


def _ends_line(handle: int, size: int) -> bool:
    """Whether a file's first `size` bytes are whole lines."""
    return size <= 0 or os.pread(handle, 1, size - 1) == b"\n"


def read(path: Path, start: int = 0, whole: bool = False, strict: bool = True) -> tuple[list[Record], int]:
    """The records behind byte `start`, and where the next reading goes on: before a line without end, which
    somebody may be writing; of a `whole` file that is a line, too. A file that ends before `start` was begun
    anew, and is read from its beginning. InputError for a line that is no record, if `strict`."""
    try:
        with path.open("rb") as f:
            if f.seek(0, os.SEEK_END) < start:
                start = 0
            f.seek(start)
            data = f.read()
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise InputError(f"cannot read records from {path}: {error.strerror or error}") from error
    end = len(data) if whole else data.rfind(b"\n") + 1
    found = []
    for number, line in enumerate(data[:end].decode("utf-8", "replace").split("\n"), 1):
        where = f"{path}, line {number}" if not start else f"{path}, line {number} behind byte {start}"
        with nullcontext() if strict else suppress(InputError):
            if line.strip() and (record := parse_record(line, where)) is not None:
                found.append(record)
    return found, start + end


@cache
def _read_once(folder: Path) -> tuple[Record, ...]:
    """Of all files of a folder that does not change. Reading what ships takes longer than a small model."""
    return tuple(record for file in sorted(folder.glob("*.jsonl")) for record in read(file)[0])


class Records:
    """The records of a file that may grow meanwhile, and, read-only, those that ship with Burnish.

    All but `in_networks` are of kernels measured alone.
    """

    def __init__(self, path: Path | None = None, shipped: bool = True, own: bool = True):
        self.path = path or default_path()
        self._at = 0
        self._by_task: dict[str, list[Record]] = {}
        self._in_networks: dict[str, list[Record]] = {}
        self._by_work: dict[str, list[Record]] = {}
        self._without_work: list[Record] = []
        self._machines: dict[str, Hardware] = {}  # whose times count, by target
        self.of_plans: list[Record] = []  # of whole plans
        self._take(_read_once(SHIPPED) if shipped else ())
        if own:
            self.refresh(strict=True)

    def __iter__(self) -> Iterator[Record]:
        for found in self._by_task.values():
            yield from found

    def __len__(self) -> int:
        return sum(map(len, self._by_task.values()))

    def _take(self, records: Iterable[Record]) -> None:
        self._machines.clear()
        for record in records:
            if record.network:
                self._in_networks.setdefault(record.task, []).append(record)
                if record.algorithm == PLAN:
                    self.of_plans.append(record)
                continue
            self._by_task.setdefault(record.task, []).append(record)
            self._without_work.append(record)

    def refresh(self, strict: bool = False) -> None:
        """Takes up what was appended since, by another version perhaps, whose lines end no tuning."""
        found, self._at = read(self.path, self._at, strict=strict)
        self._take(found)

    def add(self, *records: Record) -> None:
        append(self.path, records)
        self.refresh()

    def of(self, task: KernelTask | str) -> list[Record]:
        """All records of a task, or of a digest; failures too."""
        return list(self._by_task.get(task if isinstance(task, str) else task.digest, ()))

    def in_networks(self, task: KernelTask | str) -> list[Record]:
        """Those of a task, or of a digest, inside of networks; failures too."""
        return list(self._in_networks.get(task if isinstance(task, str) else task.digest, ()))

    def best(
        self, task: KernelTask | str, hardware: Hardware | None = None, evict: int | None = None
    ) -> Record | None:
        """The fastest that worked on this hardware (default: this machine); `evict` None takes any kind."""
        machine = hardware or this_hardware()
        fitting = [r for r in self.of(task) if r.hardware == machine and evict in (None, r.evict)]
        return min((r for r in fitting if r.error is None), key=lambda r: r.seconds or 0.0, default=None)

    def related(self, task: KernelTask, fits: Callable[[Record], bool] = lambda r: True) -> list[Record]:
        """Records of the same work that worked and fit, on CPUs with vectors as wide as the task's: of the
        task, or where there are none, of targets that differ in the CPU that code is scheduled for."""
        wide = vectors_of(task.target)

        def among(records: Iterable[Record]) -> list[Record]:
            return [r for r in sound(records) if vectors(r) == wide and fits(r)]

        if found := among(self.of(task)):
            return found
        for record in self._without_work:
            self._by_work.setdefault(work_of(record.key), []).append(record)
        self._without_work = []
        return among(self._by_work.get(work_of(task.key), ()))

    def nearest(self, task: KernelTask, hardware: Hardware | None = None) -> Record | None:
        """The fastest on the most similar machine that has a record of the work: a prior, no measurement."""
        machine = hardware or self.hardware_for(task.target)
        return min(self.related(task), key=lambda r: (machine.distance(r.hardware), r.seconds), default=None)

    def hardware_for(self, target: Target) -> Hardware:
        """Whose times count for a target: this machine's, or for one that this machine cannot be, those of
        the machine or simulation that most records of the target come from."""
        if target.gpu or runs_here(target):
            return hardware_of(target)
        name = f"{target.name}/{target.cpu}"
        if name not in self._machines:
            known = Counter(r.hardware for r in self if r.target == name)
            self._machines[name] = max(known, key=lambda m: known[m]) if known else _nothing_known(target)
        return self._machines[name]

    def pick_config(self, task: KernelTask, evict: int | None = None) -> Config:
        """The best known answers: by what was measured on this machine with this compiler, once that has
        tried what all other records say (`told`), or has compared configs in a network. Until then, or where
        nothing worked here, these stand.

        See `confirmed` where they were measured inside of a network; else a config is as fast as the median
        of its measurements, so that one lucky run does not decide. Where there are measurements of the kind
        `evict`, these alone count.
        """
        here = self.hardware_for(task.target)
        own = [r for r in (*self.of(task), *self.in_networks(task)) if is_own(r, here, evict)]
        right = sound(own)
        worked, inside = ([r for r in right if bool(r.network) == within] for within in (False, True))
        told = self.told(task, here, evict)
        tried = {tuple(r.config.items()) for r in own if not r.network}
        new = isinstance(told, RecordedConfig) and tuple(told.answers.items()) not in tried
        if new and confirmed(inside) is None:
            return told
        if not worked or not task.asks:
            return DefaultConfig()
        return _offered(task, fastest_nearby(worked, inside, here, evict)) or DefaultConfig()

    def told(self, task: KernelTask, machine: Hardware, evict: int | None = None) -> Config:
        """What records of all but a machine with this compiler would take, the nearest machine's first; else
        the default rule. So also where the rule's answers for the other machine differ: what was best there
        is no help here."""
        worked = self.related(task, lambda r: not is_own(r, machine, evict))
        if not worked or not task.asks:
            return DefaultConfig()
        digests = dict.fromkeys(r.task for r in worked)
        others = [r for d in digests for r in (*self.of(d), *self.in_networks(d))]
        inside = [r for r in sound(others) if r.network and not is_own(r, machine, evict)]
        record = fastest_nearby(worked, inside, machine, evict)
        there = record.hardware
        if there != machine and _default_answers(task) != _default_answers(_with_caches_of(there, task)):
            return DefaultConfig()
        origin = "" if there == machine else f"{there.cpu}, {there.core}, {there.cores} cores"
        return _offered(task, record, origin) or DefaultConfig()


def is_own(record: Record, machine: Hardware, evict: int | None) -> bool:
    """Whether it was measured on a machine with this compiler, in the wanted way."""
    return record.hardware == machine and record.made_by == made_by() and evict in (None, record.evict)


def _offered(task: KernelTask, record: Record, origin: str = "") -> RecordedConfig | None:
    """A record's config, with the rule's answers where its own are not offered; None if it is rejected."""
    config = RecordedConfig(record.config, origin)
    try:
        template(task).params(task, config)
    except RejectedConfig:
        return None
    return RecordedConfig({knob: plain(answer) for knob, answer in config.chosen.items()}, origin)


def _default_answers(task: KernelTask) -> Mapping[str, object]:
    """Of the template's own rule."""
    rule = DefaultConfig()
    template(task).params(task, rule)
    return rule.chosen


def _with_caches_of(machine: Hardware, task: KernelTask) -> KernelTask:
    return replace(task, target=replace(task.target, l1=machine.l1, l2=machine.l2, l3=machine.l3))


def _nothing_known(target: Target) -> Hardware:
    """This machine; where Burnish has no target for it, the target's own."""
    try:
        return hardware_of(target)
    except InputError:
        return Hardware(target.cpu, target.cpu, target.features, 1, target.l1, target.l2, target.l3)


@lru_cache(maxsize=1 << 14)
def work_of(key: str) -> str:
    """A task's key but for the target, which may be of several words: `name algorithm TARGET threads=…`."""
    head, threads, rest = key.partition(" threads=")
    return " ".join(head.split(" ")[:2]) + threads + rest


def vectors(record: Record) -> tuple[str, int]:
    """Architecture (of a GPU the language) and vector bits: as the target's name or the machine says."""
    target = TARGETS.get(record.target.partition("/")[0])
    if target is not None:
        return vectors_of(target)
    isa = record.hardware.isa
    if "neon" in isa:
        return "aarch64", 128
    return "x86_64", 512 if "avx512f" in isa else 256 if "avx2" in isa else 128


def vectors_of(target: Target) -> tuple[str, int]:
    return (target.gpu.language if target.gpu else target.arch), target.vector_bits


def tuned_configs(path: Path | None, evict: int | None = None) -> Callable[[KernelTask], Config]:
    """The best config of a task that is known from a file, or from the records that ship with Burnish; the
    default rule where there is none. Without a file, only those that ship count."""
    return partial(Records(path, own=path is not None).pick_config, evict=evict)


def merge(into: Path, sources: Iterable[Path]) -> int:
    """Appends the sources' records that `into` lacks; returns how many. Others may append meanwhile."""
    given: dict[str, Record] = {}
    for source in sources:
        if not source.exists():
            raise InputError(f"there is no file {str(source)!r}; expected records (.jsonl)")
        given |= {record.line: record for record in read(source, whole=True)[0]}
    with _alone(into):
        known = {r.line for r in read(into, whole=True)[0]}
        added = [record for line, record in given.items() if line not in known]
        append(into, added)
    return len(added)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """While others that ask for it wait; not those that append what they measured."""
    with _opened(path) as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def best_per_task(records: Iterable[Record]) -> list[Record]:
    """Of each task, machine and kind of measurement, the one with the config to take, in the order of first
    sight.

    That is as `taken` says. Where no config was measured in a network, but some CONFIRMED times surely, it is
    the fastest of these: of many that were measured once, the fastest is the luckiest.
    """
    groups: dict[tuple[str, Hardware, int], list[Record]] = {}
    for record in records:
        if record.network or record.seconds is not None or record.error in WRONG:
            groups.setdefault((record.task, record.hardware, record.evict), []).append(record)
    best = []
    for found in groups.values():
        found = sound(found)
        alone = [r for r in found if not r.network]
        times = Counter(tuple(r.config.items()) for r in alone if r.sure)
        often = [r for r in alone if times[tuple(r.config.items())] >= CONFIRMED]
        if alone:
            best.append(taken(found if len(alone) < len(found) else often or alone))
    return best
