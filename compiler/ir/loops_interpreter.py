"""The executable meaning of loop programs: a program becomes Python source, and that runs.

It is strict where machine code is silent: a load or store outside of its buffer, a load of an element that
nothing has written, lanes that write one element differently and barriers that not all threads reach are
InternalErrors.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ...errors import InternalError
from . import loops_support as support
from .affine import bounds
from .loops import (
    GANG_RANGES,
    Alloc,
    Barrier,
    Body,
    Buffer,
    For,
    If,
    Intrinsic,
    Prefetch,
    Program,
    Stmt,
    Store,
    meets,
    walk,
)
from .loops_support import Memory
from .loops_writer import Lanes, Slot, Writer
from .scalar import Const

ORDERS = ("forward", "backward")
_NEST = 14  # `for` statements in one Python function; CPython allows 20


def interpret(
    program: Program,
    arrays: Sequence[np.ndarray],
    *,
    workers: int = 1,
    inout: Collection[str] = (),
    complete: bool = True,
    order: str = "forward",
) -> tuple[np.ndarray, ...]:
    """Runs the program on one physical array per param and returns those that it writes, in order.

    Written params start undefined unless `inout` names them; with `complete` all of their elements must be
    written. Their arrays are written in place. `order` is the order in which parallel and thread iterations
    run: a correct program gives the same in each. `workers` counts the workers of a gang.
    Errors: RunError where a `checked` index fails, InternalError for everything that a program may not do.
    """
    if order not in ORDERS:
        raise InternalError(f"order {order!r}: expected one of {', '.join(ORDERS)}")
    if len(arrays) != len(program.params):
        raise InternalError(f"program {program.name} takes {len(program.params)} arrays, not {len(arrays)}")
    written = program.written()
    memories = [
        _param(b, a, b.name in written, b.name in inout) for b, a in zip(program.params, arrays, strict=True)
    ]
    temps = [Memory.undefined(b.name, b.shape, b.dtype.numpy) for b in program.temps]
    with np.errstate(all="ignore"):
        _compiled(program, order)(*memories, *temps, workers)
    results = []
    for buffer, memory, array in zip(program.params, memories, arrays):
        if buffer.name not in written:
            continue
        if complete and memory.defined is not None and 0 in memory.defined:
            memory.fail(f"program {program.name} never writes", memory.defined.index(0))
        result = memory.flat.reshape(buffer.shape)
        if not np.may_share_memory(result, array):
            array[...] = result
        results.append(array)
    return tuple(results)


def _param(buffer: Buffer, array: np.ndarray, written: bool, inout: bool) -> Memory:
    if tuple(array.shape) != buffer.shape or array.dtype != buffer.dtype.numpy:
        raise InternalError(
            f"param {buffer.name}: got {array.dtype}{list(array.shape)}, "
            f"expected {buffer.dtype}{list(buffer.shape)}"
        )
    flat = np.ascontiguousarray(array).reshape(-1)
    defined = bytearray((b"\1" if inout else b"\0") * buffer.size) if written else None
    return Memory(buffer.name, buffer.shape, flat, defined)


@lru_cache(maxsize=32)
def _compiled(program: Program, order: str) -> Any:
    writer = _Statements(program, order)
    objects = {"share": support.share, "lockstep": support.lockstep, "backward": support.backward, "np": np,
               "Memory": Memory, "lane_store": support.lane_store}  # fmt: skip
    source = writer.write_program()
    code = compile(source, f"<loop program {program.name}>", "exec")
    namespace = {**objects, **writer.objects}
    exec(code, namespace)
    return namespace["run"]


def _has_barrier(body: Body | Stmt) -> bool:
    return any(isinstance(st, Barrier) and st.scope != "order" for st in walk(body))


class _Statements(Writer):
    """Statements of one program → Python source of `run(param memories…, temp memories…, workers)`."""

    def __init__(self, program: Program, order: str):
        super().__init__()
        self.program = program
        self.range = "range" if order == "forward" else "backward"
        self.private: list[Slot] = []  # buffers of which every task has its own
        self.nest = 0
        self.in_threads = self.in_blocks = self.in_gang = self.in_generator = False

    def write_program(self) -> str:
        written = self.program.written()
        slots = [
            self.open(b, b.scope == "global" or b.name in written)
            for b in (*self.program.params, *self.program.temps)
        ]
        head = f"def run({', '.join([slot.name for slot in slots] + ['workers'])}):"
        for slot in slots:
            self.unpack(slot)
        if self.program.gang:
            self.names |= {"worker": "worker", "workers": "workers"}
            self.ranges |= GANG_RANGES
        for step in self.program.body:
            if self.program.gang:
                self.gang_step(step)
            else:
                self.statement(step)
        return "\n".join([head, *self.lines, "    return", ""])

    def open(self, buffer: Buffer, checked: bool, per_lane: bool = False) -> Slot:
        if buffer.name in self.slots:
            raise InternalError(f"buffer {buffer.name} is defined twice")
        slot = Slot(buffer, self.fresh("b"), checked, per_lane)
        self.slots[buffer.name] = slot
        return slot

    def unpack(self, slot: Slot) -> None:
        self.line(f"{slot.name}_v, {slot.name}_d = {slot.name}.flat, {slot.name}.defined")

    def gang_step(self, step: Stmt) -> None:
        name = self.fresh("step")
        self.in_gang = self.in_generator = True
        with self.block(f"def {name}(worker):"):
            self.statement(step)
            self.line("if False: yield")
        self.in_gang = self.in_generator = False
        self.line(f"for _ in lockstep({name}(w) for w in {self.range}(0, workers)): pass")

    def body(self, body: Body) -> None:
        for st in body:
            self.statement(st)

    def statement(self, st: Stmt) -> None:
        match st:
            case For():
                self.loop(st)
            case If():
                self.branch(st)
            case Store():
                self.store(st)
            case Alloc():
                self.allocate(st)
            case Barrier():
                self.barrier(st)
            case Intrinsic():
                self.body(st.body)
            case Prefetch():
                pass
            case _:
                raise InternalError(f"not a statement: {st!r}")

    # --- loops ----------------------------------------------------------------------------------------------

    def loop(self, st: For) -> None:
        if st.var in self.names:
            raise InternalError(f"loop variable {st.var} is bound twice")
        self.start(st.begin, st.end)
        if self.lanes and (self.varies(st.begin) or self.varies(st.end)):
            raise InternalError(f"the bounds of loop {st.var} differ between the lanes of a vector loop")
        begin, end = self.value(st.begin), self.value(st.end)
        low, high = bounds(st.begin, self.ranges)[0], bounds(st.end, self.ranges)[1] - 1
        self.ranges[st.var] = (low, max(low, high))
        self.names[st.var] = self.fresh("i")
        if self.lanes and st.kind not in ("serial", "unroll"):
            raise InternalError(f"a {st.kind} loop inside of a vector loop")
        if st.kind == "vector":
            self.vector_loop(st, begin, end)
        elif st.kind.startswith("thread.") and _has_barrier(st.body):
            self.thread_loop(st, begin, end)
        elif st.kind.startswith("block.") and meets(st):
            self.block_loop(st, begin, end)
        else:
            self.plain_loop(st, begin, end)
        del self.names[st.var], self.ranges[st.var]

    def plain_loop(self, st: For, begin: str, end: str) -> None:
        if self.nest == _NEST:
            self.nest = 0
            name = self.fresh("part")
            with self.block(f"def {name}():"):
                self.plain_loop(st, begin, end)
                if self.in_generator:
                    self.line("if False: yield")
            self.line(f"yield from {name}()" if self.in_generator else f"{name}()")
            self.nest = _NEST
            return
        concurrent = st.kind == "parallel" or st.kind.startswith("block.")
        head = f"{self.range if concurrent or st.kind.startswith('thread.') else 'range'}({begin}, {end})"
        dealt = st.kind == "parallel" and self.in_gang
        if dealt:
            head = f"share({begin}, {end}, worker, workers)"
        keep = [(slot, self.temp(f"bytes({slot.name}_d)")) for slot in self.private if concurrent]
        gang, self.in_gang = self.in_gang, self.in_gang and not dealt
        self.nest += 1
        with self.block(f"for {self.names[st.var]} in {head}:"):
            for slot, copy in keep:
                self.line(f"{slot.name}_d[:] = {copy}")
            self.body(st.body)
        self.nest -= 1
        self.in_gang = gang

    def thread_loop(self, st: For, begin: str, end: str) -> None:
        """Threads with barriers are generators that stop at each of them."""
        outer, self.in_threads = self.in_threads, True
        call = self.in_step(st, begin, end)
        self.in_threads = outer
        if self.in_threads:
            self.line(f"yield from {call}")
        elif self.in_blocks:
            self.line(f"yield from (scope for scope in {call} if scope == 'grid')")
        else:
            self.line(f"for _ in {call}: pass")

    def block_loop(self, st: For, begin: str, end: str) -> None:
        """So are blocks that wait for each other."""
        if self.private:
            raise InternalError(
                f"{self.private[0].buffer.name} stands around blocks that wait for each other"
            )
        outer, self.in_blocks = self.in_blocks, True
        call = self.in_step(st, begin, end)
        self.in_blocks = outer
        self.line(f"yield from {call}" if self.in_blocks else f"for _ in {call}: pass")

    def in_step(self, st: For, begin: str, end: str) -> str:
        """The iterations as generators."""
        outer = (self.in_generator, self.nest)
        name = self.fresh("step")
        self.in_generator, self.nest = True, 0
        with self.block(f"def {name}({self.names[st.var]}):"):
            self.body(st.body)
            self.line("if False: yield")
        self.in_generator, self.nest = outer
        return f"lockstep({name}(i) for i in {self.range}({begin}, {end}))"

    def vector_loop(self, st: For, begin: str, end: str) -> None:
        var = self.names[st.var]
        if isinstance(st.begin, Const) and isinstance(st.end, Const):
            self.line(f"{var} = {self.object(np.arange(int(st.begin.value), int(st.end.value)), 'lanes')}")
        else:
            self.line(f"{var} = np.arange({begin}, {end})")
        with self.block(f"if {var}.size:"):
            positions = self.temp(f"np.arange({var}.size)")
            self.lanes = Lanes(var, positions, {st.var})
            self.body(st.body)
            self.lanes = None

    # --- other statements -----------------------------------------------------------------------------------

    def branch(self, st: If) -> None:
        self.start(st.cond)
        if self.lanes and (self.lanes.mask != "None" or self.varies(st.cond)):
            cond = self.temp(self.in_lanes(st.cond))
            for mask, body in ((cond, st.then), (f"~{cond}", st.other)):
                with self.masked(mask):
                    self.body(body)
            return
        with self.block(f"if {self.value(st.cond)}:"):
            self.body(st.then)
        if st.other:
            with self.block("else:"):
                self.body(st.other)

    def store(self, st: Store) -> None:
        slot = self.slot(st.buffer)
        if st.value.dtype is not slot.buffer.dtype:
            raise InternalError(
                f"a store of {st.value.dtype} to {st.buffer}, which holds {slot.buffer.dtype}"
            )
        self.start(*st.index, st.value)
        if self.lanes:
            if len(st.index) != len(slot.buffer.shape):
                raise InternalError(f"{st.buffer} has {len(slot.buffer.shape)} axes, not {len(st.index)}")
            value, index = self.in_lanes(st.value), self.lane_index(slot, st.index)
            self.line(f"lane_store({slot.name}, {index}, {value}, {self.lanes.mask}, {self.lanes.positions})")
            return
        value = self.value(st.value)
        at = self.offset(slot, st.index)
        at = self.temp(at) if not at.isalnum() else at
        self.line(f"{slot.name}_v[{at}] = {value}; {slot.name}_d[{at}] = 1")

    def allocate(self, st: Alloc) -> None:
        b = st.buffer
        slot = self.open(b, checked=True, per_lane=self.lanes is not None)
        dtype = self.object(b.dtype.numpy, "dtype")
        shape = f"({self.lanes.positions}.size, *{b.shape})" if self.lanes else f"{b.shape}"
        self.line(f"{slot.name} = Memory.undefined({b.name!r}, {shape}, {dtype})")
        self.unpack(slot)
        self.private.append(slot)
        self.body(st.body)
        self.private.pop()
        del self.slots[b.name]

    def barrier(self, st: Barrier) -> None:
        if st.scope == "order":
            return
        if self.lanes or st.scope not in ("block", "grid", "gang"):
            raise InternalError(f"barrier {st.scope} cannot stand here")
        if st.scope == "gang" and not self.program.gang:
            raise InternalError(f"program {self.program.name} is no gang, but has a gang barrier")
        if st.scope != "block" or self.in_threads:
            self.line(f"yield {st.scope!r}")
