"""Graph + kernels → Plan: kernel calls in order, every value in input, output, arena or weights memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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


@dataclass(frozen=True)
class _Arena:
    """Where values and the kernels' temporaries lie in it, and its size; bytes."""

    offsets: dict[str, int]
    temps: dict[int, list[int]]  # by node
    size: int


def make_plan(
    graph: Graph,
    kernels: Mapping[int, Kernel],
    flops: Mapping[int, int],
    target: Target,
    setup: Graph | None = None,
    setup_kernels: Mapping[int, Kernel] | None = None,
) -> Packed:
    """`kernels` and `flops` by position of the node in the graph; views need none. `setup` makes some of the
    graph's constants when the module is opened (`split_setup`).
    """
    setup = setup or Graph("", (), (), (), {})
    setup_kernels = setup_kernels or {}
    places = find_views(graph, target).places
    roots = {v: owner for v, (owner, _) in places.items()}
    written = _written_outputs(graph, places)
    arena = _place(graph, kernels, roots, written)
    used = _constants(graph, kernels, roots)
    prepared, prepared_size = _in_order({v: n for v, n in used.items() if v in setup.outputs})
    stored = {v: n for v, n in used.items() if v not in setup.outputs}
    stored.update(_constants(setup, setup_kernels, {v: v for v in setup.types}))
    weights, weights_size = _in_order(stored)
    setup_arena = _place(setup, setup_kernels, {v: v for v in setup.types}, prepared)

    def constant(value: str, offset: int, nbytes: int) -> BufferRef | None:
        if value in prepared:
            return BufferRef.prepared(prepared[value] + offset, nbytes)
        if value in weights:
            return BufferRef.weights(weights[value] + offset, nbytes)
        return None

    def ref(value: str) -> BufferRef:
        root, offset = places[value]
        nbytes = graph.types[value].nbytes
        if found := constant(root, offset, nbytes):
            return found
        if root in graph.inputs:
            return BufferRef.input(graph.inputs.index(root), nbytes, offset)
        if root in written:
            return BufferRef.output(written[root], nbytes, offset)
        return BufferRef.arena(arena.offsets[root] + offset, nbytes)

    def setup_ref(value: str) -> BufferRef:
        nbytes = setup.types[value].nbytes
        return constant(value, 0, nbytes) or BufferRef.arena(setup_arena.offsets[value], nbytes)

    plan = Plan(
        name=graph.name or "model",
        target=target.name,
        features=target.features,
        inputs=_ios(graph, graph.inputs),
        outputs=_ios(graph, graph.outputs),
        arena_size=max(arena.size, setup_arena.size),
        weights_size=weights_size,
        steps=(*_calls(graph, kernels, flops, ref, arena.temps), *_copies(graph, ref)),
        prepared_size=prepared_size,
        setup=tuple(_calls(setup, setup_kernels, {}, setup_ref, setup_arena.temps)),
    )
    constants = {**graph.constants, **setup.constants}
    return Packed(plan, _packed({v: constants[v] for v in weights}, weights, weights_size))


def _written_outputs(graph: Graph, places: Mapping[str, tuple[str, int]]) -> dict[str, int]:
    """Root value → output, by position, for those that are written straight into the output's memory."""
    written: dict[str, int] = {}
    for i, value in enumerate(graph.outputs):
        root, offset = places[value]
        whole = offset == 0 and graph.types[value].nbytes == graph.types[root].nbytes
        if whole and root not in graph.inputs and root not in graph.constants and root not in written:
            written[root] = i
    return written


def _ios(graph: Graph, values: Sequence[str]) -> tuple[PlanIO, ...]:
    return tuple(PlanIO(v, TensorType(graph.types[v].dtype, graph.types[v].shape)) for v in values)


def _copies(graph: Graph, ref: Callable[[str], BufferRef]) -> Iterator[Copy]:
    """Of outputs that are not written where they are wanted."""
    for i, value in enumerate(graph.outputs):
        source = ref(value)
        output = BufferRef.output(i, source.nbytes)
        if source.place != output.place:
            yield Copy(source, output, value)


def _calls(
    graph: Graph,
    kernels: Mapping[int, Kernel],
    flops: Mapping[int, int],
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
                last = k == len(kernel.steps) - 1
                yield KernelCall(
                    kernel=step.symbol,
                    node=node.name,
                    args=args,
                    writes=writes,
                    tasks=step.tasks,
                    gang=kernel.gang,
                    scratch=step.scratch,
                    flops=flops.get(n, 0) if last else 0,
                    bytes=moved,
                )


def _place(
    graph: Graph, kernels: Mapping[int, Kernel], roots: Mapping[str, str], elsewhere: Mapping[str, int]
) -> _Arena:
    """`roots` are the values whose memory others are parts of; those that lie `elsewhere` take no room."""
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
    offsets, size = plan_memory([*held, *temps])
    of_temps = iter(offsets[len(held) :])
    temp_offsets = {n: [next(of_temps) for _ in kernels[n].temps] for n in sorted(kernels)}
    return _Arena({v.name: offset for v, offset in zip(held, offsets)}, temp_offsets, size)


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
