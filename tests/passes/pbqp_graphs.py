"""Random and network-like PBQPs for the tests of the solver."""

from __future__ import annotations

import networkx
import numpy as np
from burnish.graph_passes.pbqp import Problem

Edges = dict[tuple[str, str], np.ndarray]


def small(seed: int) -> Problem:
    """One of five families, by the seed: tree, series-parallel, dense, with inf, shared conversions."""
    rng = np.random.default_rng(seed)
    family = ("tree", "series-parallel", "dense", "inf", "shared")[seed % 5]
    if family == "shared":
        return shared_layouts(rng, int(rng.integers(2, 5)), most=4)
    count = int(rng.integers(1, 8))
    pairs = {
        "tree": lambda: [(int(rng.integers(0, v)), v) for v in range(1, count)],
        "series-parallel": lambda: series_parallel(rng, count),
        "dense": lambda: [(u, v) for u in range(count) for v in range(u) if rng.random() < 0.8],
        "inf": lambda: [(u, v) for u in range(count) for v in range(u) if rng.random() < 0.6],
    }[family]()
    sizes = rng.integers(1, 5, size=count)
    forbidden = 0.3 if family == "inf" else 0.0
    nodes = {f"n{u}": costs(rng, (sizes[u],), forbidden / 3) for u in range(count)}
    return Problem(nodes, {(f"n{u}", f"n{v}"): costs(rng, (sizes[u], sizes[v]), forbidden) for u, v in pairs})


def costs(rng: np.random.Generator, shape: tuple[int, ...], forbidden: float = 0.0) -> np.ndarray:
    """Small integers (ties), or times over several orders of magnitude, some of them impossible."""
    if rng.random() < 0.5:
        values = rng.integers(-3, 6, size=shape).astype(np.float64)
    else:
        values = 10.0 ** rng.uniform(-6, 0, size=shape)
    return np.where(rng.random(shape) < forbidden, np.inf, values)


def series_parallel(rng: np.random.Generator, count: int) -> list[tuple[int, int]]:
    """Grown from one edge by splitting an edge, or by a second way beside it."""
    pairs = [(0, 1)] if count > 1 else []
    for new in range(2, count):
        u, v = pairs[int(rng.integers(len(pairs)))]
        if rng.random() < 0.5:
            pairs.remove((u, v))
        pairs += [(u, new), (new, v)]
    return pairs


def layout_costs(rng: np.random.Generator, layouts: int) -> np.ndarray:
    matrix = rng.uniform(0.1, 2.0, size=(layouts, layouts))
    np.fill_diagonal(matrix, 0.0)
    return matrix


def shared_layouts(rng: np.random.Generator, consumers: int, most: int) -> Problem:
    """A producer's value with several consumers, each way of converting it a choice of one value node.

    The value node's alternatives are the sets of layouts in which the value is kept.
    """
    layouts = int(rng.integers(2, 4))
    convert = layout_costs(rng, layouts)
    kept = [subset for subset in range(1, 1 << layouts)]
    writes = rng.integers(0, layouts, size=int(rng.integers(2, most + 1)))
    produce = np.array(
        [[sum(convert[w, t] for t in range(layouts) if s >> t & 1) for s in kept] for w in writes]
    )
    nodes = {"producer": rng.uniform(0, 3, size=len(writes)), "value": np.zeros(len(kept))}
    edges: Edges = {("producer", "value"): produce}
    for c in range(consumers):
        reads = rng.integers(0, layouts, size=int(rng.integers(1, most + 1)))
        nodes[f"consumer{c}"] = rng.uniform(0, 3, size=len(reads))
        edges["value", f"consumer{c}"] = np.array(
            [[0.0 if s >> r & 1 else np.inf for r in reads] for s in kept]
        )
        if c and rng.random() < 0.5:  # a join of two consumers
            shape = (len(nodes[f"consumer{c - 1}"]), len(reads))
            edges[f"consumer{c - 1}", f"consumer{c}"] = costs(rng, shape)
    return Problem(nodes, edges)


class Network:
    """Operators with random times and random (read, write) layouts, joined by conversion costs."""

    def __init__(self, seed: int, alternatives: int = 8, layouts: int = 4):
        self.rng = np.random.default_rng(seed)
        self.alternatives, self.layouts = alternatives, layouts
        self.nodes: dict[str, np.ndarray] = {}
        self.edges: Edges = {}
        self.reads: dict[str, np.ndarray] = {}
        self.writes: dict[str, np.ndarray] = {}

    def add(self, *sources: str, layout_only: bool = False) -> str:
        name = f"op{len(self.nodes)}"
        if layout_only:
            self.nodes[name] = np.zeros(self.layouts)
            self.reads[name] = self.writes[name] = np.arange(self.layouts)
        else:
            self.nodes[name] = self.rng.lognormal(sigma=0.7, size=self.alternatives) * 1e-3
            self.reads[name], self.writes[name] = self.rng.integers(0, self.layouts, (2, self.alternatives))
        for source in sources:
            convert = layout_costs(self.rng, self.layouts) * self.rng.lognormal() * 1e-3
            self.edges[source, name] = convert[self.writes[source]][:, self.reads[name]]
        return name

    @property
    def problem(self) -> Problem:
        return Problem(self.nodes, self.edges)


def residual_chain(count: int, seed: int) -> Problem:
    """Blocks of two operators and a join, some with a projection, as in ResNet."""
    net = Network(seed)
    last = net.add()
    while len(net.nodes) < count:
        shortcut = net.add(last) if net.rng.random() < 0.3 else last
        last = net.add(net.add(net.add(last)), shortcut)
    return net.problem


def inception(count: int, seed: int) -> Problem:
    """Modules of four branches, one or two operators each, from a shared value into a concat."""
    net = Network(seed)
    last = net.add()
    while len(net.nodes) < count:
        value = net.add(last, layout_only=True)
        last = net.add(net.add(value), net.add(net.add(value)), net.add(net.add(value)), net.add(value))
    return net.problem


def dense_net(count: int, seed: int) -> Problem:
    """Blocks in which each concat takes all of the concat before it; every concat's layout is shared."""
    net = Network(seed)
    last = net.add()
    while len(net.nodes) < count:
        value = net.add(last, layout_only=True)
        last = net.add(value, net.add(net.add(value)))
    return net.problem


def flat_dense_net(blocks: int, layers: int, seed: int) -> Problem:
    """Blocks in which each layer reads every earlier layer's value: the cores have no small separators."""
    net = Network(seed)
    last = net.add()
    for _ in range(blocks):
        values = [net.add(last, layout_only=True)]
        for _ in range(layers):
            values.append(net.add(net.add(*values), layout_only=True))
        last = net.add(*values)
    return net.problem


def random_regular(count: int, degree: int, alternatives: int, seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    graph = networkx.random_regular_graph(degree, count, seed=seed)
    nodes = {f"n{u}": rng.uniform(0, 1, size=alternatives) for u in range(count)}
    pairs = sorted(tuple(sorted(pair)) for pair in graph.edges)
    shape = (alternatives, alternatives)
    return Problem(nodes, {(f"n{u}", f"n{v}"): rng.uniform(0, 1, size=shape) for u, v in pairs})
