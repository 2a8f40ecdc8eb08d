"""The LSTM's time loop with its weights packed for streaming: one kernel for all steps, hidden units dealt
to the workers.

Weights stand as r[unit block, k, gate, unit]: the four gates of a block of units are summed together, so
that the
cell's arithmetic follows in registers. Every odd step visits the blocks in reverse: the last ones are
still in cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..ir import scalar as s
from ..ir.expr import Tensor
from ..ir.loops import Alloc, Barrier, Buffer, If, Program, Stmt, Store, loop
from ..ir.scalar import Expr, Var
from ..ir.types import I64, TensorType
from .recurrence import LstmRecurrence
from .shapes import fail

GATES = 4
T, B, K, BLOCK, PART, GATE, LANE = (Var(n) for n in ("t", "b", "k", "block", "part", "gate", "lane"))
WORKER, WORKERS = Var("worker"), Var("workers")


def pack_weights(r: np.ndarray, lanes: int) -> np.ndarray:
    """(4 · hidden, hidden) → (blocks, hidden, 4, lanes), zeros behind the last unit."""
    hidden = r.shape[1]
    units = r.reshape(GATES, hidden, hidden)
    padded = np.pad(units, ((0, 0), (0, -hidden % lanes), (0, 0)))
    return np.ascontiguousarray(padded.reshape(GATES, -1, lanes, hidden).transpose(1, 3, 0, 2))


@dataclass(frozen=True)
class PackedLstm(LstmRecurrence):
    """On weights packed by `pack_weights`; inputs xw (steps, batch, 4 · hidden), r, h0, c0 (batch,
    hidden).
    """

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        xw, r = inputs[0], inputs[1]
        if xw is None or r is None or r.rank != 4:
            fail(f"input {xw} and packed weights {r} do not fit")
        hidden = r.dims[1]
        return super().infer(xw, TensorType(r.dtype, (GATES * hidden, hidden)), *inputs[2:])

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        xw, r, *rest = inputs
        assert r is not None
        hidden = r.shape[1]
        plain = r.transpose(2, 0, 3, 1).reshape(GATES, -1, hidden)[:, :hidden].reshape(GATES * hidden, hidden)
        return super().reference(xw, plain, *rest)

    def loops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> Program:
        return self.program(inputs, outputs, parts=1)

    def program(
        self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType], parts: int
    ) -> Program:
        """`parts` unit blocks are summed together."""
        named = [*zip(("xw", "r", "h0", "c0"), inputs), *zip(("y", "h", "c"), outputs)]
        o = {role: Tensor(role, t.dtype, t.dims) for role, t in named if t is not None}
        params = tuple(Buffer(t.name, t.dtype, t.shape) for t in o.values())
        steps, batch, hidden = o["y"].shape
        state = Buffer("state", o["y"].dtype, (2, batch, hidden), "global")
        o["state"] = Tensor("state", state.dtype, state.shape)
        blocks = -(-o["r"].shape[0] // parts)
        first = WORKER * blocks // WORKERS
        last = (WORKER + 1) * blocks // WORKERS
        odd = s.eq(T % 2, 1)
        at = s.select(odd, first + last - 1 - BLOCK, BLOCK)
        tile = loop("block", last, loop("b", batch, *self._tile(o, at, parts)), begin=first)
        time = loop("t", steps, tile, Barrier("gang"))
        return Program(self.name, params, (self._packed_initial(o), time), (state,), gang=True)

    def _packed_initial(self, o: dict[str, Tensor]) -> Stmt:
        """h and c before the first step; by one worker."""
        _, batch, hidden = o["y"].shape
        j = Var("j")
        zero = s.const(0, o["y"].dtype)
        h = o["h0"][B, j] if "h0" in o else zero
        c = o["c0"][B, j] if "c0" in o else zero
        stores = (Store("state", (s.const(0), B, j), h), Store("h", (B, j), h), Store("c", (B, j), c))
        return If(s.eq(WORKER, 0), (loop("b", batch, loop("j", hidden, *stores)),))

    def _tile(self, o: dict[str, Tensor], block: Expr, parts: int) -> tuple[Stmt, ...]:
        """The gates of `parts` blocks of units for one row of the batch, then their cells."""
        steps, _, hidden = o["y"].shape
        blocks, _, _, lanes = o["r"].shape
        time = (steps - 1) - T if self.reverse else T
        acc = Buffer("acc", o["y"].dtype, (parts, GATES, lanes), "register")
        sums = Tensor(acc.name, acc.dtype, acc.shape)
        which = block * parts + PART
        unit = which * lanes + LANE
        inside = s.lt(unit, hidden)

        def tile(*body: Stmt) -> Stmt:
            return loop(
                "part",
                parts,
                loop("gate", GATES, loop("lane", lanes, *body, kind="vector"), kind="unroll"),
                kind="unroll",
            )

        start = s.select(inside, o["xw"][time, B, GATE * hidden + unit], s.const(0, acc.dtype))
        weight = o["r"][which, K, GATE, LANE]
        if blocks % parts:
            weight = s.select(s.lt(which, blocks), weight, s.const(0, acc.dtype))
        step = sums[PART, GATE, LANE] + o["state"][T % 2, B, K] * weight
        cells = loop(
            "part",
            parts,
            loop("lane", lanes, If(inside, self._packed_cell(o, sums, time, unit)), kind="vector"),
            kind="unroll",
        )
        body = (
            tile(Store("acc", (PART, GATE, LANE), start)),
            loop("k", hidden, tile(Store("acc", (PART, GATE, LANE), step))),
            cells,
        )
        return (Alloc(acc, body),)

    def _packed_cell(self, o: dict[str, Tensor], sums: Tensor, time: Expr, unit: Expr) -> tuple[Stmt, ...]:
        i, output, f, g = (sums[PART, n, LANE] for n in range(GATES))
        apply = self._apply
        gate_in = apply(0, i)
        forget = 1.0 - gate_in if self.input_forget else apply(0, f)
        c = o["c"][B, unit]
        new_c = forget * c + gate_in * apply(1, g)
        new_h = apply(0, output) * apply(2, c)
        return (
            Store("c", (B, unit), new_c),
            Store("h", (B, unit), new_h),
            Store("y", (time, B, unit), o["h"][B, unit]),
            Store("state", (s.cast((T + 1) % 2, I64), B, unit), o["h"][B, unit]),
        )
