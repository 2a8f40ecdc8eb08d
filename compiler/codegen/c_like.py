"""Loop program → source text in a dialect of C, for GPUs.

Every step (statement at the top of the program, or in a serial loop there, which repeats it) becomes a
kernel; equal ones are one. Its block loops are the grid and its thread loops the threads of a block; `Launch`
says how many. Unrolled loops are written out, and register buffers that are then indexed by constants become
variables, so that no compiler needs to find that out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ...errors import InternalError
from ..ir import affine, loops
from ..ir import scalar as s
from ..ir.loops import Alloc, Barrier, Body, Buffer, For, If, Intrinsic, Prefetch, Program, Stmt, Store
from ..ir.plan import ALIGNMENT
from ..ir.scalar import Expr, Load
from ..ir.types import BOOL
from ..target import Target
from .c_dialect import Dialect, InstructionOperand, identifier, memory_type, shared_bytes
from .c_scalar import INT, Operand, Scalars, element_name, flat_index
from .kernel_code import KernelCode, Launch, Step

PRIVATE_LIMIT = 16 * 1024  # bytes of arrays that one thread may have
VECTORS = (2, 4, 8, 16)
_AXES = "xyz"


def generate(program: Program, target: Target, dialect: Dialect) -> KernelCode:
    """The kernels of all steps of a lowered program, and the helper functions that they call."""
    helpers: dict[str, str] = {}
    texts: list[str] = []
    order = list(loops.launches(program.body))
    kernels: dict[Stmt, Step] = {}
    for st in order:
        if st in kernels:
            continue
        symbol = program.name if len(order) == 1 else f"{program.name}_s{len(kernels)}"
        kernel = _Kernel(program, target, dialect, symbol)
        texts.append(kernel.text(st))
        helpers |= kernel.v.helpers
        kernels[st] = Step(symbol, math.prod(kernel.launch.grid), 0, kernel.launch)
    source = "\n\n".join([*helpers.values(), *texts]) + "\n"
    return KernelCode(program.name, source, tuple(kernels[st] for st in order))


class _Kernel:
    def __init__(self, program: Program, target: Target, dialect: Dialect, symbol: str):
        self.program, self.dialect, self.symbol = program, dialect, symbol
        self.v = Scalars(dialect, target.has_fma)
        self.grid, self.block = [1, 1, 1], [1, 1, 1]
        self.shared: list[Buffer] = []
        self.private = 0
        self.together = False
        self.overlaps = target.gpu is not None and target.gpu.overlaps

    @property
    def launch(self) -> Launch:
        sizes = tuple(self.grid), tuple(self.block)
        shared = sum(map(shared_bytes, self.shared))
        return Launch(*sizes, shared, self.v.reports, self.together, self.overlaps)  # type: ignore[arg-type]

    def text(self, st: Stmt) -> str:
        buffers = (*self.program.params, *self.program.temps)
        self.v.buffers = {b.name: b for b in buffers}
        for loop in (x for x in loops.walk(st) if isinstance(x, For) and "." in x.kind):
            sizes = self.grid if loop.kind.startswith("block.") else self.block
            axis = _AXES.index(loop.kind[-1])
            sizes[axis] = max(sizes[axis], _constant_extent(loop))
        self.together = loops.meets(st)
        self.statement(st)
        head = self.dialect.signature(self.symbol, buffers, self.program.written(), self.launch)
        arrays = [f"  {line}" for line in self.dialect.shared_arrays(self.shared)]
        return "\n".join([head, *arrays, *self.v.out.lines, "}"])

    # --- statements -------------------------------------------------------------------------------------

    def body(self, body: Body) -> None:
        for st in body:
            self.statement(st)

    def statement(self, st: Stmt) -> None:
        match st:
            case For():
                self.loop(st)
            case Store():
                self.store(st)
            case If():
                self.branch(st)
            case Alloc():
                self.alloc(st)
            case Barrier(scope="block"):
                self.v.out.emit(self.dialect.barrier)
            case Barrier(scope="order") | Prefetch():
                pass
            case Intrinsic():
                self.intrinsic(st)
            case _:
                raise InternalError(f"code generation for a GPU: {type(st).__name__} {st}")

    def store(self, st: Store) -> None:
        *index, value = self.v.begin(*st.index, st.value)
        buffer = self.v.buffers[st.buffer]
        self.scoped(lambda: self.assign(buffer, index, value))

    def assign(self, buffer: Buffer, index: Sequence[Expr], value: Expr) -> None:
        text, place = self.v.of_type(value), self.v.place(buffer, index)
        if buffer.dtype is BOOL and buffer.name not in self.v.split:
            text = f"({memory_type(BOOL)})({text})"
        if buffer.size:  # where it is empty only the indices matter, which are checked
            self.v.out.emit(f"{place} = {text};")

    def scoped(self, emit: Callable[[], None]) -> None:
        """What `emit` writes; in braces if names are declared at its top."""
        out = self.v.out
        start, pad = len(out.lines), "  " * out.depth
        emit()
        if any(line.startswith(f"{pad}const ") for line in out.lines[start:]):
            out.lines[start:] = [f"{pad}{{", *(f"  {line}" for line in out.lines[start:]), f"{pad}}}"]

    def branch(self, st: If) -> None:
        v = self.v

        def emit() -> None:
            (cond,) = v.begin(st.cond)
            if isinstance(cond, s.Const):
                self.body(st.then if cond.value else st.other)
                return
            v.out.open(f"if ({v.expr(cond).text}) {{")
            self.body(st.then)
            if st.other:
                v.out.close("} else {")
                v.out.depth += 1
                self.body(st.other)
            v.out.close()

        self.scoped(emit)

    def intrinsic(self, st: Intrinsic) -> None:
        """The instruction, or what it means where the dialect has none."""
        v = self.v

        def emit() -> None:
            found = self.dialect.instruction(st.name, [self.operand(x) for x in v.begin(*st.operands)])
            if found is None:
                self.body(st.body)
                return
            v.helpers |= found.helpers
            for line in found.lines:
                v.out.emit(line)

        self.scoped(emit)

    def operand(self, x: Expr) -> InstructionOperand:
        v = self.v
        guards: list[str] = []
        while isinstance(x, s.Select) and x.other == s.const(0, x.dtype):
            guards.append(v.expr(x.cond).inner)
            x = x.then
        if not isinstance(x, Load):
            return InstructionOperand(value=v.expr(x).text)
        buffer = v.buffers[x.tensor]
        if buffer.scope == "register":
            return InstructionOperand(buffer, tuple(v.place(buffer, index) for index in _elements(buffer)))
        pointer = f"{identifier(buffer.name)} + {v.offset(buffer, x.index).inner}"
        place = flat_index(buffer, x.index)
        aligned = next(n for n in (4, 2, 1) if _is_multiple(place, n))
        return InstructionOperand(
            buffer, pointer=pointer, guard=" && ".join(guards) or "true", aligned=aligned
        )

    # --- loops ------------------------------------------------------------------------------------------

    def loop(self, st: For) -> None:
        v = self.v
        if st.kind.startswith(("block.", "thread.")):
            self.bound_loop(st)
            return
        begin, end = v.begin(st.begin, st.end)
        one = affine.linear(s.binary("sub", end, begin))
        if isinstance(begin, s.Const) and isinstance(end, s.Const):
            numbers = range(int(begin.value), int(end.value))
            if len(numbers) <= 1 or st.kind == "unroll":
                for n in numbers:
                    self.with_constant(st.var, n, st.body)
                return
            if st.kind == "vector":
                self.vector(st, numbers)
                return
        elif st.kind in ("vector", "unroll"):
            raise InternalError(
                f"code generation: {st.kind} loop over {st.var} has bounds known only when running"
            )
        if one.is_const and one.offset == 1:
            self.scoped(lambda: self.let(st, begin))
            return
        self.scoped(lambda: self.counted(st, begin, end))

    def with_constant(self, var: str, n: int, body: Body) -> None:
        self.v.constants[var] = n
        self.body(body)
        del self.v.constants[var]

    def let(self, st: For, begin: Expr) -> None:
        """for v in [e, e + 1)  →  const int v = e"""
        v = self.v
        v.begin(begin)
        v.ranges[st.var] = affine.bounds(begin, v.ranges)
        value = v.expr(begin)
        v.out.open("{")
        name = self.declare(st.var)
        v.out.emit(f"const {name.type} {name.text} = {value.text};")
        self.body(st.body)
        v.out.close()

    def declare(self, var: str) -> Operand:
        """The C variable of a loop, in 32 bits where its range fits."""
        low, high = self.v.ranges[var]
        type = INT if low >= -(1 << 31) and high < (1 << 31) - 1 else "i64"
        self.v.names[var] = Operand(identifier(var), type, True)
        return self.v.names[var]

    def counted(self, st: For, begin: Expr, end: Expr) -> None:
        v = self.v
        low, high = affine.bounds(begin, v.ranges)[0], affine.bounds(end, v.ranges)[1] - 1
        first, limit = v.expr(begin), v.expr(end)
        v.ranges[st.var] = (low, max(low, high))
        name = self.declare(st.var)
        v.out.open(
            f"for ({name.type} {name.text} = {first.text}; {name.text} < {limit.inner}; ++{name.text}) {{"
        )
        self.body(st.body)
        v.out.close()

    def bound_loop(self, st: For) -> None:
        """A loop over blocks or threads: this thread's iteration, if it has one."""
        v, axis, extent = self.v, _AXES.index(st.kind[-1]), _constant_extent(st)
        begin = int(st.begin.value)  # type: ignore[attr-defined]
        over_blocks = st.kind.startswith("block.")
        if self.together and extent != (self.grid[axis] if over_blocks else self.block[axis]):
            raise InternalError(f"code generation: not all threads of {self.symbol} come to its barriers")
        if over_blocks:
            self.grid[axis] = extent
        if extent <= 1 and (over_blocks or self.block[axis] == 1):
            if extent:
                self.with_constant(st.var, begin, st.body)
            return
        v.ranges[st.var] = (begin, begin + extent - 1)
        position = (self.dialect.block_index if over_blocks else self.dialect.thread_index)[axis]
        name = self.declare(st.var)
        partial = not over_blocks and extent < self.block[axis]
        v.out.open("{" if not partial else f"if ({position} < {extent}) {{")
        v.out.emit(f"const {name.type} {name.text} = {position}{f' + {begin}' if begin else ''};")
        self.body(st.body)
        v.out.close()

    # --- vector loops -----------------------------------------------------------------------------------

    def vector(self, st: For, numbers: range) -> None:
        """Lane after lane, with loads and stores of neighbouring elements as one."""
        if len(numbers) in VECTORS and all(isinstance(x, Store) for x in st.body):
            for x in st.body:
                assert isinstance(x, Store)
                self.vector_store(x, st.var, numbers)
            return
        for n in numbers:
            self.with_constant(st.var, n, st.body)

    def vector_store(self, st: Store, var: str, numbers: range) -> None:
        """All loads first, then the stores: the lanes run in lockstep."""
        v, buffer, lanes = self.v, self.v.buffers[st.buffer], len(numbers)
        together = self.neighbours(buffer, st.index, var) and buffer.dtype is not BOOL

        def emit() -> None:
            v.lanes = self.vector_loads(st, var, numbers)
            values: list[str] = []
            for n in numbers:
                v.constants[var] = n
                (value,) = v.begin(st.value)
                text = v.of_type(value)
                values.append(v.named(Operand(text, memory_type(buffer.dtype))).text)
            v.lanes = {}
            v.constants[var] = numbers[0]
            if together:
                index = v.begin(*st.index)
                pointer = f"{identifier(buffer.name)} + {v.offset(buffer, index).inner}"
                aligned = _is_aligned(buffer, index, lanes)
                v.out.emit(self.dialect.store_vector(buffer, pointer, values, aligned))
            else:
                for n, text in zip(numbers, values):
                    v.constants[var] = n
                    v.out.emit(f"{v.place(buffer, v.begin(*st.index))} = {text};")
            del v.constants[var]

        assert lanes in VECTORS
        self.scoped(emit)

    def vector_loads(self, st: Store, var: str, numbers: range) -> dict[Expr, Operand]:
        """The elements of neighbouring loads that all iterations need, by the load with the lane put in."""
        v = self.v
        found: dict[Expr, Operand] = {}
        for load in _certain_loads(st.value):
            buffer = v.buffers[load.tensor]
            if buffer.dtype is BOOL or not self.neighbours(buffer, load.index, var):
                continue
            v.constants[var] = numbers[0]
            index = v.begin(*load.index)
            pointer = f"{identifier(buffer.name)} + {v.offset(buffer, index).inner}"
            name, type = v.fresh(), self.dialect.vector_type(buffer.dtype, len(numbers))
            aligned = _is_aligned(buffer, index, len(numbers))
            load_text = self.dialect.load_vector(buffer, len(numbers), pointer, aligned)
            v.out.emit(f"const {type} {name} = {load_text};")
            for lane, n in enumerate(numbers):
                v.constants[var] = n
                element = v.resolved(load)
                found[element] = Operand(self.dialect.lane(name, lane), memory_type(buffer.dtype), True)
            del v.constants[var]
        return found

    def neighbours(self, buffer: Buffer, index: Sequence[Expr], var: str) -> bool:
        """Whether iterations of `var` touch elements side by side in memory."""
        if buffer.name in self.v.split or buffer.scope == "register":
            return False
        form = affine.linear(self.v.resolved(flat_index(buffer, index)))
        inside = any(var in s.variables(atom) for atom, _ in form.terms if not isinstance(atom, s.Var))
        return form.coefficient(var) == 1 and not inside

    # --- buffers ----------------------------------------------------------------------------------------

    def alloc(self, st: Alloc) -> None:
        b, v = st.buffer, self.v
        v.buffers[b.name] = b
        if b.scope == "shared":
            self.shared.append(b)
            self.body(st.body)
            return
        v.out.open("{")
        if _constant_places(st):
            v.split.add(b.name)
            type = "bool" if b.dtype is BOOL else memory_type(b.dtype)
            names = [element_name(b, i) for i in _elements(b)]
            for n in range(0, len(names), 16):
                v.out.emit(f"{type} {', '.join(names[n : n + 16])};")
        else:
            self.private += b.nbytes
            if self.private > PRIVATE_LIMIT:
                raise InternalError(
                    f"buffer {b.name} of {b.nbytes} bytes does not fit into a thread's memory"
                )
            v.out.emit(f"{memory_type(b.dtype)} {identifier(b.name)}[{max(b.size, 1)}];")
        self.body(st.body)
        v.split.discard(b.name)
        v.out.close()


def _constant_extent(loop: For) -> int:
    if loop.extent is None:
        raise InternalError(
            f"code generation: {loop.kind} loop over {loop.var} has bounds known only when running"
        )
    return loop.extent


def _is_aligned(b: Buffer, index: Sequence[Expr], lanes: int) -> bool:
    """Whether a vector may begin at the element."""
    begins = b.scope == "shared" or (b.scope in ("param", "global") and lanes * b.dtype.bytes <= ALIGNMENT)
    return begins and _is_multiple(flat_index(b, index), lanes)


def _is_multiple(e: Expr, of: int) -> bool:
    """Whether a number is one for all values of its variables."""
    form = affine.linear(e)
    return form.offset % of == 0 and all(c % of == 0 for _, c in form.terms)


def _elements(b: Buffer) -> list[tuple[Expr, ...]]:
    """The index of every element."""
    found: list[tuple[Expr, ...]] = [()]
    for extent in b.shape:
        found = [(*index, s.const(n)) for index in found for n in range(extent)]
    return found


def _constant_places(st: Alloc) -> bool:
    """Whether every access to the buffer is at a place that is known once loops are unrolled."""
    if st.buffer.scope != "register" or st.buffer.size > 1024:
        return False
    unrolled = {
        x.var
        for x in loops.walk(st.body)
        if isinstance(x, For) and (x.kind in ("unroll", "vector") or x.extent == 1)
    }
    indices: list[tuple[Expr, ...]] = []
    for x in loops.walk(st.body):
        if isinstance(x, Store) and x.buffer == st.buffer.name:
            indices.append(x.index)
        for e in loops.expressions(x):
            indices += [load.index for load in s.loads(e) if load.tensor == st.buffer.name]
    return all(s.variables(i) <= unrolled and not s.loads(i) for index in indices for i in index)


def _certain_loads(e: Expr) -> list[Load]:
    """Loads that stand under no guard."""
    found: dict[Load, None] = {}
    stack = [e]
    seen: set[int] = set()
    while stack:
        x = stack.pop()
        if id(x) in seen:
            continue
        seen.add(id(x))
        if isinstance(x, Load):
            found[x] = None
        stack.extend([x.cond] if isinstance(x, s.Select) else s.children(x))
    return list(found)
