"""What is gained by tuning: default configs against the best that a search finds, task by task.

    python benchmarks/defaults.py                            C1 to C12 and the zoo, 200 trials each
    python benchmarks/defaults.py c2 resnet18 --trials 800
    python benchmarks/defaults.py --trials 0 --tuned FILE    candidates from a file of `burnish tune`

The tasks are those of the networks as they are compiled by default, each once. A search takes a short look
at each config; of every task the default config and the five fastest known ones are then measured again, in
turns, for as long as the tuner would. *share* is the time of the best over the default's: 1 where nothing is
faster than the default. The best is the least of several medians, which chance lowers: what shares say is
rather too little.

Killed at any moment, it goes on where it stood when it is started again. The output is Markdown.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.commands.machine import describe_machine
from burnish.commands.progress import show_progress
from burnish.compiler.target import host
from burnish.errors import BurnishError
from burnish.models import zoo
from burnish.models.convolutions import WORKLOADS
from burnish.op_tuner.collect import samples_of
from burnish.op_tuner.course import STRATEGIES, Course, Times, strategy, told
from burnish.op_tuner.learner import Learner
from burnish.op_tuner.pretrained import shipped
from burnish.op_tuner.records import Records
from burnish.op_tuner.space import Point, Space
from burnish.settings import cache_dir
from burnish.workloads import Workload, distinct, planned

NETWORKS = (
    *WORKLOADS, "digits", "resnet18", "resnet34", "resnet50", "vgg19", "mobilenet_v1", "mobilenet_v2",
    "lstm_lm", "lstm_lm_step", "dqn", "bert_base", "inception_v1", "inception_v2",
)  # fmt: skip
CANDIDATES, ROUNDS = 5, 5
LOOK = 0.01  # seconds of a kernel's own time that a search takes for a config, about
BATCH = 32  # configs that a search chooses at once: it builds some while others run
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
        if self.default <= self.best:
            return 1.0
        return self.best / self.default


def compare(
    w: Workload, looks: Times, times: Times, trials: int, how: str, tuned: Iterable[Point], progress: Progress
) -> Row:
    """Searches by short `looks`, then measures the default and the best candidates again."""
    space = Space(w.task)
    default = space.default()
    search(w, space, looks, trials, how, progress)
    looks.measure_missing(w.task, tuned)
    known = {point: seconds for point, t in looks.of(w.task).items() if (seconds := told(t)) is not None}
    points = sorted(known, key=known.__getitem__)[:CANDIDATES]
    again = times.again(w.task, [default, *points], ROUNDS)
    return Row(w, again[default], min(again.values()), len(times.of(w.task)))


def search(w: Workload, space: Space, times: Times, trials: int, how: str, progress: Progress) -> None:
    if not trials:
        return
    learner = Learner("rank", prior=shipped(w.task.target)[0]) if how == "rank" else None
    course = Course(strategy(how, space, 0, learner), BATCH)
    default = space.default()
    course.strategy.tell(default, times.first(w.task, default))
    while course.advance(times, w.task, trials - 1):
        progress(f"{w.network} {w.task.name}", len(course.times) + 1, trials)


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
    parser.add_argument("--tuned", type=Path, nargs="*", default=(), help="records with more candidates")
    parser.add_argument("--records", type=Path, default=cache_dir() / "benchmark-defaults.jsonl")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str], **measuring: Any) -> int:
    options = parse(arguments)
    target, records = host(), Records(options.records, shipped=False)
    tuned = tuned_points(options.tuned)
    rows = []
    try:
        with show_progress() as progress:
            tasks: list[Workload] = []
            for n, name in enumerate(options.networks):
                progress(f"reading {name}", n, len(options.networks))
                tasks += planned(name, zoo.build(name), target, options.threads)
            tasks = distinct(tasks)
            how = {"threads": options.threads, **measuring}
            kinds = {w.evict for w in tasks}
            looks = {evict: Times(records, evict=evict, **{"seconds": LOOK, **how}) for evict in kinds}
            times = {evict: Times(records, evict=evict, **how) for evict in kinds}
            for n, w in enumerate(tasks):
                progress(f"task {n + 1} of {len(tasks)}: {w.task.name}", 0, options.trials)
                more = tuned.get((w.task.digest, w.evict), [])
                measurers = looks[w.evict], times[w.evict]
                rows.append(compare(w, *measurers, options.trials, options.strategy, more, progress))
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
