"""The loop program: how an operator is computed, for CPUs and GPUs alike.

    Program := name, params: Buffer…, temps: Buffer…, body: Stmt…
    Stmt    := for VAR in [e, e) KIND: Stmt…  serial | parallel | unroll | vector | block.x/y/z | thread.x/y/z
             | if e: Stmt… else: Stmt…
             | BUFFER[e, …] = e
             | alloc BUFFER: Stmt…            a buffer that lives inside the statement
             | barrier SCOPE                  block: the threads of a GPU block; grid: those of all its
                                              blocks, which then run at once; gang: the CPU's workers;
                                              order: no load is kept in a register across it, no other effect
             | prefetch [once] BUFFER[e, …]   a hint, no effect; once: its lines will not stay cached
             | intrinsic NAME(e, …): Stmt…    one instruction where there is one: its operands, its meaning

Meaning: statements in order; `parallel`, `block` and `thread` iterations may run in any order or at once, and
between two barriers they touch no element that another one writes; `vector` iterations run in lockstep (all
loads of a store before it); `unroll` and `vector` loops have constant bounds once outer unrolled variables
are known. Every statement at the top of `body` is one step: its outermost parallel loops are the task range
that the runtime deals to its threads, and the next step starts when it has ended. On CPUs statements in a row
that one worker runs are one step; on a GPU a serial loop at the top may repeat steps, without using its
variable. Buffers are physical (row-major over their shape).

In a gang program, which all workers enter at once, the variables `worker` and `workers` say which one runs
and how many there are.

Scopes: param (given by the caller), global (a temporary shared by all steps), scratch (per worker or per GPU
thread block's private global memory), shared (per GPU block), register (per thread; indexed by constants once
unrolled). Buffers start undefined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from . import scalar as s
from .scalar import Expr
from .types import DType

LOOP_KINDS = frozenset(
    "serial parallel unroll vector block.x block.y block.z thread.x thread.y thread.z".split()
)
GANG_RANGES = {"worker": (0, 1 << 16), "workers": (1, 1 << 16)}
INTRINSICS = {
    "mma_tf32": True, "mma_tf32_a": True, "mma_tf32_b": True, "mma_f16": True, "mma_bf16": True,
    "copy_async": False, "commit_copies": False, "wait_copies": False, "exchange": True, "meet": True,
    "amx_begin": False, "amx_end": False, "amx_zero": False, "amx_dot_u8": False, "amx_store": False,
}  # fmt: skip
"""By name: whether all threads of a block must come by.

    mma_*(acc, a, …, b, …)    acc += a · b, matrices of a warp, by tensor cores; behind each factor, how many
                              words lie from one of its terms to the next, and from one row or column; tf32
                              rounds both factors, tf32_a and tf32_b that one: the other one is rounded
    copy_async(to, value, n)  n stores side by side, the first one of `value`; they may happen any time until
                              their group of copies is waited for
    commit_copies()           what the thread has copied since the last one is a group
    wait_copies(n)            until all groups but the last n are there
    exchange(to, of, d, n)    to = `of` of the thread whose number differs in the bit d; a warp has n threads
    meet(arrivals)            a barrier of the grid, by an i32 of global memory, 0 when the kernel begins
    amx_begin(r, w, i, j)     tiles are i × j of r × 16 sums, and factors of r × w and w × 16 words
    amx_zero(c)               the sums are zero, …
    amx_dot_u8(c, s, a…, b…)  … i factors a times j factors b more, of bytes, those of a unsigned, whose rows
                              are s words apart, …
    amx_store(c)              … and in memory, one behind the other from c on, where nothing reads them before
    amx_end()                 no tiles are used from here on
"""
SCOPES = frozenset({"param", "global", "scratch", "shared", "register"})


@dataclass(frozen=True)
class Buffer:
    name: str
    dtype: DType
    shape: tuple[int, ...]  # physical, row-major
    scope: str = "param"

    @property
    def size(self) -> int:
        n = 1
        for d in self.shape:
            n *= d
        return n

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements."""
        result: list[int] = []
        step = 1
        for d in reversed(self.shape):
            result.append(step)
            step *= d
        return tuple(reversed(result))

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.bytes


@dataclass(frozen=True)
class Stmt:
    """Base of statements."""


Body = tuple[Stmt, ...]


@dataclass(frozen=True)
class For(Stmt):
    var: str
    begin: Expr
    end: Expr
    body: Body
    kind: str = "serial"

    @property
    def extent(self) -> int | None:
        """end - begin where both are constants."""
        if isinstance(self.begin, s.Const) and isinstance(self.end, s.Const):
            return max(0, int(self.end.value) - int(self.begin.value))
        return None


@dataclass(frozen=True)
class If(Stmt):
    cond: Expr
    then: Body
    other: Body = ()


@dataclass(frozen=True)
class Store(Stmt):
    buffer: str
    index: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True)
class Alloc(Stmt):
    buffer: Buffer
    body: Body


@dataclass(frozen=True)
class Barrier(Stmt):
    scope: str = "block"


@dataclass(frozen=True)
class Prefetch(Stmt):
    buffer: str
    index: tuple[Expr, ...]
    once: bool = False


@dataclass(frozen=True)
class Intrinsic(Stmt):
    """`body` is what it means. Code generators that know `name` print an instruction on `operands` instead,
    which loads name by their first element.
    """

    name: str
    operands: tuple[Expr, ...]
    body: Body


@dataclass(frozen=True)
class Program:
    name: str
    params: tuple[Buffer, ...]
    body: Body
    temps: tuple[Buffer, ...] = ()  # scope global
    gang: bool = False  # every step is entered by all workers at once and may use gang barriers

    def buffers(self) -> dict[str, Buffer]:
        """Every buffer by name, allocated ones included."""
        found = {b.name: b for b in (*self.params, *self.temps)}
        found.update({st.buffer.name: st.buffer for st in walk(self.body) if isinstance(st, Alloc)})
        return found

    def written(self) -> frozenset[str]:
        return frozenset(st.buffer for st in walk(self.body) if isinstance(st, Store))


def loop(var: str, extent: Expr | int, *body: Stmt, kind: str = "serial", begin: Expr | int = 0) -> For:
    """`for var in [begin, extent)`."""
    return For(var, s.as_expr(begin), s.as_expr(extent), body, kind)


def walk(body: Body | Stmt) -> Iterator[Stmt]:
    for st in (body,) if isinstance(body, Stmt) else body:
        yield st
        match st:
            case For(body=inner) | Alloc(body=inner) | Intrinsic(body=inner):
                yield from walk(inner)
            case If(then=then, other=other):
                yield from walk(then)
                yield from walk(other)


def launches(body: Body) -> Iterator[Stmt]:
    """The kernels of a GPU program in the order in which they run; a serial loop around block loops repeats
    them.
    """
    for st in body:
        if isinstance(st, For) and st.kind == "serial" and _has_blocks(st.body):
            assert st.extent is not None
            yield from list(launches(st.body)) * st.extent
        else:
            yield st


def _has_blocks(body: Body) -> bool:
    return any(isinstance(st, For) and st.kind.startswith("block.") for st in walk(body))


def expressions(st: Stmt) -> tuple[Expr, ...]:
    """The expressions that stand in the statement itself, not in its body."""
    match st:
        case For(begin=a, end=b):
            return (a, b)
        case If(cond=c):
            return (c,)
        case Store(index=i, value=v):
            return (*i, v)
        case Prefetch(index=i):
            return i
        case Intrinsic(operands=found):
            return found
    return ()


def meets(st: Stmt) -> bool:
    """Whether blocks wait for each other in it."""
    return any(isinstance(x, Barrier) and x.scope == "grid" for x in walk(st))


def map_expressions(body: Body, fn: Callable[[Expr], Expr]) -> Body:
    """Every expression e becomes fn(e)."""

    def one(st: Stmt) -> Stmt:
        match st:
            case For():
                return For(st.var, fn(st.begin), fn(st.end), map_expressions(st.body, fn), st.kind)
            case If():
                return If(fn(st.cond), map_expressions(st.then, fn), map_expressions(st.other, fn))
            case Store():
                return Store(st.buffer, tuple(fn(i) for i in st.index), fn(st.value))
            case Alloc():
                return Alloc(st.buffer, map_expressions(st.body, fn))
            case Prefetch():
                return replace(st, index=tuple(fn(i) for i in st.index))
            case Intrinsic():
                return Intrinsic(st.name, tuple(map(fn, st.operands)), map_expressions(st.body, fn))
        return st

    return tuple(one(st) for st in body)


def substitute(body: Body, values: dict[str, Expr]) -> Body:
    """Replaces free variables by name."""
    return map_expressions(body, lambda e: s.substitute(e, values))


def print_program(program: Program, most: int | None = None) -> str:
    """`text.parse_program` reads it back, but not where values of more than `most` nodes are abbreviated."""
    lines = [f"program {program.name}{' gang' if program.gang else ''}"]
    for word, group in (("param", program.params), ("temp", program.temps)):
        lines += [f"  {word} {_buffer(b)}" for b in group]
    _print(program.body, 1, lines, s.text if most is None else partial(s.abbreviated, most=most))
    return "\n".join(lines)


def _buffer(b: Buffer) -> str:
    return f"{b.name}: {b.dtype}[{', '.join(map(str, b.shape))}] {b.scope}"


def _print(body: Body, depth: int, lines: list[str], text: Callable[[Expr], str]) -> None:
    pad = "  " * depth
    for st in body:
        match st:
            case For():
                kind = "" if st.kind == "serial" else f" {st.kind}"
                lines.append(f"{pad}for {st.var} in [{text(st.begin)}, {text(st.end)}){kind}:")
                _print(st.body, depth + 1, lines, text)
            case If():
                lines.append(f"{pad}if {text(st.cond)}:")
                _print(st.then, depth + 1, lines, text)
                if st.other:
                    lines.append(f"{pad}else:")
                    _print(st.other, depth + 1, lines, text)
            case Store():
                lines.append(f"{pad}{st.buffer}[{', '.join(map(text, st.index))}] = {text(st.value)}")
            case Alloc():
                lines.append(f"{pad}alloc {_buffer(st.buffer)}:")
                _print(st.body, depth + 1, lines, text)
            case Barrier():
                lines.append(f"{pad}barrier {st.scope}")
            case Prefetch():
                once = "once " if st.once else ""
                lines.append(f"{pad}prefetch {once}{st.buffer}[{', '.join(map(text, st.index))}]")
            case Intrinsic():
                lines.append(f"{pad}intrinsic {st.name}({', '.join(map(text, st.operands))}):")
                _print(st.body, depth + 1, lines, text)
