"""Recurrent layers as in ONNX: one product with the input for all steps, then a time loop per direction.

x is (steps, batch, inputs); weights w (directions, gates · hidden, inputs), r (directions, gates · hidden,
hidden), bias (directions, 2 · gates · hidden); states (directions, batch, hidden); y is (steps, directions,
batch, hidden). With `batch_first`, batch comes first in x, y and the states. Narrow floats run in f32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..ir.types import TensorType
from .base import Decomposer, Op
from .elementwise import Binary, Cast
from .matmul import MatMul
from .movement import Concat, Reshape, Slice, Transpose
from .recurrence import Activation, GruRecurrence, LstmRecurrence, RnnRecurrence
from .shapes import fail, wide

DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


@dataclass(frozen=True)
class _Layer(Op, abstract=True):
    """`activations` are those of the forward direction, then those of the backward one."""

    activations: tuple[Activation, ...]
    direction: str = "forward"
    clip: float = 0.0
    batch_first: bool = False

    roles: ClassVar[tuple[str, ...]] = ("x", "w", "r", "bias", "lengths", "h0")
    gates: ClassVar[int] = 1

    def _decomposed_loop(self, n: int) -> Op:
        """The time loop of direction n."""
        raise NotImplementedError

    def _activations(self, n: int) -> tuple[Activation, ...]:
        each = len(self.activations) // len(self._directions)
        return self.activations[n * each : (n + 1) * each]

    @property
    def _directions(self) -> tuple[bool, ...]:
        return DIRECTIONS.get(self.direction) or fail(
            f"direction is {self.direction!r}, expected {[*DIRECTIONS]}"
        )

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        t = dict(zip(self.roles, inputs))
        x, w, r = t["x"], t["w"], t["r"]
        if x is None or w is None or r is None or any(v.rank != 3 or not v.dtype.is_float for v in (x, w, r)):
            fail(f"inputs {x}, {w}, {r}: expected floats with 3 axes")
        steps, batch, width = x.dims if not self.batch_first else (x.dims[1], x.dims[0], x.dims[2])
        count, hidden = len(self._directions), r.dims[2]
        states = (batch, count, hidden) if self.batch_first else (count, batch, hidden)
        expected = {
            "w": (count, self.gates * hidden, width),
            "r": (count, self.gates * hidden, hidden),
            "bias": (count, 2 * self.gates * hidden),
            "h0": states,
            "c0": states,
            "peephole": (count, 3 * hidden),
        }
        for role, shape in expected.items():
            given = t.get(role)
            if given is not None and (given.dims != shape or given.dtype is not x.dtype):
                fail(f"{role} is {given}, expected {x.dtype}{list(shape)}")
        lengths = t.get("lengths")
        if lengths is not None and (lengths.dims != (batch,) or not lengths.dtype.is_integer):
            fail(f"sequence_lens is {lengths}, expected [{batch}] integers")
        y = (batch, steps, count, hidden) if self.batch_first else (steps, count, batch, hidden)
        state = TensorType(x.dtype, states)
        return (
            (TensorType(x.dtype, y), state, state) if "c0" in self.roles else (TensorType(x.dtype, y), state)
        )

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        t = {
            role: a if role == "lengths" else a.astype(np.float64)
            for role, a in zip(self.roles, inputs)
            if a is not None
        }
        if self.batch_first:
            t.update({role: np.swapaxes(t[role], 0, 1) for role in ("x", "h0", "c0") if role in t})
        results = [self._reference_direction(n, t) for n in range(len(self._directions))]
        y, *states = (np.stack(parts) for parts in zip(*results))
        y = y.transpose(2, 1, 0, 3) if self.batch_first else y.transpose(1, 0, 2, 3)
        states = [np.swapaxes(a, 0, 1) if self.batch_first else a for a in states]
        dtype = inputs[0].dtype if inputs[0] is not None else np.float32
        return tuple(a.astype(dtype) for a in (y, *states))

    def _reference_direction(self, n: int, t: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        xw = t["x"] @ t["w"][n].T
        kept = None
        if "bias" in t:
            of_w, of_r = np.split(t["bias"][n], 2)
            shared, kept = self._reference_bias(of_r)
            xw = xw + of_w + shared
        vectors: dict[str, np.ndarray | None] = {
            role: t[role][n] for role in ("h0", "c0", "peephole") if role in t
        }
        op = self._decomposed_loop(n)
        vectors.update(xw=xw, r=t["r"][n], bias=kept, lengths=t.get("lengths"))
        return op.reference(*(vectors.get(role) for role in op.roles))  # type: ignore[attr-defined]

    def _reference_bias(self, of_r: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """The part of the recurrent bias that is added outside of the loop, and the part that is not."""
        return of_r, None

    def decompose(self, g: Decomposer, *inputs: str | None) -> tuple[str, ...]:
        t = {role: name for role, name in zip(self.roles, inputs) if name is not None}
        dtype = g.type(t["x"]).dtype
        acc = wide(dtype)
        if acc is not dtype:
            t = {role: n if role == "lengths" else g.one(Cast(acc.name), n) for role, n in t.items()}
        if self.batch_first:
            t.update({role: g.one(Transpose((1, 0, 2)), t[role]) for role in ("x", "h0", "c0") if role in t})
        results = [self._direction(g, n, t) for n in range(len(self._directions))]
        y, *states = ([parts[k] for parts in results] for k in range(len(results[0])))
        joined = [
            self._join(g, y, 1, (2, 0, 1, 3)),
            *(self._join(g, parts, 0, (1, 0, 2)) for parts in states),
        ]
        return tuple(joined if acc is dtype else (g.one(Cast(dtype.name), n) for n in joined))

    def _join(self, g: Decomposer, parts: list[str], axis: int, batch_first: tuple[int, ...]) -> str:
        """The directions' results along a new axis."""
        shape = g.type(parts[0]).dims
        parts = [g.one(Reshape((*shape[:axis], 1, *shape[axis:])), p) for p in parts]
        whole = g.one(Concat(axis), *parts) if len(parts) > 1 else parts[0]
        return g.one(Transpose(batch_first), whole) if self.batch_first else whole

    def _direction(self, g: Decomposer, n: int, t: Mapping[str, str]) -> tuple[str, ...]:
        x, w = t["x"], part(g, t["w"], n)
        steps, batch, width = g.type(x).dims
        size = g.type(w).dims[0]
        xw = g.one(MatMul(trans_b=True), g.one(Reshape((steps * batch, width)), x), w)
        kept = None
        if "bias" in t:
            bias = part(g, t["bias"], n)
            shared, kept = self._bias(g, cut(g, bias, size, size))
            xw = g.one(Binary("add"), xw, g.one(Binary("add"), cut(g, bias, 0, size), shared))
        values: dict[str, str | None] = {
            role: part(g, t[role], n) for role in ("r", "h0", "c0", "peephole") if role in t
        }
        values.update(xw=g.one(Reshape((steps, batch, size)), xw), bias=kept, lengths=t.get("lengths"))
        op = self._decomposed_loop(n)
        return g.emit(op, *(values.get(role) for role in op.roles))  # type: ignore[attr-defined]

    def _bias(self, g: Decomposer, of_r: str) -> tuple[str, str | None]:
        """`_reference_bias` on the graph."""
        return of_r, None


def part(g: Decomposer, value: str, n: int) -> str:
    """value[n]."""
    shape = g.type(value).dims
    if shape[0] > 1:
        starts, sizes = (n, *(0,) * (len(shape) - 1)), (1, *shape[1:])
        value = g.one(Slice(starts, sizes, (1,) * len(shape)), value)
    return g.one(Reshape(shape[1:]), value)


def cut(g: Decomposer, vector: str, start: int, size: int) -> str:
    return g.one(Slice((start,), (size,), (1,)), vector)


@dataclass(frozen=True)
class RNN(_Layer):
    """h = f(x·wᵀ + h·rᵀ + bias)."""

    def _decomposed_loop(self, n: int) -> Op:
        return RnnRecurrence(self._activations(n), self._directions[n], self.clip)


@dataclass(frozen=True)
class LSTM(_Layer):
    """Gates i, o, f, c; optional peepholes (directions, 3 · hidden) for i, o, f. See `LstmRecurrence`."""

    input_forget: bool = False

    roles = ("x", "w", "r", "bias", "lengths", "h0", "c0", "peephole")
    gates = 4

    def _decomposed_loop(self, n: int) -> Op:
        return LstmRecurrence(self._activations(n), self._directions[n], self.clip, self.input_forget)


@dataclass(frozen=True)
class GRU(_Layer):
    """Gates z, r, h. See `GruRecurrence`."""

    linear_before_reset: bool = False

    gates = 3

    def _decomposed_loop(self, n: int) -> Op:
        return GruRecurrence(self._activations(n), self._directions[n], self.clip, self.linear_before_reset)

    def _reference_bias(self, of_r: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        if not self.linear_before_reset:
            return of_r, None
        hidden = of_r.size // 3
        return np.concatenate([of_r[: 2 * hidden], np.zeros(hidden)]), of_r[2 * hidden :]

    def _bias(self, g: Decomposer, of_r: str) -> tuple[str, str | None]:
        if not self.linear_before_reset:
            return of_r, None
        hidden, dtype = g.type(of_r).size // 3, g.type(of_r).dtype
        zeros = g.const(np.zeros(hidden, dtype.numpy), "zeros")
        return g.one(Concat(0), cut(g, of_r, 0, 2 * hidden), zeros), cut(g, of_r, 2 * hidden, hidden)
