"""A layout plan carried out: types get layouts, weights are packed, conversions stand between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ..compiler.build_kernel import Kernel, outline
from ..compiler.ir.graph import Graph, Node
from ..compiler.ir.types import Layout, TensorType
from ..compiler.kernel_task import DefaultConfig
from ..compiler.ops.fused import FusedOp
from ..compiler.ops.movement import BlockedFlatten, Identity
from ..compiler.target import Target
from .alternatives import ANY, flattens, wanted
from .make_plan import make_plan
from .make_tasks import task_of
from .pack_weights import Packer, unused
from .pairs import KEPT, merged
from .plan_layout import DEFAULT_PLAN, Cost, LayoutPlan, PlanOptions, plan_layout
from .views import find_views


def assign_layouts(
    graph: Graph, target: Target, threads: int, cost: Cost, options: PlanOptions = DEFAULT_PLAN
) -> Graph:
    """The graph on the layouts and algorithms of its plan."""
    memory = memory_of_plans(graph, target, threads)
    return apply_plan(graph, target, plan_layout(graph, target.lanes(4), cost, options, memory))


def memory_of_plans(graph: Graph, target: Target, threads: int) -> Callable[[LayoutPlan], int]:
    """Bytes of a plan's weights, arena and scratch memory on that many threads."""
    known: dict[str, Kernel] = {}

    def memory(plan: LayoutPlan) -> int:
        planned = apply_plan(graph, target, plan)
        copies = find_views(planned, target).skipped
        kernels = {}
        for n, node in enumerate(planned.nodes):
            if n not in copies:
                task = task_of(planned, node, target, threads)
                if task.key not in known:
                    known[task.key] = outline(task, DefaultConfig())
                kernels[n] = known[task.key]
        return make_plan(planned, kernels, {}, target).plan.memory(threads)

    return memory


def apply_plan(graph: Graph, target: Target, plan: LayoutPlan) -> Graph:
    block = target.lanes(4)
    packer = Packer(graph, block)
    types = dict(graph.types)
    layouts: dict[str, Layout | None] = {}  # of every value in the new graph, where not plain
    copies: dict[tuple[str, Layout | None], str] = {}
    routes = {(c.value, c.hops[-1]): c.hops for c in plan.conversions}
    nodes: list[Node] = []
    waiting: dict[str, Node] = {}  # first halves of pairs, by the value between

    def converted(value: str, wants: Layout | None) -> str:
        """The value in another layout; through the plan's hops, each made once."""
        source = value
        for hop in routes.get((value, wants), (wants,)):
            name = unused(f"{value}@{hop or 'plain'}", graph.types)
            if (value, hop) not in copies:
                copies[value, hop] = name
                types[name], layouts[name] = graph.types[value], hop
                nodes.append(_copy(source, name, graph.types[value]))
            source = name
        return source

    for n, node in enumerate(graph.nodes):
        decision = plan.decisions[n]
        flat = decision.reads is not None and flattens(graph, node, block)
        inputs = list(node.inputs)
        for position, value in enumerate(node.inputs):
            wants = ANY if value is None else wanted(graph, node, decision, value)
            if value is None or wants in (ANY, KEPT) or wants == layouts.get(value):
                continue
            assert wants is None or isinstance(wants, Layout)
            inputs[position] = converted(value, wants)
        layouts.update(dict.fromkeys(node.outputs, decision.writes))
        node = replace(node, inputs=tuple(inputs))
        if flat:
            assert decision.reads is not None
            packer.flattened[node.outputs[0]] = decision.reads
            node = replace(node, op=BlockedFlatten(str(decision.reads)))
        node = packer.pack(node, decision)
        if decision.reads == KEPT:
            first = next(waiting[v] for v in node.reads if v in waiting)
            node = merged(first, node)
        if decision.writes == KEPT:
            waiting[node.outputs[0]] = node
        else:
            nodes.append(node)
    names: dict[str, str] = {}  # graph outputs are plain: a copy takes the name
    for value in graph.outputs:
        layout = layouts.get(value)
        if layout is not None:
            names[value], plain = unused(f"{value}@{layout}", graph.types), converted(value, None)
            names[plain] = value
            types[names[value]], layouts[names[value]] = types[value], layout
            del types[plain], layouts[plain], layouts[value]
    nodes = [_renamed(n, names) for n in nodes]
    types.update(packer.types)
    for value, layout in layouts.items():
        types[value] = types[value].with_layout(layout)
    return replace(graph, setup=tuple(packer.setup.values())).with_nodes(nodes, types, packer.constants)


def _copy(source: str, result: str, type: TensorType) -> Node:
    """The same tensor; its layouts are in the types of the graph around it."""
    inner = Node(Identity(), (source,), (result,), source)
    inside = Graph("copy", (source,), (result,), (inner,), {source: type, result: type})
    return Node(FusedOp(inside), (source,), (result,), f"{source} (to {result.rsplit('@', 1)[-1]})")


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    inputs = tuple(None if v is None else names.get(v, v) for v in node.inputs)
    return replace(node, inputs=inputs, outputs=tuple(names.get(v, v) for v in node.outputs))
