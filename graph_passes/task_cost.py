"""Costs of layouts and algorithms from what is known of kernel tasks on a machine: measured where there is a
record, else predicted in proportion to what was measured of the same node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import isfinite
from typing import Protocol

from ..compiler.ir.graph import Graph, Node
from ..compiler.ir.types import Layout, TensorType
from ..compiler.kernel_task import KernelTask
from ..compiler.price import Price
from ..compiler.target import Target
from .alternatives import Decision, alternatives, decides, first_half, possible_layouts, wanted
from .make_tasks import task_of
from .pack_weights import Packer
from .pairs import ANY, KEPT, merged
from .plan_layout import LayoutPlan, PlanOptions, plan_layout
from .predict import PredictedCost
from .views import find_views

HOPELESS = 3.0
"""A choice predicted to take this many times the node's best is not measured."""
LEAST_DOUBT, MOST_DOUBT = 0.05, 0.1
"""Bounds of what a measured gain must exceed, as a share, before a plan leaves what the model predicts."""

Copy = Callable[[TensorType, Layout | None, Layout | None], KernelTask]
Outputs = tuple[str, ...]
Choice = tuple[Outputs, Decision]  # a node by its outputs, and what it may do
Work = tuple[Outputs, bool]  # that of a node alone, or of it and the first of its pair


class TaskPrices(Protocol):
    """What is known of tasks: `op_tuner.costs.MeasuredCosts`."""

    def price_of(self, task: KernelTask) -> Price | None:
        """Of a record; None where there is none."""

    def ensure(self, tasks: Iterable[KernelTask]) -> int:
        """Measures those without a record, where that is allowed; returns how many."""

    @property
    def compared(self) -> bool:
        """Whether it knows anything of whole plans."""

    def refuses(self, first: Sequence[KernelTask], other: Sequence[KernelTask]) -> bool:
        """Whether a plan that runs the other tasks has been found to be no faster than one of the first."""


@dataclass(frozen=True)
class TaskCost:
    """In seconds. `doubtful` are the choices that a plan takes only where the gain is beyond their doubt.

    `given_up` says that more is known, but that the network has shown the plan by that to be no faster."""

    predicted: PredictedCost
    prices: Mapping[Choice, Price]
    copies: Mapping[tuple[TensorType, Layout | None, Layout | None], Price]
    doubtful: frozenset[Choice] = field(default=frozenset())
    given_up: bool = False

    @property
    def kind(self) -> str:
        return self.predicted.kind

    @property
    def features(self) -> tuple[str, ...]:
        return self.predicted.features

    def node(self, graph: Graph, node: Node, decision: Decision) -> float:
        price = self.price(graph, node, decision)
        doubt = min(max(price.spread, LEAST_DOUBT), MOST_DOUBT)
        return price.seconds * (1 + doubt * ((node.outputs, decision) in self.doubtful))

    def conversion(self, graph: Graph, value: str, source: Layout | None, target: Layout | None) -> float:
        return self.price_conversion(graph, value, source, target).seconds

    def price(self, graph: Graph, node: Node, decision: Decision) -> Price:
        found = self.prices.get((node.outputs, decision))
        return found or self.predicted.price(graph, node, decision)

    def price_conversion(
        self, graph: Graph, value: str, source: Layout | None, target: Layout | None
    ) -> Price:
        found = self.copies.get((graph.types[value], source, target))
        return found or self.predicted.price_conversion(graph, value, source, target)


@dataclass(frozen=True)
class PlanChoices:
    """All that a plan of a fused graph may choose, by what it is predicted to cost, with the kernel tasks.

    `tasks` are those of choices that are not hopeless, `copies` those of conversions; `predicted_plan` is the
    plan by the analytic model alone; `firsts` says by the second node of each pair which one is its first.
    """

    predicted: PredictedCost
    seconds: Mapping[Choice, float]
    tasks: Mapping[Choice, KernelTask]
    copies: Mapping[tuple[TensorType, Layout | None, Layout | None], KernelTask]
    predicted_plan: LayoutPlan
    predicted_choices: frozenset[Choice]
    firsts: Mapping[Outputs, Outputs]

    def cost(self, known: TaskPrices) -> TaskCost:
        """What plans cost by all that is known now; nothing is measured.

        Where anything is known of a node's work, the rest of its choices are predicted in proportion to that.
        """
        found = {choice: price for choice, task in self.tasks.items() if (price := known.price_of(task))}
        working = {outputs for (outputs, _), price in found.items() if isfinite(price.seconds)}
        found = {choice: price for choice, price in found.items() if choice[0] in working}
        prices = _complete(self.seconds, found, self.predicted.model, self.firsts)
        moves = {key: price for key, task in self.copies.items() if (price := known.price_of(task))}
        return TaskCost(self.predicted, prices, moves, frozenset(prices.keys() - self.predicted_choices))

    def run_by(self, graph: Graph, plan: LayoutPlan) -> list[KernelTask]:
        """What a plan of the graph runs, but for what is hopeless."""
        chosen = [self.tasks.get((graph.nodes[n].outputs, d)) for n, d in plan.decisions.items()]
        for c in plan.conversions:
            ways = pairwise((c.source, *c.hops))
            chosen += [self.copies.get((graph.types[c.value], *way)) for way in ways]
        return [task for task in chosen if task is not None]


def plan_choices(graph: Graph, predicted: PredictedCost, options: PlanOptions, copy: Copy) -> PlanChoices:
    """`copy` gives the task of a conversion."""
    target = predicted.target
    block = target.lanes(4)
    views = find_views(graph, target).skipped
    allowed = options.accuracy, target.kind, options.precision, target.features
    choices = {
        (node.outputs, decision): (node, predicted.node(graph, node, decision))
        for n, node in enumerate(graph.nodes)
        if decides(node) or n not in views
        for decision in alternatives(graph, node, block, *allowed)
        if decision.writes != KEPT  # the second of a pair costs both
    }
    tasks = {
        (node.outputs, decision): decided_task(graph, node, decision, target, predicted.threads)
        for node, decision in _hopeful(choices)
    }
    copies = {key: copy(*key) for key in _conversions(graph, block)}
    plan = plan_layout(graph, block, predicted, replace(options, mode="global", memory_limit=None))
    planned = frozenset((graph.nodes[n].outputs, d) for n, d in plan.decisions.items())
    seconds = {choice: seconds for choice, (_, seconds) in choices.items()}
    firsts = {
        node.outputs: first_half(graph, node, decision, block)[0].outputs
        for (_, decision), (node, _) in choices.items()
        if decision.reads == KEPT
    }
    return PlanChoices(
        predicted=predicted,
        seconds=seconds,
        tasks=tasks,
        copies=copies,
        predicted_plan=plan,
        predicted_choices=planned,
        firsts=firsts,
    )


def cost_by_records(
    graph: Graph,
    choices: PlanChoices,
    options: PlanOptions,
    tasks: TaskPrices,
    memory: Callable[[LayoutPlan], int] | None = None,
) -> TaskCost:
    """The costs of all that a plan of the fused graph may choose, measured at once where that is allowed.

    Of each node only what is not hopeless is measured. The plan that the model predicts keeps its choices
    unless others are measured to be better by more than their spread. If the network has already shown the
    plan by these costs to be no faster, the model's costs are returned (`given_up`). `memory` is as of
    `plan_layout`.
    """
    predicted = choices.predicted
    tasks.ensure([*choices.tasks.values(), *choices.copies.values()])
    cost = choices.cost(tasks)
    if not tasks.compared:
        return cost
    plans = (plan_layout(graph, predicted.target.lanes(4), c, options, memory) for c in (predicted, cost))
    first, other = (choices.run_by(graph, plan) for plan in plans)
    return TaskCost(predicted, {}, {}, given_up=True) if tasks.refuses(first, other) else cost


def _hopeful(choices: Mapping[Choice, tuple[Node, float]]) -> list[tuple[Node, Decision]]:
    best: dict[Work, float] = {}
    for choice, (_, seconds) in choices.items():
        best[_work(choice)] = min(seconds, best.get(_work(choice), seconds))
    return [
        (node, c[1])
        for c, (node, s) in choices.items()
        if 0 < s < math.inf and s <= HOPELESS * best[_work(c)]
    ]


def _work(choice: Choice) -> Work:
    outputs, decision = choice
    return outputs, decision.reads == KEPT


def _conversions(graph: Graph, block: int) -> list[tuple[TensorType, Layout | None, Layout | None]]:
    found: dict[tuple[TensorType, Layout | None, Layout | None], None] = {}
    producers = graph.producers()
    for value in (*graph.inputs, *producers):
        layouts = possible_layouts(graph, value, producers.get(value), block)
        found.update({(graph.types[value], a, b): None for a in layouts for b in layouts if a != b})
    return list(found)


def _complete(
    predicted: Mapping[Choice, float],
    known: Mapping[Choice, Price],
    model: str,
    firsts: Mapping[Outputs, Outputs],
) -> dict[Choice, Price]:
    """Prices of all choices. What is not known is predicted × (measured / predicted) of the fastest known
    choice of the same work, with default configs, since what nobody has tuned runs with its default one. A
    pair of which nothing is known borrows from its two nodes, and they from it: a plan compares them."""
    best: dict[Work, Choice] = {}
    for choice, price in known.items():
        work = _work(choice)
        if work not in best or price.seconds < known[best[work]].seconds:
            best[work] = choice
    related: dict[Work, list[Work]] = {}
    for second, first in firsts.items():
        alone = [(second, False), (first, False)]
        related[second, True] = alone
        related.update({work: [(second, True)] for work in alone})
    prices = {**known}
    for choice, seconds in predicted.items():
        if choice not in known:
            prices[choice] = Price(seconds, "predicted", model)
            others = (best[w] for w in related.get(_work(choice), ()) if w in best)
            works = (c for c in others if isfinite(known[c].seconds))
            if (fastest := best.get(_work(choice)) or next(works, None)) is not None:
                told = known[fastest]
                factor = (told.default or told.seconds) / predicted[fastest]
                prices[choice] = Price(seconds * factor, "scaled", f"{model} × {told.name}", MOST_DOUBT)
    return prices


def decided_task(graph: Graph, node: Node, decision: Decision, target: Target, threads: int) -> KernelTask:
    """The task that a node becomes under a decision, all its operands in the layouts that it wants.

    That of the second node of a pair is the task of both.
    """
    packer = Packer(graph, target.lanes(4), values=False)
    packed = packer.pack(node, decision)
    parts = [(node, decision)]
    if decision.reads == KEPT:
        before, its = first_half(graph, node, decision, target.lanes(4))
        packed = merged(packer.pack(before, its), packed)
        parts.append((before, its))
    types = dict(graph.types)
    for part, how in parts:
        for value in part.reads:
            layout = wanted(graph, part, how, value)
            if layout != ANY:
                types[value] = types[value].with_layout(layout)
        for value in part.outputs:
            types[value] = types[value].with_layout(how.writes)
    types.update(packer.types)
    constants = {**graph.constants, **packer.constants}
    return task_of(replace(graph, types=types, constants=constants), packed, target, threads)
