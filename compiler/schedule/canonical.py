"""Tensor expressions in the form that templates match: axes of size 1 gone, neighbouring axes that always
go together fused.
"""

from __future__ import annotations

from dataclasses import replace

from ..ir import affine
from ..ir import scalar as s
from ..ir.expr import Axis, Reduce, Stage, TensorExpr
from ..ir.scalar import Const, Expr, Load, Var
from ..ir.types import TensorType


def canonical(expr: TensorExpr) -> TensorExpr:
    """The same computation over the same memory, with as few axes as possible."""
    return collapse(drop_unit_axes(expr))


def drop_unit_axes(expr: TensorExpr) -> TensorExpr:
    """Axes and dimensions of extent 1 disappear, but for those whose index is checked to be 0."""
    keep: dict[str, list[int]] = {}
    params = []
    checked = {
        (load.tensor, d)
        for st in expr.stages
        for load in s.loads(st.body)
        for d, index in enumerate(load.index)
        if s.checks(index)
    }
    for name, type in expr.params:
        keep[name] = [d for d, e in enumerate(type.dims) if e != 1 or (name, d) in checked]
        params.append((name, TensorType(type.dtype, tuple(type.dims[d] for d in keep[name]))))

    def shrink(e: Expr) -> Expr | None:
        if isinstance(e, Load):
            return Load(e.tensor, tuple(e.index[d] for d in keep[e.tensor]), e.type)
        return None

    stages = []
    for st in expr.stages:
        keep[st.name] = [d for d, a in enumerate(st.axes) if a.extent != 1 or (st.name, d) in checked]
        arg = st.reduce is not None and st.reduce.op.startswith("arg")
        kept = {st.axes[d] for d in keep[st.name]} | ({*st.reduce.axes} if st.reduce and arg else set())
        gone: dict[str, Expr] = {a.name: s.const(0) for a in st.all_axes if a.extent == 1 and a not in kept}
        body = affine.simplify(s.transform(s.substitute(st.body, gone), shrink), st.ranges())
        reduce = st.reduce
        if reduce:
            reduce = Reduce(reduce.op, tuple(a for a in reduce.axes if a.name not in gone))
            if not reduce.axes:
                reduce = None
        stages.append(Stage(st.name, st.dtype, tuple(a for a in st.axes if a.name not in gone), body, reduce))
    return replace(expr, params=tuple(params), stages=tuple(stages))


def collapse(expr: TensorExpr) -> TensorExpr:
    """x[…, a, b, …] used only with a and b side by side  →  x[…, ab, …]."""
    while True:
        merged = _collapse_once(expr)
        if merged is None:
            return expr
        expr = merged


Pair = tuple[str, int]  # (tensor, d): dimensions d and d + 1


def _collapse_once(expr: TensorExpr) -> TensorExpr | None:
    """One maximal set of dimension pairs fused, or None."""
    dims: dict[str, tuple[int, ...]] = {name: type.dims for name, type in expr.params}
    dims.update({st.name: st.shape for st in expr.stages})
    tensor_pairs: set[Pair] = {(n, d) for n, shape in dims.items() for d in range(len(shape) - 1)}
    axis_pairs: dict[str, set[tuple[str, str]]] = {st.name: _adjacent(st) for st in expr.stages}
    changed = True
    while changed:
        changed = False
        for st in expr.stages:
            pairs = axis_pairs[st.name]
            for a, b in sorted(pairs):
                if not _fits(st, a, b, dims, tensor_pairs):
                    pairs.discard((a, b))
                    changed = True
            for load in s.loads(st.body):
                for d in range(len(load.index) - 1):
                    if (load.tensor, d) in tensor_pairs and not _pair_of(load, d, dims, pairs):
                        tensor_pairs.discard((load.tensor, d))
                        changed = True
            for d in range(len(st.axes) - 1):
                if (st.name, d) in tensor_pairs and (st.axes[d].name, st.axes[d + 1].name) not in pairs:
                    tensor_pairs.discard((st.name, d))
                    changed = True
    chosen = _without_overlap(tensor_pairs, expr, axis_pairs)
    return _apply(expr, *chosen, dims) if chosen else None


def _adjacent(st: Stage) -> set[tuple[str, str]]:
    pairs = {(a.name, b.name) for a, b in zip(st.axes, st.axes[1:])}
    if st.reduce and not st.reduce.op.startswith("arg"):
        pairs |= {(a.name, b.name) for a, b in zip(st.reduce.axes, st.reduce.axes[1:])}
    return pairs


def _pair_of(load: Load, d: int, dims: dict, pairs: set[tuple[str, str]]) -> bool:
    a, b = load.index[d], load.index[d + 1]
    if isinstance(a, Const) and isinstance(b, Const):
        return True
    return isinstance(a, Var) and isinstance(b, Var) and (a.name, b.name) in pairs


def _fits(st: Stage, a: str, b: str, dims: dict, tensor_pairs: set[Pair]) -> bool:
    """Whether every use of the axes a and b in the stage is as such a pair of full dimensions."""
    extents = {x.name: x.extent for x in st.all_axes}
    own = [x.name for x in st.axes]
    if a in own and (st.name, own.index(a)) not in tensor_pairs:
        return False
    inside_pairs = 0
    for load in s.loads(st.body):
        for d in range(len(load.index) - 1):
            if load.index[d] == Var(a) and load.index[d + 1] == Var(b):
                shape = dims[load.tensor]
                if (
                    (load.tensor, d) not in tensor_pairs
                    or shape[d] != extents[a]
                    or shape[d + 1] != extents[b]
                ):
                    return False
                inside_pairs += 1
    uses = sum(1 for e in _all_nodes(st.body) if isinstance(e, Var) and e.name in (a, b))
    return uses == 2 * inside_pairs


def _all_nodes(e: Expr) -> list[Expr]:
    """Every occurrence of every node, Load by distinct Load (shared objects once)."""
    found: list[Expr] = []
    seen: set[int] = set()
    stack: list[Expr] = [e]
    while stack:
        x = stack.pop()
        if not isinstance(x, Var):
            if id(x) in seen:
                continue
            seen.add(id(x))
        found.append(x)
        stack.extend(s.children(x))
    return found


def _without_overlap(
    tensor_pairs: set[Pair], expr: TensorExpr, axis_pairs: dict[str, set[tuple[str, str]]]
) -> tuple[set[Pair], dict[str, set[tuple[str, str]]]] | None:
    """One axis pair of one stage and everything that must be fused with it; None if nothing can be fused."""
    for st in expr.stages:
        for pair in sorted(axis_pairs[st.name], key=lambda p: p):
            stage_pairs: dict[str, set[tuple[str, str]]] = {st.name: {pair}}
            dims_pairs: set[Pair] = set()
            if _spread(expr, stage_pairs, dims_pairs, axis_pairs, tensor_pairs):
                return dims_pairs, stage_pairs
    return None


def _spread(expr, stage_pairs, dims_pairs, axis_pairs, tensor_pairs) -> bool:
    """Closes the sets under "is read or written as"; False where the closure would fuse overlapping pairs."""
    grown = True
    while grown:
        grown = False
        for st in expr.stages:
            mine = stage_pairs.setdefault(st.name, set())
            own = [a.name for a in st.axes]
            accesses = [(st.name, tuple(Var(n) for n in own))] + [
                (ld.tensor, ld.index) for ld in s.loads(st.body)
            ]
            for tensor, index in accesses:
                for d in range(len(index) - 1):
                    a, b = index[d], index[d + 1]
                    pair = (a.name, b.name) if isinstance(a, Var) and isinstance(b, Var) else None
                    if pair in mine and (tensor, d) not in dims_pairs:
                        dims_pairs.add((tensor, d))
                        grown = True
                    if (tensor, d) in dims_pairs and pair is not None and pair not in mine:
                        if pair not in axis_pairs[st.name]:
                            return False
                        mine.add(pair)
                        grown = True
                    if (tensor, d) in dims_pairs and (tensor, d) not in tensor_pairs:
                        return False
    for mine in stage_pairs.values():
        names = [n for pair in mine for n in pair]
        if len(names) != len(set(names)):
            return False
    return not any((t, d + 1) in dims_pairs for t, d in dims_pairs)


def _apply(expr: TensorExpr, dims_pairs: set[Pair], stage_pairs: dict, dims: dict) -> TensorExpr:
    def fused_shape(name: str) -> tuple[int, ...]:
        shape, result, d = dims[name], [], 0
        while d < len(shape):
            if (name, d) in dims_pairs:
                result.append(shape[d] * shape[d + 1])
                d += 2
            else:
                result.append(shape[d])
                d += 1
        return tuple(result)

    def fused_index(name: str, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        result, d = [], 0
        while d < len(index):
            if (name, d) in dims_pairs:
                a, b = index[d], index[d + 1]
                result.append(a if isinstance(a, Var) else a * dims[name][d + 1] + b)
                d += 2
            else:
                result.append(index[d])
                d += 1
        return tuple(result)

    def on_load(e: Expr) -> Expr | None:
        return Load(e.tensor, fused_index(e.tensor, e.index), e.type) if isinstance(e, Load) else None

    def fused_axes(axes: tuple[Axis, ...], pairs: set[tuple[str, str]]) -> tuple[Axis, ...]:
        result: list[Axis] = []
        for axis in axes:
            if result and (result[-1].name, axis.name) in pairs:
                result[-1] = Axis(result[-1].name, result[-1].extent * axis.extent)
            else:
                result.append(axis)
        return tuple(result)

    params = tuple((n, TensorType(t.dtype, fused_shape(n))) for n, t in expr.params)
    stages = []
    for st in expr.stages:
        pairs = stage_pairs.get(st.name, set())
        reduce = Reduce(st.reduce.op, fused_axes(st.reduce.axes, pairs)) if st.reduce else None
        stages.append(
            Stage(st.name, st.dtype, fused_axes(st.axes, pairs), s.transform(st.body, on_load), reduce)
        )
    return replace(expr, params=params, stages=tuple(stages))
