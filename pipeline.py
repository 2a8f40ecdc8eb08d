"""From a model to a module that runs: the whole way, one named call a step. Read this file first."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .compiler.build_kernel import Kernel, different
from .compiler.ir.graph import Graph
from .compiler.ir.plan import verify
from .compiler.kernel_task import Config, KernelTask
from .compiler.target import Target, get_target, host_threads, runs_here
from .debug import Log
from .errors import InfeasibleError, InputError, UnsupportedError
from .frontends.onnx.importer import import_onnx
from .graph_passes.alternatives import ACCURACY
from .graph_passes.assign_layouts import assign_layouts, memory_of_plans
from .graph_passes.convolve_transposed import convolve_transposed
from .graph_passes.fold import fold
from .graph_passes.footprint import evicting_bytes
from .graph_passes.fuse import fuse
from .graph_passes.limit_operands import limit_operands
from .graph_passes.make_plan import make_plan
from .graph_passes.make_tasks import kernel_tasks, task_of
from .graph_passes.multiply_bytes import multiply_bytes
from .graph_passes.plan_layout import DEFAULT_PLAN, Cost, PlanOptions
from .graph_passes.predict_gpu import predicted_cost
from .graph_passes.simplify import share, simplify
from .graph_passes.split_setup import WEIGHT_FORMS, split_setup
from .graph_passes.tabulate import tabulate
from .graph_passes.task_cost import TaskCost, cost_by_records, plan_choices
from .graph_passes.task_flops import flops_by_algorithm, task_flops
from .graph_passes.widen import widen
from .kernel_cache import KernelStore
from .module import Module, load
from .network_plans import NetworkPlans
from .network_turns import compare_plans
from .op_tuner.costs import MeasuredCosts, conversion_task
from .op_tuner.measure import find_gpu
from .op_tuner.records import RecordedConfig, default_path, tuned_configs
from .runtime.binding import file_path, thread_count

__all__ = ["Module", "compile", "load", "optimise"]

Costs = Callable[[Graph, Target, int, PlanOptions], Cost]
"""(fused graph, target, threads, options) → what a plan of the graph costs."""


def compile(
    model: Any,
    *,
    target: str | Target = "host",
    threads: int | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, np.ndarray] | None = None,
    pick_config: Callable[[KernelTask], Config] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    cache: bool = True,
    log: Log | None = None,
    plan: str = "global",
    accuracy: float = ACCURACY,
    measure: bool = False,
    records: str | Path | None = None,
    weights: str = "packed",
    memory_limit: int | None = None,
    precision: str = "f32",
) -> Module:
    """A module from an ONNX model given as path, bytes or ModelProto.

    threads  how many the code is laid out for and runs take (default: all cores); a run may take any number
    shapes   sizes of whole inputs; dims: values of named dimensions; values: inputs fixed to constants
    progress called as progress("measuring …" or "compiling …", done, total)
    plan     "global": algorithms and layouts for the whole network at once; "local", "fixed": its ablations
    accuracy the largest error of an algorithm, over its largest output, that the plan may choose
    records  a file of `burnish tune`: the fastest configs in it are used for its kernels,
             and the plan is made from their times where it says them, else from predictions
    measure  let the plan's costs be measured here, and kept in `records` (default: the user's own)
    pick_config  the config of every kernel (default: as `records` say, else those that ship with Burnish,
             else the templates' own rules)
    weights  "packed": stored as kernels stream them, up to 7 times the model's, and products with an
             embedding as tables; "compact": where that is larger, stored as in the model and transformed when
             the module is opened
    memory_limit  bytes that weights in use, arena and scratch memory of all `threads` may take together
    precision what factors of products may be rounded to on a GPU with tensor cores: "tf32", "f16" or "bf16"
    log      is told of every step; by default it follows BURNISH_DEBUG

    ModelError for a model that contradicts itself, UnsupportedError for what Burnish lacks (NeedsValueError
    where `values` would help), InputError for wrong arguments, InfeasibleError where no plan keeps the memory
    limit, ToolError where a compiler or driver is missing.
    """
    log = log or Log()
    known = records_path(records, measure)
    machine = get_target(target)
    options = plan_options(machine, plan, accuracy, memory_limit, precision)
    require_options(machine, weights, measure)
    workers = 1 if machine.gpu else thread_count(threads) or host_threads()
    graph = log.step("import", lambda: import_onnx(model, shapes=shapes, dims=dims, values=values))
    costs = predict
    if known:
        costs = partial(measured_cost, measure=measure, records=known, progress=progress, cache=cache)
    graph = optimise(graph, machine, workers, log, "fuse", options, weights=weights)
    evict = evicting_bytes(graph, machine)
    graph = log.step("assign_layouts", partial(lay_out, graph, machine, workers, options, costs))
    graph, setup = split_setup(graph, weights)
    tasks = kernel_tasks(graph, machine, workers)
    setup_tasks = {n: task_of(setup, node, machine, workers) for n, node in enumerate(setup.nodes)}
    picker = _Picker(log.watch(pick_config or tuned_configs(known, evict)))
    kernels, setup_kernels = _build(KernelStore(enabled=cache), tasks, setup_tasks, picker, progress)
    work = {n: task_flops(task) for n, task in tasks.items()}
    packed = make_plan(graph, kernels, work, machine, setup, setup_kernels)
    verify(packed.plan)
    _require_memory(packed.plan.memory(workers), memory_limit)
    log.plan(packed.plan)
    return Module.from_kernels(
        packed,
        different([*kernels.values(), *setup_kernels.values()]),
        machine,
        workers,
        operations=flops_by_algorithm([*tasks.values(), *setup_tasks.values()]),
        recorded=len(picker.recorded),
        origins=Counter(config.origin for config in picker.recorded if config.origin),
        cache=cache,
    )


class _Picker:
    """Picks the config of each task once, and remembers it."""

    def __init__(self, pick: Callable[[KernelTask], Config]):
        self._pick, self._picked = pick, dict[str, Config]()

    def __call__(self, task: KernelTask) -> Config:
        return self._picked.setdefault(task.digest, self._pick(task))

    @property
    def recorded(self) -> list[RecordedConfig]:
        return [config for config in self._picked.values() if isinstance(config, RecordedConfig)]


def _build(
    store: KernelStore,
    tasks: Mapping[int, KernelTask],
    setup_tasks: Mapping[int, KernelTask],
    pick: Callable[[KernelTask], Config],
    progress: Callable[[str, int, int], None] | None,
) -> tuple[dict[int, Kernel], dict[int, Kernel]]:
    """The kernels of both by node, side by side, equal tasks once."""
    both = {(which, n): t for which, part in enumerate((tasks, setup_tasks)) for n, t in part.items()}
    kernels = store.build_all(both, pick, progress)
    run, setup = ({n: k for (part, n), k in kernels.items() if part == which} for which in (0, 1))
    return run, setup


def _require_memory(needed: int, limit: int | None) -> None:
    if limit is not None and needed > limit:
        raise InfeasibleError(
            f"the chosen configs need {needed} bytes, the memory limit is {limit};"
            " raise it, or compile without records"
        )


def plan_options(
    target: Target, plan: str, accuracy: float, memory_limit: int | None, precision: str = "f32"
) -> PlanOptions:
    """InputError where an option is none, or the target has no units of that precision."""
    options = PlanOptions(plan, accuracy, memory_limit, precision)
    require_precision(target, precision)
    return options


def require_precision(target: Target, precision: str) -> None:
    if precision != "f32" and not (target.gpu and target.gpu.tensor):
        raise InputError(f"precision {precision}: target {target.name} has no tensor cores; expected f32")


def records_path(records: str | Path | None, measure: bool) -> Path | None:
    """The file that tuned configs are taken from; None if none is named and nothing is measured.

    InputError if it is not there and not about to be written.
    """
    if records is None:
        return default_path() if measure else None
    path = file_path(records)
    if not measure and not os.path.isfile(path):
        there = os.path.exists(path)
        wrong = f"{str(path)!r} is no regular file" if there else f"there is no file {str(path)!r}"
        raise InputError(f"{wrong}; expected records (.jsonl), as of `burnish tune`")
    return path


def require_options(target: Target, weights: str, measure: bool) -> None:
    """UnsupportedError or InputError for what cannot be had of a target."""
    if target.gpu and weights == "compact":
        raise UnsupportedError(
            f"target {target.name}: weights are packed when compiling; expected weights='packed'"
        )
    if measure:
        require_measurable(target)


def require_measurable(target: Target) -> None:
    if target.gpu:
        find_gpu(target)
    elif not runs_here(target):
        raise InputError(
            f"target {target.name} does not run on this machine, so nothing can be measured for it;"
            " leave out `measure`, or tune on such a machine (`burnish worker`)"
        )


def predict(graph: Graph, target: Target, threads: int, options: PlanOptions) -> Cost:
    """Costs of a fused graph's plans from the analytic model alone."""
    return predicted_cost(target, threads)


def passes(
    target: Target,
    threads: int,
    options: PlanOptions = DEFAULT_PLAN,
    costs: Costs = predict,
    weights: str = WEIGHT_FORMS[0],
) -> dict[str, Callable[[Graph], Graph]]:
    """The passes over the graph by name, in order."""
    may_grow = weights == WEIGHT_FORMS[0] and options.memory_limit is None
    return {
        "multiply_bytes": lambda graph: multiply_bytes(graph, target),
        "fold": lambda graph: fold(share(graph)),  # what is computed of one constant again and again, once
        "simplify": simplify,
        "convolve_transposed": convolve_transposed,
        "tabulate": lambda graph: tabulate(graph) if may_grow else graph,
        "fold_again": fold,  # simplification moves arithmetic onto weights
        "limit_operands": lambda graph: limit_operands(graph, target),
        "widen": widen,
        "fuse": fuse,
        "assign_layouts": lambda graph: lay_out(graph, target, threads, options, costs),
    }


def lay_out(graph: Graph, target: Target, threads: int, options: PlanOptions, costs: Costs) -> Graph:
    """A fused graph with the plan that costs least carried out."""
    return assign_layouts(graph, target, threads, costs(graph, target, threads, options), options)


def optimise(
    graph: Graph,
    target: Target,
    threads: int,
    log: Log | None = None,
    stop_after: str | None = None,
    options: PlanOptions = DEFAULT_PLAN,
    costs: Costs = predict,
    weights: str = WEIGHT_FORMS[0],
) -> Graph:
    """The graph after all passes, or after the one named `stop_after`."""
    log = log or Log()
    for name, run in passes(target, threads, options, costs, weights).items():
        graph = log.step(name, partial(run, graph))
        if name == stop_after:
            break
    return graph


def measured_cost(
    graph: Graph,
    target: Target,
    threads: int,
    options: PlanOptions = DEFAULT_PLAN,
    *,
    measure: bool = True,
    records: str | Path | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    cache: bool = True,
) -> TaskCost:
    """Costs of a fused graph's plans from `records` (a file; default: the user's own).

    What they do not say is measured on this machine, once, and remembered; or else predicted. A global plan
    by measured costs is compared with the predicted one in the network, and given up if it is not faster.
    """
    if measure:
        require_measurable(target)
    evict = evicting_bytes(graph, target)
    known = MeasuredCosts(records, target, threads, progress, measure=measure, evict=evict)
    copy = partial(conversion_task, target=target, threads=threads)
    choices = plan_choices(graph, predicted_cost(target, threads), options, copy)
    memory = memory_of_plans(graph, target, threads)
    cost = partial(cost_by_records, graph, choices, options, known, memory)
    found = cost()
    if not measure or options.mode != "global":
        return found
    if progress:
        progress("comparing plans in the network", 1, 1)
    plans = NetworkPlans(graph, target, threads, options, known.records, choices)
    return cost() if compare_plans(plans, known.records, KernelStore(enabled=cache)) else found
