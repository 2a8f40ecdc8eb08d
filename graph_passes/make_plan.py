"""Graph + kernels → Plan: kernel calls in order, every value in input, output, arena or weights memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..compiler.build_kernel import Kernel
from ..compiler.ir.graph import Graph
from ..compiler.ir.plan import BufferRef, Copy, KernelCall, Plan, PlanIO
from ..compiler.ir.types import TensorType
from ..compiler.target import Target
from .plan_memory import ALIGNMENT, Lifetime, plan_memory
from .views import find_views


@dataclass(frozen=True)
class Packed:
    """A plan and the bytes of its weights, which lie aligned as the plan's offsets are."""

    plan: Plan
    weights: np.ndarray


def make_plan(
    graph: Graph, kernels: Mapping[int, Kernel], costs: Mapping[int, int], target: Target
) -> Packed:
    """`kernels` and `costs` (floating-point operations) by position of the node in the graph; views need
    none.
    """
    places = find_views(graph).places
    roots = {v: owner for v, (owner, _) in places.items()}
    outputs = {}  # root value → output index, for those that are written straight into the output's memory
    for i, value in enumerate(graph.outputs):
        root, offset = places[value]
        whole = offset == 0 and graph.types[value].nbytes == graph.types[root].nbytes
        if whole and root not in graph.inputs and root not in graph.constants and root not in outputs:
            outputs[root] = i
    offsets, temp_offsets, arena = _place(graph, kernels, roots, outputs)
    weights, weight_offsets = _pack_weights(graph, kernels, roots)

    def ref(value: str) -> BufferRef:
        root, offset = places[value]
        nbytes = graph.types[value].nbytes
        if root in weight_offsets:
            return BufferRef.weights(weight_offsets[root] + offset, nbytes)
        if root in graph.inputs:
            return BufferRef.input(graph.inputs.index(root), nbytes, offset)
        if root in outputs:
            return BufferRef.output(outputs[root], nbytes, offset)
        return BufferRef.arena(offsets[root] + offset, nbytes)

    steps: list[KernelCall | Copy] = []
    for n, node in enumerate(graph.nodes):
        if n not in kernels:
            continue
        kernel = kernels[n]
        temps = [BufferRef.arena(offset, size) for offset, size in zip(temp_offsets[n], kernel.temps)]
        args = (*(ref(v) for v in node.reads), *(ref(v) for v in node.outputs), *temps)
        writes = tuple(range(len(node.reads), len(args)))
        moved = sum(a.nbytes for a in args)
        for k, step in enumerate(kernel.steps):
            if step.tasks:
                flops = costs.get(n, 0) if k == len(kernel.steps) - 1 else 0
                steps.append(
                    KernelCall(
                        step.symbol,
                        node.name,
                        args,
                        writes,
                        step.tasks,
                        kernel.gang,
                        step.scratch,
                        flops,
                        moved,
                    )
                )
    for i, value in enumerate(graph.outputs):
        source = ref(value)
        if source.place != BufferRef.output(i, source.nbytes).place:
            steps.append(Copy(source, BufferRef.output(i, source.nbytes), value))
    ios = [
        tuple(PlanIO(v, TensorType(graph.types[v].dtype, graph.types[v].shape)) for v in vs)
        for vs in (graph.inputs, graph.outputs)
    ]
    plan = Plan(
        graph.name or "model",
        target.name,
        target.features,
        ios[0],
        ios[1],
        arena,
        weights.nbytes,
        tuple(steps),
    )
    return Packed(plan, weights)


def _place(
    graph: Graph, kernels: Mapping[int, Kernel], roots: Mapping[str, str], outputs: Mapping[str, int]
) -> tuple[dict[str, int], dict[int, list[int]], int]:
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    temps: list[Lifetime] = []
    for n, node in enumerate(graph.nodes):
        for v in (*node.reads, *node.outputs):
            root = roots[v]
            first.setdefault(root, n)
            last[root] = n
        if n in kernels:
            temps += [Lifetime(f"{n}#{i}", size, n, n) for i, size in enumerate(kernels[n].temps)]
    for v in graph.outputs:
        last[roots[v]] = len(graph.nodes)
    held = [
        Lifetime(v, graph.types[v].nbytes, first[v], last[v])
        for v in first
        if v not in graph.inputs and v not in graph.constants and v not in outputs
    ]
    offsets, arena = plan_memory([*held, *temps])
    temp_offsets = {n: [offsets[f"{n}#{i}"] for i in range(len(k.temps))] for n, k in kernels.items()}
    return offsets, temp_offsets, arena


def _pack_weights(
    graph: Graph, kernels: Mapping[int, Kernel], roots: Mapping[str, str]
) -> tuple[np.ndarray, dict[str, int]]:
    """Constants in the order of their use, so that memory is read forwards."""
    offsets: dict[str, int] = {}
    position = 0
    used = [v for n, node in enumerate(graph.nodes) if n in kernels for v in node.reads]
    for v in (*used, *graph.outputs):
        root = roots[v]
        if root in graph.constants and root not in offsets:
            offsets[root] = position
            position += -(-graph.constants[root].nbytes // ALIGNMENT) * ALIGNMENT
    room = np.zeros(position + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    data = room[start : start + position]
    for v, offset in offsets.items():
        raw = np.ascontiguousarray(graph.constants[v]).reshape(-1).view(np.uint8)
        data[offset : offset + raw.size] = raw
    return data, offsets
