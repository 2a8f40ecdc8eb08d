"""A layout plan carried out: types get layouts, weights are packed, conversions stand between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..compiler.build_kernel import Kernel, outline
from ..compiler.ir.graph import Graph, Node
from ..compiler.ir.types import Layout, TensorType
from ..compiler.kernel_task import DefaultConfig
from ..compiler.ops.fused import FusedOp
from ..compiler.ops.movement import BlockedFlatten, Identity
from ..compiler.target import Target
from .alternatives import Decision, flattens, wanted
from .make_plan import make_plan
from .make_tasks import task_of
from .pack_weights import Packer, unused
from .pairs import ANY, KEPT, merged
from .plan_layout import DEFAULT_PLAN, Cost, LayoutPlan, PlanOptions, plan_layout
from .rewrite import renamed
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
    """The graph as planned: values in their layouts, converted in between, weights packed, pairs merged."""
    carried = _Carried(graph, target.lanes(4), plan)
    for n, node in enumerate(graph.nodes):
        carried.add(node, plan.decisions[n])
    return carried.finish()


class _Carried:
    """A graph on the layouts of a plan, made node by node."""

    def __init__(self, graph: Graph, block: int, plan: LayoutPlan):
        self.graph, self.block = graph, block
        self.packer = Packer(graph, block)
        self.nodes: list[Node] = []
        self.types = dict(graph.types)
        self.layouts: dict[str, Layout | None] = {}  # of every value in the new graph, where not plain
        self.routes = {(c.value, c.hops[-1]): c.hops for c in plan.conversions}
        self.copies: dict[tuple[str, Layout | None], str] = {}
        self.waiting: dict[str, Node] = {}  # first halves of pairs, by the value between

    def add(self, node: Node, decision: Decision) -> None:
        flat = decision.reads is not None and flattens(self.graph, node, self.block)
        node = replace(node, inputs=tuple(self._read(node, decision, value) for value in node.inputs))
        self.layouts.update(dict.fromkeys(node.outputs, decision.writes))
        if flat:
            assert decision.reads is not None
            self.packer.flattened[node.outputs[0]] = decision.reads
            node = replace(node, op=BlockedFlatten(str(decision.reads)))
        node = self.packer.pack(node, decision)
        if decision.reads == KEPT:
            first = next(self.waiting[v] for v in node.reads if v in self.waiting)
            node = merged(first, node)
        if decision.writes == KEPT:
            self.waiting[node.outputs[0]] = node
        else:
            self.nodes.append(node)

    def _read(self, node: Node, decision: Decision, value: str | None) -> str | None:
        """What the node reads in place of an input."""
        if value is None:
            return None
        wants = wanted(self.graph, node, decision, value)
        kept = wants in (ANY, KEPT) or wants == self.layouts.get(value)
        return value if kept else self._converted(value, wants)

    def _converted(self, value: str, wants: Layout | None) -> str:
        """The value in another layout; through the plan's hops, each made once."""
        source = value
        for hop in self.routes.get((value, wants), (wants,)):
            name = unused(f"{value}@{hop or 'plain'}", self.graph.types)
            if (value, hop) not in self.copies:
                self.copies[value, hop] = name
                self.types[name], self.layouts[name] = self.graph.types[value], hop
                self.nodes.append(_copy(source, name, self.graph.types[value]))
            source = name
        return source

    def finish(self) -> Graph:
        self._make_outputs_plain()
        types = {**self.types, **self.packer.types}
        for value, layout in self.layouts.items():
            types[value] = types[value].with_layout(layout)
        setup = tuple(self.packer.setup.values())
        return replace(self.graph, setup=setup).with_nodes(self.nodes, types, self.packer.constants)

    def _make_outputs_plain(self) -> None:
        """The graph's outputs are plain: where one is not, its plain copy takes the name."""
        types, layouts = self.types, self.layouts
        names: dict[str, str] = {}
        for value in self.graph.outputs:
            layout = layouts.get(value)
            if layout is not None:
                names[value], plain = (
                    unused(f"{value}@{layout}", self.graph.types),
                    self._converted(value, None),
                )
                names[plain] = value
                types[names[value]], layouts[names[value]] = types[value], layout
                del types[plain], layouts[plain], layouts[value]
        self.nodes = [renamed(node, names) for node in self.nodes]


def _copy(source: str, result: str, type: TensorType) -> Node:
    """The same tensor; its layouts are in the types of the graph around it."""
    inner = Node(Identity(), (source,), (result,), source)
    inside = Graph("copy", (source,), (result,), (inner,), {source: type, result: type})
    return Node(FusedOp(inside), (source,), (result,), f"{source} (to {result.rsplit('@', 1)[-1]})")
