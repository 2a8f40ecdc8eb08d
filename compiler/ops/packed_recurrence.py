"""Time loops with their weights packed for streaming: one kernel for all steps, hidden units dealt to the
workers.

Weights stand as r[unit block, k, gate, unit]: the gates of a block of units are summed together, so that the
cell's arithmetic follows in registers. Every odd step visits the blocks in reverse: the last ones are still
in cache.
Sequences all have full length here; `recurrence` has the general loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ..ir import scalar as s
from ..ir.expr import Tensor
from ..ir.loops import Alloc, Barrier, Body, Buffer, If, Program, Stmt, Store, loop, substitute
from ..ir.scalar import Expr, Var
from ..ir.types import TensorType
from .recurrence import GruRecurrence, LstmRecurrence, Operands, RnnRecurrence
from .shapes import fail

T, B, J, K, BLOCK = (Var(n) for n in ("t", "b", "j", "k", "block"))
PART, ROW, TERM, LANE = (Var(n) for n in ("part", "row", "term", "lane"))
WORKER, WORKERS = Var("worker"), Var("workers")
NOW, NEXT = T % 2, (T + 1) % 2


def pack_weights(r: np.ndarray, lanes: int) -> np.ndarray:
    """(gates · hidden, hidden) → (blocks, hidden, gates, lanes), zeros behind the last unit."""
    hidden = r.shape[1]
    units = r.reshape(-1, hidden, hidden)
    padded = np.pad(units, ((0, 0), (0, -hidden % lanes), (0, 0)))
    return np.ascontiguousarray(padded.reshape(units.shape[0], -1, lanes, hidden).transpose(1, 3, 0, 2))


def _unpack_weights(r: np.ndarray) -> np.ndarray:
    blocks, hidden, gates, lanes = r.shape
    return r.transpose(2, 0, 3, 1).reshape(gates, blocks * lanes, hidden)[:, :hidden].reshape(-1, hidden)


@dataclass(frozen=True)
class Tiling:
    """What is summed at once.

    parts  vector blocks of units
    rows   of the batch: one vector of weights serves all
    """

    parts: int = 1
    rows: int = 1


@dataclass(frozen=True)
class Phase:
    """Sums of some gates over one vector, then what they give; a barrier follows.

    `start(gate, unit)` is what a sum begins with; `cell(sums, time, unit)` stores the results, `sums[gate]`
    being the gate's sum.
    """

    gates: tuple[int, ...]
    vector: Callable[[], Expr]
    start: Callable[[int, Expr, Expr], Expr]
    cell: Callable[[dict[int, Expr], Expr, Expr], tuple[Stmt, ...]]


@dataclass(frozen=True)
class Packed:
    """Mixed into a recurrence: its inputs with r packed, and no lengths.

    `algorithm`: "gang" deals the units to all workers, "single" leaves them to one, without barriers.
    """

    algorithm: str = "gang"

    temporaries: ClassVar[tuple[str, ...]] = ("state",)
    """Buffers of (2, batch, hidden): state is h before and after a step."""

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        xw, r = inputs[0], inputs[1]
        if xw is None or r is None or r.rank != 4:
            fail(f"input {xw} and packed weights {r} do not fit")
        plain = TensorType(r.dtype, (r.dims[2] * r.dims[1], r.dims[1]))
        return super().infer(xw, plain, *inputs[2:])  # type: ignore[misc]

    def reference(self, *inputs: Any) -> tuple[np.ndarray, ...]:
        return super().reference(inputs[0], _unpack_weights(inputs[1]), *inputs[2:])  # type: ignore[misc]

    def loops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> Program:
        return self.program(inputs, outputs, Tiling())

    def phases(self, o: Operands) -> tuple[Phase, ...]:
        """What one step computes, in order."""
        raise NotImplementedError

    def program(
        self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType], tiling: Tiling
    ) -> Program:
        roles: tuple[str, ...] = type(self).roles  # type: ignore[attr-defined]
        named = [*zip(roles, inputs), *zip(("y", "h", "c"), outputs)]
        o = {role: Tensor(role, t.dtype, t.dims) for role, t in named if t is not None}
        params = tuple(Buffer(t.name, t.dtype, t.shape) for t in o.values())
        steps, batch, hidden = o["y"].shape
        temps = tuple(Buffer(n, o["y"].dtype, (2, batch, hidden), "global") for n in self.temporaries)
        o.update({b.name: Tensor(b.name, b.dtype, b.shape) for b in temps})
        blocks = -(-o["r"].shape[0] // tiling.parts)
        gang = self.algorithm == "gang"
        first: Expr = s.const(0)
        last: Expr = s.const(blocks)
        if gang:
            first, last = WORKER * blocks // WORKERS, (WORKER + 1) * blocks // WORKERS
        at = s.select(s.eq(NOW, 1), first + last - 1 - BLOCK, BLOCK)
        body: list[Stmt] = []
        for phase in self.phases(o):
            tiles = self._rows(o, phase, at, tiling)
            body += [loop("block", last, *tiles, begin=first), *[Barrier("gang")] * gang]
        initial = loop("b", batch, loop("j", hidden, *self.initial(o)))
        begin = If(s.eq(WORKER, 0), (initial,)) if gang else initial
        name = self.name  # type: ignore[attr-defined]
        return Program(name, params, (begin, loop("t", steps, *body)), temps, gang=gang)

    def initial(self, o: Operands) -> tuple[Stmt, ...]:
        """h and c of row b and unit j before the first step."""
        zero = s.const(0, o["y"].dtype)
        h = o["h0"][B, J] if "h0" in o else zero
        stores = [Store("state", (s.const(0), B, J), h), Store("h", (B, J), h)]
        if "c" in o:
            stores.append(Store("c", (B, J), o["c0"][B, J] if "c0" in o else zero))
        return tuple(stores)

    def _rows(self, o: Operands, phase: Phase, block: Expr, tiling: Tiling) -> Body:
        """All rows of the batch, some at a time; then those that are left."""
        batch = o["y"].shape[1]
        whole, left = divmod(batch, tiling.rows)
        tile = substitute(self._tile(o, phase, block, tiling), {"b": B * tiling.rows + ROW})
        if not left:
            return (loop("b", whole, *tile),)
        rest = self._tile(o, phase, block, replace(tiling, rows=left))
        return (loop("b", whole, *tile), *substitute(rest, {"b": ROW + whole * tiling.rows}))

    def _tile(self, o: Operands, phase: Phase, block: Expr, tiling: Tiling) -> Body:
        """The sums of some blocks of units for some rows of the batch, then their cells."""
        steps, _, hidden = o["y"].shape
        blocks, _, _, lanes = o["r"].shape
        time = (steps - 1) - T if self.reverse else T  # type: ignore[attr-defined]
        shape = (tiling.parts, tiling.rows, len(phase.gates), lanes)
        acc = Buffer(f"acc{phase.gates[0]}", o["y"].dtype, shape, "register")
        sums = Tensor(acc.name, acc.dtype, acc.shape)
        zero = s.const(0, acc.dtype)
        which = block * tiling.parts + PART
        unit = which * lanes + LANE
        inside = s.lt(unit, hidden)

        def every(*body: Stmt) -> Stmt:
            rows = loop("row", tiling.rows, *body, kind="unroll")
            return loop("part", tiling.parts, rows, kind="unroll")

        def each(body: Callable[[int, int], Stmt]) -> Stmt:
            pairs = enumerate(phase.gates)
            return every(*(loop("lane", lanes, body(n, gate), kind="vector") for n, gate in pairs))

        def begin(n: int, gate: int) -> Stmt:
            value = s.select(inside, phase.start(gate, time, unit), zero)
            return Store(acc.name, (PART, ROW, s.const(n), LANE), value)

        def add(n: int, gate: int) -> Stmt:
            weight = o["r"][which, K, gate, LANE]
            if blocks % tiling.parts:
                weight = s.select(s.lt(which, blocks), weight, zero)
            value = sums[PART, ROW, n, LANE] + phase.vector() * weight
            return Store(acc.name, (PART, ROW, s.const(n), LANE), value)

        results = {gate: sums[PART, ROW, n, LANE] for n, gate in enumerate(phase.gates)}
        cell = If(inside, phase.cell(results, time, unit))
        cells = every(loop("lane", lanes, cell, kind="vector"))
        return (Alloc(acc, (each(begin), loop("k", hidden, each(add)), cells)),)


def _advance(o: Operands, h: Expr, time: Expr, unit: Expr) -> tuple[Stmt, ...]:
    """The new h everywhere that it is read."""
    new = o["h"][B, unit]
    return (
        Store("h", (B, unit), h),
        Store("y", (time, B, unit), new),
        Store("state", (NEXT, B, unit), new),
    )


def _shares(o: Operands) -> Callable[[int, Expr, Expr], Expr]:
    """The input's share of each gate."""
    hidden = o["y"].shape[2]
    return lambda gate, time, unit: o["xw"][time, B, unit + gate * hidden]


@dataclass(frozen=True)
class PackedRnn(Packed, RnnRecurrence):
    """`RnnRecurrence` on packed weights."""

    def phases(self, o: Operands) -> tuple[Phase, ...]:
        def cell(sums: dict[int, Expr], time: Expr, unit: Expr) -> tuple[Stmt, ...]:
            return _advance(o, self._apply(0, sums[0]), time, unit)

        return (Phase((0,), lambda: o["state"][NOW, B, K], _shares(o), cell),)


@dataclass(frozen=True)
class PackedLstm(Packed, LstmRecurrence):
    """`LstmRecurrence` on packed weights."""

    def phases(self, o: Operands) -> tuple[Phase, ...]:
        hidden = o["y"].shape[2]

        def cell(sums: dict[int, Expr], time: Expr, unit: Expr) -> tuple[Stmt, ...]:
            c = o["c"][B, unit]

            def peeped(gate: int, place: int) -> Expr:
                value = sums[gate]
                return value + o["peephole"][unit + place * hidden] * c if "peephole" in o else value

            gate_in = self._apply(0, peeped(0, 0))
            forget = 1.0 - gate_in if self.input_forget else self._apply(0, peeped(2, 2))
            new_c = Store("c", (B, unit), forget * c + gate_in * self._apply(1, sums[3]))
            h = self._apply(0, peeped(1, 1)) * self._apply(2, c)
            return (new_c, *_advance(o, h, time, unit))

        return (Phase((0, 1, 2, 3), lambda: o["state"][NOW, B, K], _shares(o), cell),)


@dataclass(frozen=True)
class PackedGru(Packed, GruRecurrence):
    """`GruRecurrence` on packed weights. Without `linear_before_reset` the candidate's product waits for
    r·h.
    """

    temporaries: ClassVar[tuple[str, ...]] = ("state", "update", "reset")

    def phases(self, o: Operands) -> tuple[Phase, ...]:
        share = _shares(o)
        state = lambda: o["state"][NOW, B, K]  # noqa: E731

        def blend(z: Expr, candidate: Expr, time: Expr, unit: Expr) -> tuple[Stmt, ...]:
            h = (1.0 - z) * self._apply(1, candidate) + z * o["state"][NOW, B, unit]
            return _advance(o, h, time, unit)

        def at_once(sums: dict[int, Expr], time: Expr, unit: Expr) -> tuple[Stmt, ...]:
            candidate = share(2, time, unit) + self._apply(0, sums[1]) * sums[2]
            return blend(self._apply(0, sums[0]), candidate, time, unit)

        def gates(sums: dict[int, Expr], time: Expr, unit: Expr) -> tuple[Stmt, ...]:
            scaled = self._apply(0, sums[1]) * o["state"][NOW, B, unit]
            return (
                Store("update", (NOW, B, unit), self._apply(0, sums[0])),
                Store("reset", (NOW, B, unit), scaled),
            )

        def candidate(sums: dict[int, Expr], time: Expr, unit: Expr) -> tuple[Stmt, ...]:
            return blend(o["update"][NOW, B, unit], sums[2], time, unit)

        def start(gate: int, time: Expr, unit: Expr) -> Expr:
            if gate == 2:
                return o["bias"][unit] if "bias" in o else s.const(0, o["y"].dtype)
            return share(gate, time, unit)

        if self.linear_before_reset:
            return (Phase((0, 1, 2), state, start, at_once),)
        reset = lambda: o["reset"][NOW, B, K]  # noqa: E731
        return (Phase((0, 1), state, share, gates), Phase((2,), reset, share, candidate))


PACKED: dict[type, type] = {RnnRecurrence: PackedRnn, LstmRecurrence: PackedLstm, GruRecurrence: PackedGru}
"""Recurrence → the same on packed weights."""
