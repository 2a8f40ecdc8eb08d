"""Numbers of many sketches side by side, and where each belongs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from .sketch import BUFFERS, KINDS, Key, Number, Sketch


class Columns:
    """Which number stands where: values are (keys + 1, n), with NaN for what a program does not have.

    The last row is NaN throughout, so that -1 is the column of what no program has.
    """

    def __init__(self, keys: Iterable[Key]):
        self.index = {key: n for n, key in enumerate(dict.fromkeys(keys))}
        self.nodes = [str(key[1]) for key in self.index if key[0] == "extent"]
        self.place = {name: n for n, name in enumerate(self.nodes)}
        self.nests = [str(key[1]) for key in self.index if key[0] == "stores"]
        prefetching = [str(key[1]) for key in self.index if key[0] == "prefetches"]
        self.leaves = list(dict.fromkeys((*self.nests, *prefetching)))
        self.extent, self.kind, self.parent = (
            self._all(what, self.nodes) for what in ("extent", "kind", "parent")
        )
        whats = ("order", "stores", "operations", "guarded", "prefetches", "nearest", "farthest")
        self.of_leaves = {what: self._all(what, self.leaves) for what in whats}
        self.dims = 1 + max((int(k[3]) for k in self.index if k[0] == "limit"), default=0)
        self.accesses = [Access.of(self, leaf) for leaf in self.leaves]
        self.scopes = {
            scope: np.array([n for key, n in self.index.items() if key[0] == scope], int)
            for scope in ("register", "scratch")
        }
        # of every known tree, (trees, leaves, depth): nodes around a leaf from the outside in, after padding
        self.paths = np.zeros((0, len(self.leaves), 1), int)
        # (trees, leaves, nodes): a node's place among those, 0 the innermost; -1 of nodes that are not around
        self.places = np.zeros((0, len(self.leaves), len(self.nodes)), int)
        self._trees: dict[bytes, int] = {}

    def _all(self, what: str, names: Sequence[str]) -> np.ndarray:
        return np.array([self.index.get((what, name), -1) for name in names], int)

    def number(self, key: Key, value: Number) -> float:
        """A value as it stands in a column: kinds by place in KINDS, nodes by place among all."""
        if isinstance(value, str):
            return float(KINDS.index(value) if key[0] == "kind" else self.place[value])
        return float(value)

    def stack(self, sketches: Sequence[Sketch]) -> np.ndarray:
        values = np.full((len(self.index) + 1, len(sketches)), np.nan)
        for n, sketch in enumerate(sketches):
            for key, value in sketch.items():
                values[self.index[key], n] = self.number(key, value)
        return values

    def trees_of(self, values: np.ndarray) -> np.ndarray:
        """(n,) which of the known trees the loops of each program form; new ones become known."""
        parents = np.nan_to_num(values[self.parent], nan=-1).astype(int)
        _, first, which = np.unique(parents, axis=1, return_index=True, return_inverse=True)
        known = len(self._trees)
        numbers = [self._trees.setdefault(parents[:, n].tobytes(), len(self._trees)) for n in first]
        for n, number in zip(first, numbers):
            if number >= known:
                self._grow(*self._tree(parents[:, n]))
        return np.array(numbers, int)[which.reshape(-1)]

    def _grow(self, paths: np.ndarray, places: np.ndarray) -> None:
        depth, pad = max(paths.shape[1], self.paths.shape[2]), len(self.nodes)
        front = [((0, 0),) * (p.ndim - 1) + ((depth - p.shape[-1], 0),) for p in (self.paths, paths)]
        old, new = (np.pad(p, w, constant_values=pad) for p, w in zip((self.paths, paths), front))
        self.paths, self.places = (
            np.concatenate([old, new[None]]),
            np.concatenate([self.places, places[None]]),
        )

    def _tree(self, parents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """From the place of the loop around each node; -1 for what is not there, or in no loop."""
        chains: list[list[int]] = []
        for leaf in self.leaves:
            chain, node = [], self.place[leaf]
            while parents[node] >= 0:
                chain.append(node)
                node = parents[node]
            chains.append(chain)
        depth = max([1, *map(len, chains)])
        paths = np.full((len(chains), depth), len(self.nodes))
        places = np.full((len(chains), len(self.nodes)), -1)
        for n, chain in enumerate(chains):
            paths[n, depth - len(chain) :] = chain[::-1]
            places[n, chain] = range(len(chain))
        return paths, places


@dataclass(frozen=True)
class Access:
    """Columns of the buffers of one nest."""

    itemsize: np.ndarray  # (BUFFERS,)
    limit: np.ndarray  # (BUFFERS, dims)
    stride: np.ndarray  # (BUFFERS, dims)
    moves: np.ndarray  # (4, moves): buffer, dim, node, column

    @staticmethod
    def of(columns: Columns, leaf: str) -> Access:
        def find(*key: str | int) -> int:
            return columns.index.get(key, -1)

        buffers, dims = range(BUFFERS), range(columns.dims)
        moves = [
            (k[2], k[3], columns.place[str(k[4])], n)
            for k, n in columns.index.items()
            if k[0] == "move" and k[1] == leaf
        ]
        return Access(
            np.array([find("itemsize", leaf, b) for b in buffers]),
            np.array([[find("limit", leaf, b, d) for d in dims] for b in buffers]),
            np.array([[find("stride", leaf, b, d) for d in dims] for b in buffers]),
            np.array(moves, int).reshape(-1, 4).T,
        )
