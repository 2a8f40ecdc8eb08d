"""Functions of many inputs of which each output depends on few, learnt from examples.

For every output those inputs are found that explain all examples and whose table of seen combinations is the
smallest; the table then answers whatever the other inputs are. What a tuner asks of a template is like that:
each loop of a program, and the options of each question, depend on few answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

DENSE = 1 << 18  # combinations up to which a table is found by position instead of by search
GUESSED = 1 << 14  # rows of a table; where there are more, those that no example showed are forgotten
BITS = 62  # of a word
BEAM = 4  # sets of inputs that grow at the same time


class Factored:
    """Outputs are numbers; NaN in an example says nothing of them."""

    def __init__(self) -> None:
        self.tables: list[_Table] = []
        self._outputs = 0
        self._supports: dict[int, tuple[int, ...]] = {}

    def fit(
        self,
        inputs: np.ndarray,
        outputs: np.ndarray,
        *,
        gates: np.ndarray | None = None,
        allowed: np.ndarray | None = None,
    ) -> None:
        """(n, inputs) small natural numbers and (outputs, n), all examples so far.

        What explained an output before still does if no new example contradicts it. `gates` (outputs,) puts
        outputs into groups that matter together; -1 for those that always do. `allowed` (outputs, inputs) is
        what an output may depend on.
        """
        self._outputs = len(outputs)
        gates = np.full(len(outputs), -1) if gates is None else gates
        self._words = 1 + (1 + int(gates.max(initial=-1))) // BITS
        supports: dict[int, tuple[int, ...]] = {}
        known: dict[bytes, tuple[int, ...]] = {}
        search = _Search(inputs)
        for n, row in enumerate(outputs):
            own = None if allowed is None else allowed[n]
            labels = np.where(np.isnan(row), -1, np.unique(row, return_inverse=True)[1])
            parts = [_first_seen(labels), np.isnan(row), *([] if own is None else [own])]
            alike = b"".join(part.tobytes() for part in parts)
            if alike not in known:
                known[alike] = search.support(labels, own, self._supports.get(n))
            supports[n] = known[alike]
        self._supports = supports
        radices = inputs.max(axis=0, initial=0) + 1
        self.tables = []
        for support in dict.fromkeys(supports.values()):
            own = np.array([n for n in supports if supports[n] == support])
            bits = _bits(gates[own], self._words)
            self.tables.append(_Table(support, own, bits, radices, inputs, outputs[own]))
        self._places = {int(n): (table, at) for table in self.tables for at, n in enumerate(table.outputs)}

    def __call__(self, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(outputs, n), and for `sure` which groups have outputs that no example showed. Such are those of
        the example that differs in the fewest inputs that they depend on."""
        rows = self.find(inputs)
        found = np.empty((self._outputs, len(inputs)))
        self.fill_constants(found)
        self.fill(found, rows, np.ones(self._outputs, bool))
        return found, self.unseen(rows)

    def find(self, inputs: np.ndarray) -> np.ndarray:
        """(tables, n) the row of each."""
        inputs, most = np.asfortranarray(inputs), inputs.max(axis=0, initial=0)
        found = np.zeros((len(self.tables), len(inputs)), int)
        for row, table in zip(found, self.tables):
            if table.support:
                row[:] = table.find(inputs, most)
        return found

    def fill(self, found: np.ndarray, rows: np.ndarray, wanted: np.ndarray) -> None:
        """Puts those outputs that are wanted, (outputs,), and not constant into (outputs or more, n)."""
        for table, row in zip(self.tables, rows):
            own = np.flatnonzero(wanted[table.outputs]) if table.support else ()
            if len(own):
                values = table.values if len(own) == len(table.outputs) else table.values[own]
                found[table.outputs[own]] = values.take(row, axis=1)

    def fill_constants(self, found: np.ndarray) -> None:
        """Puts those outputs that are always the same into (outputs or more, n)."""
        for table in self.tables:
            if not table.support:
                found[table.outputs] = table.values

    def unseen(self, rows: np.ndarray) -> np.ndarray:
        """(n, words) bits of groups, for `sure`."""
        found = np.zeros((rows.shape[1], self._words), int)
        for table, row in zip(self.tables, rows):
            if table.doubtful:
                found |= table.unseen[row]
        return found

    def labels(self, rows: np.ndarray) -> np.ndarray:
        """(tables, n) equal numbers where all outputs of a table are equal."""
        found = np.zeros(rows.shape, np.uint64)
        for own, table, row in zip(found, self.tables, rows):
            if table.support:
                table.labels.take(row, out=own, mode="clip")
        return found

    def users(self, wanted: np.ndarray) -> np.ndarray:
        """(tables,) whether any of those outputs, (outputs,), may be one thing or another by a table."""
        return np.array([bool(table.support) and wanted[table.outputs].any() for table in self.tables], bool)

    def sure(self, unseen: np.ndarray, matter: np.ndarray) -> np.ndarray:
        """(n,) whether all outputs were seen whose groups matter, (n, groups)."""
        bits = _bits(np.arange(matter.shape[1]), self._words)
        doubt = unseen & _bits(np.array([-1]), self._words)
        for word in range(self._words):
            doubt[:, word] |= unseen[:, word] & (matter @ bits[:, word])
        return ~doubt.any(axis=1)

    def one(self, output: int, inputs: np.ndarray) -> np.ndarray:
        """(n,) a single output."""
        table, place = self._places[output]
        rows = table.find(inputs, inputs.max(axis=0, initial=0))  # may add some
        return table.values[place].take(rows)


def _bits(gates: np.ndarray, words: int) -> np.ndarray:
    """(gates, words) one bit for each."""
    place = gates[:, None] + 1
    return np.where(place // BITS == np.arange(words), np.left_shift(1, place % BITS), 0)


def _first_seen(labels: np.ndarray) -> np.ndarray:
    """Labels numbered in the order in which they come."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), int)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


class _Search:
    """For the inputs that explain labels."""

    def __init__(self, inputs: np.ndarray):
        self.inputs = inputs
        self.sizes = inputs.max(axis=0, initial=0) + 1
        self.varied = [n for n in range(inputs.shape[1]) if np.ptp(inputs[:, n]) > 0] if len(inputs) else []

    def support(
        self, labels: np.ndarray, allowed: np.ndarray | None, before: tuple[int, ...] | None
    ) -> tuple[int, ...]:
        if (labels.max(initial=0) <= 0 and not (labels == 0).any()) or np.ptp(labels[labels >= 0]) == 0:
            return ()
        known = labels >= 0
        if not known.all():
            return _Search(self.inputs[known]).support(labels[known], allowed, before)
        if before is not None and not self._explain(before, labels)[1]:
            return before
        inputs = [n for n in self.varied if allowed is None or allowed[n]]
        length: dict[tuple[int, ...], int] = {}
        full: dict[tuple[int, ...], int] = {}  # rows of the tables that explain everything
        beam: list[tuple[int, ...]] = [()]
        for size in range(1, len(inputs) + 1):
            if size <= 2:
                grown = list(combinations(inputs, size))
            else:
                grown = sorted({tuple(sorted((*s, n))) for s in beam for n in inputs if n not in s})
            for support in grown:
                rows, errors = self._explain(support, labels)
                length[support] = rows + errors
                if not errors:
                    full[support] = rows
            beam = sorted(grown, key=lambda s: (length[s], s))[:BEAM]
            if size > 1 and full and length[beam[0]] >= min(full.values()):
                break
        return min(full, key=lambda s: (full[s], len(s), s)) if full else tuple(inputs)

    def _explain(self, support: Sequence[int], labels: np.ndarray) -> tuple[int, int]:
        """Rows of the table, and examples that it gets wrong where rows say what most of theirs do."""
        code = self._code(support)
        pairs, counts = np.unique(code * (labels.max() + 1) + labels, return_counts=True)
        first = np.flatnonzero(np.diff(pairs // (labels.max() + 1), prepend=-1))
        return len(first), len(labels) - int(np.maximum.reduceat(counts, first).sum())

    def _code(self, support: Sequence[int]) -> np.ndarray:
        """(n,) a number for each combination of these inputs."""
        code = np.zeros(len(self.inputs), int)
        for n in support:
            code = code * self.sizes[n] + self.inputs[:, n]
            if code.max() > 1 << 40:
                code = np.unique(code, return_inverse=True)[1]
        return code


class _Table:
    """All outputs that depend on the same inputs."""

    def __init__(
        self,
        support: tuple[int, ...],
        outputs: np.ndarray,
        bits: np.ndarray,
        radices: np.ndarray,
        inputs: np.ndarray,
        values: np.ndarray,
    ):
        self.support, self.outputs, self.radices = list(support), outputs, radices
        self._all = np.bitwise_or.reduce(bits, axis=0)
        self.combinations, row = np.unique(inputs[:, self.support], axis=0, return_inverse=True)
        self.values = np.zeros((len(outputs), len(self.combinations)))  # (outputs, rows)
        # (rows, words) bits of outputs that were not seen there: theirs are those of a similar combination
        self.unseen = np.zeros((len(self.combinations), bits.shape[1]), int)
        known = ~np.isnan(values)
        for pattern in np.unique(known, axis=0):
            own = np.flatnonzero((known == pattern).all(axis=1))
            examples = np.flatnonzero(pattern)
            if not len(examples):
                self.unseen |= np.bitwise_or.reduce(bits[own], axis=0)
                continue
            seen, first = np.unique(row.reshape(-1)[examples], return_index=True)
            others = np.setdiff1d(np.arange(len(self.combinations)), seen)
            self.values[np.ix_(own, seen)] = values[np.ix_(own, examples[first])]
            nearest = self._nearest(self.combinations[others], seen)
            self.values[np.ix_(own, others)] = self.values[np.ix_(own, nearest)]
            self.unseen[others] |= np.bitwise_or.reduce(bits[own], axis=0)
        self._seen = np.arange(len(self.combinations))
        self.labels = np.unique(self.values, axis=1, return_inverse=True)[1].reshape(-1).astype(np.uint64)
        self.doubtful = bool(self.unseen.any())  # whether there are outputs that were not seen
        self._order()

    def find(self, inputs: np.ndarray, most: np.ndarray) -> np.ndarray:
        """(n,) rows; `most` is the largest of each input."""
        if not self.support:
            return np.zeros(len(inputs), int)
        own = inputs[:, self.support].T
        if (most >= self.radices)[self.support].any():
            self.radices = np.maximum(self.radices, most + 1)
            self._order()
        code = self._code(own)
        rows = self._row(code)
        if len(self.combinations) > GUESSED and (rows < 0).any():
            self._forget()
            rows = self._row(code)
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            self._guess(own.T[missing[np.unique(code[missing], return_index=True)[1]]])
            rows[missing] = self._row(code[missing])
        return rows

    def _code(self, own: np.ndarray) -> np.ndarray:
        code = np.zeros(own.shape[1], int)
        for column, n in zip(own, self.support):
            code *= self.radices[n]
            code += column
        return code

    def _order(self) -> None:
        size = int(np.prod([float(self.radices[n]) for n in self.support], initial=1.0))
        code = self._code(self.combinations.T)
        if size <= DENSE:
            self._places = np.full(size, -1)
            self._places[code] = np.arange(len(code))
        else:
            order = np.argsort(code)
            self._places = np.stack([code[order], order])

    def _row(self, code: np.ndarray) -> np.ndarray:
        if self._places.ndim == 1:
            return self._places[code]
        known, rows = self._places
        at = np.minimum(np.searchsorted(known, code), len(known) - 1)
        return np.where(known[at] == code, rows[at], -1)

    def _nearest(self, own: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """For each combination of `own` the most similar one of the rows."""
        seen = self.combinations[rows].astype(np.float32)
        far = 2 * len(self.support) * self.radices[self.support]
        answers = np.arange(own.max(initial=0) + 1, dtype=np.float32)[:, None, None]
        step = np.abs(answers - seen) / far  # (answers, rows, inputs)
        costs = np.where(step > 0, 1 + step, 0).astype(np.float32)
        chosen = np.zeros((len(own), len(answers), own.shape[1]), np.float32)
        chosen[np.arange(len(own))[:, None], own, np.arange(own.shape[1])] = 1
        distance = np.tensordot(chosen, costs, ((1, 2), (0, 2)))
        return rows[np.argmin(distance, axis=1)]

    def _forget(self) -> None:
        """Rows that were guessed."""
        self.combinations, self.labels = self.combinations[self._seen], self.labels[self._seen]
        self.values, self.unseen = self.values[:, self._seen], self.unseen[self._seen]
        self._order()

    def _guess(self, own: np.ndarray) -> None:
        """Rows for combinations that have not been seen."""
        nearest = self._nearest(own, self._seen)
        begin = len(self.combinations)
        self.combinations = np.concatenate([self.combinations, own])
        self.values = np.concatenate([self.values, self.values[:, nearest]], axis=1)
        self.labels = np.concatenate([self.labels, self.labels[nearest]])
        self.unseen = np.concatenate([self.unseen, np.tile(self._all, (len(own), 1))])
        self.doubtful = True
        if self._places.ndim == 1:
            self._places[self._code(own.T)] = np.arange(begin, len(self.combinations))
        else:
            self._order()
