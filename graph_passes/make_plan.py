"""Graph + kernels → Plan: kernel calls in order, every value in input, output, arena or weights memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..compiler.build_kernel import Kernel
from ..compiler.ir.graph import Graph
from ..compiler.ir.plan import ALIGNMENT, BufferRef, Copy, KernelCall, Plan, PlanIO
from ..compiler.ir.types import TensorType
from ..compiler.target import Target
from .plan_memory import Lifetime, plan_memory
from .views import find_views


@dataclass(frozen=True)
class Packed:
    """A plan and the bytes of its weights, which lie aligned as the plan's offsets are."""

    plan: Plan
    weights: np.ndarray


def make_plan(
    graph: Graph,
    kernels: Mapping[int, Kernel],
    costs: Mapping[int, int],
    target: Target,
    setup: Graph | None = None,
    setup_kernels: Mapping[int, Kernel] | None = None,
) -> Packed:
    """`kernels` and `costs` (floating-point operations) by position of the node in the graph; views need
    none. `setup` makes some of the graph's constants when the module is opened (`split_setup`).
    """
    setup = setup or Graph("", (), (), (), {})
    setup_kernels = setup_kernels or {}
    places = find_views(graph, target).places
    roots = {v: owner for v, (owner, _) in places.items()}
    outputs = {}  # root value → output index, for those that are written straight into the output's memory
    for i, value in enumerate(graph.outputs):
        root, offset = places[value]
        whole = offset == 0 and graph.types[value].nbytes == graph.types[root].nbytes
        if whole and root not in graph.inputs and root not in graph.constants and root not in outputs:
            outputs[root] = i
    offsets, temp_offsets, arena = _place(graph, kernels, roots, outputs)
    used = _constants(graph, kernels, roots)
    prepared_offsets, prepared_size = _in_order({v: n for v, n in used.items() if v in setup.outputs})
    stored = {v: n for v, n in used.items() if v not in setup.outputs}
    stored.update(_constants(setup, setup_kernels, {v: v for v in setup.types}))
    weight_offsets, weights_size = _in_order(stored)

    def constant(value: str, offset: int, nbytes: int) -> BufferRef | None:
        if value in prepared_offsets:
            return BufferRef.prepared(prepared_offsets[value] + offset, nbytes)
        if value in weight_offsets:
            return BufferRef.weights(weight_offsets[value] + offset, nbytes)
        return None

    def ref(value: str) -> BufferRef:
        root, offset = places[value]
        nbytes = graph.types[value].nbytes
        if found := constant(root, offset, nbytes):
            return found
        if root in graph.inputs:
            return BufferRef.input(graph.inputs.index(root), nbytes, offset)
        if root in outputs:
            return BufferRef.output(outputs[root], nbytes, offset)
        return BufferRef.arena(offsets[root] + offset, nbytes)

    steps: list[KernelCall | Copy] = [*_calls(graph, kernels, costs, ref, temp_offsets)]
    for i, value in enumerate(graph.outputs):
        source = ref(value)
        if source.place != BufferRef.output(i, source.nbytes).place:
            steps.append(Copy(source, BufferRef.output(i, source.nbytes), value))
    made = {v: v for v in setup.types}
    setup_offsets, setup_temps, setup_arena = _place(setup, setup_kernels, made, prepared_offsets)

    def setup_ref(value: str) -> BufferRef:
        nbytes = setup.types[value].nbytes
        return constant(value, 0, nbytes) or BufferRef.arena(setup_offsets[value], nbytes)

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
        max(arena, setup_arena),
        weights_size,
        tuple(steps),
        prepared_size,
        tuple(_calls(setup, setup_kernels, {}, setup_ref, setup_temps)),
    )
    constants = {**graph.constants, **setup.constants}
    return Packed(plan, _packed({v: constants[v] for v in weight_offsets}, weight_offsets, weights_size))


def _calls(
    graph: Graph,
    kernels: Mapping[int, Kernel],
    costs: Mapping[int, int],
    ref: Callable[[str], BufferRef],
    temp_offsets: Mapping[int, list[int]],
) -> Iterator[KernelCall]:
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
                yield KernelCall(
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


def _place(
    graph: Graph, kernels: Mapping[int, Kernel], roots: Mapping[str, str], elsewhere: Mapping[str, int]
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
        if v not in graph.inputs and v not in graph.constants and v not in elsewhere
    ]
    offsets, arena = plan_memory([*held, *temps])
    of_temps = iter(offsets[len(held) :])
    temp_offsets = {n: [next(of_temps) for _ in kernels[n].temps] for n in sorted(kernels)}
    return {v.name: offset for v, offset in zip(held, offsets)}, temp_offsets, arena


def _constants(graph: Graph, kernels: Mapping[int, Kernel], roots: Mapping[str, str]) -> dict[str, int]:
    """Constant → bytes, in the order of their use, so that memory is read forwards."""
    read = [v for n, node in enumerate(graph.nodes) if n in kernels for v in node.reads]
    used = dict.fromkeys(roots[v] for v in (*read, *graph.outputs))
    return {v: graph.constants[v].nbytes for v in used if v in graph.constants}


def _in_order(sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """(offsets, the end of the last)."""
    offsets: dict[str, int] = {}
    position = 0
    for name, nbytes in sizes.items():
        offsets[name] = position
        position += -(-nbytes // ALIGNMENT) * ALIGNMENT
    return offsets, position


def _packed(constants: Mapping[str, np.ndarray], offsets: Mapping[str, int], size: int) -> np.ndarray:
    room = np.zeros(size + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    data = room[start : start + size]
    for v, array in constants.items():
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        data[offsets[v] : offsets[v] + raw.size] = raw
    return data
