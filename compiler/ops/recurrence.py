"""The time loops of recurrent layers, one direction each; the products with the input are done before.

Inputs by role: xw (steps, batch, gates · hidden), the input's share of every gate, biases included;
r (gates · hidden, hidden); h0, c0 (batch, hidden), zero where absent; lengths (batch): a sequence that ends
early has zero outputs after its end, and its last state is that of its last step. `reverse` runs a sequence
from its last step to its first; y stays in time order.
Outputs: y (steps, batch, hidden), the last h, and for LSTM the last c.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..ir import scalar as s
from ..ir.expr import Tensor
from ..ir.loops import Alloc, Buffer, For, Program, Stmt, Store, loop
from ..ir.scalar import Expr, Var
from ..ir.types import F32, F64, I64, TensorType
from .base import Op
from .elementwise import UNARY, Function
from .shapes import fail
from .window import high

Activation = tuple
"""(function, parameters…), functions as in `elementwise.UNARY` and EXTRA."""
SIGMOID: Activation = ("sigmoid",)
TANH: Activation = ("tanh",)
EXTRA: dict[str, Function] = {
    "affine": Function(lambda x, a, b: x * a + b, lambda x, a, b: x * a + b, "float", params=2),
    "scaled_tanh": Function(
        lambda x, a, b: s.call("tanh", x * b) * a, lambda x, a, b: np.tanh(x * b) * a, "float", params=2
    ),
}
ROW, J, K, STEP = Var("row"), Var("j"), Var("k"), Var("step")

Operands = Mapping[str, Tensor]
"""The buffers of a program by role, absent ones left out; "gates" is scratch of (rows, hidden)."""


def activation(spec: Activation) -> Function:
    """The function of an activation; ModelError if there is none or its parameters do not fit."""
    name, *params = spec
    function = EXTRA.get(name) or UNARY.get(name) or fail(f"unknown activation {name!r}")
    if len(params) != function.params:
        fail(f"activation {name} takes {function.params} parameters, got {params}")
    return function


@dataclass(frozen=True)
class Recurrence(Op, abstract=True):
    """`clip` > 0 bounds what the gates' activations are given, but not LSTM's third (of the cell's state):
    ONNX leaves that open, and so do onnxruntime and OpenVINO.
    """

    activations: tuple[Activation, ...]
    reverse: bool = False
    clip: float = 0.0

    roles: ClassVar[tuple[str, ...]] = ("xw", "r", "h0", "lengths")
    gates: ClassVar[int] = 1
    rows: ClassVar[int] = 1  # of the scratch buffer
    functions: ClassVar[int] = 1

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        t = dict(zip(self.roles, inputs))
        xw, r = t["xw"], t["r"]
        if xw is None or r is None or xw.dtype not in (F32, F64) or xw.rank != 3 or r.rank != 2:
            fail(f"input {xw} and weights {r}: expected f32 or f64, 3 axes and 2 axes")
        steps, batch, width = xw.dims
        hidden = r.dims[1]
        if r.dims != (self.gates * hidden, hidden) or width != self.gates * hidden:
            fail(f"input {xw} and weights {r} do not fit {self.gates} gates")
        expected = {
            "h0": (batch, hidden),
            "c0": (batch, hidden),
            "peephole": (3 * hidden,),
            "bias": (hidden,),
        }
        for role, shape in expected.items():
            given = t.get(role)
            if given is not None and (given.dims != shape or given.dtype is not xw.dtype):
                fail(f"{role} is {given}, expected {xw.dtype}{list(shape)}")
        lengths = t.get("lengths")
        if lengths is not None and (lengths.dims != (batch,) or not lengths.dtype.is_integer):
            fail(f"sequence lengths are {lengths}, expected [{batch}] integers")
        if len(self.activations) != self.functions:
            fail(f"{len(self.activations)} activations, expected {self.functions}")
        for spec in self.activations:
            activation(spec)
        state = TensorType(xw.dtype, (batch, hidden))
        y = TensorType(xw.dtype, (steps, batch, hidden))
        return (y, state, state) if "c0" in self.roles else (y, state)

    def _act(self, n: int, x: np.ndarray) -> np.ndarray:
        bounded = np.clip(x, -self.clip, self.clip) if self.clip > 0 and n < 2 else x
        return activation(self.activations[n]).numpy(bounded, *self.activations[n][1:])

    def _step(
        self, xw: np.ndarray, h: np.ndarray, c: np.ndarray, t: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """numpy: the next h and c of all rows."""
        raise NotImplementedError

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        t = {role: high(a) for role, a in zip(self.roles, inputs) if a is not None}
        xw, r = t["xw"], t["r"]
        steps, batch, _ = xw.shape
        h, c = (t.get(role, np.zeros((batch, r.shape[1]))) for role in ("h0", "c0"))
        ends = np.clip(t.get("lengths", np.full(batch, steps)), 0, steps).astype(np.int64)
        y = np.zeros((steps, batch, r.shape[1]))
        rows = np.arange(batch)
        for step in range(steps):
            active = step < ends
            time = np.where(active, ends - 1 - step if self.reverse else step, 0)
            new_h, new_c = self._step(xw[time, rows], h, c, t)
            h, c = np.where(active[:, None], new_h, h), np.where(active[:, None], new_c, c)
            y[time[active], rows[active]] = h[active]
        outputs = (y, h, c) if "c0" in self.roles else (y, h)
        dtype = np.float32 if inputs[0] is not None and inputs[0].dtype == np.float32 else np.float64
        return tuple(a.astype(dtype) for a in outputs)

    def _apply(self, n: int, x: Expr) -> Expr:
        bounded = s.maximum(s.minimum(x, self.clip), -self.clip) if self.clip > 0 and n < 2 else x
        return activation(self.activations[n]).body(bounded, *self.activations[n][1:])

    def _cell(self, o: Operands, t: Expr) -> tuple[Stmt, ...]:
        """One step of one row: y[t], h and c from xw[t] and the h and c before."""
        raise NotImplementedError

    def loops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> Program:
        named = [*zip(self.roles, inputs), *zip(("y", "h", "c"), outputs)]
        o = {role: Tensor(role, t.dtype, t.dims) for role, t in named if t is not None}
        params = tuple(Buffer(t.name, t.dtype, t.shape) for t in o.values())
        steps, batch, hidden = o["y"].shape
        dtype = o["y"].dtype
        gates = Buffer("gates", dtype, (self.rows, hidden), "scratch")
        o["gates"] = Tensor("gates", dtype, gates.shape)
        end: Expr = s.const(steps)
        if "lengths" in o:
            end = s.maximum(s.minimum(s.cast(o["lengths"][ROW], I64), steps), 0)
        time = end - 1 - STEP if self.reverse else STEP
        body: list[Stmt] = [
            loop(
                "j", hidden, *(self._initial(o, *pair) for pair in (("h", "h0"), ("c", "c0")) if pair[0] in o)
            ),
            Alloc(gates, (loop("step", end, *self._cell(o, time)),)),
        ]
        if "lengths" in o:
            clear = Store("y", (STEP, ROW, J), s.const(0, dtype))
            body.append(loop("step", steps, loop("j", hidden, clear), begin=end))
        return Program(self.name, params, (loop("row", batch, *body, kind="parallel"),))

    @staticmethod
    def _initial(o: Operands, state: str, given: str) -> Stmt:
        value = o[given][ROW, J] if given in o else s.const(0, o[state].dtype)
        return Store(state, (ROW, J), value)


def matrix_vector(
    o: Operands, gate: int, start: Callable[[Expr], Expr], vector: Callable[[Expr], Expr]
) -> For:
    """gates[gate, j] = start(j) + Σk vector(k) · r[gate · hidden + j, k]."""
    hidden, dtype = o["r"].shape[1], o["r"].dtype
    total = Buffer(f"sum{gate}", dtype, (1,), "register")
    at = Tensor(total.name, dtype, (1,))[0]
    add = Store(total.name, (s.const(0),), at + vector(K) * o["r"][J + gate * hidden, K])
    inner = (
        Store(total.name, (s.const(0),), start(J)),
        loop("k", hidden, add),
        Store("gates", (s.const(gate), J), at),
    )
    return loop("j", hidden, Alloc(total, inner))


def set_gate(o: Operands, gate: int, value: Expr) -> Store:
    return Store("gates", (s.const(gate), J), value)


@dataclass(frozen=True)
class RnnRecurrence(Recurrence):
    """h = f(xw + h · rᵀ)."""

    activations: tuple[Activation, ...] = (TANH,)

    def _step(
        self, xw: np.ndarray, h: np.ndarray, c: np.ndarray, t: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        return self._act(0, xw + h @ t["r"].T), c

    def _cell(self, o: Operands, t: Expr) -> tuple[Stmt, ...]:
        h, gates = o["h"], o["gates"]
        return (
            matrix_vector(o, 0, lambda j: o["xw"][t, ROW, j], lambda k: h[ROW, k]),
            loop(
                "j",
                h.shape[1],
                Store("h", (ROW, J), self._apply(0, gates[0, J])),
                Store("y", (t, ROW, J), h[ROW, J]),
            ),
        )


@dataclass(frozen=True)
class LstmRecurrence(Recurrence):
    """Gates in the order i, o, f, c; `activations` are f (of i, o, f), g (of c) and h (of the cell's state).

    i = f(xw + h·rᵀ + p·c), o and f likewise (o with the new c), c = f·c + i·g(xw + h·rᵀ), h = o·h(c).
    `input_forget`: f = 1 - i.
    """

    activations: tuple[Activation, ...] = (SIGMOID, TANH, TANH)
    input_forget: bool = False

    roles = ("xw", "r", "h0", "c0", "peephole", "lengths")
    gates = 4
    rows = 4
    functions = 3

    def _step(
        self, xw: np.ndarray, h: np.ndarray, c: np.ndarray, t: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        hidden = h.shape[1]
        i, o, f, g = np.split(xw + h @ t["r"].T, 4, axis=1)
        pi, po, pf = np.split(t.get("peephole", np.zeros(3 * hidden)), 3)
        i = self._act(0, i + pi * c)
        f = 1 - i if self.input_forget else self._act(0, f + pf * c)
        c = f * c + i * self._act(1, g)
        return self._act(0, o + po * c) * self._act(2, c), c

    def _cell(self, o: Operands, t: Expr) -> tuple[Stmt, ...]:
        h, c, gates, hidden = o["h"], o["c"][ROW, J], o["gates"], o["h"].shape[1]

        def product(gate: int) -> For:
            return matrix_vector(o, gate, lambda j: o["xw"][t, ROW, j + gate * hidden], lambda k: h[ROW, k])

        def peeped(gate: int, place: int) -> Expr:
            value = gates[gate, J]
            return value + o["peephole"][J + place * hidden] * c if "peephole" in o else value

        forget = 1.0 - gates[0, J] if self.input_forget else self._apply(0, peeped(2, 2))
        update = loop(
            "j",
            hidden,
            set_gate(o, 0, self._apply(0, peeped(0, 0))),
            Store("c", (ROW, J), forget * c + gates[0, J] * self._apply(1, gates[3, J])),
            Store("h", (ROW, J), self._apply(0, peeped(1, 1)) * self._apply(2, c)),
            Store("y", (t, ROW, J), h[ROW, J]),
        )
        return (*(product(gate) for gate in range(4)), update)


@dataclass(frozen=True)
class GruRecurrence(Recurrence):
    """Gates in the order z, r, h; `activations` are f (of z and r) and g (of h); h = (1 - z)·ĥ + z·h, where
    ĥ = g(xw + (r·h)·rᵀ), or with `linear_before_reset` g(xw + r·(h·rᵀ + bias)).
    """

    activations: tuple[Activation, ...] = (SIGMOID, TANH)
    linear_before_reset: bool = False

    roles = ("xw", "r", "h0", "bias", "lengths")
    gates = 3
    rows = 4
    functions = 2

    def _step(
        self, xw: np.ndarray, h: np.ndarray, c: np.ndarray, t: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        xz, xr, xh = np.split(xw, 3, axis=1)
        wz, wr, wh = np.split(t["r"], 3)
        z, r = self._act(0, xz + h @ wz.T), self._act(0, xr + h @ wr.T)
        inner = r * (h @ wh.T + t.get("bias", 0)) if self.linear_before_reset else (r * h) @ wh.T
        return (1 - z) * self._act(1, xh + inner) + z * h, c

    def _cell(self, o: Operands, t: Expr) -> tuple[Stmt, ...]:
        h, gates, hidden = o["h"], o["gates"], o["h"].shape[1]

        def share(gate: int, j: Expr) -> Expr:
            return o["xw"][t, ROW, j + gate * hidden]

        def bias(j: Expr) -> Expr:
            return o["bias"][j] if "bias" in o else s.const(0, h.dtype)

        def product(gate: int) -> For:
            return matrix_vector(o, gate, lambda j: share(gate, j), lambda k: h[ROW, k])

        reset = self._apply(0, gates[1, J])
        if self.linear_before_reset:
            last: tuple[Stmt, ...] = (matrix_vector(o, 2, bias, lambda k: h[ROW, k]),)
            candidate = share(2, J) + reset * gates[2, J]
        else:
            scaled = loop("j", hidden, set_gate(o, 3, reset * h[ROW, J]))
            last = (scaled, matrix_vector(o, 2, lambda j: share(2, j), lambda k: gates[3, k]))
            candidate = gates[2, J]
        update = loop(
            "j",
            hidden,
            set_gate(o, 2, self._apply(1, candidate)),
            set_gate(o, 0, self._apply(0, gates[0, J])),
            Store("h", (ROW, J), (1.0 - gates[0, J]) * gates[2, J] + gates[0, J] * h[ROW, J]),
            Store("y", (t, ROW, J), h[ROW, J]),
        )
        return (product(0), product(1), *last, update)
