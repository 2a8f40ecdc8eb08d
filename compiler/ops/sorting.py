"""Operators that no expression says: sorting, running sums, determinants. They are loop programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..ir import scalar as s
from ..ir.loops import Buffer, If, Program, Stmt, Store, loop
from ..ir.scalar import Expr, Load, Var, const, select
from ..ir.types import BOOL, I64, DType, TensorType
from .base import Op
from .programs import allocated, get, nest, program_buffers, put, register
from .shapes import axis_of, fail, given, wide, wide_array, widen


def _around(axis: int, rank: int) -> tuple[list[Var], list[int]]:
    """An index for every axis but one, and which axes these are."""
    others = [n for n in range(rank) if n != axis]
    return [Var(f"i{n}") for n in others], others


@dataclass(frozen=True)
class Cumulative(Op):
    """Running sums ("sum") or products ("prod") along `axis`, without the element itself if `exclusive`."""

    fn: str
    axis: int
    exclusive: bool = False
    reverse: bool = False

    def infer(self, x: TensorType | None) -> tuple[TensorType, ...]:
        x = given(x)
        axis_of(self.axis, x.rank)
        if self.fn not in ("sum", "prod") or x.dtype is BOOL:
            fail(f"a running {self.fn} is not defined on {x.dtype}")
        return (TensorType(x.dtype, x.dims),)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        y = np.moveaxis(wide_array(x), self.axis, -1)
        y = y[..., ::-1] if self.reverse else y
        total = (np.cumsum if self.fn == "sum" else np.cumprod)(y, -1, dtype=y.dtype)
        if self.exclusive:
            first = np.full((*y.shape[:-1], 1), 0 if self.fn == "sum" else 1, y.dtype)
            total = np.concatenate([first, total], -1)[..., :-1]
        total = total[..., ::-1] if self.reverse else total
        return (np.moveaxis(total, -1, self.axis).astype(x.dtype),)

    def loops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> Program:
        x, y = buffers = program_buffers(inputs, outputs)
        axis, extent = self.axis % len(x.shape), x.shape[self.axis]
        outer, others = _around(axis, len(x.shape))
        step = Var("step")
        at: Expr = const(extent - 1) - step if self.reverse else step
        index = (*outer[:axis], at, *outer[axis:])
        total = register("total", wide(x.dtype))
        op, start = ("add", 0) if self.fn == "sum" else ("mul", 1)
        grow = put(total, s.binary(op, get(total), widen(Load(x.name, index, x.dtype))))
        write = Store(y.name, index, s.cast(get(total), y.dtype))
        scan = loop("step", extent, *((write, grow) if self.exclusive else (grow, write)))
        row = allocated([total], put(total, const(start, total.dtype)), scan)
        names = [v.name for v in outer]
        return Program(f"running_{self.fn}", tuple(buffers), nest(names, [x.shape[n] for n in others], [row]))


@dataclass(frozen=True)
class TopK(Op):
    """The k greatest (or least) elements along `axis`, best first, and their i64 indices.

    Of equals the first comes first; NaN counts as greatest.
    """

    axis: int
    k: int
    largest: bool = True

    def infer(self, x: TensorType | None) -> tuple[TensorType, ...]:
        x = given(x)
        axis = axis_of(self.axis, x.rank)
        if not 0 <= self.k <= x.dims[axis]:
            fail(f"k is {self.k}, but the axis has {x.dims[axis]} elements")
        shape = (*x.dims[:axis], self.k, *x.dims[axis + 1 :])
        return TensorType(x.dtype, shape), TensorType(I64, shape)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        rows = np.moveaxis(x, self.axis, -1)
        flipped = rows[..., ::-1] if self.largest else rows  # stable: of equals the first must stay first
        order = np.argsort(wide_array(flipped), -1, kind="stable")
        if self.largest:
            order = rows.shape[-1] - 1 - order[..., ::-1]
        order = np.moveaxis(order[..., : self.k], -1, self.axis).astype(np.int64)
        return np.take_along_axis(x, order, self.axis), order

    def loops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> Program:
        """A bottom-up merge sort of every row's indices, between two halves of a scratch buffer."""
        x, values, indices = buffers = program_buffers(inputs, outputs)
        axis, extent = self.axis % len(x.shape), x.shape[self.axis]
        outer, others = _around(axis, len(x.shape))
        order = Buffer("order", I64, (2, max(extent, 1)), "scratch")
        levels = max(extent - 1, 0).bit_length()
        slot = Var("slot")

        def element(at: Expr) -> Expr:
            return widen(Load(x.name, (*outer[:axis], at, *outer[axis:]), x.dtype))

        start = loop("fill", extent, Store("order", (const(0), Var("fill")), Var("fill")))
        sort = loop("level", levels, self._merge_level(extent, order, element))
        chosen = Load("order", (const(levels % 2), slot), I64)
        at = (*outer[:axis], slot, *outer[axis:])
        best = Load(x.name, (*outer[:axis], chosen, *outer[axis:]), x.dtype)
        emit = loop("slot", self.k, Store(values.name, at, best), Store(indices.name, at, chosen))
        row = allocated([order], start, sort, emit)
        names = [v.name for v in outer]
        return Program("top_k", tuple(buffers), nest(names, [x.shape[n] for n in others], [row]))

    def _merge_level(self, extent: int, order: Buffer, element: Callable[[Expr], Expr]) -> Stmt:
        """Merges neighbouring sorted runs of 2^level indices into the other half of `order`."""
        level, run, place = Var("level"), Var("run"), Var("place")
        width = s.binary("shl", const(1), level)
        begin = run * width * 2
        middle = s.minimum(begin + width, extent)
        end = s.minimum(begin + width * 2, extent)
        left, right = register("left", I64), register("right", I64)
        half = level % 2

        def index(pointer: Buffer) -> Expr:
            return Load("order", (half, get(pointer)), I64)

        no, yes = const(False, BOOL), const(True, BOOL)
        left_wins = s.call("not", self._better(element(index(right)), element(index(left))))
        take_left = select(s.lt(get(left), middle), select(s.lt(get(right), end), left_wins, yes), no)
        picked = register("picked", BOOL)
        merge = loop(
            "place",
            end,
            put(picked, take_left),
            Store("order", (const(1) - half, place), select(get(picked), index(left), index(right))),
            If(get(picked), (put(left, get(left) + 1),), (put(right, get(right) + 1),)),
            begin=begin,
        )
        body = allocated([left, right, picked], put(left, begin), put(right, middle), merge)
        runs = (const(extent - 1) + width * 2) // (width * 2)
        return loop("run", runs, body)

    def _better(self, a: Expr, b: Expr) -> Expr:
        """Whether a stands strictly before b."""
        first, second = (a, b) if self.largest else (b, a)
        greater = s.binary("gt", first, second)
        if not a.dtype.is_float:
            return greater
        only_first_nan = s.both(s.call("isnan", first), s.call("not", s.call("isnan", second)))
        return s.binary("or", greater, only_first_nan)


@dataclass(frozen=True)
class Det(Op):
    """Determinants of the square matrices in the last two axes."""

    def infer(self, x: TensorType | None) -> tuple[TensorType, ...]:
        x = given(x)
        if x.rank < 2 or x.dims[-1] != x.dims[-2] or not x.dtype.is_float:
            fail(f"square matrices of floats are needed, but x is {x}")
        return (TensorType(x.dtype, x.dims[:-2]),)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        return (np.asarray(np.linalg.det(x.astype(np.float64))).astype(x.dtype),)

    def loops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> Program:
        """Gaussian elimination with row pivots; the determinant is the product of the pivots."""
        x, y = buffers = program_buffers(inputs, outputs)
        size, dtype = x.shape[-1], wide(x.dtype)
        outer = [Var(f"i{n}") for n in range(len(x.shape) - 2)]
        matrix = Buffer("matrix", dtype, (max(size, 1), max(size, 1)), "scratch")
        det, best = register("det", dtype), register("best", I64)
        row, column = Var("row"), Var("column")
        fill = Store("matrix", (row, column), widen(Load(x.name, (*outer, row, column), x.dtype)))
        one = allocated(
            [matrix, det, best],
            loop("row", size, loop("column", size, fill)),
            put(det, const(1, dtype)),
            loop("pivot", size, *_eliminate(size, dtype, det, best)),
            Store(y.name, tuple(outer), s.cast(get(det), y.dtype)),
        )
        names = [v.name for v in outer]
        return Program("det", tuple(buffers), nest(names, x.shape[:-2], [one]))


def _eliminate(size: int, dtype: DType, det: Buffer, best: Buffer) -> list[Stmt]:
    """One column of the elimination: choose the pivot, swap its row up, clear what is below it."""
    pivot, row, column = Var("pivot"), Var("row"), Var("column")

    def cell(i: Expr, j: Expr) -> Load:
        return Load("matrix", (i, j), dtype)

    held = register("held", dtype)
    larger = s.binary("gt", s.call("abs", cell(row, pivot)), s.call("abs", cell(get(best), pivot)))
    swap = loop(
        "column",
        size,
        allocated(
            [held],
            put(held, cell(pivot, column)),
            Store("matrix", (pivot, column), cell(get(best), column)),
            Store("matrix", (get(best), column), get(held)),
        ),
    )
    factor = register("factor", dtype)
    reduced = cell(row, column) - get(factor) * cell(pivot, column)
    clear = loop(
        "row",
        size,
        allocated(
            [factor],
            put(factor, cell(row, pivot) / cell(pivot, pivot)),
            loop("column", size, Store("matrix", (row, column), reduced), begin=pivot + 1),
        ),
        begin=pivot + 1,
    )
    return [
        put(best, pivot),
        loop("row", size, If(larger, (put(best, row),)), begin=pivot + 1),
        If(s.binary("ne", get(best), pivot), (swap, put(det, -get(det)))),
        put(det, get(det) * cell(pivot, pivot)),
        If(s.binary("ne", cell(pivot, pivot), const(0, dtype)), (clear,)),
    ]
