"""The kernel tasks that experiments, the pre-trained model and shipped records are about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from .compiler.kernel_task import KernelTask
from .compiler.target import Target
from .errors import InputError
from .frontends.onnx.importer import import_onnx
from .graph_passes.alternatives import DIRECT, POINTWISE, Decision, alternatives, decides
from .graph_passes.footprint import evicting_bytes
from .graph_passes.make_tasks import kernel_tasks
from .graph_passes.pairs import KEPT
from .graph_passes.plan_layout import DEFAULT_PLAN, PlanOptions
from .graph_passes.split_setup import split_setup
from .graph_passes.task_cost import decided_task
from .models import zoo
from .pipeline import optimise, passes


@dataclass(frozen=True)
class Workload:
    """A task, how often its network runs it, and whether its weights come from memory there."""

    task: KernelTask
    network: str
    count: int = 1
    evict: int = 0


def planned(
    name: str, model: Any, target: Target, threads: int, options: PlanOptions = DEFAULT_PLAN
) -> list[Workload]:
    """The different tasks of a model as it is compiled by default, those that ask questions."""
    graph = optimise(import_onnx(model), target, threads, stop_after="fuse")
    evict = evicting_bytes(graph, target)
    graph, _ = split_setup(passes(target, threads, options)["assign_layouts"](graph), "packed")
    counts: dict[KernelTask, int] = {}
    by_digest: dict[str, KernelTask] = {}
    for task in kernel_tasks(graph, target, threads).values():
        if task.asks:
            task = by_digest.setdefault(task.digest, task)
            counts[task] = counts.get(task, 0) + 1
    return [Workload(task, name, count, evict) for task, count in counts.items()]


def choices(name: str, model: Any, target: Target, threads: int) -> list[Workload]:
    """The different tasks that a plan of the model may choose from, those that ask questions."""
    graph = optimise(import_onnx(model), target, threads, stop_after="fuse")
    evict = evicting_bytes(graph, target)
    block, kind, features = target.lanes(4), target.kind, target.features
    found: dict[str, Workload] = {}
    for node in graph.nodes:
        if not decides(node):
            continue
        for decision in alternatives(graph, node, block, kind=kind, features=features):
            if decision.writes == KEPT:
                continue  # the second of a pair is the task of both
            task = decided_task(graph, node, decision, target, threads)
            if task.asks:
                found.setdefault(task.digest, Workload(task, name, 1, evict))
    return list(found.values())


def direct_convolution(name: str, target: Target, threads: int = 1) -> KernelTask:
    """One of c1 to c12, computed as it is defined; channels in blocks, but for the image that c1 reads."""
    graph = optimise(import_onnx(zoo.build(name)), target, threads, stop_after="fuse")
    node = graph.nodes[0]
    blocked = [
        decision
        for decision in alternatives(graph, node, target.lanes(4))
        if decision.algorithm in (DIRECT, POINTWISE) and _blocks_channels(decision)
    ]
    if len(graph.nodes) != 1 or not blocked:
        raise InputError(f"{name} is no single convolution whose channels fill blocks")
    return decided_task(graph, node, blocked[-1], target, threads)


def _blocks_channels(decision: Decision) -> bool:
    return decision.writes is not None and decision.writes.block_of(1) > 1


def matrix_product(size: int, target: Target, threads: int = 1) -> KernelTask:
    """(size, size) times a constant (size, size), as the plan has it."""
    weights = np.random.default_rng(0).standard_normal((size, size), np.float32) * np.float32(size**-0.5)
    x, y = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, (size, size)) for n in "xy")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "matmul", [x], [y], [numpy_helper.from_array(weights, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    (found,) = planned(f"matmul{size}", model, target, threads)
    return found.task


def distinct(workloads: Iterable[Workload]) -> list[Workload]:
    """Each task once, of each kind (`evict`), in the order of first sight."""
    found: dict[tuple[str, int], Workload] = {}
    for w in workloads:
        found.setdefault((w.task.digest, w.evict), w)
    return list(found.values())


def zoo_networks(wanted: Sequence[str] = ()) -> list[str]:
    """Those of the zoo, single convolutions included; all, or the wanted ones."""
    unknown = set(wanted) - set(zoo.names())
    if unknown:
        raise InputError(f"no network named {min(unknown)!r} in the zoo: choose of {', '.join(zoo.names())}")
    return list(wanted) or zoo.names()
