"""`burnish.tune`: finds the fastest plan and configs of a model on this machine by measuring."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .compiler.kernel_task import KernelTask
from .compiler.target import Target, get_target, host_threads, runs_here
from .errors import InputError
from .frontends.onnx.importer import import_onnx
from .graph_passes.alternatives import ACCURACY
from .graph_passes.footprint import evicting_bytes
from .graph_passes.task_flops import task_flops
from .kernel_cache import KernelStore
from .network_plans import Change, NetworkPlans
from .network_turns import NetworkTurns
from .op_tuner.apart import Apart, Process
from .op_tuner.forecast import Forecast
from .op_tuner.hardware import hardware_of
from .op_tuner.measure import require_runnable
from .op_tuner.pretrained import shipped
from .op_tuner.records import Records, append
from .op_tuner.simulated import ARCHITECTURES, Simulated
from .op_tuner.tuned_task import TunedTask
from .op_tuner.tuner import TIME_LIMIT, Measurer, Spent, Trial, Tuner, require_limits
from .op_tuner.workers import Workers
from .pipeline import optimise, plan_options, require_options
from .runtime.binding import file_path, thread_count

BUDGET = 600.0  # seconds, where nothing else bounds it


@dataclass(frozen=True)
class TunedKernel:
    """Seconds of one call with the default config and with the one that is taken; infinite if not measured,
    or if the config fails. `after` is what `before` becomes in the network, where that was measured.
    """

    name: str
    algorithm: str
    count: int  # calls in a run of the network
    predicted_count: int  # calls in a run by the plan that is made without measuring
    trials: int  # configs measured, in earlier tunings too
    configs: float  # that there are to choose from, about
    before: float
    after: float
    config: Mapping[str, object]
    task: str  # digest
    inside: tuple[float, float] | None  # the same two in the network's module, where they were compared
    flops: int  # of the sums of products in one call
    nbytes: int  # of operands and results


@dataclass(frozen=True)
class Tuning:
    """What a tuning found. `before` are seconds of all kernels in one run of the network as it is compiled
    without measuring; `after` with the plan and the configs that were found.

    `kernels` are those of either plan, `changes` what nodes do in the second and not in the first.
    """

    kernels: tuple[TunedKernel, ...]
    changes: tuple[Change, ...]
    records: Path
    threads: int
    measured: int  # configs, this time
    seconds: float
    interrupted: bool
    spent: Spent  # what took the time
    forecast: Forecast | None  # None if the tuning ended before
    history: tuple[Trial, ...]  # of this time
    prior: str  # what the learned model began with; "" without one
    hints: Mapping[str, int]  # how many kernels began with a config of another machine, by that machine
    unconfirmed: str  # why configs were not compared in the network; "" if they were
    by_chance: str  # why configs were drawn by chance from some moment on; "" if they were not

    @property
    def before(self) -> float:
        return sum(k.predicted_count * k.before for k in self.kernels if k.predicted_count)

    @property
    def after(self) -> float:
        return sum(k.count * k.after for k in self.kernels if k.count)


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
    precision: str = "f32",
    weights: str = "packed",
    workers: str | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    announce: Callable[[Forecast], None] | None = None,
) -> Tuning:
    """Measures configs of the model's kernels, the default configs first, and plans again by what it found.

    It ends when `trials` have been tried or `budget` seconds are over, whichever is first (default: ten
    minutes, or with `trials` no limit). Ctrl-C ends it, too, and keeps everything.

    `compile(model, records=…)` with the same target, threads and options makes the plan that was found, with
    the fastest configs; it never gets a config that was measured to be slower than the default.

    records   file to continue from and append to (default: the user's own)
    strategy  "annealing" on a learned model, which needs xgboost; "genetic"; "random"
    weights   as of `compile`, for which it is tuned
    objective of the learned model: "rank" or "regression"
    workers   address of a dask scheduler whose workers measure (`burnish worker`), in place of this machine
    progress  called as progress("the latest kernel and the network's time", done, total)
    announce  told how long it will take and what it will gain: before the first trial, by those of other
              networks, and when the first trials have shown it

    InputError for a target that the machine which measures cannot run, or wrong options; ToolError without
    xgboost, or dask where it is needed.
    """
    started = time.monotonic()
    require_limits(trials, budget)
    machine = get_target(target)
    simulated = workers is None and simulates(machine)
    here = workers is None and not simulated
    asked = thread_count(threads)
    count = 1 if machine.gpu else asked or (1 if simulated else host_threads())
    if here:
        require_runnable(machine)
    if simulated and count != 1:
        raise InputError(f"threads is {count}: {machine.name} is simulated here, which takes one thread")
    with closing(Process()) if here else nullcontext() as process:  # before there is much in memory
        graph = import_onnx(model, shapes=shapes, dims=dims, values=values)
        options = plan_options(machine, plan, accuracy, memory_limit, precision)
        require_options(machine, weights, measure=False)
        graph = optimise(graph, machine, count, stop_after="fuse", options=options, weights=weights)
        known = Records(None if records is None else file_path(records))
        append(known.path, [])  # there for what reads it next, though nothing may be measured
        learning = (strategy, objective) == ("annealing", "rank")
        prior, about = shipped(machine) if learning else (None, "")
        with _measurer(machine, workers, process, count, evicting_bytes(graph, machine)) as measure:
            plans = NetworkPlans(graph, machine, count, options, known, hardware=measure.hardware)
            tuner = Tuner(
                plans.wanted(),
                known,
                threads=count,
                evict=plans.evict,
                strategy=strategy,
                objective=objective,
                seed=seed,
                progress=progress,
                replan=plans.wanted,
                announce=announce,
                prior=prior,
                measure=measure,
                network=NetworkTurns(plans, KernelStore()) if here else None,
            )
            tuner.run(trials, BUDGET if trials is None and budget is None else budget, started)
            plans.final = True
            tuner.plan_again()
    if tuner.confirming is not None:
        why = tuner.confirming.failure
    else:
        why = "workers measure kernels alone" if workers else "times are simulated, of kernels alone"
        why += f"; {tuner.failure}" if tuner.failure else ""
    return Tuning(
        kernels=tuple(_kernel(t) for t in tuner.tasks if t.planned),
        changes=plans.changes(),
        records=known.path,
        threads=count,
        measured=tuner.measured,
        seconds=time.monotonic() - started,
        interrupted=tuner.interrupted,
        spent=tuner.spent,
        forecast=tuner.forecast,
        history=tuple(tuner.history),
        prior=about,
        hints=Counter(t.told_by for t in tuner.tasks if t.told_by),
        unconfirmed=why,
        by_chance=tuner.by_chance,
    )


def simulates(target: Target) -> bool:
    """Whether candidates for the target are measured by simulating it, since this machine is another."""
    return target.kind == "cpu" and target.arch in ARCHITECTURES and not runs_here(target)


def _measurer(
    target: Target, workers: str | None, process: Process | None, threads: int, evict: int
) -> AbstractContextManager[Measurer]:
    """By other machines, this one (`process`), or a simulation."""
    how: dict[str, Any] = {"evict": evict, "time_limit": TIME_LIMIT}
    if workers is not None:
        return closing(Workers(workers, threads, target, **how))
    if process is not None:
        return nullcontext(Apart(process, threads, **how, hardware=hardware_of(target)))
    return closing(Simulated(target))


def _kernel(found: TunedTask) -> TunedKernel:
    task = found.task
    record = found.confirmed.record if found.confirmed else None
    return TunedKernel(
        name=task.name,
        algorithm=task.algorithm,
        count=found.count,
        predicted_count=found.wanted.predicted_count,
        trials=found.trials,
        configs=found.space.size(),
        before=found.before,
        after=found.after,
        config=dict(found.best),
        task=task.digest,
        inside=(record.against, record.seconds) if record and record.against and record.seconds else None,
        flops=task_flops(task),
        nbytes=_nbytes(task),
    )


def _nbytes(task: KernelTask) -> int:
    if task.expr is None:
        return 0
    results = [task.expr.type_of(name) for name in task.expr.outputs]
    return sum(type.nbytes for type in (*(type for _, type in task.expr.params), *results))
