"""Tensor expressions: what an operator computes, without order, layout of loops or device.

    TensorExpr := param name: type …   Stage …   -> outputs
    Stage      := name[axis < extent, …]: dtype = body                    every element on its own
                | name[axis < extent, …]: dtype = OP(axis < extent, …) body
    OP         := sum | prod | max | min | argmax | argmin | argmax_last | argmin_last

Meaning: stages in order; each defines a whole tensor over its axes by a scalar expression that reads params
and earlier stages. A reduction over zero elements gives its identity. `argmax` and `argmin` give the i64
index (of the first best element, `…_last` of the last) along their only reduction axis. Floating sums may be
taken in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...errors import InternalError
from . import scalar as s
from .numpy_scalar import evaluate
from .scalar import Expr, Load, Var
from .types import I64, DType, TensorType

REDUCERS = frozenset("sum prod max min argmax argmin argmax_last argmin_last".split())


@dataclass(frozen=True)
class Axis:
    name: str
    extent: int


@dataclass(frozen=True)
class Reduce:
    op: str
    axes: tuple[Axis, ...]


@dataclass(frozen=True)
class Stage:
    """One tensor and the expression of its elements. Axis names are local to the stage."""

    name: str
    dtype: DType
    axes: tuple[Axis, ...]
    body: Expr
    reduce: Reduce | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(a.extent for a in self.axes)

    @property
    def type(self) -> TensorType:
        return TensorType(self.dtype, self.shape)

    @property
    def all_axes(self) -> tuple[Axis, ...]:
        return self.axes + (self.reduce.axes if self.reduce else ())

    def ranges(self) -> dict[str, tuple[int, int]]:
        return {a.name: (0, max(a.extent - 1, 0)) for a in self.all_axes}


@dataclass(frozen=True)
class TensorExpr:
    params: tuple[tuple[str, TensorType], ...]
    stages: tuple[Stage, ...]
    outputs: tuple[str, ...]  # names of stages

    def stage(self, name: str) -> Stage:
        return next(st for st in self.stages if st.name == name)

    def type_of(self, name: str) -> TensorType:
        for param, type in self.params:
            if param == name:
                return type
        return self.stage(name).type


# --- building -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tensor:
    """An operand handle: `x[i, j]` is the scalar expression that reads one element."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __getitem__(self, index: object) -> Expr:
        items: Sequence = index if isinstance(index, tuple) else (index,)
        if len(items) != len(self.shape):
            raise InternalError(f"{self.name} has {len(self.shape)} axes, read with {len(items)} indices")
        return Load(self.name, tuple(s.as_expr(i) for i in items), self.dtype)

    def broadcast(self, index: Sequence[Expr]) -> Expr:
        """Reads with numpy broadcasting: `index` belongs to a result of at least this rank."""
        tail = index[len(index) - self.rank :]
        return self[tuple(i if d != 1 else s.const(0) for i, d in zip(tail, self.shape))]


@dataclass(frozen=True)
class Uniform(Tensor):
    """A tensor whose elements are all one constant."""

    value: int | float | bool = 0

    def __getitem__(self, index: object) -> Expr:
        return s.const(self.value, self.dtype)


class ExprBuilder:
    """Collects stages while the operators of one fused subgraph describe themselves."""

    def __init__(self) -> None:
        self.params: list[tuple[str, TensorType]] = []
        self.stages: list[Stage] = []
        self._names: set[str] = set()

    def param(self, name: str, type: TensorType) -> Tensor:
        self._names.add(name)
        self.params.append((name, type))
        return Tensor(name, type.dtype, type.dims)

    def compute(
        self,
        dtype: DType,
        shape: Sequence[int],
        body: Callable[..., Expr],
        name: str = "t",
        axes: Sequence[str] = (),
    ) -> Tensor:
        """A tensor whose element at (i, j, …) is body(i, j, …). `axes` names them (default i0, i1, …)."""
        return self._add(name, dtype, _axes(shape, axes, "i"), None, body)

    def reduce(
        self,
        op: str,
        dtype: DType,
        shape: Sequence[int],
        over: Sequence[int],
        body: Callable[..., Expr],
        name: str = "acc",
        axes: Sequence[str] = (),
        reduce_axes: Sequence[str] = (),
    ) -> Tensor:
        """A tensor whose element at (i, …) is op over (k, …) < `over` of body(i, …, k, …)."""
        if op not in REDUCERS:
            raise InternalError(f"unknown reduction {op!r}")
        return self._add(
            name, dtype, _axes(shape, axes, "i"), Reduce(op, _axes(over, reduce_axes, "k")), body
        )

    def _add(
        self,
        name: str,
        dtype: DType,
        axes: tuple[Axis, ...],
        reduce: Reduce | None,
        body: Callable[..., Expr],
    ) -> Tensor:
        unique, n = name, 1
        while unique in self._names:
            unique, n = f"{name}{n}", n + 1
        self._names.add(unique)
        every = axes + (reduce.axes if reduce else ())
        value = body(*(Var(a.name) for a in every))
        expected = dtype if not (reduce and reduce.op.startswith("arg")) else value.dtype
        if value.dtype is not expected:
            raise InternalError(f"stage {unique}: body is {value.dtype}, expected {expected}")
        self.stages.append(Stage(unique, dtype, axes, value, reduce))
        return Tensor(unique, dtype, tuple(a.extent for a in axes))

    def finish(self, outputs: Sequence[Tensor]) -> TensorExpr:
        """The whole expression; an output that is a bare param is copied by a stage of its own."""
        params = {name for name, _ in self.params}
        names: list[str] = []
        for t in outputs:
            if t.name in params or t.name in names or isinstance(t, Uniform):
                t = self.compute(t.dtype, t.shape, lambda *i, t=t: t[i], "copy")
            names.append(t.name)
        expr = TensorExpr(tuple(self.params), tuple(self.stages), tuple(names))
        return drop_unused(expr)


def _axes(shape: Sequence[int], names: Sequence[str], prefix: str) -> tuple[Axis, ...]:
    names = names or [f"{prefix}{n}" for n in range(len(shape))]
    return tuple(Axis(n, int(e)) for n, e in zip(names, shape, strict=True))


def drop_unused(expr: TensorExpr) -> TensorExpr:
    """Without the stages that no output needs; params stay, so that argument order is fixed."""
    needed = set(expr.outputs)
    kept: list[Stage] = []
    for st in reversed(expr.stages):
        if st.name in needed:
            kept.append(st)
            needed |= {load.tensor for load in s.loads(st.body)}
    return replace(expr, stages=tuple(reversed(kept)))


# --- meaning --------------------------------------------------------------------------------------------


def verify(expr: TensorExpr) -> None:
    """InternalError unless names are defined before use, ranks and dtypes agree, and variables are bound."""
    known = dict(expr.params)
    for st in expr.stages:
        if st.name in known:
            raise InternalError(f"stage {st.name} is defined twice")
        bound = {a.name for a in st.all_axes}
        if len(bound) != len(st.all_axes):
            raise InternalError(f"stage {st.name} repeats an axis name")
        if st.reduce and st.reduce.op.startswith("arg") and (len(st.reduce.axes) != 1 or st.dtype is not I64):
            raise InternalError(f"stage {st.name}: {st.reduce.op} wants one reduction axis and i64")
        for e in s.walk(st.body):
            if isinstance(e, Var) and e.name not in bound:
                raise InternalError(f"stage {st.name} reads the unbound axis {e.name}")
            if isinstance(e, Load):
                if e.tensor not in known:
                    raise InternalError(f"stage {st.name} reads {e.tensor}, which is not defined before it")
                if len(e.index) != known[e.tensor].rank or e.type is not known[e.tensor].dtype:
                    raise InternalError(f"stage {st.name} reads {s.text(e)} from {known[e.tensor]}")
        known[st.name] = st.type
    for name in expr.outputs:
        if name not in known:
            raise InternalError(f"output {name} is not defined")


def interpret(expr: TensorExpr, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """The outputs for one array per param: the definition that every schedule is compared with."""
    env: dict[str, np.ndarray] = {
        name: np.asarray(a) for (name, _), a in zip(expr.params, arrays, strict=True)
    }
    for st in expr.stages:
        env[st.name] = _interpret_stage(st, env)
    return tuple(env[name] for name in expr.outputs)


def _interpret_stage(st: Stage, env: Mapping[str, np.ndarray]) -> np.ndarray:
    every = st.all_axes
    grids = np.ogrid[tuple(slice(0, a.extent) for a in every)] if every else []
    values = {a.name: g.astype(np.int64) for a, g in zip(every, grids)}
    shape = tuple(a.extent for a in every)
    with np.errstate(all="ignore"):
        body = np.broadcast_to(evaluate(st.body, values, env), shape)
        if st.reduce is None:
            return np.array(body, dtype=st.dtype.numpy)
        over = tuple(range(len(st.axes), len(every)))
        op = st.reduce.op
        if op in ("sum", "prod"):
            return getattr(np, op)(body, axis=over, dtype=st.dtype.numpy)
        if op in ("max", "min"):
            identity = (s.lowest if op == "max" else s.highest)(st.dtype).value
            return getattr(np, op)(body, axis=over, initial=identity).astype(st.dtype.numpy)
        best = np.argmax if op.startswith("argmax") else np.argmin
        if op.endswith("_last"):
            return (body.shape[-1] - 1 - best(body[..., ::-1], axis=-1)).astype(np.int64)
        return best(body, axis=-1).astype(np.int64)


def print_expr(expr: TensorExpr) -> str:
    """One line a param and stage; `text.parse_expr` reads it back."""
    lines = [f"param {name}: {type}" for name, type in expr.params]
    for st in expr.stages:
        axes = ", ".join(f"{a.name} < {a.extent}" for a in st.axes)
        body = s.text(st.body)
        if st.reduce:
            over = ", ".join(f"{a.name} < {a.extent}" for a in st.reduce.axes)
            body = f"{st.reduce.op}({over}) {body}"
        lines.append(f"{st.name}[{axes}]: {st.dtype} = {body}")
    lines.append(f"-> {', '.join(expr.outputs)}")
    return "\n".join(lines)
