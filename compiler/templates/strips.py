"""Depthwise and pointwise convolution in one pass: a task takes some rows of the image through both.

    for n, strip:                               tasks
        mid[channels, pixels of the strip]      scratch, which stays in the core's cache
        mid = epilogue(depthwise(x))            register tiles of the direct template
        y[strip] = epilogue(pointwise(mid))     the same

Both halves are expressions of their own that the direct template schedules; this one cuts the strips.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...errors import InternalError
from ..ir import affine
from ..ir import scalar as s
from ..ir.expr import Axis, Stage, TensorExpr, drop_unused
from ..ir.loops import Buffer, Program
from ..ir.scalar import Expr, Load, Var
from ..ir.types import F32, Layout
from ..kernel_task import Config, KernelTask, T
from ..schedule.nest import Loop, Nest
from ..schedule.schedule import Index
from ..target import Target
from . import direct
from .choices import divisors
from .direct import ACC
from .memo import per_task

NAME = "strips"
OUTER = ("n", "strip")
FEW_PIXELS = 24  # of a strip; with fewer, the pointwise weights are streamed too often
SPILLS = 1.03  # times slower where a strip, what it reads and what it writes exceed half of L2


@dataclass(frozen=True)
class Halves:
    """The two expressions over plain tensors; `mid` is the first's result and the second's last param."""

    first: TensorExpr
    second: TensorExpr
    mid: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the tensor between them: (batch, channels, height, width)."""
        return self.first.stage(self.mid).shape


@dataclass(frozen=True)
class Params:
    rows: int  # of a strip
    first: direct.Params
    second: direct.Params


def matches(task: KernelTask) -> bool:
    return task.transformed == NAME and halves(task) is not None


def params(task: KernelTask, cfg: Config) -> Params:
    both = halves(task)
    assert both is not None
    height = both.shape[2]
    best, _ = best_rows(both.shape, _nbytes(both), task.target, task.threads)
    rows = cfg.choose("rows", divisors(height), best)
    first, second = (_half(task, n, rows) for n in range(2))
    return Params(
        rows,
        direct.params_of(first, _Prefixed(cfg, "depthwise_")),
        direct.params_of(second, _Prefixed(cfg, "pointwise_")),
    )


def schedule(task: KernelTask, p: Params) -> Program:
    both = halves(task)
    assert both is not None and task.expr is not None
    batch, channels, height, width = both.shape
    lanes = task.target.lanes(4)
    scratch = Buffer("strip_mid", F32, (-(-channels // lanes), p.rows * width, lanes), "scratch")
    nests: list[Nest] = []
    buffers: dict[str, Buffer] = {}
    for n, own in enumerate((p.first, p.second)):
        half = _half(task, n, p.rows)
        sch = direct.tiled(half, own)
        (nest,) = sch.nests
        index = _writes(half, both) if n == 0 else _reads(both, p.rows, lanes)
        sch.rename_buffer(nest, both.mid, scratch.name, index)
        sch.rename_buffer(nest, ACC, f"{ACC}{n}")
        nest.loops = [lp for lp in nest.loops if lp.var not in OUTER]
        nests.append(nest)
        buffers.update({b.name: b for b in sch.params if b.name != both.mid})
    loops = [Loop("strip", height // p.rows, "parallel")]
    loops = [Loop("n", batch, "parallel"), *loops] if batch > 1 else loops
    strips = Nest(NAME, loops, list(nests), allocs=[scratch])
    names = [*(name for name, _ in task.expr.params), *task.expr.outputs]
    return Program(task.name, tuple(buffers[name] for name in names), strips.build())


# --- halves ----------------------------------------------------------------------------------------------


@per_task
def halves(task: KernelTask) -> Halves | None:
    """The task's expression cut before its second sum; None if it is not two sums, one after the other."""
    if task.expr is None:
        return None
    expr, made = task.expr, {st.name for st in task.expr.stages}
    sums = [st for st in expr.stages if st.reduce]
    if len(sums) != 2:
        return None
    between = {load.tensor for load in s.loads(sums[1].body)} & made
    if len(between) != 1:
        return None
    (mid,) = between
    first = drop_unused(replace(expr, outputs=(mid,)))
    own = {st.name for st in first.stages}
    rest = tuple(st for st in expr.stages if st.name not in own)
    if any(load.tensor in own and st is not sums[1] for st in rest for load in s.loads(st.body)):
        return None
    read = {load.tensor for st in first.stages for load in s.loads(st.body)}
    params = tuple(p for p in expr.params if p[0] in read)
    others = tuple(p for p in expr.params if p[0] not in read)
    if any(load.tensor in read for st in rest for load in s.loads(st.body) if load.tensor not in made):
        return None
    second = TensorExpr((*others, (mid, expr.stage(mid).type)), rest, expr.outputs)
    return Halves(replace(first, params=params), second, mid)


@per_task
def _half(task: KernelTask, n: int, rows: int) -> direct.Subject:
    """The first or the second half; `strip` and `n` are its outermost axes, `h` runs over a strip's rows."""
    both = halves(task)
    assert both is not None
    height = both.shape[2]
    half = (both.first, both.second)[n]
    names = {*(name for name, _ in half.params), *half.outputs}
    layouts = tuple((name, layout) for name, layout in task.layouts if name in names)
    blocked = Layout.channel_blocked(4, task.target.lanes(4))
    own = replace(task, expr=half, layouts=(*layouts, (both.mid, blocked)), op=None, types=())
    own = replace(own, constants=task.constants & names)
    expr = direct.expression(own)
    if expr is not None and rows < height:  # neighbouring axes that are read alike are one: rows, pixels
        extent = next(a.extent for a in expr.stage(ACC).axes if a.name == "h")
        expr = _in_strips(expr, extent // (height // rows))
    roles = None if expr is None else direct.roles_of(expr, task.target, OUTER)
    if expr is None or roles is None or len(expr.stages) != 1 + len(half.outputs):
        raise InternalError(f"task {task.name}: its {('depthwise', 'pointwise')[n]} half is none of `direct`")
    return direct.Subject(own, expr, roles, OUTER)


def _in_strips(expr: TensorExpr, size: int) -> TensorExpr:
    """y[…, h, …]  →  y[…, strip, h, …]   where h was size·strip + h; the same memory."""
    at = next(n for n, a in enumerate(expr.stage(ACC).axes) if a.name == "h")
    inner: tuple[Expr, ...] = (Var("h"),) if size > 1 else ()
    row: Expr = Var("strip") * size + Var("h") if size > 1 else Var("strip")

    def own(e: Expr) -> Expr | None:
        if not isinstance(e, Load) or e.tensor != ACC:
            return None
        return Load(ACC, (*e.index[:at], Var("strip"), *inner, *e.index[at + 1 :]), e.type)

    def cut(st: Stage) -> Stage:
        pair = (Axis("strip", st.axes[at].extent // size), *(Axis("h", size) for _ in inner))
        body = s.transform(s.substitute(st.body, {"h": row}), own)
        new = replace(st, axes=(*st.axes[:at], *pair, *st.axes[at + 1 :]), body=body)
        return replace(new, body=affine.simplify(body, new.ranges()))

    return replace(expr, stages=tuple(map(cut, expr.stages)))


# --- the tensor between them -------------------------------------------------------------------------------


def _writes(half: direct.Subject, both: Halves) -> Index:
    """(n, c, strip, h, w, lane), those of extent 1 left out  →  (c, pixel of the strip, lane)"""
    names = [a.name for a in half.expr.stage(both.mid).axes]
    width = both.shape[3]

    def index(old: tuple[Expr, ...]) -> tuple[Expr, ...]:
        at = dict(zip(names, old))
        zero = s.const(0)
        pixel = at.get("h", zero) * width + at.get("w", zero)
        return at.get("c", zero), affine.linear(pixel).expr(), old[-1]

    return index


def _reads(both: Halves, rows: int, lanes: int) -> Index:
    """(n, c, pixel, lane), those of extent 1 left out  →  (c, pixel of the strip, lane)"""
    _, channels, height, width = both.shape
    first = Var("strip") * (rows * width if rows < height else 0)

    def index(old: tuple[Expr, ...]) -> tuple[Expr, ...]:
        channel = old[-3] if channels > lanes else s.const(0)
        return channel, affine.linear(old[-2] - first).expr(), old[-1]

    return index


# --- choices -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Prefixed:
    """The questions of one half under names of their own."""

    cfg: Config
    prefix: str

    def choose(self, knob: str, options: Sequence[T], default: T) -> T:
        return self.cfg.choose(self.prefix + knob, options, default)

    def require(self, condition: bool, reason: str = "") -> None:
        self.cfg.require(condition, reason)


def best_rows(shape: tuple[int, ...], nbytes: int, target: Target, threads: int) -> tuple[int, float]:
    """(rows of a strip, how many times slower than the two halves at their best it is).

    `shape` is (batch, channels, height, width) between the halves, `nbytes` are of all three tensors.
    """
    batch, _, height, width = shape

    def slower(rows: int) -> float:
        tasks = batch * (height // rows)
        balance = -(-tasks // threads) * threads / tasks
        spills = nbytes * rows > batch * height * target.l2 // 2
        return balance * max(1.0, FEW_PIXELS / (rows * width)) * (SPILLS if spills else 1.0)

    rows = min(divisors(height), key=lambda rows: (slower(rows), -rows))
    return rows, slower(rows)


def _nbytes(both: Halves) -> int:
    """Of the tensors before, between and after the halves."""
    data = max(type.size for _, type in both.first.params if type.rank == len(both.shape))
    results = (both.first.stage(both.mid), *(both.second.stage(name) for name in both.second.outputs))
    return (data + sum(st.type.size for st in results)) * F32.bytes
