"""How many candidates a second the tuner scores on one core, and whether it scores them right.

    python benchmarks/tuner_speed.py                        C2 and C9, every algorithm that a plan may choose
    python benchmarks/tuner_speed.py c5 --candidates 50000 --held-out 200

The model is the shipped one and, on top of it, one that is fitted to invented times of `--trials` configs: as
large as after so many measurements.
Then random candidates, all different and new to the tuner, are scored in batches: features put together and
the model asked, as a search does. `round` is a whole one: the chains walk, then the best are scored. Held-out
points are lowered, and their features compared with those that were put together. Seconds are those of the
processor, so that what else runs meanwhile counts for little. The output is Markdown.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from burnish.compiler.kernel_task import KernelTask
from burnish.compiler.lower.lower import scheduled
from burnish.compiler.target import host
from burnish.models import zoo
from burnish.op_tuner.cores import one_blas_thread, pin
from burnish.op_tuner.features import evaluate
from burnish.op_tuner.learner import Learner, TaskLearner
from burnish.op_tuner.pretrained import shipped
from burnish.op_tuner.search import Annealing
from burnish.op_tuner.sketch import sketch
from burnish.op_tuner.space import Space
from burnish.workloads import choices

BATCH = 1024
HEAD = (
    "| task | configs | lowered | lowering | moves/s | features/s | candidates/s | sure | right | round |\n"
    "|---|---|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Row:
    """Of one task. Rates are per second; `sure` and `right` are shares of the held-out points: whose features
    were sure, and of those, whose were the lowered program's."""

    name: str
    configs: float
    lowered: int
    lowering: float  # seconds
    moves: float
    features: float
    candidates: float  # features and prediction together
    sure: float
    right: float
    scored: int  # in a round
    round: float  # seconds

    def __str__(self) -> str:
        rates = " | ".join(f"{rate:,.0f}" for rate in (self.moves, self.features, self.candidates))
        return (
            f"| {self.name} | {self.configs:,.0f} | {self.lowered} | {self.lowering:.1f} s | {rates} "
            f"| {self.sure:.0%} | {self.right:.1%} | {self.scored} in {self.round:.2f} s |"
        )


def measure(name: str, task: KernelTask, *, trials: int, candidates: int, held_out: int) -> Row:
    space = Space(task)
    learner = Learner(prior=shipped(task.target)[0]).task(task)
    search = Annealing(space, learner)
    rng, drawn = random.Random(0), np.random.default_rng(0)
    for point in dict.fromkeys(space.draw(rng) for _ in range(trials)):
        learner.tell(point, 1e-3 * (1 + rng.random()))
    learner.samples()
    numbered = search.numbered
    start = time.process_time()

    def drafts(part: np.ndarray) -> np.ndarray:
        return learner.drafts(numbered, part, np.arange(len(part)) % learner.opinions)

    drafts(numbered.draw(1, drawn))
    lowering = time.process_time() - start
    rows = np.unique(numbered.draw(candidates, drawn), axis=0)
    rows = rows[drawn.permutation(len(rows))]
    bulk = learner.bulk
    moves = _rate(lambda part: numbered.neighbours(part, drawn), rows)
    bulk.fit()  # forgets all candidates
    features = _rate(bulk.features, rows)
    bulk.fit()
    scores = _rate(drafts, rows)
    sure, right = _check(space, learner, search, held_out)
    start = time.process_time()
    proposed = search.propose(8)
    spent = time.process_time() - start
    assert len(proposed) <= 8
    return Row(
        name,
        space.size(200),
        len(bulk),
        lowering,
        moves,
        features,
        scores,
        sure,
        right,
        search.walked,
        spent,
    )


def _rate(work: Callable[[np.ndarray], object], rows: np.ndarray) -> float:
    """Rows a second."""
    start = time.process_time()
    for at in range(0, len(rows), BATCH):
        work(rows[at : at + BATCH])
    return len(rows) / (time.process_time() - start)


def _check(space: Space, learner: TaskLearner, search: Annealing, count: int) -> tuple[float, float]:
    """Shares of random points: sure ones, and right ones among those."""
    rng = random.Random(1)
    points = list(dict.fromkeys(space.draw(rng) for _ in range(count)))
    rows, sure = learner.bulk.rows(search.numbered.rows(points))
    programs = [scheduled(learner.task, space.config(point)) for point in points]
    true = evaluate([sketch(program, learner.task.threads) for program in programs])
    right = (rows == true).all(axis=1)
    return float(sure.mean()), float(right[sure].mean()) if sure.any() else 1.0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("networks", nargs="*", default=["c2", "c9"], help="of the zoo")
    parser.add_argument("--trials", type=int, default=64, help="configs that the model has learnt from")
    parser.add_argument("--candidates", type=int, default=20000)
    parser.add_argument("--held-out", type=int, default=64, help="points that are lowered to compare with")
    options = parser.parse_args(arguments)
    pin({max(os.sched_getaffinity(0))})
    one_blas_thread()
    print(HEAD)
    for network in options.networks:
        tasks: dict[str, KernelTask] = {}
        for w in choices(network, zoo.build(network), host(), 1):
            tasks[w.task.transformed or w.task.algorithm] = w.task
        for algorithm, task in tasks.items():
            sizes = {"trials": options.trials, "candidates": options.candidates, "held_out": options.held_out}
            print(measure(f"{network} {algorithm}", task, **sizes), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
