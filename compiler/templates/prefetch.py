"""Prefetches of the direct template: weights from memory, and input that lies in far blocks of channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from operator import mul

from ..ir import affine
from ..ir import scalar as s
from ..ir.expr import TensorExpr
from ..ir.loops import Prefetch, Store
from ..ir.scalar import Expr, Load, Var
from ..kernel_task import KernelTask
from ..schedule.nest import Loop, Nest
from ..schedule.schedule import Schedule
from .register_tiles import ACC, Params, Roles

FAR_CHANNELS = 128  # from here on a pointwise sum waits for its input unless that is prefetched
LINE = 16  # elements of four bytes
FEW = 4  # weights that are so many times fewer than others need no prefetches


def blocks_ahead(roles: Roles, extents: dict[str, int], block: tuple[tuple[str, int], ...]) -> int:
    """Blocks of channels lie far apart, which no hardware prefetcher follows. Taps use a block for longer."""
    if not block or extents[block[0][0]] < FAR_CHANNELS:
        return 0
    return 1 if roles.taps else 2


def weight_bytes(task: KernelTask, expr: TensorExpr) -> int:
    types = dict(expr.params)
    streamed = {ld.tensor for ld in s.loads(expr.stage(ACC).body)} & task.constants
    return sum(types[name].size * types[name].dtype.bytes for name in streamed)


def weight_prefetches(
    sch: Schedule, task: KernelTask, roles: Roles, p: Params, tile: Sequence[Loop]
) -> list[Prefetch]:
    """One cache line of every column's weights, `prefetch` lines ahead; in plain layouts, whose output
    channels are pixels, of each of those that the loops of the register tile run over."""
    store = sch.nest(f"{ACC}.update").body[0]
    assert isinstance(store, Store)
    column = f"{roles.column or roles.vector}_{'i' if roles.column else 'c'}"
    result: list[Prefetch] = []
    sizes = {b.name: b.nbytes for b in sch.params if b.name in task.constants}
    for load in s.loads(store.value):
        if sizes.get(load.tensor, 0) * FEW < max(sizes.values(), default=0) or load.tensor not in sizes:
            continue
        line = LINE * 4 // load.dtype.bytes
        line_vars = s.variables(load.index[-1])
        tiled = [lp for lp in tile if lp.var in s.variables(load) - line_vars - {column}]
        columns = _columns(roles, p, task) if column in s.variables(load) else 1
        for n, *at in product(range(columns), *(range(lp.extent) for lp in tiled)):
            values: dict[str, Expr] = {v: s.const(0) for v in line_vars}
            values |= {column: s.const(n), **{lp.var: s.const(i) for lp, i in zip(tiled, at)}}
            index = [affine.simplify(s.substitute(e, values), {}) for e in load.index]
            index[-1] = index[-1] + p.prefetch * line
            result.append(Prefetch(load.tensor, tuple(index), _once(sch, load.tensor, task)))
    return result


def input_prefetches(sch: Schedule, task: KernelTask, roles: Roles, p: Params, block: str) -> list[Prefetch]:
    """The cache lines of the input that the tile reads `ahead` channel blocks later."""
    update = sch.nest(f"{ACC}.update")
    store = update.body[0]
    assert isinstance(store, Store)
    strides = {b.name: b.strides for b in (*sch.params, *sch.temps)}
    inside = update.loops[update.vars.index(block) + 1 :]
    walked = [lp for lp in inside if lp.var in roles.taps or lp.var[:-2] in dict(p.tile)]
    start: dict[str, Expr] = {lp.var: s.const(0) for lp in inside} | {block: Var(block) + p.ahead}
    result: list[Prefetch] = []
    for load in s.loads(store.value):
        if load.tensor in task.constants or load.tensor == ACC or block not in s.variables(load):
            continue
        loops = [lp for lp in walked if lp.var in s.variables(load)]
        lines: dict[int, tuple[int, ...]] = {}
        steps = _steps(load, strides[load.tensor], start, [lp.var for lp in loops])
        for at in product(*(range(lp.extent) for lp in loops)):
            lines.setdefault((steps[0] + sum(map(mul, steps[1:], at))) // LINE, at)
        for at in lines.values():
            values = start | {lp.var: s.const(n) for lp, n in zip(loops, at)}
            index = tuple(affine.simplify(s.substitute(e, values), {}) for e in load.index)
            result.append(Prefetch(load.tensor, index))
    return result


def _steps(load: Load, strides: tuple[int, ...], start: dict[str, Expr], names: list[str]) -> list[int]:
    """The offset of the load, in elements, if all variables are zero; then how far each name moves it."""
    values = {n: e for n, e in start.items() if n not in names}
    forms = [affine.linear(s.substitute(e, values)) for e in load.index]
    offset = sum(f.offset * n for f, n in zip(forms, strides))
    return [offset, *(sum(f.coefficient(v) * n for f, n in zip(forms, strides)) for v in names)]


def panel_bytes(task: KernelTask, expr: TensorExpr, roles: Roles, tile: dict[str, int]) -> int:
    """Of the weights that one tile's columns take."""
    count = next(a.extent for a in expr.stage(ACC).axes if a.name == roles.column)
    return weight_bytes(task, expr) * tile[roles.column or ""] // count


def panel_prefetches(
    sch: Schedule, task: KernelTask, roles: Roles, p: Params, parent: Nest, step: str
) -> list[Prefetch]:
    """A share of the next columns' weights, so that memory delivers them evenly while these tiles run.

    Of S slots (tile, step), slot i takes lines i·G // S to (i + 1)·G // S of the panel's G.
    """
    update = sch.nest(f"{ACC}.update")
    store = update.body[0]
    assert isinstance(store, Store) and roles.column is not None
    extents = {lp.var: lp.extent for lp in (*parent.loops, *update.loops)}
    tiles = [lp.var for lp in parent.loops if lp.var.removesuffix("_o") in roles.pixels]
    columns = dict(p.tile)[roles.column]
    own = {f"{roles.column}_o", f"{roles.column}_i"}
    slot, slots = s.as_expr(0), 1
    for var in (*tiles, step):
        slot, slots = slot * extents[var] + Var(var), slots * extents[var]
    shapes = {b.name: b.shape for b in sch.params}
    result: list[Prefetch] = []
    for load in s.loads(store.value):
        if load.tensor not in task.constants or not s.variables(load.index[0]) <= own:
            continue
        _, *panel = shapes[load.tensor]
        lines = columns * math.prod(panel) // LINE
        each = -(-lines // slots)
        first = s.binary("floordiv", slot * lines, slots)
        begin = (Var(f"{roles.column}_o") + 1) * columns
        zeros = [s.const(0)] * (len(panel) - 1)
        once = _once(sch, load.tensor, task)
        result += [Prefetch(load.tensor, (begin, *zeros, (first + n) * LINE), once) for n in range(each)]
    return result


def _once(sch: Schedule, weights: str, task: KernelTask) -> bool:
    """Whether weights would drive out most of the last cache, and not stay there themselves."""
    return next(b.nbytes for b in sch.params if b.name == weights) * 2 > task.target.l3


def _columns(roles: Roles, p: Params, task: KernelTask) -> int:
    size = dict(p.tile).get(roles.column or roles.vector, 1)
    return size if roles.column else max(1, size // task.target.lanes(4))
