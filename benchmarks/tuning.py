"""How many measurements each search strategy needs: the experiments of Chen et al. 2018, section 6.

    python benchmarks/tuning.py                         C1 to C12, 400 trials each; then transfer
    python benchmarks/tuning.py --workloads c2,c9 --seeds 1 --trials 100 --no-transfer
    python benchmarks/tuning.py --report --courses FILE         what is in a file of courses: no measuring

The task is the direct convolution on channels in blocks; its weights and image are in the caches as after an
earlier run, and what converts layouts is no part of it. All strategies draw from one space and are told the
same times: a config that any of them tried is in the records, counts as a trial and is not measured again.
None is told the default config. A search is worth what it returns: of the three configs that it was told
the smallest times of, the one that is the fastest when they are measured again, as a tuner confirms what it
found. In the end all that were among a course's three fastest after some trial are measured again, in turns,
and count with the median. Of many times that are told once the smallest is the luckiest: on a matrix
product, whose times vary by 2 %, searches would be compared by luck.

Killed at any moment, it goes on where it stood when it is started again: two files of records hold every
measurement, what searches are told and what is measured again in the end, and seeds repeat the rest. So
does a strategy that is asked for later with the other courses of a workload, which are measured again in
turns with its own. One thread. The output is Markdown; curves go to PNG files.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from burnish import op_tuner
from burnish.commands.machine import describe_machine
from burnish.commands.progress import show_progress
from burnish.compiler.kernel_task import KernelTask
from burnish.compiler.target import host
from burnish.errors import BurnishError, InputError, ToolError
from burnish.graph_passes.task_flops import task_flops
from burnish.models.convolutions import WORKLOADS
from burnish.op_tuner.costs import made_by
from burnish.op_tuner.course import STRATEGIES, Course, Times, begin, best_so_far, told
from burnish.op_tuner.learner import Learner
from burnish.op_tuner.model import CostModel
from burnish.op_tuner.pretrained import Samples, fit, read_samples
from burnish.op_tuner.record import tuples
from burnish.op_tuner.records import Records
from burnish.op_tuner.space import Point, Space
from burnish.settings import cache_dir
from burnish.workloads import direct_convolution, matrix_product

SEEDS = {"c2": 3, "c5": 3, "c9": 3, "c12": 3}
"""The others have one, but random search has three of each: what one ends with, others are to reach."""
SOURCES = ("c1", "c2", "c3", "c4", "c5", "c6")
TARGETS = ("c7", "c8", "c9", "matmul1024")
TOLD_APART = 0.998
"""What is within 0.2 % is not told apart by what is measured again: who first reaches the whole of another
one's speed is chance."""
LEVELS = (0.9, 0.95, 0.98, 0.99, TOLD_APART, 1.0)
"""Shares of the speed that a search from scratch ends with, at which transfer is compared."""
VIEWS = {
    "rank / random": (1.0, False),
    f"to {100 * TOLD_APART:g} %": (TOLD_APART, False),
    "as told": (1.0, True),
}
"""Of trials to others' ends: the share of the speed, and whether by what searches were told."""
CONFIRMED = 3
"""How many of a course's fastest configs are measured again."""
OFTEN, ROUNDS = 9, {"matmul1024": 25}
"""How often: medians of five vary as much as there is left to find in the end, the matrix product's most."""
NEAR = 1.25
"""Times what a course returns: slower than that, what it would have returned early is not measured again."""
SCRATCH, TRANSFER = "from scratch", "transfer"
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Run:
    """A finished course. Times are in seconds; `returned` is (trial, median) of what the course would have
    returned from that trial on, `best` the least median of its CONFIRMED fastest, and `taught` how many
    measurements the model was made of that it, or the one beside it, began with."""

    task: str
    workload: str
    strategy: str
    seed: int
    trials: int
    version: str
    times: tuple[float | None, ...]
    thinking: float
    best: float
    returned: tuple[tuple[int, float], ...]
    machine: str = ""
    taught: int = 0

    def speed(self, work: int) -> float:
        """GFLOP/s."""
        return work / self.best / 1e9


class Finished:
    """The finished courses of a file, so that tables and pictures need no repeating of searches."""

    def __init__(self, path: Path):
        self.path = path
        self.runs: dict[tuple[object, ...], Run] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                data = json.loads(line)
                run = Run(**{**data, **{k: tuples(data[k]) for k in ("times", "returned")}})
            except (ValueError, KeyError, TypeError):
                continue  # empty, torn by a kill, or of an older form
            self._take(run)

    def _take(self, run: Run) -> None:
        key = (run.task, run.strategy, run.seed, run.trials, run.version, run.machine)
        self.runs.pop(key, None)  # the last run is the last one
        self.runs[key] = run

    def of(self, task: KernelTask, trials: int, taught: int = 0) -> list[tuple[str, int]]:
        """Strategies and seeds of those that would be as they were."""
        wanted = (task.digest, trials, version(), machine(), taught)
        return [
            (r.strategy, r.seed)
            for r in self.runs.values()
            if (r.task, r.trials, r.version, r.machine, r.taught) == wanted
        ]

    def add(self, run: Run) -> None:
        with self.path.open("a") as f:
            f.write("\n" + json.dumps(asdict(run)))  # in front: a line that was torn stays alone
        self._take(run)

    def latest(self, trials: int) -> list[Run]:
        """Those of the last run's machine, and of each workload those of the same version as its last
        one, of a transfer also of the same samples: others do not compare."""
        runs = [r for r in self.runs.values() if r.trials == trials]
        runs = [r for r in runs if r.machine == runs[-1].machine]
        versions = {r.workload: r.version for r in runs}
        taught = {(r.workload, r.taught > 0): r.taught for r in runs}
        return [
            r for r in runs
            if r.version == versions[r.workload] and r.taught == taught[r.workload, r.taught > 0]
        ]  # fmt: skip


@cache
def machine() -> str:
    return describe_machine().describe()


def version() -> str:
    """Changes with the compiler and with what searches: courses of different versions do not compare."""
    folder = Path(op_tuner.__file__ or "").parent
    digest = sha256(made_by().encode())
    for path in sorted(folder.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def rounded(seconds: float | None) -> float | None:
    """To four digits: files of courses are kept."""
    return None if seconds is None else float(f"{seconds:.4g}")


# --- running ---------------------------------------------------------------------------------------------


@cache
def workload(name: str) -> KernelTask:
    return matrix_product(1024, host()) if name == "matmul1024" else direct_convolution(name, host())


class Measuring(NamedTuple):
    """What searches are told, and what is measured again in the end, which must not change what is told:
    courses that are repeated would be others."""

    told: Times
    worth: Times


def run_courses(
    name: str, task: KernelTask, courses: Mapping[tuple[str, int], Course], trials: int, measuring: Measuring,
    finished: Finished, progress: Progress, taught: int = 0,
) -> None:  # fmt: skip
    """A batch of each at once, so that a slower machine is slower for all; then the fastest again."""
    times, total = measuring.told, trials * len(courses)
    while batches := {key: batch for key, course in courses.items() if (batch := course.propose(trials))}:
        times.measure_missing(task, [point for batch in batches.values() for point in batch])
        for key, batch in batches.items():
            courses[key].hear(times, task, batch)
        done = sum(len(course.times) for course in courses.values())
        progress(f"{name}: {len(batches)} searches; {times.measured} measured", done, total)
    returned = {key: would_confirm(course) for key, course in courses.items()}
    points = [p for found in returned.values() for fastest in found.values() for p in fastest]
    progress(f"{name}: what was the fastest again", total, total)
    again = measuring.worth.again(task, points, ROUNDS.get(name, OFTEN))
    for (how, seed), course in courses.items():
        worth = {n: min(again[p] for p in fastest) for n, fastest in returned[how, seed].items()}
        best = list(worth.values())[-1] if worth else math.inf
        returns = tuple((trial, rounded(seconds)) for trial, seconds in worth.items())
        finished.add(
            Run(
                *(task.digest, name, how, seed, trials, version(), tuple(map(rounded, course.times))),
                *(rounded(course.thinking), rounded(best), returns, machine(), taught),
            )
        )


def would_confirm(course: Course) -> dict[int, tuple[Point, ...]]:
    """By trial, the configs that a course would confirm if it ended there; none that is not NEAR its end."""
    found: dict[int, tuple[Point, ...]] = {}
    least = min((t for t in course.times if t is not None), default=math.inf)
    fastest: list[tuple[float, int]] = []
    for n, seconds in enumerate(course.times):
        if seconds is not None and seconds <= NEAR * least:
            kept = sorted([*fastest, (seconds, n)])[:CONFIRMED]
            if kept != fastest:
                found[n + 1] = tuple(course.points[k] for _, k in kept)
            fastest = kept
    return found


def compare(
    options: argparse.Namespace, measuring: Measuring, finished: Finished, progress: Progress
) -> None:
    for name in options.workloads:
        task = workload(name)
        space = Space(task)
        known = [key for key in finished.of(task, options.trials) if key[0] in STRATEGIES]
        wanted = [(s, seed) for s in options.strategies for seed in range(options.seeds or seeds_of(name, s))]
        if set(wanted) <= set(known):
            continue
        courses = {(how, seed): begin(how, space, seed) for how, seed in [*known, *wanted]}
        run_courses(name, task, courses, options.trials, measuring, finished, progress)


def require_sources(options: argparse.Namespace, told: Times) -> None:
    """InputError, before hours of measuring, where transfer would have nothing to learn from."""
    lacking = [n for n in SOURCES if n not in options.workloads and not told.of(workload(n))]
    if lacking:
        raise InputError(f"transfer needs measurements of {', '.join(lacking)}; or --no-transfer")


def seeds_of(name: str, strategy: str) -> int:
    return max(SEEDS.values()) if strategy == "random" else SEEDS.get(name, 1)


def learnt_from(name: str, times: Times) -> Samples:
    task = workload(name)
    return read_samples(task, name, {point: told(found) for point, found in times.of(task).items()})


def transfer(
    options: argparse.Namespace, measuring: Measuring, finished: Finished, progress: Progress
) -> None:
    """What was measured of the sources trains a model, as one that ships is trained, that the targets'
    searches begin with."""
    taught = sum(len(measuring.told.of(workload(name))) for name in SOURCES)
    samples: list[Samples] = []
    priors: dict[int, CostModel] = {}
    for name in TARGETS:
        task = workload(name)
        for seed in range(options.seeds or max(SEEDS.values())):
            if {(SCRATCH, seed), (TRANSFER, seed)} <= set(finished.of(task, options.trials, taught)):
                continue
            if seed not in priors:
                samples = samples or [learnt_from(source, measuring.told) for source in SOURCES]
                priors[seed] = fit(samples, seed=seed)
            learners = {SCRATCH: Learner("rank", seed), TRANSFER: Learner("rank", seed, priors[seed])}
            courses = {(h, seed): begin("rank", Space(task), seed, own) for h, own in learners.items()}
            run_courses(name, task, courses, options.trials, measuring, finished, progress, taught)


# --- tables ----------------------------------------------------------------------------------------------


def geomean(values: Iterable[float]) -> float:
    found = [v for v in values if v > 0]
    return statistics.geometric_mean(found) if found else math.nan


def steps(run: Run, told: bool) -> Sequence[tuple[int, float]]:
    """(trial, seconds) of what the course would return from there on: measured again, or as it was `told`."""
    return list(enumerate(best_so_far(run.times), 1)) if told else run.returned


def needed(run: Run, wanted: float, told: bool = False) -> tuple[int, bool]:
    """Trials until the course would have returned what is as fast, and whether it would; if not, all."""
    found = next((trial for trial, seconds in steps(run, told) if seconds <= wanted), None)
    return (len(run.times), False) if found is None else (found, True)


def end(run: Run, told: bool = False) -> float:
    """Seconds of what the course returns."""
    found = steps(run, told)
    return found[-1][1] if found else math.inf


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" + " ---: |" * (len(header) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def comparison(runs: Sequence[Run], strategies: Sequence[str]) -> str:
    """By workload: speeds in the geometric mean over the seeds that all strategies have run, trials to the
    speed that random search ends with: of the same seed, then of each other one, the latter by VIEWS. The
    last row's shares are of all pairs of courses, then of all workloads."""
    header = ["workload", "seeds", *(f"{s} GFLOP/s" for s in strategies), "rank / genetic"]
    header += [*(f"{s} trials" for s in strategies), "rank / random", "to others' ends", *VIEWS]
    rows, ratios, never = [], [], 0
    shares: list[float] = []
    others: dict[str, list[float]] = {view: [] for view in VIEWS}
    for name in dict.fromkeys(r.workload for r in runs):
        work = task_flops(workload(name))
        own = {(r.strategy, r.seed): r for r in runs if r.workload == name}
        seeds = [n for n in sorted({seed for _, seed in own}) if all((s, n) in own for s in strategies)]
        if not seeds:
            continue
        speeds = {s: geomean(own[s, seed].speed(work) for seed in seeds) for s in strategies}
        row = [name, str(len(seeds)), *(f"{speeds[s]:.1f}" for s in strategies), "–"]
        if {"rank", "genetic"} <= set(strategies):
            ratios.append(speeds["rank"] / speeds["genetic"])
            row[-1] = f"{ratios[-1]:.3f}"
        trials: dict[str, list[int]] = {s: [] for s in strategies}
        for seed in seeds if "random" in strategies else ():
            wanted = end(own["random", seed])
            for s in strategies:
                count, reached = needed(own[s, seed], wanted)
                trials[s].append(count)
                never += not reached
        row += [f"{geomean(trials[s]):.0f}" if trials[s] else "–" for s in strategies]
        share = [a / b for a, b in zip(trials.get("rank", ()), trials.get("random", ()))]
        row.append(f"{geomean(share):.2f}" if share else "–")
        views = {view: list(to_others_ends(own, *how)) for view, how in VIEWS.items()}
        pairs = next(iter(views.values()))
        row.append(" / ".join(f"{geomean(p[n] for p in pairs):.0f}" for n in (0, 1)) if pairs else "–")
        for view, found in views.items():
            other = [a / b for a, b in found]
            row.append(f"{geomean(other):.2f}" if other else "–")
            others[view] += [geomean(other)] if other else []
        rows.append(row)
        shares += share
    if not rows:
        return "nothing is complete yet"
    gap = [""] * len(strategies)
    means = [f"{geomean(ratios):.3f}" if ratios else "", *gap, f"{geomean(shares):.2f}"]
    last = [f"{geomean(kept):.2f}" if kept else "" for kept in others.values()]
    rows.append(["geomean", "", *gap, *means, "", *last])
    text = table(header, rows)
    if never:
        text += (
            f"\n\nRandom search's final speed was not reached in {never} courses: they count with all trials."
        )
    return text


def to_others_ends(
    own: Mapping[tuple[str, int], Run], share: float = 1.0, told: bool = False
) -> Iterable[tuple[float, float]]:
    """Trials of rank and of random search, in the geometric mean over their courses, to a share of the speed
    that each random search of one workload ends with; random search's own course is left out. It is certain
    to come to its own end, and meets by chance early what is as fast within what measurements vary by."""
    for (how, seed), run in own.items():
        wanted = end(run, told) / share
        ranked = [needed(r, wanted, told)[0] for (s, _), r in own.items() if s == "rank"]
        chance = [needed(r, wanted, told)[0] for (s, n), r in own.items() if s == "random" and n != seed]
        if how == "random" and ranked and chance:
            yield geomean(ranked), geomean(chance)


def transferred(runs: Sequence[Run]) -> str:
    """Trials to shares of the speed that the search from scratch ends with, and how many times fewer."""
    header = [
        "workload",
        "seeds",
        *(f"{what} to {100 * at:g} %" for at in LEVELS for what in ("trials", "fewer")),
    ]
    rows: list[list[str]] = []
    every: dict[float, list[float]] = {at: [] for at in LEVELS}
    never = 0
    for name in TARGETS:
        own = {(r.strategy, r.seed): r for r in runs if r.workload == name}
        seeds = sorted({s for _, s in own if (SCRATCH, s) in own and (TRANSFER, s) in own})
        if not seeds:
            continue
        row = [name, str(len(seeds))]
        for at in LEVELS:
            pairs = []
            for seed in seeds:
                wanted = end(own[SCRATCH, seed]) / at
                found = [needed(own[how, seed], wanted) for how in (SCRATCH, TRANSFER)]
                never += sum(not reached for _, reached in found)
                pairs.append([count for count, _ in found])
            every[at] += [a / b for a, b in pairs]
            scratch, after = (geomean(p[n] for p in pairs) for n in (0, 1))
            row += [f"{scratch:.0f} → {after:.0f}", f"{geomean(a / b for a, b in pairs):.1f}×"]
        rows.append(row)
    if not rows:
        return "nothing is complete yet"
    means = [text for at in LEVELS for text in ("", f"{geomean(every[at]):.1f}×")]
    text = table(header, [*rows, ["geomean", "", *means]])
    if never:
        text += f"\n\nA speed was not reached in {never} courses: they count with all trials."
    return text


def draw(path: Path, runs: Sequence[Run], names: Sequence[str], title: str) -> None:
    """Best speed so far by trial; over several seeds the mean as a line and the range as a band."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [name for name in names if any(r.workload == name for r in runs)]
    if not shown:
        return
    wide = min(4, len(shown))
    figure, axes = pyplot.subplots(
        -(-len(shown) // wide), wide, figsize=(3.6 * wide, 2.8 * -(-len(shown) // wide)), squeeze=False
    )
    for axis in axes.flat[len(shown) :]:
        axis.set_visible(False)
    for axis, name in zip(axes.flat, shown):
        work = task_flops(workload(name))
        for how in dict.fromkeys(r.strategy for r in runs):
            curves = [
                [work / t / 1e9 for t in best_so_far(r.times)]
                for r in runs
                if (r.workload, r.strategy) == (name, how) and r.times
            ]
            if not curves:
                continue
            length = min(map(len, curves))
            trials = range(1, length + 1)
            columns = list(zip(*(c[:length] for c in curves)))
            axis.plot(trials, [statistics.mean(c) for c in columns], label=how, linewidth=1.3)
            axis.fill_between(trials, [min(c) for c in columns], [max(c) for c in columns], alpha=0.15)
        axis.set_title(name, fontsize=10)
        axis.grid(alpha=0.3)
    axes[0][0].legend(fontsize=8, loc="lower right")
    for axis in axes[:, 0]:
        axis.set_ylabel("best GFLOP/s")
    figure.supxlabel("trials", fontsize=10)
    figure.suptitle(title, fontsize=11)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


# --- the command -----------------------------------------------------------------------------------------


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return [part for part in text.split(",") if part]

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    default = [*SEEDS, *(name for name in WORKLOADS if name not in SEEDS)]
    parser.add_argument("--workloads", type=names, default=default, help="comma-separated; default: all")
    parser.add_argument("--strategies", type=names, default=list(STRATEGIES))
    parser.add_argument("--seeds", type=int, help="of each workload (default: 3 of c2, c5, c9, c12, else 1)")
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--records", type=Path, default=cache_dir() / "benchmark-tuning.jsonl")
    parser.add_argument("--courses", type=Path, help="finished courses (default: beside the records)")
    parser.add_argument("--pictures", type=Path, help="folder for the curves as PNG (needs matplotlib)")
    parser.add_argument("--no-transfer", action="store_true", help="leave out the experiment on transfer")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    options = parser.parse_args(arguments)
    for given, known in ((options.workloads, list(WORKLOADS)), (options.strategies, STRATEGIES)):
        for name in given:
            if name not in known:
                parser.error(f"{name!r}: expected of {', '.join(known)}")
    return options


def main(arguments: Sequence[str], **how: Any) -> int:
    options = parse(arguments)
    options.records.parent.mkdir(parents=True, exist_ok=True)
    if options.pictures:  # what would fail in the end, after hours
        options.pictures.mkdir(parents=True, exist_ok=True)
        if find_spec("matplotlib") is None:
            raise ToolError('--pictures needs matplotlib: pip install "burnish[bench]"')
    finished = Finished(options.courses or options.records.with_suffix(".courses"))
    started = time.monotonic()
    if not options.report:
        files = (options.records, options.records.with_suffix(".again.jsonl"))
        both = Measuring(*(Times(Records(file, shipped=False), **how) for file in files))
        try:
            if not options.no_transfer:
                require_sources(options, both.told)
            with show_progress() as progress:
                compare(options, both, finished, progress)
                if not options.no_transfer:
                    transfer(options, both, finished, progress)
        except KeyboardInterrupt:
            print("interrupted; the next run goes on from here", file=sys.stderr)
            return 130
        spent = time.monotonic() - started
        print(f"{both.told.measured} configs measured in {spent:.0f} s; records in {options.records}\n")
    report(options, finished)
    return 0


def report(options: argparse.Namespace, finished: Finished) -> None:
    runs = finished.latest(options.trials)
    own = [r for r in runs if r.workload in options.workloads and r.strategy in options.strategies]
    carried = [r for r in runs if r.strategy in (SCRATCH, TRANSFER)]
    machines = "; ".join(sorted({r.machine for r in runs}))
    print(f"{machines or machine()}; one thread, {options.trials} trials\n")
    print(comparison(own, options.strategies))
    if carried and not options.no_transfer:
        print(f"\nTrained on {', '.join(SOURCES)}:\n\n{transferred(carried)}")
    if options.pictures:
        draw(options.pictures / "tuning-curves.png", own, list(WORKLOADS), "Direct convolutions, one thread")
        draw(options.pictures / "tuning-transfer.png", carried, TARGETS, f"Trained on {', '.join(SOURCES)}")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BurnishError as error:
        sys.exit(f"error: {error}")
