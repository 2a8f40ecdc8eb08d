"""Elementwise operators and data movement: one pass over the output.

    for outer axes, blocks of the innermost axis:     tasks
        vectors: y[…, j] = f(x[…, j], …)              several vectors in flight

Where the output's innermost axis strides through an input that is contiguous along another axis (transposes,
blocked layouts), squares of both axes go through registers, so that loads and stores are whole vectors:

    for l: tile[l, vector of m] = f(x[…, l, m])
    for m: y[…, m, vector of l] = tile[vector of l, m]
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..ir import scalar as s
from ..ir.expr import Stage, TensorExpr
from ..ir.loops import Program
from ..ir.scalar import Expr, Load, Var
from ..kernel_task import Config, KernelTask
from ..schedule.canonical import canonical
from ..schedule.padding import compute_on_padding, may_leave
from ..schedule.relayout import relayout
from ..schedule.rewrite_expr import inline
from ..schedule.schedule import Schedule
from ..schedule.split_axes import split_divided_axes
from ..target import Target
from .access import Shapes, operations, shapes_of, stage_cost, stride, width
from .choices import (
    cache_blocks,
    choose,
    combination,
    dealt_loops,
    divisors,
    loop_order,
    whole_order,
)
from .common import inline_cheap, is_costly
from .memo import per_task

LARGEST_SQUARE = 16
SQUARE_COST = 0.6  # of one element that goes through a square of registers
TASKS_PER_THREAD = 8
SMALLEST_TASK = 2048  # elements
WIDEST = 64  # lanes
UNROLLS = (1, 2, 4, 8)  # vectors in flight
AT_ONCE = range(4, 9)  # lines that are read from anywhere in the memory
MOST_AT_ONCE = 128  # where no part is one of these


@dataclass(frozen=True)
class Plan:
    """What goes through registers at once. `square` is the other axis of squares, "" where there are none."""

    lanes: int
    unroll: int
    square: str = ""


@dataclass(frozen=True)
class Loops:
    """Around that. A line's innermost axis is cut into pieces of so many turns, 0 where it is not."""

    cuts: dict[str, int]  # loop → iterations of a cache block
    order: tuple[str, ...]
    dealt: int  # of these, how many are tasks
    piece: int = 0


@dataclass(frozen=True)
class Params:
    plans: tuple[tuple[Plan, Loops], ...]  # by stage


def matches(task: KernelTask) -> bool:
    if task.expr is None or any(st.reduce for st in task.expr.stages):
        return False
    return all(t.size for t in [type for _, type in task.expr.params] + [st.type for st in task.expr.stages])


def params(task: KernelTask, cfg: Config) -> Params:
    stages = zip(_expression(task).stages, _options(task))
    return Params(tuple(_choices(st, plans, f"{n}", task, cfg) for n, (st, plans) in enumerate(stages)))


def _choices(
    st: Stage, plans: tuple[Plan, ...], name: str, task: KernelTask, cfg: Config
) -> tuple[Plan, Loops]:
    knobs = [f"{what}{name}" for what in ("square", "lanes", "unroll")]
    square, lanes, unroll = combination(cfg, knobs, [(p.square, p.lanes, p.unroll) for p in plans])
    plan = Plan(lanes, unroll, square)
    if not st.axes:
        return plan, Loops({}, (), 0)
    if not plan.square:
        return plan, _line_loops(st, plan, name, task, cfg)
    outer = {a.name: a.extent for a in st.axes if a.name not in (plan.square, st.axes[-1].name)}
    outer |= {f"{a}_o": -(-_extent(st, a) // plan.lanes) for a in (plan.square, st.axes[-1].name)}
    cuts = cache_blocks(cfg, f"block{name}", outer, tuple(outer))
    return plan, _ordered(st, outer, cuts, 0, name, task, cfg)


def _line_loops(st: Stage, plan: Plan, name: str, task: KernelTask, cfg: Config) -> Loops:
    last = st.axes[-1]
    outer = {a.name: a.extent for a in st.axes[:-1]}
    lines = math.prod(outer.values())
    blocks = -(-last.extent // (plan.lanes * plan.unroll))
    wanted = min(TASKS_PER_THREAD * task.threads, lines * last.extent // SMALLEST_TASK)
    pieces = min(blocks, -(-wanted // lines))
    piece = choose(cfg, f"piece{name}", divisors(blocks), -(-blocks // max(pieces, 1)))
    pieces = -(-blocks // piece)
    at_once = _lines_at_once(st, task)
    cuts = cache_blocks(cfg, f"block{name}", outer, tuple(outer), usual=at_once)
    within = (
        {f"{last.name}_t": pieces, f"{last.name}_s_o": piece} if pieces > 1 else {f"{last.name}_o": blocks}
    )
    loops = {**outer, **within}
    loops |= {a: loops.pop(a) for a in at_once}  # innermost
    return _ordered(st, loops, cuts, piece if pieces > 1 else 0, name, task, cfg)


def _lines_at_once(st: Stage, task: KernelTask) -> dict[str, int]:
    """Of the axis, if there is one, of lines that an index chooses of more than the second-level cache holds,
    so that each is waited for."""
    large = {tensor for tensor, type in _expression(task).params if type.nbytes > task.target.l2}
    for load in s.loads(st.body):
        by = {name for e in load.index for inner in s.loads(e) for name in s.variables(inner)}
        lines = [a for a in st.axes[:-1] if a.name in by]
        if load.tensor in large and lines and st.axes[-1].name not in by:
            axis, n = lines[-1].name, lines[-1].extent
            few = [d for d in divisors(n) if d in AT_ONCE]
            return {axis: few[-1]} if few else {axis: n} if n <= MOST_AT_ONCE else {}
    return {}


def _ordered(
    st: Stage,
    loops: dict[str, int],
    cuts: dict[str, int],
    piece: int,
    name: str,
    task: KernelTask,
    cfg: Config,
) -> Loops:
    """The order of the loops around what goes through registers: those over blocks, then the others."""
    extents = {**loops, **{f"{lp}_b": loops[lp] // n for lp, n in cuts.items()}, **cuts}
    blocks = loop_order(cfg, f"order_of_blocks{name}", [f"{lp}_b" for lp in cuts])
    last = st.axes[-1].name
    inside = whole_order(
        cfg, f"order{name}", {lp: extents[lp] for lp in loops}, [(f"{last}_t", f"{last}_s_o")]
    )
    order = (*blocks, *inside)
    return Loops(cuts, order, _tasks(order[:-1], extents, math.prod(st.shape), name, task, cfg), piece)


def _tasks(
    loops: tuple[str, ...], extents: dict[str, int], total: int, name: str, task: KernelTask, cfg: Config
) -> int:
    """How many outer loops become tasks, by default while what is inside is no trifle."""
    sizes = [extents[lp] for lp in loops]
    inside = (total // math.prod(sizes[:n]) for n in range(1, len(sizes)))
    default = next((n for n, size in enumerate(inside, 1) if size < SMALLEST_TASK), len(sizes))
    return dealt_loops(cfg, f"tasks{name}", sizes, default, task.threads)


def _extent(st: Stage, axis: str) -> int:
    return next(a.extent for a in st.axes if a.name == axis)


def schedule(task: KernelTask, p: Params) -> Program:
    expr = _expression(task)
    shapes = shapes_of(expr)
    squares: dict[str, list[str]] = {}  # stage → its tiles
    stages: list[Stage] = []
    for st, (plan, _) in zip(expr.stages, p.plans):
        parts = _with_tiles(st, plan, shapes) if plan.square else [st]
        squares[st.name] = [part.name for part in parts[:-1]]
        stages += parts
    sch = Schedule(task.name, replace(expr, stages=tuple(stages)))
    for st, (plan, loops) in zip(expr.stages, p.plans):
        if plan.square:
            _square(sch, st, plan, loops, squares[st.name])
        elif st.axes:
            _line(sch, st, plan, loops)
    return sch.program()


@per_task
def _options(task: KernelTask) -> tuple[tuple[Plan, ...], ...]:
    """Of every stage, the best plan first."""
    expr = _expression(task)
    shapes = shapes_of(expr)
    return tuple(_plans(st, shapes, task.target) for st in expr.stages)


@per_task
def _expression(task: KernelTask) -> TensorExpr:
    """Over physical arrays; everything inlined, unless elementary functions were computed more often."""
    assert task.expr is not None
    whole = inline(task.expr, lambda st: True)
    if _costly_elements(whole) > _costly_elements(task.expr):
        whole = inline_cheap(task.expr)
    return canonical(split_divided_axes(relayout(whole, dict(task.layouts))))


def _costly_elements(expr: TensorExpr) -> int:
    total = 0
    for st in expr.stages:
        calls = {
            e for e in s.walk(st.body) if not isinstance(e, (Load, Var, s.Const)) and is_costly_itself(e)
        }
        total += len(calls) * math.prod(st.shape)
    return total


def is_costly_itself(e: Expr) -> bool:
    return is_costly(e) and not any(is_costly(c) for c in s.children(e))


# --- plans ----------------------------------------------------------------------------------------------


def _plans(st: Stage, shapes: Shapes, target: Target) -> tuple[Plan, ...]:
    """The best plan first."""
    if not st.axes:
        return (Plan(1, 1),)
    last = st.axes[-1]
    lanes = min(WIDEST, target.lanes(width(st.body, st.dtype.bytes)), 1 << (last.extent - 1).bit_length())
    heavy = operations(st.body) > 20
    unroll = max(1, min(2 if heavy else 4, last.extent // lanes))
    found = [(stage_cost(st, shapes, None, 1), Plan(1, 1))]
    for u in (unroll, *(u for u in UNROLLS if u != unroll)):
        found.append((stage_cost(st, shapes, last.name, lanes) * (1 + 0.01 * (u != unroll)), Plan(lanes, u)))
    for axis in st.axes[:-1]:
        side = _side(st, axis.name, shapes, target)
        if side:
            elements = math.prod(st.shape) / (last.extent * axis.extent)
            padded = -(-last.extent // side) * -(-axis.extent // side) * side * side
            found.append((elements * padded * SQUARE_COST, Plan(side, 1, axis.name)))
    found.sort(key=lambda f: f[0])
    ranked = [plan for _, plan in found]
    others = [p for plan in ranked for p in _other_widths(plan, last.extent)]
    fitting = [p for p in others if not p.square or _stays_inside(st, p.square, p.lanes, shapes)]
    return tuple(dict.fromkeys([*ranked, *fitting]))


def _other_widths(plan: Plan, extent: int) -> list[Plan]:
    """The same in vectors, or squares, of half the lanes, and in vectors of twice as many."""
    half = [replace(plan, lanes=plan.lanes // 2)] if plan.lanes > 2 else []
    twice = (
        [replace(plan, lanes=2 * plan.lanes)]
        if plan.unroll > 1 and 2 * plan.lanes <= min(extent, WIDEST)
        else []
    )
    return [*half, *([] if plan.square else twice)]


def _side(st: Stage, axis: str, shapes: Shapes, target: Target) -> int:
    """The side of squares over `axis` and the innermost axis; 0 where they do not help."""
    last = st.axes[-1]
    other = next(a for a in st.axes if a.name == axis)
    loads = s.loads(st.body)
    size = max([st.dtype.bytes, *(load.type.bytes for load in loads)])
    side = min(LARGEST_SQUARE, target.lanes(size))
    side = min(side, 1 << (last.extent - 1).bit_length(), 1 << (other.extent - 1).bit_length())
    if side < 2:
        return 0
    strided = _strided(st, last.name, side, shapes)
    if not strided or any(_stride(load, st, axis, side, shapes) != 1 for load in strided):
        return 0
    return side if _stays_inside(st, axis, side, shapes) else 0


def _stays_inside(st: Stage, axis: str, side: int, shapes: Shapes) -> bool:
    """Whether squares may be read: with all guards of the value, or each load without them."""
    if _whole(st, axis, side, shapes):
        return True
    ranges = st.ranges()
    strided = _strided(st, st.axes[-1].name, side, shapes)
    return not any(may_leave(load, shapes[load.tensor], ranges) or s.checks(load) for load in strided)


def _stride(load: Load, st: Stage, axis: str, lanes: int, shapes: Shapes) -> int | None:
    extent = next(a.extent for a in st.axes if a.name == axis)
    return stride(load.index, shapes[load.tensor], axis, extent, lanes)


def _strided(st: Stage, axis: str, lanes: int, shapes: Shapes) -> list[Load]:
    return [load for load in s.loads(st.body) if _stride(load, st, axis, lanes, shapes) not in (0, 1)]


def _whole(st: Stage, axis: str, lanes: int, shapes: Shapes) -> bool:
    """Whether all of the value may be computed in vectors along `axis`."""
    if s.checks(st.body):
        return False
    return all(_stride(load, st, axis, lanes, shapes) in (0, 1) for load in s.loads(st.body))


def _with_tiles(st: Stage, plan: Plan, shapes: Shapes) -> list[Stage]:
    """y[…, m, l] = f   →   t[…, l, m] = f;  y[…, m, l] = t[…, l, m]

    Or with a tile for each strided load of f, where not all of f can be computed along m.
    """
    other = next(a for a in st.axes if a.name == plan.square)
    axes = (*(a for a in st.axes if a is not other), other)
    index = tuple(Var(a.name) for a in axes)
    if _whole(st, plan.square, plan.lanes, shapes):
        tile = Stage(f"{st.name}_tile", st.dtype, axes, st.body)
        return [tile, replace(st, body=Load(tile.name, index, st.dtype))]
    tiles: dict[Load, Stage] = {}
    for n, load in enumerate(_strided(st, st.axes[-1].name, plan.lanes, shapes)):
        tiles[load] = Stage(f"{st.name}_tile{n}", load.type, axes, load)

    def from_tile(e: Expr) -> Expr | None:
        return Load(tiles[e].name, index, e.type) if isinstance(e, Load) and e in tiles else None

    return [*tiles.values(), replace(st, body=s.transform(st.body, from_tile))]


# --- building -------------------------------------------------------------------------------------------


def _line(sch: Schedule, st: Stage, plan: Plan, loops: Loops) -> None:
    """The innermost axis in vectors; tasks from the outer axes and, where these are few, from its pieces."""
    within, block = [st.name], plan.lanes * plan.unroll
    name = st.axes[-1].name
    if loops.piece:
        sch.split(name, loops.piece * block, f"{name}_t", f"{name}_s", within=within)
        name = f"{name}_s"
    sch.split(name, block, f"{name}_o", f"{name}_i", within=within)
    sch.split(f"{name}_i", plan.lanes, f"{name}_u", f"{name}_v", within=within)
    sch.annotate("unroll", f"{name}_u", within=within)
    sch.annotate("vector" if plan.lanes > 1 else "unroll", f"{name}_v", within=within)
    for lp, size in loops.cuts.items():
        sch.split(lp, size, f"{lp}_b", lp, within=within)
    sch.reorder(st.name, [*loops.order, f"{name}_u", f"{name}_v"])
    for outer in sch.nest(st.name).loops[: loops.dealt]:
        outer.kind = "parallel"


def _square(sch: Schedule, st: Stage, plan: Plan, loops: Loops, tiles: list[str]) -> None:
    last, other, side = st.axes[-1].name, plan.square, plan.lanes
    labels = [*tiles, st.name]
    for axis in (last, other):
        sch.split(axis, side, f"{axis}_o", f"{axis}_i", within=labels)
    for lp, size in loops.cuts.items():
        sch.split(lp, size, f"{lp}_b", lp, within=labels)
    shared = list(loops.order)
    for tile in tiles:
        sch.reorder(tile, [*shared, f"{last}_i", f"{other}_i"])
        sch.annotate("unroll", f"{last}_i", within=[tile])
        sch.annotate("vector", f"{other}_i", within=[tile])
    sch.reorder(st.name, [*shared, f"{other}_i", f"{last}_i"])
    sch.annotate("unroll", f"{other}_i", within=[st.name])
    sch.annotate("vector", f"{last}_i", within=[st.name])
    parent = sch.merge(labels, len(shared))
    for nest in parent.children()[: len(tiles)]:
        compute_on_padding(sch, nest, parent, tiles)
    for tile in tiles:
        sch.stage(tile, parent, "register")
    for outer in parent.loops[: loops.dealt]:
        outer.kind = "parallel"
