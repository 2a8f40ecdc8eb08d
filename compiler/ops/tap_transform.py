"""Weights of a convolution as an algorithm on transformed taps streams them, such as Winograd's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ..ir import scalar as s
from ..ir.expr import Tensor
from ..ir.loops import Alloc, Buffer, Program, Stmt, Store, loop
from ..ir.scalar import Expr, Var
from ..ir.types import F32, F64, TensorType
from .base import Op
from .shapes import fail, given

OUT, IC, PART, LANE = (Var(n) for n in ("out", "ic", "part", "lane"))
WIDTH = 8  # f64 that are summed together


@dataclass(frozen=True)
class TapTransform(Op):
    """(out channels, in channels, *kernel) → every point's combination of the taps: rows of `group` output
    channels in the order (point, group of output channels, phase, input channel). Zeros fill up the last
    group, and the last `lanes` input channels.

    `coefficients[point][phase]` has one factor a tap. Sums are taken in f64 and rounded once.
    """

    coefficients: tuple[tuple[tuple[float, ...], ...], ...]
    group: int
    lanes: int = 1

    def __call__(self, w: np.ndarray) -> np.ndarray:
        return self.reference(w)[0]

    def infer(self, w: TensorType | None) -> tuple[TensorType, ...]:
        w = given(w)
        taps = {len(factors) for phases in self.coefficients for factors in phases}
        if w.dtype is not F32 or taps != {prod(w.dims[2:])}:
            fail(f"weights {w} do not fit {taps} taps")
        rows = sum(map(len, self.coefficients)) * self._groups(w.dims[0]) * self._channels(w.dims[1])
        return (TensorType(F32, (rows, self.group)),)

    def _groups(self, out: int) -> int:
        return -(-out // self.group)

    def _channels(self, channels: int) -> int:
        return -(-channels // self.lanes) * self.lanes

    def reference(self, w: np.ndarray) -> tuple[np.ndarray, ...]:
        out, channels = self._groups(w.shape[0]) * self.group, self._channels(w.shape[1])
        taps = np.zeros((out, channels, prod(w.shape[2:])))
        taps[: w.shape[0], : w.shape[1]] = w.reshape(*w.shape[:2], -1)
        points = []
        for phases in self.coefficients:
            u = np.stack([taps @ np.array(factors) for factors in phases]).astype(np.float32)
            split = u.reshape(len(phases), out // self.group, self.group, channels)
            points.append(split.transpose(1, 0, 3, 2).reshape(-1, self.group))
        return (np.concatenate(points),)

    def loops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> Program:
        weights = given(inputs[0])
        out, given_channels, *kernel = weights.dims
        channels = self._channels(given_channels)
        params = (Buffer("w", F32, weights.dims), Buffer("u", F32, outputs[0].dims))
        w = Tensor("w", F32, weights.dims)
        width, groups = (WIDTH if self.group % WIDTH == 0 else 1), self._groups(out)
        d = Buffer("taps", F64, (prod(kernel), width), "register")
        at = PART * width + LANE
        body: list[Stmt] = []
        for k, tap in enumerate(np.ndindex(*kernel)):
            channel = OUT * self.group + at
            value = s.cast(w[(channel, IC, *tap)], F64)
            inside = [s.lt(channel, out)] * (out % self.group > 0)
            inside += [s.lt(IC, given_channels)] * (channels > given_channels)
            value = s.select(s.both(*inside), value, s.const(0.0, F64))
            body.append(_lanes(width, Store(d.name, (s.const(k), LANE), value)))
        first = 0
        for phases in self.coefficients:
            for f, factors in enumerate(phases):
                row = first + (OUT * len(phases) + f) * channels + IC
                value = s.cast(_combination(factors, Tensor(d.name, F64, d.shape)), F32)
                body.append(_lanes(width, Store("u", (row, at), value)))
            first += len(phases) * groups * channels
        parts = loop("part", self.group // width, Alloc(d, tuple(body)))
        tasks = loop("out", groups, loop("ic", channels, parts), kind="parallel")
        return Program("tap_transform", params, (tasks,))


def _lanes(width: int, store: Store) -> Stmt:
    return loop("lane", width, store, kind="vector" if width > 1 else "serial")


def _combination(factors: Sequence[float], taps: Tensor) -> Expr:
    total: Expr = s.const(0.0, F64)
    for k, factor in enumerate(factors):
        if factor:
            total = total + taps[k, LANE] * s.const(factor, F64)
    return total
