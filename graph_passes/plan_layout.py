"""Algorithms and layouts for the whole network at once, as a partitioned Boolean quadratic problem.

A node is a fused operator, its alternatives are (algorithm, layout that it reads, layout that it writes) with
a cost. A value with readers is a node of its own, whose alternatives are the sets of layouts that it is kept
in, so that one conversion serves all its readers:

    producer ──(conversions into the set)── value ──(0 if the set holds what is wanted, else ∞)── reader

Anderson and Gregg, Optimal DNN primitive selection with partitioned Boolean quadratic programming (2018),
section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from numbers import Real
from typing import Protocol

import networkx as nx
import numpy as np

from ..compiler.ir.graph import Graph, Node
from ..compiler.ir.types import Layout
from ..compiler.templates.registry import ALGORITHMS
from ..errors import InfeasibleError, InputError
from .alternatives import (
    ACCURACY,
    ANY,
    Decision,
    alternatives,
    layouts_of,
    possible_layouts,
    wanted,
    words_layout,
)
from .pack_weights import packed_sizes
from .pairs import KEPT, STRIPS, convolution
from .pbqp import Problem, Solution, solve
from .pbqp_ilp import solve_ilp

SEARCH_NODES = 2000  # networks reduce without search; this bounds the time of one that does not
BOUNDS = 64  # on weights, under a memory limit
MODES = ("global", "local", "fixed")
PRECISIONS = tuple(dict.fromkeys(algorithm.precision for algorithm in ALGORITHMS.values()))
"""f32 and those that some algorithm rounds factors to."""


class Cost(Protocol):
    """Costs in one unit, whichever it is; infinite for what the target cannot do."""

    @property
    def kind(self) -> str:
        """Of the target: cpu or gpu."""

    @property
    def features(self) -> Collection[str]:
        """Of the target."""

    def node(self, graph: Graph, node: Node, decision: Decision) -> float: ...

    def conversion(self, graph: Graph, value: str, source: Layout | None, target: Layout | None) -> float: ...


@dataclass(frozen=True)
class PlanOptions:
    """What a plan is to be like.

    mode      "global": algorithms and layouts for the whole network at once; "local": each operator's fastest
              alone; "fixed": one layout where it fits
    accuracy  the largest error of an algorithm, over its largest output
    precision what factors of products may be rounded to, where tensor cores multiply them; sums stay in f32
    memory_limit  bytes that the module may take: weights as kernels read them, arena and scratch memory of
              all threads; inputs and outputs are the user's, and code is not counted
    """

    mode: str = "global"
    accuracy: float = ACCURACY
    memory_limit: int | None = None
    precision: str = "f32"

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InputError(f"plan {self.mode!r}: expected one of {', '.join(MODES)}")
        if not isinstance(self.accuracy, Real) or not self.accuracy >= 0:
            raise InputError(f"accuracy {self.accuracy!r}: expected an error from 0 on, such as 1e-5")
        if self.precision not in PRECISIONS:
            raise InputError(f"precision {self.precision!r}: expected one of {', '.join(PRECISIONS)}")
        if self.memory_limit is not None and self.mode != "global":
            raise InputError(f"a memory limit needs the global plan, found {self.mode!r}")
        if self.memory_limit is None:
            return
        if not isinstance(self.memory_limit, Real) or not self.memory_limit > 0:
            raise InputError(f"memory limit {self.memory_limit!r}: expected a number of bytes from 1 on")


DEFAULT_PLAN = PlanOptions()


@dataclass(frozen=True)
class Conversion:
    """A value from one layout to another, through `hops`, the last of which is the wanted one."""

    value: str
    source: Layout | None
    hops: tuple[Layout | None, ...]
    cost: float


@dataclass(frozen=True)
class LayoutPlan:
    """A decision for each node by position, and the conversions between them, each once."""

    decisions: Mapping[int, Decision]
    conversions: tuple[Conversion, ...]
    cost: float  # of everything
    optimal: bool = False  # proven
    searched: int = 0  # nodes of the search

    @property
    def conversion_cost(self) -> float:
        return sum(c.cost for c in self.conversions)


def plan_layout(
    graph: Graph,
    block: int,
    cost: Cost,
    options: PlanOptions = DEFAULT_PLAN,
    memory: Callable[[LayoutPlan], int] | None = None,
) -> LayoutPlan:
    """The plan of least cost that the options allow.

    `memory` says how many bytes a module of a plan takes; a memory limit needs it. InfeasibleError where no
    plan stays within the limit.
    """
    return solve_plan(Planner(graph, block, cost, options.accuracy, options.precision), options, memory)


def solve_plan(
    planner: Planner, options: PlanOptions, memory: Callable[[LayoutPlan], int] | None = None
) -> LayoutPlan:
    """As `plan_layout`, whose other arguments made the planner."""
    if options.mode == "local":
        return planner.local()
    if options.mode == "fixed":
        return planner.fixed()
    if options.memory_limit is not None:
        assert memory is not None
        return _within(planner, options.memory_limit, memory)
    solution = solve(planner.problem(), max_nodes=SEARCH_NODES)
    plan = planner.plan(planner.choice_of(solution.choice))
    if solution.optimal:
        return replace(plan, optimal=True, searched=solution.searched)
    best = min(plan, planner.local(), planner.fixed(), key=lambda p: p.cost)
    return replace(best, searched=solution.searched)


def _within(planner: Planner, limit: int, memory: Callable[[LayoutPlan], int]) -> LayoutPlan:
    """The cheapest of the plans of ever fewer weights that stays within the limit.

    What kernels need besides weights is known once they are built, hence these plans: each is of least cost
    under a bound on its weights, one without memory of algorithms. They do not depend on the limit, so more
    memory never costs more. Only where the limit does not bind is the plan proven to be the cheapest.
    """
    problem, weights = planner.problem(), planner.weights()
    plans: list[tuple[int, LayoutPlan]] = []  # (bytes that it takes at least, plan)

    def first_fitting(solutions: Iterator[Solution]) -> LayoutPlan | None:
        for solution in solutions:
            choice = planner.choice_of(solution.choice)
            optimal = solution.optimal and not plans
            plan = replace(planner.plan(choice), optimal=optimal, searched=solution.searched)
            plans.append((planner.least_weights(choice), plan))
            if plans[-1][0] <= limit and memory(plan) <= limit:
                return plan
        return None

    found = first_fitting(_ever_smaller(problem, weights))
    if found is not None and len(plans) == 1:
        return found
    other = first_fitting(_without_algorithms(planner, problem, weights))
    if fitting := [plan for plan in (found, other) if plan is not None]:
        return min(fitting, key=lambda plan: plan.cost)
    smallest = memory(plans[-1][1])
    for least, plan in sorted(plans[:-1], key=lambda p: p[0]):
        if least < smallest:
            smallest = min(smallest, memory(plan))
    raise InfeasibleError(
        f"no plan stays within the memory limit of {limit} bytes; the smallest one found takes {smallest}"
    )


def _ever_smaller(problem: Problem, weights: Mapping[str, np.ndarray]) -> Iterator[Solution]:
    """Of least cost without a bound, then under bounds on the weights that fall to the least possible."""
    solution = solve_ilp(problem, weights, np.inf, max_nodes=SEARCH_NODES)
    most = used = _used(weights, solution)
    least = sum(float(values.min()) for values in weights.values())
    yield solution
    for step in range(BOUNDS - 1, -1, -1):
        bound = least + (most - least) * step / BOUNDS
        if bound >= used:
            continue
        try:
            solution = solve_ilp(problem, weights, bound, max_nodes=SEARCH_NODES)
        except InfeasibleError:
            return
        used = _used(weights, solution)
        yield solution


def _without_algorithms(
    planner: Planner, problem: Problem, weights: Mapping[str, np.ndarray]
) -> Iterator[Solution]:
    """Of the least weights, where kernels need no memory of their own, whatever they cost."""
    costs, named = dict(problem.nodes), {*ALGORITHMS, STRIPS}
    for n, decisions in planner.decisions.items():
        algorithm = np.array([d.algorithm in named for d in decisions])
        if not algorithm.all():
            costs[node_key(n)] = np.where(algorithm, np.inf, costs[node_key(n)])
    least = sum(float(values[np.isfinite(costs[name])].min()) for name, values in weights.items())
    try:
        yield solve_ilp(Problem(costs, problem.edges), weights, least, max_nodes=SEARCH_NODES)
    except InfeasibleError:
        return


def _used(weights: Mapping[str, np.ndarray], solution: Solution) -> float:
    return sum(float(values[solution.choice[name]]) for name, values in weights.items())


def node_key(n: int) -> str:
    """The name of an operator, by position, in the problem."""
    return f"n{n}"


def _value_key(value: str) -> str:
    return f"v{value}"


class Planner:
    """One planning problem: `decisions` are what each node may do, by position, at these `costs`; a choice is
    the position of one of them for each node."""

    def __init__(self, graph: Graph, block: int, cost: Cost, accuracy: float, precision: str = "f32"):
        allowed = accuracy, cost.kind, precision, cost.features
        every = (alternatives(graph, node, block, *allowed) for node in graph.nodes)
        self._price(graph, block, cost, list(every))

    def by(self, cost: Cost) -> Planner:
        """The planner of the same problem by other costs."""
        other = copy(self)
        other._price(self.graph, self.block, cost, self._alternatives)
        return other

    def _price(self, graph: Graph, block: int, cost: Cost, every: list[list[Decision]]) -> None:
        self.graph, self.block, self.cost, self._alternatives = graph, block, cost, every
        self.decisions: dict[int, list[Decision]] = {}
        self.costs: dict[int, np.ndarray] = {}
        for n, (node, decisions) in enumerate(zip(graph.nodes, every)):
            priced = [(d, cost.node(graph, node, d)) for d in decisions]
            possible = [p for p in priced if np.isfinite(p[1])] or priced
            self.decisions[n] = [d for d, _ in possible]
            self.costs[n] = np.array([seconds for _, seconds in possible])
        self._packed: dict[int, list[dict[str, int]]] = {}
        self._routes: dict[str, dict[tuple[Layout | None, Layout | None], Conversion]] = {}

    def weights(self) -> dict[str, np.ndarray]:
        """Bytes of each node's weights by alternative."""
        return {
            node_key(n): np.array([sum(s.values()) for s in self._sizes(n)], float) for n in self.decisions
        }

    def choice_of(self, solution: Mapping[str, int]) -> dict[int, int]:
        """What a solution of the problem chooses for each node."""
        return {n: solution[node_key(n)] for n in self.decisions}

    def least_weights(self, choice: Mapping[int, int]) -> int:
        """Bytes that a choice's weights take at least: nodes may share them."""
        least: dict[str, int] = {}
        for n, i in choice.items():
            for value, nbytes in self._sizes(n)[i].items():
                least[value] = min(nbytes, least.get(value, nbytes))
        return sum(least.values())

    def _sizes(self, n: int) -> list[dict[str, int]]:
        if n not in self._packed:
            node = self.graph.nodes[n]
            self._packed[n] = [packed_sizes(self.graph, node, d, self.block) for d in self.decisions[n]]
        return self._packed[n]

    def local(self) -> LayoutPlan:
        choice = {n: int(self._alone(n).argmin()) for n in self.decisions}
        for first, second in self.pairs():
            apart = self._alone(first).min() + self._alone(second).min()
            together = [
                (self.costs[first][i] + self.costs[second][j], i, j)
                for i, a in enumerate(self.decisions[first])
                for j, b in enumerate(self.decisions[second])
                if a.writes == KEPT and b.reads == KEPT
            ]
            cost, i, j = min(together, default=(np.inf, 0, 0))
            if cost < apart:
                choice.update({first: i, second: j})
        return self.plan(choice)

    def fixed(self) -> LayoutPlan:
        return self.plan({n: _most_blocked(ds, self._alone(n)) for n, ds in self.decisions.items()})

    def _alone(self, n: int) -> np.ndarray:
        """The node's costs, infinite where an alternative is half of a pair."""
        half = [KEPT in (d.reads, d.writes) for d in self.decisions[n]]
        return np.where(half, np.inf, self.costs[n])

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Neighbours that may be one kernel."""
        producer = {o: n for n, node in enumerate(self.graph.nodes) for o in node.outputs}
        for n, node in enumerate(self.graph.nodes):
            if any(d.reads == KEPT for d in self.decisions[n]):
                conv = convolution(node)
                assert conv is not None
                yield producer[conv.inputs[0] or ""], n

    def plan(self, choice: Mapping[int, int]) -> LayoutPlan:
        decisions = {n: self.decisions[n][i] for n, i in choice.items()}
        alone = sum(float(self.costs[n][i]) for n, i in choice.items())
        needed = tuple(self.route(*c) for c in conversions(self.graph, decisions))
        return LayoutPlan(decisions, needed, alone + sum(c.cost for c in needed))

    def route(self, value: str, source: Layout | None, target: Layout | None) -> Conversion:
        """The cheapest way between two layouts, perhaps through a third; none to or from KEPT."""
        if KEPT in (source, target):
            return Conversion(value, source, (target,), np.inf)
        if value not in self._routes:
            self._routes[value] = self._all_routes(value)
        return self._routes[value][source, target]

    def _all_routes(self, value: str) -> dict[tuple[Layout | None, Layout | None], Conversion]:
        block = self.block
        words = words_layout(self.graph.types[value], block)
        layouts: tuple[Layout | None, ...] = (None, *layouts_of(self.graph.types[value].rank, block))
        layouts += (words,) * (words is not None)
        ways = nx.DiGraph()
        for a in layouts:
            for b in layouts:
                if a != b:
                    ways.add_edge(
                        str(a), str(b), weight=self.cost.conversion(self.graph, value, a, b), target=b
                    )
        found = {}
        for a in layouts:
            lengths, paths = nx.single_source_dijkstra(ways, str(a))
            for b in layouts:
                path = paths[str(b)]
                hops = tuple(ways.edges[edge]["target"] for edge in pairwise(path))
                found[a, b] = Conversion(value, a, hops, float(lengths[str(b)]))
        return found

    def problem(self) -> Problem:
        """Nodes n0, n1, …: what each operator may do. Nodes vNAME: the sets of layouts that a value is kept
        in, for values that have a choice."""
        graph = self.graph
        nodes: dict[str, np.ndarray] = {node_key(n): vector for n, vector in self.costs.items()}
        edges: dict[tuple[str, str], np.ndarray] = {}
        producer = {o: n for n, node in enumerate(graph.nodes) for o in node.outputs}
        readers: dict[str, list[int]] = {}
        for n, node in enumerate(graph.nodes):
            for value in dict.fromkeys(node.reads):
                readers.setdefault(value, []).append(n)
        for value in (*graph.inputs, *producer):
            self._add_value(nodes, edges, value, producer.get(value), readers.get(value, ()))
        return Problem(nodes, edges)

    def _add_value(
        self,
        nodes: dict[str, np.ndarray],
        edges: dict[tuple[str, str], np.ndarray],
        value: str,
        by: int | None,
        readers: Sequence[int],
    ) -> None:
        """A value that node `by` makes, or that is an input: conversions from what is written into each set,
        and infinity where a set lacks what a reader wants."""
        graph = self.graph
        maker = None if by is None else graph.nodes[by]
        written = [None] if by is None else [d.writes for d in self.decisions[by]]
        wants = {n: [wanted(graph, graph.nodes[n], d, value) for d in self.decisions[n]] for n in readers}
        asked = {w for ws in wants.values() for w in ws}
        plain_only = len(possible_layouts(graph, value, maker, self.block)) == 1
        if plain_only and {*written, *asked} <= {None, ANY}:
            return
        needs_plain = value in graph.outputs
        kept = _sets({*written, *(asked - {ANY}), *[None] * needs_plain})
        into = np.array(
            [[sum(self.route(value, w, k).cost for k in keep if k != w) for keep in kept] for w in written]
        )
        own = np.array([np.inf if needs_plain and None not in keep else 0.0 for keep in kept])
        key = _value_key(value)
        if by is None:
            own = own + into[0]
        else:
            edges[node_key(by), key] = into
        nodes[key] = own
        for n, ws in wants.items():
            edges[key, node_key(n)] = np.array(
                [[0.0 if w == ANY or w in keep else np.inf for w in ws] for keep in kept]
            )


def _sets(layouts: set[Layout | None]) -> list[tuple[Layout | None, ...]]:
    """All that are not empty, in a fixed order; KEPT is on its own."""
    order = sorted(layouts - {KEPT}, key=str)
    sets = [chosen for size in range(1, len(order) + 1) for chosen in combinations(order, size)]
    return sets + [(KEPT,)] * (KEPT in layouts)


def _most_blocked(options: Sequence[Decision], costs: np.ndarray) -> int:
    """The cheapest of those that read and write blocks, as far as there are any."""
    return min(
        range(len(options)),
        key=lambda i: (
            not np.isfinite(costs[i]),
            not _blocks(options[i].writes),
            not _blocks(options[i].reads),
            costs[i],
        ),
    )


def _blocks(layout: Layout | None) -> bool:
    return layout is not None and bool(layout.blocks)


def conversions(
    graph: Graph, decisions: Mapping[int, Decision]
) -> list[tuple[str, Layout | None, Layout | None]]:
    """(value, from, to) of every conversion that the decisions need, each once."""
    written: dict[str, Layout | None] = dict.fromkeys(graph.inputs)
    found: dict[tuple[str, Layout | None], Layout | None] = {}
    for n, node in enumerate(graph.nodes):
        for value in dict.fromkeys(node.reads):
            wants = wanted(graph, node, decisions[n], value)
            if value in written and wants != ANY and wants != written[value]:
                found[value, wants] = written[value]
        written.update(dict.fromkeys(node.outputs, decisions[n].writes))
    for value in graph.outputs:
        if written.get(value) is not None:
            found[value, None] = written[value]
    return [(value, source, target) for (value, target), source in found.items()]
