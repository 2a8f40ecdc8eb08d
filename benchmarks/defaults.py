"""What is gained by tuning: default configs against the best that a search finds, task by task.

    python benchmarks/defaults.py                            C1 to C12 and the zoo, 200 trials each
    python benchmarks/defaults.py c2 resnet18 --trials 800 --jobs 2
    python benchmarks/defaults.py --trials 0 --tuned FILE    candidates from a file of `burnish tune`

The tasks are those of the networks as they are compiled by default, each once. A search takes a short look
at each config, a shorter one where it is clearly slower than the best; `--jobs` searches go on at once, on a
core each, but for kernels that wait for the memory which all cores share. With nothing beside, the fastest
are looked at again, and the fastest of these are measured in turns with the default config, for as long as
the tuner would. *share* is the time of the best over the default's: 1 where nothing is faster than the
default. The best is the least of several medians, which chance lowers: what shares say is rather too little.

Killed at any moment, it goes on where it stood when it is started again. The output is Markdown.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from burnish.commands.machine import describe_machine
from burnish.commands.progress import show_progress
from burnish.compiler.target import host
from burnish.errors import BurnishError
from burnish.models import zoo
from burnish.models.convolutions import WORKLOADS
from burnish.op_tuner.apart import Apart, Process
from burnish.op_tuner.child import end_with_parent
from burnish.op_tuner.collect import samples_of
from burnish.op_tuner.cores import divide, one_blas_thread, pin
from burnish.op_tuner.course import STRATEGIES, Course, Times, strategy, told
from burnish.op_tuner.hardware import this_hardware
from burnish.op_tuner.learner import Learner
from burnish.op_tuner.operands import operands
from burnish.op_tuner.pretrained import shipped
from burnish.op_tuner.records import Records
from burnish.op_tuner.space import Point, Space
from burnish.settings import cache_dir
from burnish.workloads import Workload, distinct, planned

NETWORKS = (
    *WORKLOADS, "digits", "resnet18", "resnet34", "resnet50", "vgg19", "mobilenet_v1", "mobilenet_v2",
    "lstm_lm", "lstm_lm_step", "dqn", "bert_base", "inception_v1", "inception_v2", "densenet121",
)  # fmt: skip
LIKELY, CANDIDATES = 16, 5  # of the fastest ones, how many are looked at again, and measured in full
ROUNDS = 5
LOOK = 0.005  # seconds of a kernel's own time that a search takes for a config, about
BATCH = 32  # configs that a search chooses at once: it builds some while others run
STREAM = 15e9  # bytes of weights a second, from which on a kernel waits for memory
WANTED, LEAST = 0.88, 0.6
"""Of the shares: what their geometric mean, and each of them, should reach."""
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Row:
    """Seconds of the default config and of the best, both measured again; infinite if it fails."""

    workload: Workload
    default: float
    best: float
    tried: int

    @property
    def share(self) -> float:
        if math.isinf(self.default):
            return 0.0
        if self.default <= self.best:
            return 1.0
        return self.best / self.default


def search(w: Workload, looks: Times, trials: int, how: str, progress: Progress) -> None:
    """Looks at `trials` configs, the default one among them, or at all that there are."""
    if len(looks.of(w.task)) >= trials:
        return
    space = Space(w.task)
    learner = Learner("rank", prior=shipped(w.task.target)[0]) if how == "rank" else None
    course = Course(strategy(how, space, 0, learner), BATCH)
    default = space.default()
    course.strategy.tell(default, looks.first(w.task, default))
    while course.advance(looks, w.task, trials - 1):
        progress(f"{w.network} {w.task.name}", len(course.times) + 1, trials)


class Searches:
    """Searches of kernels of one thread that go on at once, in processes that keep to a core each. They fork
    all the time, so they should begin while little is in memory."""

    records: ClassVar[Records]  # in such a process
    measuring: ClassVar[Process]

    def __init__(self, jobs: int, records: Path):
        self._pool: ProcessPoolExecutor | None = None
        if jobs == 1:
            return
        this_hardware()  # as it is, not as a process sees it that keeps to one core
        context = multiprocessing.get_context("fork")
        cores = context.SimpleQueue()
        for core in divide(jobs).measuring:
            cores.put(core)
        self._pool = ProcessPoolExecutor(jobs, context, self._begin, (os.getpid(), cores, records))
        self._pool.submit(os.getpid).result()

    def run(self, tasks: Sequence[Workload], trials: int, how: str, progress: Progress) -> None:
        """None of no tasks."""
        pool = self._pool
        under_way = {pool.submit(self._search, w, trials, how): w for w in tasks} if pool else {}
        for done, future in enumerate(as_completed(under_way), 1):
            future.result()
            w = under_way[future]
            progress(f"{w.network} {w.task.name}", done, len(tasks))

    def __enter__(self) -> Searches:
        return self

    def __exit__(self, *why: object) -> None:
        if self._pool is not None:
            for process in multiprocessing.active_children():
                process.kill()
            self._pool.shutdown(cancel_futures=True)

    @staticmethod
    def _begin(parent: int, cores: Any, records: Path) -> None:
        end_with_parent(parent)
        pin({cores.get()})
        one_blas_thread()
        Searches.measuring = Process()
        Searches.records = Records(records, shipped=False)

    @staticmethod
    def _search(w: Workload, trials: int, how: str) -> None:
        measure = Apart(Searches.measuring, 1, evict=w.evict, seconds=LOOK)
        looks = Times(Searches.records, evict=w.evict, brief=True, measure=measure)
        search(w, looks, trials, how, lambda *what: None)


def waits_for_memory(w: Workload, looks: Times) -> bool:
    """For its weights, in the default config."""
    seconds, given = looks.first(w.task, Space(w.task).default()), operands(w.task)
    return bool(seconds) and sum(given.arrays[n].nbytes for n in given.weights) > STREAM * seconds


def compare(w: Workload, looks: Times, times: Times, tuned: Iterable[Point]) -> Row:
    """Measures the default and the best candidates again. `looks` are short ones, which do not compare with
    `times`."""
    default = Space(w.task).default()
    looks.measure_missing(w.task, [default, *tuned])
    known = {point: seconds for point, t in looks.of(w.task).items() if (seconds := told(t)) is not None}
    likely = looks.again(w.task, sorted(known, key=known.__getitem__)[:LIKELY], 1)
    points = sorted(likely, key=likely.__getitem__)[:CANDIDATES]
    again = times.again(w.task, [default, *points], ROUNDS)
    return Row(w, again[default], min(again.values()), len(looks.of(w.task)))


def tuned_points(paths: Iterable[Path]) -> dict[tuple[str, int], list[Point]]:
    """By task and kind of measurement, the fastest configs in files of records of this machine."""
    found: dict[tuple[str, int], list[Point]] = {}
    for path in paths:
        for kind, own in samples_of(Records(path, shipped=False)).items():
            worked = sorted((seconds, point) for point, seconds in own.items() if seconds is not None)
            found.setdefault(kind, []).extend(point for _, point in worked[:CANDIDATES])
    return found


def total(rows: Sequence[Row]) -> tuple[float, float]:
    """Geometric mean and least of the shares; 0 of none."""
    shares = [r.share for r in rows]
    return (statistics.geometric_mean(shares) if all(shares) and shares else 0.0), min(shares, default=0.0)


def text(rows: Sequence[Row]) -> str:
    """The table, worst first, and whether it is what it should be."""
    lines = [
        "| network | kernel | algorithm | configs | default µs | best µs | share |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for r in sorted(rows, key=lambda r: r.share):
        times = [f"{1e6 * t:.1f}" if t < math.inf else "fails" for t in (r.default, r.best)]
        lines.append(
            f"| {r.workload.network} | {r.workload.task.name} | {r.workload.task.algorithm} | {r.tried} | "
            f"{times[0]} | {times[1]} | {r.share:.3f} |"
        )
    if not rows:
        return "nothing has been compared yet"
    mean, least = total(rows)
    below = sum(r.share < LEAST for r in rows)
    lines.append(f"\n{len(rows)} tasks: geometric mean {mean:.3f} (wanted {WANTED}), least {least:.3f}, ")
    lines[-1] += f"{below} below {LEAST}"
    return "\n".join(lines)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--trials", type=int, default=200, help="configs of each task; 0: no search")
    parser.add_argument("--strategy", choices=STRATEGIES, default=STRATEGIES[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="searches at once, of one thread each")
    parser.add_argument("--tuned", type=Path, nargs="*", default=(), help="records with more candidates")
    parser.add_argument("--records", type=Path, default=cache_dir() / "benchmark-defaults.jsonl")
    options = parser.parse_args(arguments)
    if not 1 <= options.jobs <= len(divide(options.jobs).measuring) or options.jobs > 1 < options.threads:
        parser.error("--jobs: one or more, at most one for each core, of kernels of one thread")
    return options


def read(networks: Sequence[str], threads: int, progress: Progress) -> list[Workload]:
    """The different tasks of networks as they are compiled by default."""
    tasks: list[Workload] = []
    for n, name in enumerate(networks):
        progress(f"reading {name}", n, len(networks))
        tasks += planned(name, zoo.build(name), host(), threads)
    return distinct(tasks)


def main(arguments: Sequence[str], **measuring: Any) -> int:
    options = parse(arguments)
    tuned = tuned_points(options.tuned)
    rows = []
    try:
        with show_progress() as progress, Searches(options.jobs, options.records) as searches:
            tasks = read(options.networks, options.threads, progress)
            records = Records(options.records, shipped=False)
            again = Records(options.records.with_suffix(".again.jsonl"), shipped=False)
            how = {"threads": options.threads, **measuring}

            def looks(w: Workload) -> Times:
                return Times(records, evict=w.evict, brief=True, **{"seconds": LOOK, **how})

            alone = {w.task.digest for w in tasks if options.jobs == 1 or waits_for_memory(w, looks(w))}
            at_once = [w for w in tasks if w.task.digest not in alone]
            searches.run(at_once, options.trials, options.strategy, progress)
            records.refresh()
            for n, w in enumerate(tasks):
                progress(f"task {n + 1} of {len(tasks)}: {w.task.name}", 0, options.trials)
                if w.task.digest in alone:
                    search(w, looks(w), options.trials, options.strategy, progress)
                more = tuned.get((w.task.digest, w.evict), [])
                rows.append(compare(w, looks(w), Times(again, evict=w.evict, **how), more))
    except KeyboardInterrupt:
        print("interrupted; the next run goes on from here", file=sys.stderr)
        return 130
    print(f"{describe_machine().describe()}; {options.threads} thread(s), {options.trials} trials a task\n")
    print(text(rows))
    mean, least = total(rows)
    return int(mean < WANTED or least < LEAST)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BurnishError as error:
        sys.exit(f"error: {error}")
