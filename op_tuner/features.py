"""What a cost model sees of a scheduled loop program, comparable between templates, shapes and depths.

A *sketch* is read off one program: the loops around its heaviest statement, and for every tensor that this
statement touches how each index depends on each loop. `evaluate` turns many sketches into rows of features at
once. Chen et al. 2018, *Learning to Optimize Tensor Programs*, appendix A:

    loops      of each: length, annotation, product of the lengths outside (top-down) and inside (bottom-up)
    buffers    of each: bytes touched, reuse (bottom-up / elements touched), strides
    relations  R_t(i, j) = max Z[k, i] over the loops k where Z[k, j] < 2^t, with j the touched bytes and i
               the reuse or the top-down product: what is reused how often within which amount of memory

Differences: the heaviest chain of loops, not the deepest; loops of one iteration are left out; bytes, not
elements, stand against the thresholds, as caches do; and the sum over all buffers is related, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..compiler.ir import affine
from ..compiler.ir import scalar as s
from ..compiler.ir.affine import Range
from ..compiler.ir.loops import Alloc, Body, Buffer, For, If, Prefetch, Program, Store
from ..compiler.ir.scalar import Binary, Const, Expr, Load, Select, Var

FEATURES = 1
"""Version: features of different versions must not be mixed."""
LOOPS, BUFFERS, DIMS = 16, 5, 8
SHOWN = 10  # innermost loops that have features of their own
KINDS = ("serial", "parallel", "unroll", "vector")
THRESHOLDS = tuple(range(4, 32, 2))  # log2 of bytes
PROGRAM = (
    "work", "statements", "heaviest", "outside", "steps", "tasks", "imbalance", "body", "registers",
    "scratch", "params", "temps", "prefetches", "nearest_prefetch", "farthest_prefetch", "guards",
)  # fmt: skip


def _names() -> Iterator[str]:
    yield from PROGRAM
    for n in range(SHOWN):
        yield from (f"loop{n}.{what}" for what in ("length", *KINDS, "top_down", "bottom_up"))
    for b in range(BUFFERS):
        yield from (f"buffer{b}.{what}" for what in ("bytes", "reuse", "inner_stride", "vector_stride"))
    for b in (*range(BUFFERS), "all"):
        for what in ("reuse", "top_down"):
            yield from (f"{what}.{b}<2^{t}" for t in THRESHOLDS)


NAMES = tuple(_names())
"""Of the columns that `evaluate` gives. All are logarithms, log2(1 + x), but for the kinds of loops."""


@dataclass(frozen=True)
class Sketch:
    """Loops from the outside in, padded at the end; buffers: what is stored first, then the largest."""

    extents: np.ndarray  # (LOOPS,) iterations; 1 where there is no loop
    kinds: np.ndarray  # (LOOPS,) place in KINDS; -1 where there is no loop
    coefficients: np.ndarray  # (BUFFERS, DIMS, LOOPS) how far an index moves with a loop's variable
    limits: np.ndarray  # (BUFFERS, DIMS) values that an index may have
    strides: np.ndarray  # (BUFFERS, DIMS) bytes from one index to the next
    itemsizes: np.ndarray  # (BUFFERS,) bytes; 0 where there is no buffer
    program: np.ndarray  # (len(PROGRAM),) numbers of the whole program


# --- rows of features ------------------------------------------------------------------------------------


def evaluate(sketches: Sequence[Sketch]) -> np.ndarray:
    """(sketches, len(NAMES)) float32."""
    if not sketches:
        return np.zeros((0, len(NAMES)), np.float32)
    extents, kinds, coefficients, limits, strides, itemsizes, program = (
        np.stack([getattr(sketch, name) for sketch in sketches]) for name in Sketch.__dataclass_fields__
    )
    present = kinds >= 0  # (n, LOOPS)
    inside = _products(extents)  # this loop's and all inner ones'
    outside = np.cumprod(extents, axis=1) / extents
    count = _touched(extents, coefficients, limits)  # (n, BUFFERS, LOOPS) elements
    used = (itemsizes > 0)[:, :, None] & present[:, None, :]
    touched = np.where(used, count * itemsizes[:, :, None], np.inf)
    reuse = inside[:, None, :] / count
    steps = np.abs(np.einsum("nbdl,nbd->nbl", coefficients, strides))
    whole = np.where(present, np.sum(np.where(used, touched, 0), axis=1), np.inf)
    per_buffer = [
        np.where(itemsizes > 0, count[:, :, 0] * itemsizes, 0),
        np.where(itemsizes > 0, reuse[:, :, 0], 0),
        _at(steps, _last(present)),
        _at(steps, _last(kinds == KINDS.index("vector"))),
    ]
    relations = []
    for b in range(BUFFERS):
        relations += [_relation(reuse[:, b], touched[:, b]), _relation(outside, touched[:, b])]
    relations += [_relation(inside, whole), _relation(outside, whole)]
    logs = [program, *(_interleaved(per_buffer)), *relations]
    loops = _per_loop(extents, kinds, outside, inside)
    columns = [_log(logs[0]), loops, *(_log(part) for part in logs[1:])]
    return np.concatenate(columns, axis=1).astype(np.float32)


def _log(x: np.ndarray) -> np.ndarray:
    return np.log2(1 + x)


def _products(extents: np.ndarray) -> np.ndarray:
    return np.cumprod(extents[..., ::-1], axis=-1)[..., ::-1]


def _touched(extents: np.ndarray, coefficients: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Different elements of every buffer that each loop touches, with all loops inside it."""
    moves = np.abs(coefficients) * (extents - 1)[:, None, None, :]
    span = 1 + np.floor(np.cumsum(moves[..., ::-1], axis=-1)[..., ::-1])
    box = np.prod(np.minimum(span, limits[..., None]), axis=2)
    depends = np.any(coefficients != 0, axis=2)
    return np.minimum(box, _products(np.where(depends, extents[:, None, :], 1)))


def _relation(values: np.ndarray, touched: np.ndarray) -> np.ndarray:
    """(n, thresholds): the largest value of the loops that touch fewer bytes; 0 if none does."""
    below = touched[:, :, None] < 2.0 ** np.array(THRESHOLDS)
    return np.max(np.where(below, values[:, :, None], 0), axis=1)


def _last(where: np.ndarray) -> np.ndarray:
    """(n,) the innermost loop of those; -1 if there is none."""
    return np.where(where.any(axis=1), LOOPS - 1 - np.argmax(where[:, ::-1], axis=1), -1)


def _at(steps: np.ndarray, loop: np.ndarray) -> np.ndarray:
    found = np.take_along_axis(steps, np.maximum(loop, 0)[:, None, None], axis=2)[:, :, 0]
    return np.where((loop >= 0)[:, None], found, 0)


def _interleaved(columns: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [np.stack([c[:, b] for c in columns], axis=1) for b in range(BUFFERS)]


def _per_loop(extents: np.ndarray, kinds: np.ndarray, outside: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Of the innermost loops, the innermost first; zeros where there are fewer."""
    inner = _last(kinds >= 0)
    parts = []
    for n in range(SHOWN):
        there = inner - n >= 0
        at = np.maximum(inner - n, 0)[:, None]
        length, above, below, kind = (
            np.take_along_axis(a, at, axis=1)[:, 0] for a in (extents, outside, inside, kinds)
        )
        values = [_log(length), *(kind == k for k in range(len(KINDS))), _log(above), _log(below)]
        parts += [np.where(there, v, 0) for v in values]
    return np.stack(parts, axis=1)


# --- sketches ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Loop:
    var: str
    extent: int
    kind: str


@dataclass(frozen=True)
class _Place:
    """A store or prefetch with the loops around it."""

    statement: Store | Prefetch
    loops: tuple[_Loop, ...]
    guarded: bool

    @property
    def runs(self) -> float:
        """How often it is executed, a vector counting once."""
        return float(np.prod([lp.extent for lp in self.loops if lp.kind != "vector"], dtype=float))


@dataclass
class _Reader:
    """Walks a program."""

    ranges: dict[str, Range]
    stores: list[_Place] = field(default_factory=list)
    prefetches: list[_Place] = field(default_factory=list)
    allocated: list[Buffer] = field(default_factory=list)

    def read(self, body: Body, loops: tuple[_Loop, ...] = (), guarded: bool = False) -> None:
        for st in body:
            match st:
                case For():
                    self._loop(st, loops, guarded)
                case If(then=then, other=other):
                    self.read(then, loops, True)
                    self.read(other, loops, True)
                case Alloc(buffer=buffer, body=inner):
                    self.allocated.append(buffer)
                    self.read(inner, loops, guarded)
                case Store():
                    self.stores.append(_Place(st, loops, guarded))
                case Prefetch():
                    self.prefetches.append(_Place(st, loops, guarded))

    def _loop(self, st: For, loops: tuple[_Loop, ...], guarded: bool) -> None:
        first, last = affine.bounds(st.begin, self.ranges)[0], affine.bounds(st.end, self.ranges)[1]
        extent = st.extent
        if extent is None:
            extent = max(1, min(last - first, affine.bounds(st.end - st.begin, self.ranges)[1]))
        self.ranges[st.var] = (first, max(first, last - 1))
        if extent > 1:
            loops = (*loops, _Loop(st.var, extent, _kind(st.kind)))
        if extent > 0:
            self.read(st.body, loops, guarded)


def _kind(kind: str) -> str:
    return kind if kind in KINDS else "parallel"


def sketch(program: Program, threads: int) -> Sketch:
    """Of a program as `lower.scheduled` gives it."""
    reader = _Reader({"worker": (0, threads - 1), "workers": (threads, threads)})
    reader.read(program.body)
    buffers = {b.name: b for b in (*program.params, *program.temps, *reader.allocated)}
    work = [place.runs * _operations(place.statement) for place in reader.stores]
    if not work:
        return _sketch((), [], np.zeros(len(PROGRAM)), {})
    main = reader.stores[int(np.argmax(work))]
    numbers = _program(program, reader, main, work, threads, buffers)
    assert isinstance(main.statement, Store)
    target = main.statement.buffer
    stored = Load(target, main.statement.index, buffers[target].dtype)
    loads = dict.fromkeys(s.loads(main.statement.value))
    rest = [ld for ld in loads if (ld.tensor, ld.index) != (stored.tensor, stored.index)]
    rest.sort(key=lambda ld: -buffers[ld.tensor].nbytes)
    return _sketch(main.loops, [stored, *rest][:BUFFERS], numbers, buffers)


def _operations(statement: Store | Prefetch) -> int:
    """Of the value and the store itself; indices and the conditions of guards are not counted."""
    stack, seen = [statement.value] if isinstance(statement, Store) else [], set()
    while stack:
        e = stack.pop()
        if isinstance(e, (Load, Var, Const)) or id(e) in seen:
            continue
        seen.add(id(e))
        stack += (e.then, e.other) if isinstance(e, Select) else s.children(e)
    return 1 + len(seen)


def _program(
    program: Program,
    reader: _Reader,
    main: _Place,
    work: list[float],
    threads: int,
    buffers: dict[str, Buffer],
) -> np.ndarray:
    tasks = 1
    for lp in main.loops:
        if lp.kind != "parallel":
            break
        tasks *= lp.extent
    own = {
        scope: sum(b.nbytes for b in reader.allocated if b.scope == scope)
        for scope in ("register", "scratch")
    }
    unrolled = np.prod([lp.extent for lp in main.loops if lp.kind == "unroll"], dtype=float)
    distances = [d for p in reader.prefetches if (d := _distance(p.statement, buffers)) > 0]
    values = {
        "work": sum(work),
        "statements": len(reader.stores),
        "heaviest": max(work),
        "outside": np.prod([lp.extent for lp in main.loops[:-LOOPS]], dtype=float),
        "steps": len(program.body),
        "tasks": tasks,
        "imbalance": -(-tasks // threads) * threads / tasks,
        "body": unrolled * _operations(main.statement),
        "registers": own["register"],
        "scratch": own["scratch"],
        "params": sum(b.nbytes for b in program.params),
        "temps": sum(b.nbytes for b in program.temps),
        "prefetches": sum(p.runs for p in reader.prefetches),
        "nearest_prefetch": min(distances, default=0),
        "farthest_prefetch": max(distances, default=0),
        "guards": sum(p.guarded * p.runs for p in reader.stores),
    }
    return np.array([values[name] for name in PROGRAM], dtype=float)


def _distance(statement: Store | Prefetch, buffers: dict[str, Buffer]) -> float:
    """Bytes by which a prefetch's address is fixed to be ahead."""
    buffer = buffers[statement.buffer]
    offsets = (affine.linear(e).offset * stride for e, stride in zip(statement.index, buffer.strides))
    return abs(sum(offsets)) * buffer.dtype.bytes


def _sketch(
    loops: tuple[_Loop, ...], accesses: list[Load], numbers: np.ndarray, buffers: dict[str, Buffer]
) -> Sketch:
    kept = loops[-LOOPS:]
    place = {lp.var: n for n, lp in enumerate(kept)}
    extents, kinds = np.ones(LOOPS), np.full(LOOPS, -1)
    for n, lp in enumerate(kept):
        extents[n], kinds[n] = lp.extent, KINDS.index(lp.kind)
    coefficients = np.zeros((BUFFERS, DIMS, LOOPS))
    limits, strides, sizes = np.ones((BUFFERS, DIMS)), np.zeros((BUFFERS, DIMS)), np.zeros(BUFFERS)
    for b, access in enumerate(accesses):
        buffer = buffers[access.tensor]
        sizes[b] = buffer.dtype.bytes
        dims = list(zip(access.index, buffer.shape, buffer.strides))[-DIMS:]
        for d, (index, extent, stride) in enumerate(dims):
            limits[b, d], strides[b, d] = max(extent, 1), stride * buffer.dtype.bytes
            moves, values = _moves(index)
            limits[b, d] = min(limits[b, d], values)
            for var, coefficient in moves.items():
                if var in place:
                    coefficients[b, d, place[var]] += coefficient
    return Sketch(extents, kinds, coefficients, limits, strides, sizes, numbers)


def _moves(index: Expr) -> tuple[dict[str, float], float]:
    """How far an index moves with each variable, about, and how many values it has at most."""
    found: dict[str, float] = {}
    form, values = affine.linear(index), np.inf
    for atom, scale in form.terms:
        moves, few = _atom(atom)
        if len(form.terms) == 1:
            values = few
        for var, coefficient in moves.items():
            found[var] = found.get(var, 0.0) + scale * coefficient
    return found, values


def _atom(e: Expr) -> tuple[dict[str, float], float]:
    match e:
        case Var(name=name):
            return {name: 1.0}, np.inf
        case Binary(op="floordiv", a=a, b=Const(value=d)) if d:
            moves, values = _moves(a)
            return {var: c / d for var, c in moves.items()}, -(-values // d)
        case Binary(op="mod", a=a, b=Const(value=d)) if d:
            moves, values = _moves(a)
            return moves, min(values, float(d))
        case Select(then=a, other=b):
            first, second = _moves(a), _moves(b)
            return first if len(first[0]) >= len(second[0]) else second
    return dict.fromkeys(sorted(s.variables(e)), 1.0), np.inf
