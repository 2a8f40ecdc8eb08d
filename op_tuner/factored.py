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
GUESSED = (
    1 << 14
)  # combinations found by search; where there are more, those that no example showed are forgotten
COUNTED = 1 << 12  # pairs of a combination and an output up to which all are counted
BITS = 62  # of a word
EXACT = 53  # bits of a whole number as a float
BEAM = 4  # sets of inputs that grow at the same time

Wanted = list[tuple[int, np.ndarray | slice, np.ndarray | None]]
"""Of each table the places of outputs that are wanted: among all, and among its own, None for every one."""


class Factored:
    """Outputs are numbers; NaN in an example says nothing of them. Once fitted:

    place    (outputs,) of each among the different ones, of which two are never the same
    always   (different outputs,) those that are constant, NaN for others
    """

    def __init__(self) -> None:
        self.tables: list[_Table] = []
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
        gates = np.full(len(outputs), -1) if gates is None else gates
        self._words = 1 + (1 + int(gates.max(initial=-1))) // BITS
        members = self._explain(inputs, outputs, allowed)
        self._supports = {n: support for support, own in members.items() for n in own}
        self.tables, self.place = [], np.empty(len(outputs), int)
        self._radices: np.ndarray = inputs.max(axis=0, initial=0) + 1
        begin = 0
        for support, those in members.items():
            own = np.array(those)
            bits = _bits(gates[own], self._words)
            table = _Table(support, begin, bits, self._radices, inputs, outputs[own])
            self.place[own] = table.place
            begin += len(table.values)
            self.tables.append(table)
        self.always = np.full(begin, np.nan)
        self.fill_constants(self.always[:, None])
        self._number()
        self._lay()

    def _explain(
        self, inputs: np.ndarray, outputs: np.ndarray, allowed: np.ndarray | None
    ) -> dict[tuple[int, ...], list[int]]:
        """Sets of inputs, and the outputs that each explains. Outputs that tell the same examples apart are
        explained by the same inputs."""
        search = _Search(inputs)
        known: dict[bytes, tuple[int, ...]] = {}
        alike: dict[bytes, tuple[int, ...]] = {}
        found: dict[tuple[int, ...], list[int]] = {}
        for n, row in enumerate(outputs):
            own = None if allowed is None else allowed[n]
            which = b"" if own is None else own.tobytes()
            content = row.tobytes() + which
            if content not in known:
                labels = np.where(np.isnan(row), -1, np.unique(row, return_inverse=True)[1])
                key = _first_seen(labels).tobytes() + np.isnan(row).tobytes() + which
                if key not in alike:
                    alike[key] = search.support(labels, own, self._supports.get(n))
                known[content] = alike[key]
            found.setdefault(known[content], []).append(n)
        return found

    def _number(self) -> None:
        """Gives each table random numbers, sums of which, one of each table and one more, are exact."""
        random = np.random.default_rng(0)
        self.most = (1 << EXACT) // (1 + len(self.tables))
        for table in self.tables:
            of_labels = random.integers(0, self.most, int(table.labels.max(initial=0)) + 1).astype(float)
            table.labels = of_labels[table.labels.astype(int)]

    def _lay(self) -> None:
        """Finds a place for each combination of inputs: all tables that are small enough share an array."""
        sizes = np.array([table.size(self._radices) for table in self.tables], float)
        self._dense = np.flatnonzero(sizes <= DENSE)
        ends = np.cumsum(sizes[self._dense]).astype(int)
        self._begins = np.concatenate([[0], ends])[:-1, None]
        self._places = np.full(int(ends[-1]) if len(ends) else 0, -1)
        self._steps = np.zeros((len(self._dense), len(self._radices)), np.float32)
        parts = dict(zip(self._dense.tolist(), np.split(self._places, ends[:-1])))
        for n, table in enumerate(self.tables):
            table.lay(self._radices, parts.get(n))
        for steps, n in zip(self._steps, self._dense.tolist()):
            steps[self.tables[n].support] = self.tables[n].steps

    def _grow(self, inputs: np.ndarray) -> None:
        """Inputs may be larger than any before."""
        if (inputs >= self._radices).any():
            self._radices = np.maximum(self._radices, inputs.max(axis=0) + 1)
            self._lay()

    def __call__(self, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(outputs, n), and for `sure` which groups have outputs that no example showed. Such are those of
        the example that differs in the fewest inputs that they depend on."""
        rows = self.find(inputs)
        found = np.empty((len(self.always), len(inputs)))
        self.fill_constants(found)
        self.fill(found, rows, self.wanted(np.ones(len(found), bool)))
        return found[self.place], self.unseen(rows)

    def find(self, inputs: np.ndarray) -> np.ndarray:
        """(tables, n) the row of each."""
        self._grow(inputs)
        found = np.empty((len(self.tables), len(inputs)), int)
        codes = (self._steps @ inputs.T.astype(np.float32)).astype(int)
        rows = self._places.take(codes + self._begins)
        found[self._dense] = rows
        for n in np.flatnonzero((rows < 0).any(axis=1)):
            table = self.tables[self._dense[n]]
            found[self._dense[n]] = table.rows(codes[n], inputs)
        for n in np.setdiff1d(np.arange(len(self.tables)), self._dense):
            found[n] = self.tables[n].find(inputs)
        return found

    def fill(self, found: np.ndarray, rows: np.ndarray, wanted: Wanted) -> None:
        """Puts those different outputs that are wanted and vary into (different outputs or more, n)."""
        for n, places, own in wanted:
            values = self.tables[n].values
            if own is not None:
                found[places] = values[own].take(rows[n], axis=1, mode="clip")
            else:
                values.take(rows[n], axis=1, out=found[places], mode="clip")

    def wanted(self, which: np.ndarray) -> Wanted:
        """Of (different outputs,) those that are not constant."""
        found: Wanted = []
        for n, table in enumerate(self.tables):
            own = np.flatnonzero(which[table.own])
            if table.support and len(own) == len(table.values):
                found.append((n, table.own, None))
            elif table.support and len(own):
                found.append((n, table.own.start + own, own))
        return found

    def fill_constants(self, found: np.ndarray) -> None:
        """Puts those outputs that are always the same into (different outputs or more, n)."""
        for table in self.tables:
            if not table.support and len(table.combinations):
                found[table.own] = table.values

    def unseen(self, rows: np.ndarray) -> np.ndarray:
        """(n, words) bits of groups, for `sure`."""
        found = np.zeros((rows.shape[1], self._words), int)
        for table, row in zip(self.tables, rows):
            if table.doubtful:
                found |= table.unseen[row]
        return found

    def labels(self, rows: np.ndarray) -> np.ndarray:
        """(tables, n) random whole numbers below `most`, equal where all outputs of a table are equal."""
        found = np.zeros(rows.shape)
        for own, table, row in zip(found, self.tables, rows):
            if table.support:
                table.labels.take(row, out=own, mode="clip")
        return found

    def users(self, wanted: np.ndarray) -> np.ndarray:
        """(tables,) whether any of those, (different outputs,), may be one thing or another by a table."""
        return np.array([bool(table.support) and wanted[table.own].any() for table in self.tables], bool)

    def sure(self, unseen: np.ndarray, matter: np.ndarray) -> np.ndarray:
        """(n,) whether all outputs were seen whose groups matter, (n, groups)."""
        bits = _bits(np.arange(matter.shape[1]), self._words)
        doubt = unseen & _bits(np.array([-1]), self._words)
        for word in range(self._words):
            doubt[:, word] |= unseen[:, word] & (matter @ bits[:, word])
        return ~doubt.any(axis=1)

    def one(self, output: int, inputs: np.ndarray) -> np.ndarray:
        """(n,) a single output."""
        place = self.place[output]
        table = next(table for table in self.tables if place < table.own.stop)
        if table.support:
            self._grow(inputs)
            rows = table.find(inputs)
        else:
            rows = np.zeros(len(inputs), int)
        return table.values[place - table.own.start].take(rows)


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
        self.sizes: list[int] = (inputs.max(axis=0, initial=0) + 1).tolist()
        self._columns = list(inputs.T.copy())
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
        code, size = self._code(support)
        width = int(labels.max()) + 1
        if size * width <= COUNTED:
            counts = np.bincount(code * width + labels, minlength=size * width)
            most = np.maximum.reduce(counts.reshape(-1, width), axis=1)
            return int(np.count_nonzero(most)), len(labels) - int(np.add.reduce(most))
        pairs, counts = np.unique(code * width + labels, return_counts=True)
        first = np.flatnonzero(np.diff(pairs // width, prepend=-1))
        return len(first), len(labels) - int(np.maximum.reduceat(counts, first).sum())

    def _code(self, support: Sequence[int]) -> tuple[np.ndarray, int]:
        """(n,) a number for each combination of these inputs, and what all are below."""
        code, size = np.zeros(len(self.inputs), int), 1
        for n in support:
            if size * self.sizes[n] > 1 << 40:
                code = np.unique(code, return_inverse=True)[1]
                size = len(code)
            code = code * self.sizes[n] + self._columns[n]
            size *= self.sizes[n]
        return code, size


class _Table:
    """All outputs that depend on the same inputs."""

    def __init__(
        self,
        support: tuple[int, ...],
        begin: int,
        bits: np.ndarray,
        radices: np.ndarray,
        inputs: np.ndarray,
        values: np.ndarray,
    ):
        """Of (outputs, n) values, the different ones of which stand behind `begin` others."""
        self.support = list(support)
        self.radices = self._known = radices[self.support]
        self._all = np.bitwise_or.reduce(bits, axis=0)
        self.combinations, row = np.unique(inputs[:, self.support], axis=0, return_inverse=True)
        every = np.zeros((len(values), len(self.combinations)))  # (outputs, rows)
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
            every[np.ix_(own, seen)] = values[np.ix_(own, examples[first])]
            nearest = seen[self._nearest(self.combinations[others], self._distant(seen))]
            every[np.ix_(own, others)] = every[np.ix_(own, nearest)]
            self.unseen[others] |= np.bitwise_or.reduce(bits[own], axis=0)
        self.values, place = np.unique(every, axis=0, return_inverse=True)
        self.place = begin + place.reshape(-1)
        self.own = slice(begin, begin + len(self.values))
        self.doubtful = bool(self.unseen.any())  # whether there are outputs that were not seen
        self.labels = np.unique(self.values, axis=1, return_inverse=True)[1].reshape(-1).astype(float)
        if self.support:  # all rows again, for combinations that were not seen but are like them
            self.values, self.labels = np.tile(self.values, 2), np.tile(self.labels, 2)
            self.unseen = np.concatenate([self.unseen, np.tile(self._all, (len(self.unseen), 1))])

    def size(self, radices: np.ndarray) -> float:
        """Combinations that there may be of inputs below these."""
        return float(np.prod(radices[self.support], dtype=float))

    def lay(self, radices: np.ndarray, places: np.ndarray | None) -> None:
        """`places` are as many as there may be combinations, all -1; None if those are too many."""
        self.radices = radices[self.support]
        self.steps = np.append(np.cumprod(self.radices[:0:-1])[::-1], 1)[: len(self.support)]
        self._places = places
        self._order()

    def find(self, inputs: np.ndarray) -> np.ndarray:
        """(n,) rows."""
        return self.rows(self._code(inputs[:, self.support]), inputs)

    def rows(self, code: np.ndarray, inputs: np.ndarray) -> np.ndarray:
        """(n,) rows; `code` is that of the inputs."""
        rows = self._row(code)
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            new = missing[np.unique(code[missing], return_index=True)[1]]
            self._guess(inputs[new][:, self.support])
            rows[missing] = self._row(code[missing])
        return rows

    def _code(self, own: np.ndarray) -> np.ndarray:
        code = np.zeros(len(own), int)
        for column, step in zip(own.T, self.steps):
            code += column * step
        return code

    def _order(self) -> None:
        """Where rows stand that were seen; guessed ones are forgotten."""
        code = self._code(self.combinations)
        if self._places is not None:
            self._places[:] = -1
            self._places[code] = np.arange(len(code))
        else:
            order = np.argsort(code)
            self._sorted = code[order], order
        self._distances: np.ndarray | None = None

    def _row(self, code: np.ndarray) -> np.ndarray:
        if self._places is not None:
            return self._places[code]
        known, rows = self._sorted
        at = np.minimum(np.searchsorted(known, code), len(known) - 1)
        return np.where(known[at] == code, rows[at], -1)

    def _distant(self, rows: np.ndarray) -> np.ndarray:
        """(inputs, answers, rows) how far each answer to an input is from that of a row, by the range of the
        examples' answers: what is asked for later changes no distance."""
        seen = self.combinations[rows].astype(np.float32).T[:, None]
        answers = np.arange(max(self.radices, default=0), dtype=np.float32)[:, None]
        step = np.minimum(np.abs(answers - seen) / self._known[:, None, None], 1) / (2 * len(self.support))
        return np.where(step > 0, 1 + step, 0).astype(np.float32)

    def _nearest(self, own: np.ndarray, distances: np.ndarray) -> np.ndarray:
        """For each combination of `own` the most similar one of the rows, by distances from those."""
        total = np.zeros((len(own), distances.shape[2]), np.float32)
        for answers, away in zip(own.T, distances):
            total += away[answers]
        return np.argmin(total, axis=1)

    def _guess(self, own: np.ndarray) -> None:
        """Places for combinations that have not been seen."""
        if self._distances is None:
            self._distances = self._distant(np.arange(len(self.combinations)))
        rows = len(self.combinations) + self._nearest(own, self._distances)
        code = self._code(own)
        self.doubtful = True
        if self._places is not None:
            self._places[code] = rows
            return
        if len(self._sorted[0]) > GUESSED:
            self._order()
        known, before = (np.concatenate(pair) for pair in zip(self._sorted, (code, rows)))
        order = np.argsort(known, kind="stable")
        self._sorted = known[order], before[order]
