"""Checks a loop program without running it: `verify(program)` is silent before and after every pass."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from ...errors import InternalError
from . import scalar as s
from .affine import Linear, Range, bounds, decide, linear
from .loops import (
    GANG_RANGES,
    INTRINSICS,
    LOOP_KINDS,
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
    expressions,
    print_program,
    walk,
)
from .scalar import Binary, Const, Expr, Load, Select, Var
from .scalar_verifier import verify_scalar
from .types import BOOL, I64, DType


@dataclass(frozen=True)
class _Scope:
    """What is known at one statement."""

    buffers: dict[str, Buffer]
    loops: tuple[For, ...] = ()
    ranges: dict[str, Range] | None = None
    exact: bool = True  # every point of `ranges` is reached
    dead: bool = False
    varying: frozenset[str] = frozenset()  # variables that differ between the threads of a block
    divergent: bool = False  # not all of them come by
    conditional: bool = False  # nor, maybe, all blocks

    def kinds(self) -> list[str]:
        return [loop.kind for loop in self.loops]

    def loop(self, var: str) -> For | None:
        return next((loop for loop in self.loops if loop.var == var), None)

    def known(self) -> dict[str, Range]:
        return self.ranges or {}


def verify(program: Program, outputs: Collection[str] | None = None) -> None:
    """InternalError unless the program obeys loops.py: names, ranks, dtypes, kinds of loops, scopes, bounds.

    With `outputs`, exactly these params are written. An index is out of bounds only where some iteration
    surely goes there; what depends on data is for the interpreter to find.
    """
    try:
        _verify(program, outputs)
    except InternalError as error:
        raise InternalError(f"loop program {program.name}: {error}") from None


def _verify(program: Program, outputs: Collection[str] | None) -> None:
    buffers: dict[str, Buffer] = {}
    for expected, group in (("param", program.params), ("global", program.temps)):
        for b in group:
            if b.name in buffers:
                raise InternalError(f"buffer {b.name} is defined twice")
            if b.scope != expected:
                raise InternalError(f"buffer {b.name} has scope {b.scope}, expected {expected}")
            _check_shape(b)
            buffers[b.name] = b
    _check_allocations(program, buffers)
    written = program.written()
    if outputs is not None and written & {b.name for b in program.params} != set(outputs):
        raise InternalError(f"writes {', '.join(sorted(written))}, expected {', '.join(sorted(outputs))}")
    read = {load.tensor for st in walk(program.body) for e in expressions(st) for load in s.loads(e)}
    for name in sorted(read - written):
        if name in program.buffers() and program.buffers()[name].scope != "param":
            raise InternalError(f"{name} is read, but never written")
    ranges = GANG_RANGES if program.gang else None
    _Checker(program).body(program.body, _Scope(buffers, ranges=ranges, exact=not program.gang))


def _check_shape(b: Buffer) -> None:
    if any(not isinstance(d, int) or d < 0 for d in b.shape):
        raise InternalError(f"buffer {b.name} has the shape {list(b.shape)}")


def _check_allocations(program: Program, outer: dict[str, Buffer]) -> None:
    seen = dict(outer)
    for st in walk(program.body):
        if isinstance(st, Alloc):
            if seen.setdefault(st.buffer.name, st.buffer) != st.buffer or st.buffer.name in outer:
                raise InternalError(f"two different buffers are called {st.buffer.name}")
            _check_shape(st.buffer)


class _Checker:
    def __init__(self, program: Program):
        self.program = program

    def body(self, body: Body, scope: _Scope) -> None:
        for st in body:
            try:
                self.statement(st, scope)
            except InternalError as error:
                if " | " in str(error) or isinstance(st, For | If | Alloc | Intrinsic):
                    raise
                line = print_program(Program("", (), (st,))).splitlines()[-1].strip()
                raise InternalError(f"{error} | in: {line}") from None

    def statement(self, st: Stmt, scope: _Scope) -> None:
        for e in expressions(st):
            self.typed(e, scope)
            _check_loads(e, scope)
        match st:
            case For():
                self.loop(st, scope)
            case If():
                if st.cond.dtype is not BOOL:
                    raise InternalError(f"a condition is {st.cond.dtype}, expected bool")
                differs = bool(s.loads(st.cond) or s.variables(st.cond) & scope.varying)
                scope = replace(scope, divergent=scope.divergent or differs, conditional=True)
                self.body(st.then, _narrowed(scope, st.cond, True))
                self.body(st.other, _narrowed(scope, st.cond, False))
            case Store():
                buffer = self.indexed(st, scope)
                if st.value.dtype is not buffer.dtype:
                    raise InternalError(f"stores {st.value.dtype} into {buffer.dtype}")
            case Prefetch():
                self.indexed(st, replace(scope, exact=False))
            case Alloc():
                self.allocation(st, scope)
            case Barrier():
                self.barrier(st, scope)
            case Intrinsic():
                if st.name not in INTRINSICS:
                    raise InternalError(f"unknown intrinsic {st.name!r}")
                if INTRINSICS[st.name] and scope.divergent:
                    raise InternalError(f"intrinsic {st.name} where not all threads come by")
                self.body(st.body, scope)
            case _:
                raise InternalError(f"not a statement: {st!r}")

    def typed(self, e: Expr, scope: _Scope) -> None:
        def tensor(name: str) -> tuple[DType, int] | None:
            b = scope.buffers.get(name)
            return None if b is None else (b.dtype, len(b.shape))

        verify_scalar(e, lambda name: name in scope.known(), tensor)

    def indexed(self, st: Store | Prefetch, scope: _Scope) -> Buffer:
        buffer = scope.buffers.get(st.buffer)
        if buffer is None:
            raise InternalError(f"buffer {st.buffer} is not defined here")
        if len(st.index) != len(buffer.shape) or any(i.dtype is not I64 for i in st.index):
            raise InternalError(f"{st.buffer} takes {len(buffer.shape)} i64 indices")
        if isinstance(st, Store):  # a prefetch may be of what is no part of it
            _check_index(buffer, st.index, scope)
        return buffer

    # --- loops ----------------------------------------------------------------------------------------------

    def loop(self, st: For, scope: _Scope) -> None:
        if st.kind not in LOOP_KINDS:
            raise InternalError(f"loop {st.var} has the unknown kind {st.kind!r}")
        if scope.loop(st.var):
            raise InternalError(f"loop variable {st.var} shadows that of an outer loop")
        if st.begin.dtype is not I64 or st.end.dtype is not I64:
            raise InternalError(f"the bounds of loop {st.var} are not i64")
        problem = _placement(st, scope)
        if problem:
            raise InternalError(f"{st.kind} loop {st.var} {problem}")
        ranges = scope.known()
        low, high = bounds(st.begin, ranges)[0], bounds(st.end, ranges)[1] - 1
        if high < low:
            return
        exact = scope.exact and st.extent is not None
        inner = replace(scope, loops=(*scope.loops, st), ranges={**ranges, st.var: (low, high)}, exact=exact)
        self.body(st.body, _with_variation(inner, st))

    def allocation(self, st: Alloc, scope: _Scope) -> None:
        b, kinds = st.buffer, scope.kinds()
        in_block = any(k.startswith("block.") for k in kinds)
        in_thread = any(k.startswith("thread.") for k in kinds)
        problem = None
        if b.name in scope.buffers:
            problem = "is already defined here"
        elif b.scope not in ("scratch", "shared", "register"):
            problem = f"has scope {b.scope}, expected scratch, shared or register"
        elif b.scope == "shared" and (in_thread or not in_block):
            problem = "is shared: its place is inside of the block loops, outside of the thread loops"
        elif b.scope == "register" and not in_thread and _has_loop(st.body, "thread."):
            problem = "is a register around thread loops: each thread has its own, inside of them"
        elif b.scope == "scratch" and "vector" in kinds:
            problem = "is scratch inside of a vector loop"
        if problem:
            raise InternalError(f"buffer {b.name} {problem}")
        self.body(st.body, replace(scope, buffers={**scope.buffers, b.name: b}))

    def barrier(self, st: Barrier, scope: _Scope) -> None:
        kinds = scope.kinds()
        if st.scope == "order":
            return
        if st.scope not in ("block", "grid", "gang"):
            raise InternalError(f"unknown barrier {st.scope!r}")
        if "vector" in kinds:
            raise InternalError("a barrier inside of a vector loop")
        if st.scope == "gang" and not self.program.gang:
            raise InternalError("a gang barrier in a program that is no gang")
        if st.scope != "gang" and not any(k.startswith("block.") for k in kinds):
            raise InternalError(f"a {st.scope} barrier outside of the block loops")
        if st.scope == "grid" and (scope.conditional or not all(_length(x).is_const for x in scope.loops)):
            raise InternalError("a grid barrier where blocks may go different ways")
        threads = {loop.var for loop in scope.loops if loop.kind.startswith("thread.")}
        for loop in scope.loops:
            if threads & s.variables(_length(loop).expr()):
                raise InternalError(
                    f"a barrier inside of loop {loop.var}, whose length differs between threads"
                )
        if st.scope == "block" and scope.divergent:
            raise InternalError("a block barrier where threads of the block may go different ways")


def _with_variation(scope: _Scope, loop: For) -> _Scope:
    """What the loop's variable and length are to the threads of a block."""
    own = loop.kind.startswith("thread.")
    first, end = (bool(s.loads(e) or s.variables(e) & scope.varying) for e in (loop.begin, loop.end))
    if not (own or first or end):
        return scope
    length = _length(loop)
    once = own or (length.is_const and length.offset == 1)
    return replace(scope, varying=scope.varying | {loop.var}, divergent=scope.divergent or not once)


def _length(loop: For) -> Linear:
    return linear(s.binary("sub", loop.end, loop.begin))


def _has_loop(body: Body, prefix: str) -> bool:
    return any(isinstance(st, For) and st.kind.startswith(prefix) for st in walk(body))


def _placement(st: For, scope: _Scope) -> str | None:
    """What is wrong with a loop of this kind at this place."""
    kinds = scope.kinds()
    if "vector" in kinds and st.kind != "unroll":
        return "stands inside of a vector loop"
    if st.kind in ("vector", "unroll"):
        for var in s.variables(st.begin) | s.variables(st.end):
            around = scope.loop(var)
            if around is None or around.kind != "unroll":
                return f"has bounds that depend on {var}, which is not unrolled"
        if any(s.loads(e) for e in (st.begin, st.end)):
            return "has bounds that are read from memory"
    if st.kind == "parallel" and any(k.startswith(("block.", "thread.")) for k in kinds):
        return "stands inside of a GPU block"
    if st.kind.startswith("block."):
        outside = [loop for loop in scope.loops if not loop.kind.startswith("block.")]
        if outside != list(scope.loops[: len(outside)]) or any(loop.kind != "serial" for loop in outside):
            return "stands inside of another kind of loop: a step begins with its block loops"
        if any(loop.extent is None or _uses(st, loop.var) for loop in outside):
            return "stands inside of a loop that does not just repeat it"
    if st.kind.startswith("thread.") and not any(k.startswith("block.") for k in kinds):
        return "stands outside of a block loop"
    if st.kind.startswith(("block.", "thread.")) and st.kind in kinds:
        return "stands inside of another one of its kind"
    return None


def _uses(st: Stmt, var: str) -> bool:
    return any(var in s.variables(e) for x in walk(st) for e in expressions(x))


# --- indices --------------------------------------------------------------------------------------------


def _check_loads(e: Expr, scope: _Scope) -> None:
    """Each load under the guards around it; an expression that stands under two guards is seen under both."""
    seen: set[tuple[int, int]] = set()
    scopes = [scope]

    def visit(x: Expr, at: int) -> None:
        if (id(x), at) in seen:
            return
        seen.add((id(x), at))
        if isinstance(x, Select):
            visit(x.cond, at)
            for branch, holds in ((x.then, True), (x.other, False)):
                if not s.loads(branch):
                    continue
                scopes.append(_narrowed(scopes[at], x.cond, holds))
                visit(branch, len(scopes) - 1)
            return
        if isinstance(x, Load):
            _check_index(scopes[at].buffers[x.tensor], x.index, scopes[at])
        for child in s.children(x):
            visit(child, at)

    visit(e, 0)


def _check_index(buffer: Buffer, index: tuple[Expr, ...], scope: _Scope) -> None:
    for axis, (i, extent) in enumerate(zip(index, buffer.shape)):
        low, high = bounds(i, scope.known())
        outside = low < 0 or high >= extent
        wholly = high < 0 or low >= extent
        if not scope.dead and (wholly or (outside and scope.exact and _is_affine(i))):
            raise InternalError(
                f"index {s.text(i)} of axis {axis} of {buffer.name} reaches {low}…{high}, "
                f"but the shape is {list(buffer.shape)}"
            )
        if buffer.scope == "register":
            _check_register_index(buffer, i, scope)


def _is_affine(e: Expr) -> bool:
    return all(isinstance(atom, Var) for atom, _ in linear(e).terms)


def _check_register_index(buffer: Buffer, i: Expr, scope: _Scope) -> None:
    if s.loads(i):
        raise InternalError(f"register buffer {buffer.name} is indexed by a value from memory")
    for var in s.variables(i):
        loop = scope.loop(var)
        if loop and loop.kind not in ("unroll", "vector") and loop.extent != 1:
            raise InternalError(
                f"register buffer {buffer.name} is indexed by {var}, whose loop is {loop.kind}: "
                "expected unroll or vector"
            )


def _narrowed(scope: _Scope, cond: Expr, holds: bool) -> _Scope:
    """The scope where `cond` holds (or not): ranges of single variables shrink, all else is inexact."""
    ranges = dict(scope.known())
    known = decide(cond, ranges)
    if known is not None and known is not holds:
        return replace(scope, dead=True)
    exact = known is holds or _restrict(cond, holds, ranges)
    empty = any(low > high for low, high in ranges.values())
    return replace(scope, ranges=ranges, exact=scope.exact and exact, dead=scope.dead or empty)


_OPPOSITE = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}


def _restrict(cond: Expr, holds: bool, ranges: dict[str, Range]) -> bool:
    """Shrinks `ranges` by what `cond` says; whether that is all that it says."""
    if not isinstance(cond, Binary):
        return False
    if cond.op == "and" and holds and cond.dtype is BOOL:
        return all([_restrict(part, True, ranges) for part in (cond.a, cond.b)])
    if cond.op not in s.COMPARISONS or cond.a.dtype is not I64:
        return False
    op = cond.op if holds else _OPPOSITE[cond.op]
    a, b = cond.a, cond.b
    if isinstance(a, Const):
        a, b, op = b, a, {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}.get(op, op)
    if not (isinstance(a, Var) and isinstance(b, Const) and a.name in ranges) or op == "ne":
        return False
    low, high = ranges[a.name]
    limit = int(b.value)
    low = max(low, {"gt": limit + 1, "ge": limit, "eq": limit}.get(op, low))
    high = min(high, {"lt": limit - 1, "le": limit, "eq": limit}.get(op, high))
    ranges[a.name] = (low, high)
    return True
