"""What a plan says, as data: every operator and conversion with its choice, its costs and their origin.

`plan.py` prints it, `plan_page.py` draws it; both show the same numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

from ..compiler.ir.graph import Graph, Node
from ..compiler.ir.types import Layout
from ..compiler.price import Price
from ..graph_passes.alternatives import Decision, alternatives, decides, fused, wanted
from ..graph_passes.pairs import ANY
from ..graph_passes.plan_layout import MODES, Conversion, Cost, LayoutPlan, PlanOptions, plan_layout
from ..graph_passes.predict import PredictedCost
from ..graph_passes.task_cost import decided_task


class Prices(Cost, Protocol):
    """Costs that say where they are from."""

    def price(self, graph: Graph, node: Node, decision: Decision) -> Price: ...

    def price_conversion(
        self, graph: Graph, value: str, source: Layout | None, target: Layout | None
    ) -> Price: ...


@dataclass(frozen=True)
class Item:
    """An operator, a conversion, an input or an output of the network.

    `sources` are the items that it reads, `local` what each operator's fastest alone would be where that is
    something else, `choices` the number of alternatives. An operator without kernel or model has no costs.
    """

    id: str
    kind: str  # "operator", "conversion", "input", "output"
    name: str
    operators: str
    sources: tuple[str, ...] = ()
    algorithm: str = ""
    reads: str = ""
    writes: str = ""
    predicted: float | None = None  # seconds
    price: Price | None = None
    local: str = ""
    choices: int = 1

    @property
    def measured(self) -> float | None:
        return self.price.seconds if self.price and self.price.is_measured else None


@dataclass(frozen=True)
class Mode:
    """One way to plan, its costs in seconds, and how long the planning took once all costs were known."""

    name: str
    cost: float
    conversions: int
    conversion_cost: float
    optimal: bool
    searched: int
    seconds: float


@dataclass(frozen=True)
class Report:
    title: str
    mode: str
    items: tuple[Item, ...]
    modes: tuple[Mode, ...]
    memory: int | None = None  # bytes: weights, arena, scratch memory

    def total(self, attribute: str) -> float:
        """Of the items of which it is known: "predicted" or "measured", in seconds."""
        return sum(getattr(item, attribute) or 0.0 for item in self.items)

    @property
    def has_measured(self) -> bool:
        return any(item.measured is not None for item in self.items)


def report(
    title: str,
    graph: Graph,
    cost: Prices,
    predicted: PredictedCost,
    options: PlanOptions,
    memory: Callable[[LayoutPlan], int] | None = None,
) -> Report:
    """The plan of a fused graph by `cost`, beside the two other ways to plan it.

    `memory` says how many bytes a plan takes, where that is asked for or limited.
    """
    block = predicted.target.lanes(4)
    plans: dict[str, LayoutPlan] = {}
    modes = []
    for mode in MODES:
        start = time.perf_counter()
        limit = options.memory_limit if mode == options.mode else None
        plan = plan_layout(graph, block, cost, replace(options, mode=mode, memory_limit=limit), memory)
        seconds = time.perf_counter() - start
        modes.append(
            Mode(
                name=mode,
                cost=plan.cost,
                conversions=len(plan.conversions),
                conversion_cost=plan.conversion_cost,
                optimal=plan.optimal,
                searched=plan.searched,
                seconds=seconds,
            )
        )
        plans[mode] = plan
    chosen = plans[options.mode]
    items = _Items(graph, cost, predicted, plan=chosen, local=plans["local"], options=options)
    return Report(
        title=title,
        mode=options.mode,
        items=tuple(items.all()),
        modes=tuple(modes),
        memory=memory(chosen) if memory else None,
    )


@dataclass
class _Items:
    """Collects the items of a plan in the order in which they run."""

    graph: Graph
    cost: Prices
    predicted: PredictedCost
    plan: LayoutPlan
    local: LayoutPlan
    options: PlanOptions

    def all(self) -> list[Item]:
        graph = self.graph
        self.routes = {(c.value, c.hops[-1]): c for c in self.plan.conversions}
        self.origin: dict[tuple[str, Layout | None], str] = {}  # a value in a layout → the item that makes it
        self.written: dict[str, Layout | None] = dict.fromkeys(graph.inputs)
        self.found: list[Item] = []
        for i, value in enumerate(graph.inputs):
            self.origin[value, None] = f"i{i}"
            self.found.append(Item(f"i{i}", "input", value, str(graph.types[value])))
        for n, node in enumerate(graph.nodes):
            self._operator(n, node)
        for i, value in enumerate(graph.outputs):
            if value in self.written:  # not a constant
                sources = (self._source(value, None),)
                self.found.append(Item(f"o{i}", "output", value, str(graph.types[value]), sources=sources))
        return self.found

    def _operator(self, n: int, node: Node) -> None:
        graph, decision = self.graph, self.plan.decisions[n]
        sources = []
        for value in dict.fromkeys(node.reads):
            if value in self.written:
                layout = wanted(graph, node, decision, value)
                have = self.written[value]
                sources.append(self._source(value, have if layout == ANY else layout))
        for value in node.outputs:
            self.written[value] = decision.writes
            self.origin[value, decision.writes] = f"n{n}"
        item = Item(f"n{n}", "operator", node.name or node.outputs[0], type(node.op).__name__.lower())
        item = replace(item, sources=tuple(dict.fromkeys(sources)), price=self._price(node, decision))
        item = replace(item, reads=text(decision.reads), writes=text(decision.writes))
        if decides(node):
            item = replace(
                item,
                operators=fused(graph, node).label,
                algorithm=self._algorithm(node, decision),
                predicted=self.predicted.node(graph, node, decision),
                local=self._local(n, node, decision),
                choices=len(self._alternatives(node)),
            )
        self.found.append(item)

    def _alternatives(self, node: Node) -> list[Decision]:
        target, options = self.predicted.target, self.options
        allowed = options.accuracy, target.kind, options.precision, target.features
        return alternatives(self.graph, node, self.block, *allowed)

    @property
    def block(self) -> int:
        return self.predicted.target.lanes(4)

    def _price(self, node: Node, decision: Decision) -> Price | None:
        price = self.cost.price(self.graph, node, decision)
        return price if decides(node) or price.is_measured else None

    def _algorithm(self, node: Node, decision: Decision) -> str:
        """The template's name, where the decision leaves it to the task."""
        if decision.algorithm != Decision().algorithm:
            return decision.algorithm
        task = decided_task(self.graph, node, decision, self.predicted.target, self.predicted.threads)
        return task.algorithm

    def _local(self, n: int, node: Node, decision: Decision) -> str:
        other = self.local.decisions[n]
        if other == decision:
            return ""
        return f"{self._algorithm(node, other)} {text(other.reads)} → {text(other.writes)}"

    def _source(self, value: str, layout: Layout | None) -> str:
        """The item that makes a value in this layout; conversions on the way are added once."""
        have = self.written[value]
        if (value, layout) in self.origin:
            return self.origin[value, layout]
        route = self.routes.get((value, layout)) or Conversion(value, have, (layout,), 0.0)
        for before, after in pairwise((route.source, *route.hops)):
            if (value, after) not in self.origin:
                id = f"c{sum(item.kind == 'conversion' for item in self.found)}"
                self.found.append(
                    Item(
                        id=id,
                        kind="conversion",
                        name=value,
                        operators="conversion",
                        sources=(self.origin[value, before],),
                        reads=text(before),
                        writes=text(after),
                        predicted=self.predicted.conversion(self.graph, value, before, after),
                        price=self.cost.price_conversion(self.graph, value, before, after),
                    )
                )
                self.origin[value, after] = id
        return self.origin[value, layout]


def text(layout: Layout | None) -> str:
    return str(layout or "plain")


def microseconds(seconds: float | None) -> str:
    """As tables and drawings show it."""
    return "" if seconds is None else f"{seconds * 1e6:.1f}"


def summary(modes: Sequence[Mode]) -> list[tuple[str, ...]]:
    """A row for each way to plan under `SUMMARY_TITLES`; the best cost is a factor of 1."""
    best = min(mode.cost for mode in modes) or 1.0
    return [
        (
            *(mode.name, f"{mode.cost * 1e3:.3f}", f"{mode.cost / best:.3f}", str(mode.conversions)),
            *(microseconds(mode.conversion_cost), _proof(mode), str(mode.searched)),
            f"{mode.seconds * 1e3:.0f}",
        )
        for mode in modes
    ]


def _proof(mode: Mode) -> str:
    return "yes" if mode.optimal else "no" if mode.name == "global" else ""


SUMMARY_TITLES = (
    *("plan", "cost ms", "× best", "conversions", "their µs", "proven", "searched", "planning ms"),
)
