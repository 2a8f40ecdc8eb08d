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
from .graph_passes.plan_layout import LayoutPlan, Planner, PlanOptions, solve_plan
from .graph_passes.predict_gpu import predicted_cost
from .graph_passes.rivals import rivals
from .graph_passes.split_setup import split_setup
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
    """Two plans of a fused graph. Predicted: by the analytic model alone, as `compile` makes it without
    records. Current: the cheapest by the records of now, as of the latest `wanted` or `plan_again`; the
    predicted one where the network has shown that it is no slower.

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
        self.carry_out_seconds = 0.0  # what carrying out a plan took lately
        self.final = False  # whether what was refused with other configs is given up, as in a compilation
        self._planner = Planner(graph, target.lanes(4), predicted, options.accuracy, options.precision)
        self._predicted = self._current = self._plan(self._planner)

    def wanted(self) -> list[Wanted]:
        """The tasks of both plans, and those that are close to a place in the current one."""
        cost, planner, best = self._solve()
        if self._costs.compared and self._loses(self.pair()):
            self._current = self._predicted
        predicted, current = self._predicted.kernels, self._current.kernels
        found = {**predicted.tasks, **current.tasks}
        targets: dict[str, list[float]] = {}
        expected: dict[str, float] = {}
        for rival in rivals(planner, cost, self.options, best.plan):
            node = self.graph.nodes[rival.node]
            task = self._choices.tasks.get((node.outputs, rival.decision))
            if task is not None:
                found.setdefault(task.digest, task)
                targets.setdefault(task.digest, []).append(rival.target)
                expected[task.digest] = cost.price(self.graph, node, rival.decision).seconds
        for plan in (self._current.plan, self._predicted.plan):
            for n, decision in plan.decisions.items():
                node = self.graph.nodes[n]
                if task := self._choices.tasks.get((node.outputs, decision)):
                    expected.setdefault(task.digest, cost.price(self.graph, node, decision).seconds)
        return [
            Wanted(
                task,
                count=current.calls[digest],
                predicted_count=predicted.calls[digest],
                targets=tuple(targets.get(digest, ())),
                expected=expected.get(digest, math.inf),
            )
            for digest, task in found.items()
            if task.asks
        ]

    def _loses(self, pair: PlanPair) -> bool:
        return pair.given_up if self.final else pair.refused

    def plan_again(self) -> None:
        """The current plan is the cheapest by times of kernels, whatever the network says of it."""
        self._solve()

    def _solve(self) -> tuple[TaskCost, Planner, _Plan]:
        cost = self._choices.cost(self._costs)
        planner = self._planner.by(cost)
        self._current = self._plan(planner)
        return cost, planner, self._current

    def changes(self) -> tuple[Change, ...]:
        """What nodes do in the current plan, and not in the predicted one."""
        predicted, current = self._predicted.plan.decisions, self._current.plan.decisions
        nodes = self.graph.nodes
        return tuple(
            Change(nodes[n].name or nodes[n].outputs[0], _text(predicted[n]), _text(current[n]))
            for n in sorted(current)
            if predicted[n] != current[n]
        )

    @property
    def differs(self) -> bool:
        """Whether the two run other tasks."""
        predicted, current = self._predicted.kernels, self._current.kernels
        return current is not predicted and current.calls != predicted.calls

    def pair(self) -> PlanPair:
        """The predicted plan and the current one, with the configs that records say now."""
        plans = self._predicted.plan, self._current.plan
        predicted, current = (self._choices.run_by(self.graph, plan) for plan in plans)
        return plan_pair(predicted, current, self._costs.records, self._costs.hardware, self.evict)

    @property
    def tasks(self) -> Mapping[str, KernelTask]:
        """What the current plan runs, by digest."""
        return self._current.kernels.tasks

    def recorded(self, predicted: bool = False) -> dict[str, Point]:
        """The configs of `tasks`, or of what the predicted plan runs, where records say one, by digest."""
        tasks = self._predicted.kernels.tasks if predicted else self.tasks
        picked = {d: self._costs.records.pick_config(task, self.evict) for d, task in tasks.items()}
        return {d: tuple(c.answers.items()) for d, c in picked.items() if isinstance(c, RecordedConfig)}

    @property
    def seconds(self) -> float:
        """What the current plan costs."""
        return self._current.plan.cost

    @property
    def calls(self) -> Mapping[str, int]:
        """Of each task, by digest, in a run by the current plan."""
        return self._current.kernels.calls

    def graph_of(self, predicted: bool) -> Graph:
        """The predicted plan, or the current one, carried out: with packed weights, which take memory."""
        return self._carried_out((self._predicted if predicted else self._current).plan)

    def _carried_out(self, plan: LayoutPlan) -> Graph:
        start = time.monotonic()
        graph = split_setup(apply_plan(self.graph, self.target, plan), "packed")[0]
        self.carry_out_seconds = time.monotonic() - start
        return graph

    def _plan(self, planner: Planner) -> _Plan:
        plan = solve_plan(planner, self.options, self._memory)
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
