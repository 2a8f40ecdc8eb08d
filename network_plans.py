"""The plans of one network by what is recorded of its kernels, for a tuner that asks again and again."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from .compiler.ir.graph import Graph
from .compiler.kernel_task import KernelTask
from .compiler.target import Target
from .graph_passes.alternatives import Decision
from .graph_passes.assign_layouts import apply_plan, memory_of_plans
from .graph_passes.footprint import evicting_bytes
from .graph_passes.make_tasks import kernel_tasks
from .graph_passes.plan_layout import LayoutPlan, Planner, PlanOptions, plan_by
from .graph_passes.predict_gpu import predicted_cost
from .graph_passes.rivals import rivals
from .graph_passes.setup import split_setup
from .graph_passes.task_cost import PlanChoices, TaskCost, plan_choices
from .op_tuner.costs import MeasuredCosts, conversion_task
from .op_tuner.hardware import Hardware
from .op_tuner.records import RecordedConfig, Records
from .op_tuner.space import Point
from .op_tuner.tuned_task import Wanted
from .op_tuner.whole_plans import PlanPair, plan_pair


@dataclass(frozen=True)
class Change:
    """A node of the network that does something else than without measuring."""

    node: str
    before: str
    after: str


class _Kernels:
    """What a plan runs; the plan is carried out when that is asked for."""

    def __init__(self, carry_out: Callable[[], Sequence[KernelTask]]):
        self._carry_out = carry_out

    @cached_property
    def _all(self) -> Sequence[KernelTask]:
        return self._carry_out()

    @cached_property
    def tasks(self) -> dict[str, KernelTask]:
        """By digest."""
        return {task.digest: task for task in self._all}

    @cached_property
    def calls(self) -> Counter[str]:
        return Counter(task.digest for task in self._all)


@dataclass(frozen=True)
class _Plan:
    plan: LayoutPlan
    kernels: _Kernels


class NetworkPlans:
    """Plans of a fused graph: the one that is made without measuring, and the best by the records of now.

    choices   all that there is to choose from, where the caller knows them already
    hardware  whose records count (default: `Records.hardware_for` the target)
    """

    def __init__(
        self,
        graph: Graph,
        target: Target,
        threads: int,
        options: PlanOptions,
        records: Records,
        choices: PlanChoices | None = None,
        hardware: Hardware | None = None,
    ):
        self.graph, self.target, self.threads, self.options = graph, target, threads, options
        self.evict = evicting_bytes(graph, target)
        predicted = predicted_cost(target, threads)
        copy = partial(conversion_task, target=target, threads=threads)
        self._costs = MeasuredCosts(
            records, target, threads, measure=False, evict=self.evict, hardware=hardware
        )
        self._choices = choices or plan_choices(graph, predicted, options, copy)
        self._memory = memory_of_plans(graph, target, threads)
        self._known: dict[Hashable, _Kernels] = {}
        self.carrying = 0.0  # seconds that carrying out a plan took lately
        self.deciding = False  # whether what was refused with other configs is given up, as in a compilation
        self._planner = Planner(graph, target.lanes(4), predicted, options.accuracy, options.precision)
        self._first = self._now = self._plan(self._planner)

    def wanted(self) -> list[Wanted]:
        """The tasks of the best plan, of the first one, and those that are close to a place in the best.

        Where the best by times of kernels is known to be no faster in the network, the first is the best."""
        cost, planner, best = self._solve()
        if self._costs.compared and self._loses(self.pair()):
            self._now = self._first
        first, now = self._first.kernels, self._now.kernels
        found = {**first.tasks, **now.tasks}
        targets: dict[str, list[float]] = {}
        expected: dict[str, float] = {}
        for rival in rivals(planner, cost, self.options, best.plan):
            node = self.graph.nodes[rival.node]
            task = self._choices.tasks.get((node.outputs, rival.decision))
            if task is not None:
                found.setdefault(task.digest, task)
                targets.setdefault(task.digest, []).append(rival.target)
                expected[task.digest] = cost.price(self.graph, node, rival.decision).seconds
        for plan in (self._now.plan, self._first.plan):
            for n, decision in plan.decisions.items():
                node = self.graph.nodes[n]
                if task := self._choices.tasks.get((node.outputs, decision)):
                    expected.setdefault(task.digest, cost.price(self.graph, node, decision).seconds)
        return [
            Wanted(
                *(task, now.calls[digest], first.calls[digest]),
                *(tuple(targets.get(digest, ())), expected.get(digest, math.inf)),
            )
            for digest, task in found.items()
            if task.asks
        ]

    def _loses(self, pair: PlanPair) -> bool:
        return pair.given_up if self.deciding else pair.refused

    def solve(self) -> None:
        """Makes the best plan by times of kernels, whatever the network says of it."""
        self._solve()

    def _solve(self) -> tuple[TaskCost, Planner, _Plan]:
        cost = self._choices.price(self._costs)
        planner = self._planner.by(cost)
        self._now = self._plan(planner)
        return cost, planner, self._now

    def changes(self) -> tuple[Change, ...]:
        """What nodes do in the best plan, as of `wanted`, and not in the first one."""
        first, now = self._first.plan.decisions, self._now.plan.decisions
        nodes = self.graph.nodes
        return tuple(
            Change(nodes[n].name or nodes[n].outputs[0], _text(first[n]), _text(now[n]))
            for n in sorted(now)
            if first[n] != now[n]
        )

    @property
    def differs(self) -> bool:
        """Whether the best plan, as of `wanted`, runs other tasks than the first one."""
        first, now = self._first.kernels, self._now.kernels
        return now is not first and now.calls != first.calls

    def pair(self) -> PlanPair:
        """The first plan, and the best one, as of `wanted`, with the configs that records say now."""
        first, now = (self._choices.run_by(self.graph, plan.plan) for plan in (self._first, self._now))
        return plan_pair(first, now, self._costs.records, self._costs.hardware, self.evict)

    @property
    def tasks(self) -> Mapping[str, KernelTask]:
        """What the best plan, as of `wanted`, runs, by digest."""
        return self._now.kernels.tasks

    def recorded(self, first: bool = False) -> dict[str, Point]:
        """The configs of `tasks`, or of what the first plan runs, where records say one, by digest."""
        tasks = self._first.kernels.tasks if first else self.tasks
        picked = {d: self._costs.records.pick_config(task, self.evict) for d, task in tasks.items()}
        return {d: tuple(c.answers.items()) for d, c in picked.items() if isinstance(c, RecordedConfig)}

    @property
    def seconds(self) -> float:
        """What the best plan costs."""
        return self._now.plan.cost

    @property
    def calls(self) -> Mapping[str, int]:
        """Of each task, by digest, in a run by the best plan, as of `wanted`."""
        return self._now.kernels.calls

    def graph_of_now(self) -> Graph:
        """The best plan, as of `wanted`, carried out: with packed weights, which take memory."""
        return self._carried_out(self._now.plan)

    def first_graph(self) -> Graph:
        """The plan that is made without measuring, carried out."""
        return self._carried_out(self._first.plan)

    def _carried_out(self, plan: LayoutPlan) -> Graph:
        start = time.monotonic()
        graph = split_setup(apply_plan(self.graph, self.target, plan), "packed")[0]
        self.carrying = time.monotonic() - start
        return graph

    def _plan(self, planner: Planner) -> _Plan:
        plan = plan_by(planner, self.options, self._memory)
        routes = frozenset((c.value, c.source, c.hops) for c in plan.conversions)
        key = (frozenset(plan.decisions.items()), routes)
        if key not in self._known:
            self._known[key] = _Kernels(partial(self._tasks, plan))
        return _Plan(plan, self._known[key])

    def _tasks(self, plan: LayoutPlan) -> Sequence[KernelTask]:
        graph = self._carried_out(plan)
        return list(kernel_tasks(graph, self.target, self.threads).values())


def _text(decision: Decision) -> str:
    layouts = f"{decision.reads or 'plain'} → {decision.writes or 'plain'}"
    return f"{decision.algorithm}, {layouts}"
