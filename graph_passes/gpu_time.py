"""What a loop program takes on a GPU, by an analytic model: a bound by arithmetic, one by the caches' traffic
and one by memory's, whichever is largest, stretched where a unit has too little to do.

Memory is looked at through one warp: the addresses of its threads are computed, and each different sector of
32 bytes that they fall into is traffic. So a stride of the threads, or columns that lie far apart, cost what
they do on the device, whatever template made the loops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from ..compiler.ir import loops as L
from ..compiler.ir import scalar as s
from ..compiler.ir.loops import Body, Buffer, For, If, Program, Stmt, Store
from ..compiler.ir.numpy_scalar import evaluate
from ..compiler.ir.scalar import Binary, Call, Const, Expr, Load
from ..compiler.target import Gpu
from ..compiler.templates.common import COSTLY

SECTOR = 32  # bytes
CACHED = 1.0  # bytes of a unit's cache in the time of a multiply-add
COSTLY_OPERATIONS = 16  # multiply-adds of an elementary function
COPYING = 6  # instructions for each end of a copy beside the arithmetic, in nvcc's code: places and a guard
ROUNDING = 2  # instructions to TF32
MEETING = 20  # multiply-adds of a thread while it waits at a barrier
ALL_MEET = 0.75  # of a launch, while blocks wait for each other
WARPS = 8  # that keep a unit busy
MOST_BLOCKS = 4  # of a unit at once
EXPANDED = 1024  # addresses of a load that are looked at
HIDDEN = 0.75  # of the shorter bounds' time


def program_time(program: Program, gpu: Gpu) -> float:
    """Seconds of all kernels of a scheduled program, one after the other."""
    buffers = {b.name: b for b in (*program.params, *program.temps)}
    kernels = Counter(L.launches(program.body))
    return sum(count * _kernel_time(buffers, gpu, st) for st, count in kernels.items())


def _kernel_time(buffers: Mapping[str, Buffer], gpu: Gpu, statement: Stmt) -> float:
    """Of one statement at the top of a program."""
    kernel = _Kernel(dict(buffers), gpu)
    kernel.walk((statement,), {}, 1.0)
    return kernel.seconds


@dataclass
class _Work:
    """Of one thread."""

    operations: float = 0.0
    bytes: float = 0.0  # its share of what its warp moves
    registers: int = 0  # words


@dataclass
class _Kernel:
    """What the statements that were walked do."""

    buffers: dict[str, Buffer]
    gpu: Gpu
    blocks: int = 1
    threads: int = 1
    meetings: float = 0.0  # of all blocks
    work: _Work = field(default_factory=_Work)
    touched: set[str] = field(default_factory=set)

    @property
    def seconds(self) -> float:
        gpu, items = self.gpu, self.blocks * self.threads
        peak = gpu.units * gpu.rate
        memory = sum(b.nbytes for name, b in self.buffers.items() if name in self.touched) / gpu.bandwidth
        bounds = sorted((items * self.work.operations / peak, items * self.work.bytes / (peak * CACHED)))
        inside = (bounds[1] + (1 - HIDDEN) * bounds[0]) * self._idle()
        waiting = (1 + ALL_MEET * self.meetings) * gpu.launch
        return waiting + max(inside, memory) + (1 - HIDDEN) * min(inside, memory)

    def _idle(self) -> float:
        """How much longer it takes than with all units busy all the time."""
        gpu = self.gpu
        share = self.blocks / gpu.units
        rounds = -(-self.blocks // gpu.units) / share
        warps = -(-self.threads // gpu.warp) * min(MOST_BLOCKS, max(1.0, share))
        lanes = -(-self.threads // gpu.warp) * gpu.warp / self.threads
        spilt = max(1.0, self.work.registers / gpu.registers)
        return rounds * lanes * max(1.0, WARPS / warps) * spilt

    # --- the loops ------------------------------------------------------------------------------------------

    def walk(self, body: Body, known: Mapping[str, np.ndarray], times: float) -> None:
        """`known` are values of the loops' variables: of a warp's threads along the last axis, of unrolled
        iterations along others. `times` is how often the body runs for all of these."""
        for st in body:
            match st:
                case For():
                    self._loop(st, known, times)
                case If():
                    self._count(st.cond, known, times)
                    self.walk(st.then, known, times)
                    self.walk(st.other, known, times)
                case L.Alloc():
                    self.buffers[st.buffer.name] = st.buffer
                    if st.buffer.scope == "register":
                        self.work.registers += -(-st.buffer.nbytes // 4)
                    self.walk(st.body, known, times)
                case Store():
                    self._count(st.value, known, times)
                    self._move(Load(st.buffer, st.index, self.buffers[st.buffer].dtype), known, times)
                case L.Intrinsic():
                    self._intrinsic(st, known, times)
                case L.Barrier(scope="grid"):
                    self.meetings += times
                case L.Barrier():
                    self.work.operations += times * MEETING

    def _loop(self, st: For, known: Mapping[str, np.ndarray], times: float) -> None:
        begin, end = (_value(e, known) for e in (st.begin, st.end))
        extent = max(0, int(np.mean(end - begin)))
        kind, _, axis = st.kind.partition(".")
        if kind == "block":
            self.blocks *= extent
            begin = begin + (extent - 1) // 2
        elif kind == "thread":
            self.threads *= extent
            begin = begin + np.arange(min(self.gpu.warp, extent)) if axis == "x" else begin
        elif st.kind in ("unroll", "vector") and begin.size * extent <= EXPANDED:
            ahead = max((v.ndim for v in known.values()), default=0)
            begin = begin + np.arange(extent).reshape(-1, *[1] * max(1, ahead))
        else:
            times *= extent
        if extent:
            self.walk(st.body, {**known, st.var: begin}, times)

    def _intrinsic(self, st: L.Intrinsic, known: Mapping[str, np.ndarray], times: float) -> None:
        """A multiply-add for each store of its meaning, by tensor cores where there are any, and what loads
        factors; an exchange is one operation, and a copy costs the same however many elements it moves.
        """
        if st.name == "exchange":
            self.work.operations += times
            return
        if not (st.name.startswith("mma_") and self.gpu.tensor):
            before = self.work.operations
            self.walk(st.body, known, times)
            if st.name == "copy_async":
                count = int(_value(st.operands[-1], known)[0])
                self.work.operations = before + COPYING * (self.work.operations - before) / count
            return
        acc, a, a_term, _, _, b_term, _ = st.operands
        assert isinstance(acc, Load)
        rows, columns = self.buffers[acc.tensor].shape[:2]
        values = 4 // a.dtype.bytes  # in a word
        work = _stores(st.body) / (self.gpu.tensor * values)
        for words, term in ((4 * rows, a_term), (2 * columns, b_term)):
            work += words / 4 if term == s.const(1) else words  # ldmatrix loads four
            work += ROUNDING * words * (values == 1)
        self.work.operations += times * work

    # --- expressions ----------------------------------------------------------------------------------------

    def _count(self, e: Expr, known: Mapping[str, np.ndarray], times: float) -> None:
        points = _points(e, known) * times
        for x in _outside_of_indices(e):
            if isinstance(x, Load):
                self._move(x, known, times)
            elif isinstance(x, Call):
                self.work.operations += points * (COSTLY_OPERATIONS if x.op in COSTLY else 1)
            elif isinstance(x, Binary) and x.dtype.is_float and not self._fused(x):
                self.work.operations += points * (COSTLY_OPERATIONS if x.op == "pow" else 1)

    def _fused(self, x: Binary) -> bool:
        """Whether it takes no time of its own beside the product that it adds."""
        product = any(isinstance(part, Binary) and part.op == "mul" for part in (x.a, x.b))
        return self.gpu.fma and x.op == "add" and product

    def _move(self, access: Load, known: Mapping[str, np.ndarray], times: float) -> None:
        """A load, or a store to the same place."""
        buffer = self.buffers[access.tensor]
        if buffer.scope == "register":
            return
        places = sum((_value(i, known) * k for i, k in zip(access.index, buffer.strides)), np.zeros(1, int))
        self.work.operations += times * places.size / max(1, places.shape[-1])
        if buffer.scope == "shared":
            return
        self.touched.add(buffer.name)
        sectors = np.unique(places * buffer.dtype.bytes // SECTOR).size
        self.work.bytes += times * sectors * SECTOR / min(self.gpu.warp, self.threads)


def _stores(body: Body) -> int:
    """Of an intrinsic's meaning, whose loops have constant lengths."""
    return sum((st.extent or 0) * _stores(st.body) if isinstance(st, For) else 1 for st in body)


def _value(e: Expr, known: Mapping[str, np.ndarray]) -> np.ndarray:
    """Of an index; data are taken to be 0, and what is made of them to be in range."""
    if isinstance(e, Const):
        return np.full(1, int(e.value))
    free = s.transform(e, _guess)
    return np.atleast_1d(evaluate(free, {v: known[v] for v in s.variables(free)}, {}))


def _guess(e: Expr) -> Expr | None:
    if isinstance(e, Load):
        return s.const(0, e.dtype)
    return e.args[0] if isinstance(e, s.Call) and e.op == "checked" else None


def _points(e: Expr, known: Mapping[str, np.ndarray]) -> int:
    """Unrolled iterations of a thread that `known` holds at once for the variables of an expression."""
    shape = np.broadcast_shapes(*(known[v].shape for v in s.variables(e)))
    return int(np.prod(shape[:-1]))


def _outside_of_indices(e: Expr) -> Iterator[Expr]:
    """Each object once; loads, but not what their indices are made of."""
    seen: set[int] = set()
    stack = [e]
    while stack:
        top = stack.pop()
        if id(top) not in seen:
            seen.add(id(top))
            yield top
            stack += () if isinstance(top, Load) else s.children(top)
