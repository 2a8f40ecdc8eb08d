"""`burnish.tune`: finds the fastest configs of a model's kernels on this machine by measuring them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .compiler.target import Target, get_target, host_threads
from .frontends.onnx.importer import import_onnx
from .graph_passes.alternatives import ACCURACY
from .graph_passes.plan_layout import PlanOptions
from .graph_passes.setup import split_setup
from .op_tuner.measure import require_runnable
from .op_tuner.records import Records
from .op_tuner.tuner import Spent, Tuner
from .pipeline import kernel_tasks, optimise
from .runtime.binding import thread_count

BUDGET = 600.0  # seconds, where nothing else bounds it


@dataclass(frozen=True)
class TunedKernel:
    """Seconds of one call with the default config and with the best one; infinite if not measured, or if the
    config fails."""

    name: str
    algorithm: str
    count: int  # calls in a run of the network
    trials: int  # configs measured, in earlier tunings too
    before: float
    after: float
    config: Mapping[str, object]


@dataclass(frozen=True)
class Tuning:
    """What a tuning found. `before` and `after` are seconds of all kernels in one run of the network."""

    kernels: tuple[TunedKernel, ...]
    records: Path
    threads: int
    measured: int  # configs, this time
    seconds: float
    interrupted: bool
    spent: Spent  # what took the time

    @property
    def before(self) -> float:
        return sum(k.count * k.before for k in self.kernels)

    @property
    def after(self) -> float:
        return sum(k.count * k.after for k in self.kernels)


def tune(
    model: Any,
    *,
    trials: int | None = None,
    budget: float | None = None,
    records: str | Path | None = None,
    target: str | Target = "host",
    threads: int | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, np.ndarray] | None = None,
    strategy: str = "annealing",
    objective: str = "rank",
    seed: int = 0,
    plan: str = "global",
    accuracy: float = ACCURACY,
    memory_limit: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Tuning:
    """Measures configs of the model's kernels until `trials` have been tried or `budget` seconds are over
    (default: ten minutes), the default configs first. Ctrl-C ends it and keeps everything.

    `compile(model, records=…)` with the same target, threads and plan uses the fastest; it never gets a
    config that was measured to be slower than the default.

    records   file to continue from and append to (default: the user's own)
    strategy  "annealing" on a learned model, which needs xgboost; "genetic"; "random"
    objective of the learned model: "rank" or "regression"
    progress  called as progress("the latest kernel and the network's time", done, total)

    InputError for a target that this machine cannot run, or wrong options; ToolError without xgboost.
    """
    machine, workers = get_target(target), thread_count(threads) or host_threads()
    require_runnable(machine)
    graph = import_onnx(model, shapes=shapes, dims=dims, values=values)
    graph = optimise(graph, machine, workers, options=PlanOptions(plan, accuracy, memory_limit))
    cold = graph.constant_bytes > machine.l3
    graph, _ = split_setup(graph, "packed")
    different = {}
    counts: dict[str, int] = {}
    for task in kernel_tasks(graph, machine, workers).values():
        if task.algorithm != "loops":  # a loop program as it is: nothing to choose
            different[task.digest] = task
            counts[task.digest] = counts.get(task.digest, 0) + 1
    known = Records(None if records is None else Path(records))
    tuner = Tuner(
        [(task, counts[digest]) for digest, task in different.items()],
        known,
        threads=workers,
        cold=cold,
        strategy=strategy,
        objective=objective,
        seed=seed,
        progress=progress,
    )
    started = time.monotonic()
    tuner.run(trials, BUDGET if trials is None and budget is None else budget)
    kernels = tuple(
        TunedKernel(t.task.name, t.task.algorithm, t.count, t.trials, t.before, t.after, dict(t.best))
        for t in tuner.tasks
    )
    seconds = time.monotonic() - started
    return Tuning(kernels, known.path, workers, tuner.measured, seconds, tuner.interrupted, tuner.spent)
