"""Graph of fused operators with layouts → kernel tasks."""

from __future__ import annotations

import re
from dataclasses import replace

from ..compiler.ir.graph import Graph, Node
from ..compiler.ir.types import Layout, TensorType
from ..compiler.kernel_task import KernelTask
from ..compiler.ops.fused import FusedOp, expression
from ..compiler.ops.packed_recurrence import Packed
from ..compiler.target import Target
from ..compiler.templates.registry import algorithms
from ..errors import InternalError
from .pairs import convolution
from .views import find_views


def task_of(
    graph: Graph, node: Node, target: Target, threads: int, algorithm: str | None = None
) -> KernelTask:
    """The task of one node; `algorithm` None takes the most specific template that fits."""
    if plain := _same_numbers(graph, node):
        graph = replace(graph, types={**graph.types, **plain})
    types = graph.input_types(node)
    constants = {i for i in node.reads if i in graph.constants}
    if not isinstance(node.op, FusedOp) and node.op.has("loops"):
        program = node.op.loops(types, graph.output_types(node))
        name = kernel_name(node, graph)
        results = graph.output_types(node)
        if any(t and t.layout for t in (*types, *results)):
            raise InternalError(f"node {node.name}: {name} takes plain operands, not {types} → {results}")
        task = KernelTask(
            name=name,
            expr=None,
            layouts=(),
            constants=frozenset(),
            algorithm="loops",
            target=target,
            threads=threads,
            program=replace(program, name=name),
            op=node.op,
            types=types,
            output_types=results,
        )
        return replace(task, algorithm=algorithm or next(iter(algorithms(task)), "loops"))
    logical = types
    if isinstance(node.op, FusedOp) and node.op.algorithm:  # packed weights have another shape
        logical = tuple(node.op.graph.types[i] for i in node.op.graph.inputs)
    expr = expression(node.op, logical)
    params = [name for name, _ in expr.params]
    layouts: list[tuple[str, Layout]] = []
    for value, name in [*zip(node.reads, params), *zip(node.outputs, expr.outputs)]:
        layout = graph.types[value].layout or _same_memory(graph, node, value)
        if layout is not None:
            layouts.append((name, layout))
    fixed = frozenset(name for value, name in zip(node.reads, params) if value in constants)
    task = KernelTask(
        name=kernel_name(node, graph),
        expr=expr,
        layouts=tuple(layouts),
        constants=fixed,
        algorithm="",
        target=target,
        threads=threads,
        op=node.op,
        types=types,
    )
    return replace(task, algorithm=algorithm or algorithms(task)[0])


def _same_numbers(graph: Graph, node: Node) -> dict[str, TensorType]:
    """Operands (n, c, 1, 1) in whole blocks, which are the same bytes in plain layout: a task does not depend
    on how they were written. What a convolution slides over keeps its layout."""
    if not isinstance(node.op, FusedOp):
        return {}
    conv = convolution(node)
    data = {
        outer for outer, inner in zip(node.inputs, node.op.graph.inputs) if conv and inner == conv.inputs[0]
    }
    types = {value: graph.types[value] for value in node.reads if value not in data}
    return {value: type.with_layout(None) for value, type in types.items() if type.is_whole_blocks}


def _same_memory(graph: Graph, node: Node, value: str) -> Layout | None:
    """A plain (n, c, 1, 1) written from blocked inputs may as well be blocked: the bytes are the same. But an
    algorithm that was decided on has its layouts."""
    if isinstance(node.op, FusedOp) and node.op.algorithm:
        return None
    result = graph.types[value]
    layout = next(
        (t.layout for t in graph.input_types(node) if t and t.layout and t.rank == result.rank), None
    )
    if value not in node.outputs or layout is None or result.dtype.bytes != 4:
        return None
    return layout if result.with_layout(layout).is_whole_blocks else None


def kernel_name(node: Node, graph: Graph) -> str:
    """Says what the kernel computes: conv_add_relu_f32_nchw16c."""
    label = node.op.label if isinstance(node.op, FusedOp) else type(node.op).__name__.lower()
    result = graph.types[node.outputs[0]]
    layout = f"_{result.layout}" if result.layout else ""
    if isinstance(node.op, FusedOp | Packed):
        layout += f"_{node.op.algorithm}" * bool(node.op.algorithm)
    return re.sub(r"\W", "_", f"{label[:80]}_{result.dtype}{layout}")


def kernel_tasks(graph: Graph, target: Target, threads: int) -> dict[int, KernelTask]:
    """By node: the task of every node that a run computes; others are addresses within their operands."""
    copies = find_views(graph, target).skipped
    return {n: task_of(graph, node, target, threads) for n, node in enumerate(graph.nodes) if n not in copies}
