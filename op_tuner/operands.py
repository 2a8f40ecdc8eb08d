"""Operands to measure a kernel on: seeded, of the physical types that it reads, and what it should give."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..compiler.ir import loops as L
from ..compiler.ir import scalar as s
from ..compiler.ir.expr import Stage, TensorExpr
from ..compiler.ir.loops_interpreter import interpret
from ..compiler.ir.types import I32, I64, Layout, TensorType
from ..compiler.kernel_task import KernelTask
from ..compiler.ops.fused import FusedOp
from ..compiler.ops.packed_recurrence import PACKED, Packed
from ..compiler.templates.registry import ALGORITHMS
from ..errors import BurnishError, InternalError
from . import check

SMALL = 8  # integers of 32 bits and more that index nothing are below this, to keep sums and shifts in range

KEPT = 256 << 20  # bytes of operands that are kept


@dataclass(frozen=True)
class Operands:
    """`arrays` in the order of the kernel's parameters, as it finds them in memory; `weights` are positions.

    `expected` is None where nothing is checked, else there is one for each output.
    """

    arrays: tuple[np.ndarray, ...]
    weights: frozenset[int]
    outputs: tuple[TensorType, ...]  # with layouts
    expected: tuple[check.Expected, ...] | None

    @property
    def nbytes(self) -> int:
        checks = sum(e.at.nbytes + e.want.nbytes for e in self.expected or ())
        return checks + sum(array.nbytes for array in self.arrays)

    def error(self, physical: list[np.ndarray]) -> str:
        """What is wrong with the outputs; empty if nothing is."""
        for type, want, got in zip(self.outputs, self.expected or (), physical):
            flat = got.reshape(type.physical_shape)
            logical = flat if type.layout is None else type.layout.unpack(flat, type.dims)
            message = want.error(logical.reshape(type.dims)) or _padding_error(type, want, flat)
            if message:
                return message
        return ""


def _padding_error(type: TensorType, want: check.Expected, physical: np.ndarray) -> str:
    """Of an output whose elements are right. Readers may multiply the padding of blocks by zero."""
    padded = physical.size > type.size
    if not padded or not type.dtype.is_float or not np.isfinite(want.want).all():
        return ""
    finite = np.isfinite(physical.astype(np.float64)).all()
    return "" if finite else "padding of a block that is not finite, or that was not written"


_kept: dict[Hashable, Operands] = {}


def operands(task: KernelTask, checked: bool = True) -> Operands:
    """Those of the task; the latest are kept, since a tuner measures one task many times."""
    key = (task if task.expr is None else (task.digest, task.target), checked)
    found = _kept.pop(key, None)
    if found is None:
        found = _of_program(task, checked) if task.expr is None else _of_expr(task, checked)
    _kept[key] = found
    while len(_kept) > 1 and sum(each.nbytes for each in _kept.values()) > KEPT:
        del _kept[next(iter(_kept))]
    return found


def _of_expr(task: KernelTask, checked: bool) -> Operands:
    expr = task.expr
    assert expr is not None
    params = [name for name, _ in expr.params]
    bounds, words = index_bounds(expr), _words_in(expr)
    types = dict(expr.params)
    logical = [
        _words(types[p], n) if p in words else _random(types[p], n, bounds.get(p))
        for n, p in enumerate(params)
    ]
    expected = None
    if checked:
        found = check.sample(expr, logical)
        if not all(np.isfinite(want).all() for _, want in found if want.dtype.kind not in "iub"):
            positive = [_random(types[p], n, bounds.get(p), 0.1) for n, p in enumerate(params)]
            logical, found = positive, check.sample(expr, positive)
        floats = any(type.dtype.is_float for _, type in expr.params)
        expected = tuple(
            check.Expected(at, want, _tolerance(task, expr.type_of(name)), floats)
            for name, (at, want) in zip(expr.outputs, found)
        )
    arrays = tuple(_packed(task, n, p, a) for n, (p, a) in enumerate(zip(params, logical)))
    weights = frozenset(n for n, p in enumerate(params) if p in task.constants)
    outputs = tuple(expr.type_of(name).with_layout(task.layout(name)) for name in expr.outputs)
    return Operands(arrays, weights, outputs, expected)


def _of_program(task: KernelTask, checked: bool) -> Operands:
    """All plain. The operator's reference says what is right; without an operator the program itself."""
    program = task.program
    if program is None:
        raise InternalError(f"task {task.name} has neither an expression nor a program")
    count = len(program.params) - _output_count(task)
    inputs, results = program.params[:count], program.params[count:]
    bounds = dict(_checked_bounds(program))
    types = [TensorType(b.dtype, b.shape) for b in inputs]
    arrays, wanted = _accepted(task, types, [bounds.get(b.name) for b in inputs], checked)
    floats = any(type.dtype.is_float for type in types)
    expected: tuple[check.Expected, ...] | None = None
    if wanted is not None:
        expected = tuple(
            check.Expected(
                *(np.arange(w.size), w.reshape(-1), _tolerance(task, TensorType(b.dtype, b.shape))),
                few_may_differ=floats and b.dtype is not I64,  # indices are right or not
            )
            for b, w in zip(results, wanted)
        )
    # A program does not say which of its operands are constant: a large one is taken to be.
    weights = frozenset(n for n, a in enumerate(arrays) if a.nbytes > task.target.l2)
    return Operands(arrays, weights, tuple(TensorType(b.dtype, b.shape) for b in results), expected)


def _accepted(
    task: KernelTask, types: list[TensorType], bounds: list[int | None], checked: bool
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...] | None]:
    """Operands that the reference takes, and what it gives for them: integers are 0 if it refuses others."""
    reason: Exception | None = None
    for zeros in (False, True):
        arrays = tuple(
            _random(t, n, 1 if zeros else bound) for n, (t, bound) in enumerate(zip(types, bounds))
        )
        if isinstance(task.op, (Packed, *PACKED)):
            arrays = _contracting(arrays, task.output_types[0].dims[-1])
        if not checked:
            return arrays, None
        try:
            return arrays, _reference(task, arrays)
        except (BurnishError, ValueError, IndexError) as error:
            reason = error
    raise InternalError(f"task {task.name}: its reference refuses the operands to measure on: {reason}")


def _contracting(arrays: tuple[np.ndarray, ...], hidden: int) -> tuple[np.ndarray, ...]:
    """A recurrence's, with weights so small that differences do not grow from step to step."""
    share, weights, *rest = arrays
    return (share, weights * weights.dtype.type(max(1, hidden) ** -0.5), *rest)


def _output_count(task: KernelTask) -> int:
    if task.output_types:
        return len(task.output_types)
    assert task.program is not None
    stored = {st.buffer for st in L.walk(task.program.body) if isinstance(st, L.Store)}
    return sum(b.name in stored for b in task.program.params)


def _reference(task: KernelTask, arrays: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    if task.op is None:
        assert task.program is not None
        return tuple(interpret(task.program, arrays))
    rest = iter(arrays)
    with np.errstate(all="ignore"):
        return task.op.reference(*(None if t is None else next(rest) for t in task.types))


def _tolerance(task: KernelTask, type: TensorType) -> float:
    """Relative; wide enough for any order of sums, narrow enough to see one product too many."""
    if not type.dtype.is_float:
        return 0.0
    narrow = {"f16": 2e-2, "bf16": 8e-2}.get(type.dtype.name, 2e-4)
    algorithm = ALGORITHMS.get(task.transformed)
    return max(narrow, 2e-3, 4 * algorithm.error) if algorithm is not None and algorithm.error else narrow


def _random(type: TensorType, n: int, bound: int | None, low: float = -1.0) -> np.ndarray:
    """Floats in [low, 1), integers below `bound`."""
    random = np.random.default_rng((n, *type.dims))
    dtype = type.dtype
    if dtype.is_float:
        wide = random.random(type.dims, np.float32) * np.float32(1 - low) + np.float32(low)
        return wide.astype(dtype.numpy)
    if dtype.kind == "bool":
        return random.integers(0, 2, type.dims).astype(np.bool_)
    if bound is None and dtype.bits <= 8:
        info = np.iinfo(dtype.numpy)
        return random.integers(info.min, info.max + 1, type.dims).astype(dtype.numpy)
    return random.integers(0, SMALL if bound is None else max(1, bound), type.dims).astype(dtype.numpy)


def _words_in(expr: TensorExpr) -> set[str]:
    """What is read as words of four bytes."""
    dots = (e for st in expr.stages for e in s.walk(st.body) if isinstance(e, s.Call) and e.op in s.DOTS)
    return {load.tensor for e in dots for load in s.loads(e) if load.type is I32}


def _words(type: TensorType, seed: int) -> np.ndarray:
    """Four small bytes in each, so that each matters and sums stay in range."""
    bytes = np.random.default_rng(seed).integers(0, SMALL, (*type.dims, 4)).astype(np.uint8)
    return bytes.view("<i4").reshape(type.dims).astype(np.int32)


def _packed(task: KernelTask, position: int, param: str, array: np.ndarray) -> np.ndarray:
    """As it lies in memory: in its layout, or through the algorithm's transform of weights."""
    layout = task.layout(param)
    if task.transformed in ALGORITHMS and layout is None:
        if not isinstance(task.op, FusedOp):
            raise InternalError(f"task {task.name} has transformed weights, but no operator that says which")
        pack = ALGORITHMS[task.transformed].weights(task.op, task.target.lanes(4)).get(position)
        if pack is not None:
            return pack.pack(array) if isinstance(pack, Layout) else pack(array)
    return np.ascontiguousarray(array) if layout is None else layout.pack(array)


# --- integers that are used as indices ------------------------------------------------------------------


def index_bounds(expr: TensorExpr) -> dict[str, int]:
    """Param → how many values it may take, for params whose elements index other tensors."""
    stages = {st.name: st for st in expr.stages}
    bounds: dict[str, int] = {}

    def limit(e: s.Expr, extent: int) -> None:
        for load in s.loads(e):
            if not load.dtype.is_integer:
                continue
            if load.tensor in stages:
                limit(stages[load.tensor].body, extent)
            else:
                bounds[load.tensor] = min(extent, bounds.get(load.tensor, extent))

    for st in expr.stages:
        for e, extent in _index_uses(st, expr):
            limit(e, extent)
    return bounds


def _index_uses(st: Stage, expr: TensorExpr) -> Iterator[tuple[s.Expr, int]]:
    for e in s.walk(st.body):
        if isinstance(e, s.Load):
            yield from zip(e.index, expr.type_of(e.tensor).dims)
        elif isinstance(e, s.Call) and e.op == "checked" and isinstance(e.args[1], s.Const):
            yield e.args[0], int(e.args[1].value)


def _checked_bounds(program: L.Program) -> Iterator[tuple[str, Any]]:
    found: dict[str, int] = {}
    for st in L.walk(program.body):
        for top in L.expressions(st):
            for e in s.walk(top):
                if isinstance(e, s.Call) and e.op == "checked" and isinstance(e.args[1], s.Const):
                    for load in s.loads(e.args[0]):
                        extent = int(e.args[1].value)
                        found[load.tensor] = min(extent, found.get(load.tensor, extent))
    return iter(found.items())
