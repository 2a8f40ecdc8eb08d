"""Places for the boxes of a directed graph, in layers from top to bottom, and ways for its lines.

Sugiyama, Tagawa and Toda, Methods for visual understanding of hierarchical system structures (1981): layers
by longest path, places for long lines in between, order by barycentres, then coordinates. Lines that leave
one box share their way for as long as they can.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import networkx as nx

BOX_WIDTH, BOX_HEIGHT = 250.0, 46.0
LINE_WIDTH = 14.0  # room for a line between boxes
GAP, PITCH = 26.0, 74.0
SWEEPS = 12
STRAIGHT = 20.0  # how much more long lines want to be straight than short ones

Cell = tuple[Hashable, int | None]  # a box, or (the box that a line leaves, the layer that it passes)


@dataclass(frozen=True)
class Drawing:
    """Upper left corners of boxes, and for each edge the points that its line passes, from box to box."""

    places: Mapping[Hashable, tuple[float, float]]
    lines: Mapping[tuple[Hashable, Hashable], Sequence[tuple[float, float]]]
    width: float
    height: float


def draw(graph: nx.DiGraph) -> Drawing:
    """Of an acyclic graph."""
    if not graph:
        return Drawing({}, {}, BOX_WIDTH, BOX_HEIGHT)
    layer = _layers(graph)
    ways = {(u, v): _way(u, v, layer) for u, v in graph.edges}
    cells = nx.DiGraph()
    cells.add_nodes_from((u, None) for u in graph)
    for way in ways.values():
        nx.add_path(cells, way)
    level = {cell: layer[cell[0]] if cell[1] is None else cell[1] for cell in cells}
    rows: list[list[Cell]] = [[] for _ in range(max(level.values()) + 1)]
    for cell in nx.dfs_preorder_nodes(_rooted(cells)):
        if cell in level:
            rows[level[cell]].append(cell)
    _order(rows, cells)
    centre = _coordinates(rows, cells)
    left = min(x - _width(cell) / 2 for cell, x in centre.items())
    right = max(x + _width(cell) / 2 for cell, x in centre.items())

    def point(cell: Cell, at: float) -> tuple[float, float]:
        return centre[cell] - left, level[cell] * PITCH + at

    places = {u: (point((u, None), 0)[0] - BOX_WIDTH / 2, layer[u] * PITCH) for u in graph}
    lines = {}
    for (u, v), way in ways.items():
        between = [point(cell, at) for cell in way[1:-1] for at in (0, BOX_HEIGHT)]
        lines[u, v] = [point((u, None), BOX_HEIGHT), *between, point((v, None), 0)]
    return Drawing(places, lines, right - left, (len(rows) - 1) * PITCH + BOX_HEIGHT)


def _layers(graph: nx.DiGraph) -> dict[Hashable, int]:
    """The longest path to each box; a box that reads nothing stands right above its first reader."""
    layer: dict[Hashable, int] = {}
    for u in nx.topological_sort(graph):
        layer[u] = max((layer[v] + 1 for v in graph.predecessors(u)), default=0)
    for u in graph:
        if not graph.in_degree(u) and graph.out_degree(u):
            layer[u] = min(layer[v] for v in graph.successors(u)) - 1
    lowest = min(layer.values())
    return {u: found - lowest for u, found in layer.items()}


def _way(u: Hashable, v: Hashable, layer: Mapping[Hashable, int]) -> list[Cell]:
    return [(u, None), *((u, k) for k in range(layer[u] + 1, layer[v])), (v, None)]


def _rooted(cells: nx.DiGraph) -> nx.DiGraph:
    """With one root above all that have none; its search visits neighbours in the order of the graph."""
    rooted = nx.DiGraph()
    rooted.add_edges_from(("root", cell) for cell in cells if not cells.in_degree(cell))
    rooted.add_edges_from(cells.edges)
    return rooted


def _order(rows: list[list[Cell]], cells: nx.DiGraph) -> None:
    """Sorts each row by the mean position of what its cells are joined to, down and up by turns."""
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for row, beside in _turns(rows, down):
            position = {cell: i for i, cell in enumerate(beside)}
            mean = {}
            for i, cell in enumerate(row):
                near = [position[n] for n in (cells.pred if down else cells.succ)[cell]]
                mean[cell] = sum(near) / len(near) / len(beside) if near else (i + 0.5) / len(row)
            row.sort(key=mean.__getitem__)


def _turns(rows: list[list[Cell]], down: bool) -> list[tuple[list[Cell], list[Cell]]]:
    pairs = list(zip(rows[1:], rows)) if down else list(pairwise(rows))
    return pairs if down else pairs[::-1]


def _coordinates(rows: list[list[Cell]], cells: nx.DiGraph) -> dict[Cell, float]:
    """Centres: each cell near what it is joined to, none over another, the order kept."""
    centre: dict[Cell, float] = {}
    for row in rows:
        centre.update(zip(row, _apart(row, [0.0] * len(row), [1.0] * len(row))))
    for sweep in range(12 * SWEEPS):
        for row, _ in _turns(rows, sweep % 2 == 0):
            wishes, weights = [], []
            for cell in row:
                near = [(centre[n], _pull(cell, n)) for n in (*cells.pred[cell], *cells.succ[cell])]
                weight = sum(w for _, w in near) or 1.0
                wishes.append(sum(x * w for x, w in near) / weight if near else centre[cell])
                weights.append(weight)
            centre.update(zip(row, _apart(row, wishes, weights)))
    return centre


def _pull(a: Cell, b: Cell) -> float:
    return STRAIGHT if a[1] is not None and b[1] is not None else 1.0


def _width(cell: Cell) -> float:
    return BOX_WIDTH if cell[1] is None else LINE_WIDTH


def _apart(row: Sequence[Cell], wishes: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The places nearest to the wishes, by weighted squares, at which neighbours keep their distance
    (isotonic regression by pooling adjacent violators)."""
    offsets = [0.0]
    for a, b in pairwise(row):
        offsets.append(offsets[-1] + (_width(a) + _width(b)) / 2 + GAP)
    pools: list[tuple[float, float, int]] = []  # mean, weight, members
    for wish, weight, offset in zip(wishes, weights, offsets):
        pools.append((wish - offset, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (x, v, m), (y, w, n) = pools[-2:]
            pools[-2:] = [((x * v + y * w) / (v + w), v + w, m + n)]
    means = [mean for mean, _, members in pools for _ in range(members)]
    return [mean + offset for mean, offset in zip(means, offsets)]
