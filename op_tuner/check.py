"""What a kernel should give, cheaply: all elements of small tensors, chosen elements of large ones.

The tensor expression is evaluated in numpy only where it is asked for, so that a convolution of a billion
products is checked in tens of milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product

import numpy as np

from ..compiler.ir import scalar as s
from ..compiler.ir.expr import Stage, TensorExpr
from ..compiler.ir.numpy_scalar import evaluate

WORK = 1 << 21  # scalar evaluations that a check may take, about
LEAST_POINTS = 64
_CHUNK = 1 << 22


@dataclass(frozen=True)
class Expected:
    """The elements `want` at flat positions `at` of an output that has the given logical shape."""

    at: np.ndarray
    want: np.ndarray
    relative: float  # tolerance, of the element or of the root mean square of all, whichever is larger
    few_may_differ: bool  # a discrete result of floats: rounding may fall to the other side, rarely

    def error(self, got: np.ndarray) -> str:
        """What is wrong with an output; empty if nothing is."""
        have = got.reshape(-1)[self.at]
        if not self.relative:
            wrong = have != self.want
            if self.few_may_differ:
                apart = np.abs(have.astype(np.float64) - self.want.astype(np.float64))
                wrong = wrong & (apart > 1)
                if np.mean(apart != 0) > 0.01:
                    wrong = apart != 0
        else:
            a, b = have.astype(np.float64), self.want.astype(np.float64)
            finite = np.isfinite(b)
            rms = np.sqrt(np.mean(b[finite] ** 2)) if finite.any() else 0.0
            with np.errstate(all="ignore"):
                close = np.abs(a - b) <= self.relative * np.maximum(np.abs(b), rms)
            wrong = ~np.where(finite, close, (a == b) | (np.isnan(a) & np.isnan(b)))
            if finite.all() and not np.isfinite(got.astype(np.float64)).all():
                return "an element that is not finite, or that was not written"
        if not wrong.any():
            return ""
        first = int(np.flatnonzero(wrong)[0])
        place = [int(i) for i in np.unravel_index(self.at[first], got.shape)]
        return (
            f"{wrong.mean():.1%} of {wrong.size} elements; at {place} {have[first]}, not {self.want[first]}"
        )


class _Lazy:
    """A stage as an array whose elements are computed when they are read."""

    def __init__(self, stage: Stage, tensors: Mapping[str, object]):
        self.stage, self.tensors = stage, tensors
        self.shape, self.dtype = stage.shape, stage.dtype.numpy
        self.size = int(np.prod(self.shape))

    def __getitem__(self, index: tuple[np.ndarray, ...]) -> np.ndarray:
        shape = np.broadcast_shapes(*(i.shape for i in index))
        if self.stage.reduce is None:
            values = {a.name: i for a, i in zip(self.stage.axes, index)}
            return np.broadcast_to(evaluate(self.stage.body, values, self.tensors), shape)  # type: ignore[arg-type]
        flat = np.ravel_multi_index(np.broadcast_arrays(*index), self.shape) if index else np.zeros((), int)
        points, back = np.unique(flat, return_inverse=True)
        return self.at(points)[back].reshape(shape)

    def at(self, points: np.ndarray) -> np.ndarray:
        """The elements at flat positions."""
        step = max(1, _CHUNK // _work(self.stage))
        parts = [self._some(points[i : i + step]) for i in range(0, len(points), step)]
        return np.concatenate(parts) if parts else np.zeros(0, self.dtype)

    def _some(self, points: np.ndarray) -> np.ndarray:
        st = self.stage
        over = st.reduce.axes if st.reduce else ()
        where = np.unravel_index(points, self.shape) if self.shape else ()
        ones = (1,) * len(over)
        values = {a.name: i.astype(np.int64).reshape(-1, *ones) for a, i in zip(st.axes, where)}
        for n, axis in enumerate(over):
            values[axis.name] = np.arange(axis.extent).reshape((-1, *(1,) * (len(over) - n - 1)))
        shape = (len(points), *(a.extent for a in over))
        with np.errstate(all="ignore"):
            body = np.broadcast_to(evaluate(st.body, values, self.tensors), shape)  # type: ignore[arg-type]
            return _reduce(st, body)


def _reduce(st: Stage, body: np.ndarray) -> np.ndarray:
    if st.reduce is None:
        return np.array(body, dtype=st.dtype.numpy)
    op, over = st.reduce.op, tuple(range(1, body.ndim))
    if op in ("sum", "prod"):
        return getattr(np, op)(body, axis=over, dtype=st.dtype.numpy)
    if op in ("max", "min"):
        identity = (s.lowest if op == "max" else s.highest)(st.dtype).value
        return getattr(np, op)(body, axis=over, initial=identity).astype(st.dtype.numpy)
    best = np.argmax if op.startswith("argmax") else np.argmin
    if op.endswith("_last"):
        return (body.shape[-1] - 1 - best(body[..., ::-1], axis=-1)).astype(np.int64)
    return best(body, axis=-1).astype(np.int64)


def _work(st: Stage) -> int:
    return max(1, int(np.prod([a.extent for a in st.reduce.axes]))) if st.reduce else 1


def sample(
    expr: TensorExpr, arrays: Sequence[np.ndarray], seed: int = 0
) -> list[tuple[np.ndarray, np.ndarray]]:
    """(flat positions, elements) of every output: all where that is cheap, else corners and chance."""
    tensors: dict[str, object] = {name: a for (name, _), a in zip(expr.params, arrays, strict=True)}
    stages = {st.name: _Lazy(st, tensors) for st in expr.stages}
    tensors.update(stages)
    work = sum(_work(st) for st in expr.stages)
    random = np.random.default_rng(seed)
    found = []
    for name in expr.outputs:
        stage = stages[name]
        points = chosen(stage.shape, max(LEAST_POINTS, WORK // max(1, work)), random)
        found.append((points, stage.at(points)))
    return found


def chosen(shape: tuple[int, ...], count: int, random: np.random.Generator) -> np.ndarray:
    """Flat positions in order: every one if there are few, else corners of the tensor and random ones."""
    size = int(np.prod(shape))
    if size <= count:
        return np.arange(size)
    ends = [dict.fromkeys((0, n - 1)) for n in shape]
    corners = [np.ravel_multi_index(c, shape) for c in islice(product(*ends), 32)]
    return np.unique(np.concatenate([corners, random.integers(0, size, count)]))
