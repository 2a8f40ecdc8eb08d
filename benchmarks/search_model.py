"""How a change of the search does, in minutes: searches among configs whose times a model knows.

    python benchmarks/search_model.py --records FILE --workloads c1,c4,c7 --seeds 6

`benchmarks/tuning.py` has measured some thousand configs of each workload; trees fitted to them say what any
other one would take, and noise is added to what a search is told. Run in two checkouts it compares two
versions of the search: a course of 96 trials takes 4 seconds of one core. Single courses say little (trials
vary by a factor of two and a half), so that 50 of each version tell 20 % apart. The model knows the fastest
configs to 1 to 3 % only: what it finds better is to be measured then.

Prints, for each workload and together: trials until what the search would return is 98.5, 99.3 and 100 % as
fast as what 400 trials of random search return (geometric means; 1.5 times all trials where it never is), and
how many percent it is short of that after 24, 48 and 96 trials.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from burnish.compiler.kernel_task import RejectedConfig
from burnish.compiler.lower.lower import scheduled
from burnish.compiler.target import host
from burnish.errors import BurnishError, InputError
from burnish.models.convolutions import WORKLOADS
from burnish.op_tuner.course import STRATEGIES, Course, begin
from burnish.op_tuner.features import evaluate
from burnish.op_tuner.model import load_xgboost
from burnish.op_tuner.numbered import Numbered
from burnish.op_tuner.record import Record
from burnish.op_tuner.records import Records
from burnish.op_tuner.search import Random
from burnish.op_tuner.sketch import sketch
from burnish.op_tuner.space import Point, Space
from burnish.op_tuner.verdict import typical
from burnish.workloads import direct_convolution

NOISE = 0.003
"""Standard deviation of a told time, of the time."""
LEVELS = (0.985, 0.993, 1.0)
MOMENTS = (24, 48, 96)
RANDOM = 400
LEAST = 100
"""Configs that a model needs."""
TREES = {"eta": 0.05, "max_depth": 9, "subsample": 0.7, "colsample_bytree": 0.5, "min_child_weight": 2,
         "tree_method": "hist", "nthread": 1, "verbosity": 0}  # fmt: skip
ROUNDS = 600


def origin(record: Record) -> tuple[object, ...]:
    """Times of the same one compare: of a machine, a version, and what is in the caches."""
    return record.hardware, record.made_by, record.evict


class Known:
    """Times of a workload's configs by a model of those in the records, of the origin of the last."""

    def __init__(self, name: str, records: Records):
        self.task = direct_convolution(name, host())
        self.space = Space(self.task)
        self._numbered = Numbered(self.space)
        self._times: dict[Point, float | None] = {}
        measured: dict[Point, list[float]] = {}
        known = records.of(self.task)
        for record in known:
            if record.seconds is not None and origin(record) == origin(known[-1]):
                measured.setdefault(tuple(record.config.items()), []).append(record.seconds)
        points = list(measured)
        if len(points) < LEAST:
            raise InputError(f"{name}: {len(points)} configs in the records, expected {LEAST} or more")
        rows = self._rows(points)
        kept = [n for n, row in enumerate(rows) if row is not None]
        self._xgboost = load_xgboost()
        matrix = self._xgboost.DMatrix(np.stack([rows[n] for n in kept]), nthread=1)
        matrix.set_label([math.log2(typical(measured[points[n]])) for n in kept])
        self._trees = self._xgboost.train(TREES, matrix, ROUNDS)

    def _rows(self, points: Sequence[Point]) -> list[np.ndarray | None]:
        """Features of the programs and the answers' numbers; None for what cannot be lowered."""
        rows: list[np.ndarray | None] = []
        for point, numbers in zip(points, self._numbered.rows(points)):
            try:
                program = scheduled(self.task, Space.config(point))
                features = evaluate([sketch(program, self.task.threads)])[0]
                rows.append(np.concatenate([features, numbers]))
            except (RejectedConfig, BurnishError):
                rows.append(None)
        return rows

    def times(self, points: Sequence[Point]) -> list[float | None]:
        """Seconds; None for what cannot be lowered."""
        new = [p for p in dict.fromkeys(points) if p not in self._times]
        rows = dict(zip(new, self._rows(new)))
        known = {p: row for p, row in rows.items() if row is not None}
        self._times.update(dict.fromkeys(new))
        if known:
            found = self._trees.predict(self._xgboost.DMatrix(np.stack(list(known.values())), nthread=1))
            self._times.update(zip(known, np.exp2(found).tolist()))
        return [self._times[p] for p in points]


def played(known: Known, course: Course, seed: int, trials: int) -> list[float]:
    """After each trial, the time of what the search would return."""
    noise, search = np.random.default_rng(seed), course.strategy
    worth: list[float] = []
    best, returned = math.inf, math.inf
    while len(worth) < trials and (batch := search.propose(min(course.batch, trials - len(worth)))):
        for point, seconds in zip(batch, known.times(batch)):
            told = None if seconds is None else seconds * (1 + NOISE * noise.standard_normal())
            search.tell(point, told)
            if told is not None and seconds is not None and told < best:
                best, returned = told, seconds
            worth.append(returned)
    return worth


def judged(worth: Sequence[float], wanted: float) -> list[float]:
    """Logarithms of the trials to each level, then percents short at each moment."""
    short = [100 * (1 - wanted / worth[min(n, len(worth)) - 1]) for n in MOMENTS]
    trials = [
        next((n for n, seconds in enumerate(worth, 1) if seconds <= wanted / level), 1.5 * len(worth))
        for level in LEVELS
    ]
    return [*map(math.log, trials), *short]


def line(name: str, rows: Sequence[Sequence[float]]) -> str:
    columns = list(zip(*rows))
    found = [f"{math.exp(statistics.mean(c)):.0f}" for c in columns[: len(LEVELS)]]
    found += [f"{statistics.mean(c):.2f}" for c in columns[len(LEVELS) :]]
    return f"| {name} | {' | '.join(found)} |"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=Path, required=True, help="of benchmarks/tuning.py")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--strategy", choices=STRATEGIES, default="rank")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--trials", type=int, default=max(MOMENTS))
    options = parser.parse_args(arguments)
    records = Records(options.records, shipped=False)
    header = [*(f"to {100 * at:g} %" for at in LEVELS), *(f"short after {n}, %" for n in MOMENTS)]
    print(f"| workload | {' | '.join(header)} |", "|---|" + "---:|" * len(header), sep="\n")
    every: list[list[float]] = []
    for name in options.workloads.split(","):
        known, own = Known(name, records), []
        for seed in range(options.seeds):
            wanted = played(known, Course(Random(known.space, seed)), seed, RANDOM)[-1]
            course = begin(options.strategy, known.space, seed)
            own.append(judged(played(known, course, seed, options.trials), wanted))
        every += own
        print(line(name, own), flush=True)
    print(line("all", every))
    return 0


if __name__ == "__main__":
    import sys

    raise SystemExit(main(sys.argv[1:]))
