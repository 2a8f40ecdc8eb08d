"""Indices, addresses, loads and stores → LLVM instructions, of scalars or of a vector loop's lanes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from ...errors import InternalError
from ..ir import affine
from ..ir.affine import Linear
from ..ir.loops import Buffer
from ..ir.scalar import Binary, Expr, Load, Var, is_data, touches_memory
from ..ir.types import BOOL, I64, U8, DType
from ..target import Target
from .llvm_lanes import LaneLoads
from .llvm_transpose import transposed
from .llvm_values import (
    FunctionText,
    Value,
    broadcast,
    constant,
    flags_of,
    index,
    memory_type,
    suffix,
    value_type,
)

MOST_STRIDE = 4  # of elements that are picked from whole vectors; those further apart are read one by one

Terms = tuple[tuple[Value, int], ...]


class Memory(ABC):
    """Elements of buffers at one point of a function; what indices are made of, `expr` and `binary` know.

    `bound` maps variables to constants (unrolled) or SSA values; `vector` is the variable of the vector loop
    and its extent; `mask` is the condition under which values are needed; `ranges` bounds the variables.
    """

    def __init__(self, fn: FunctionText, target: Target):
        self.fn = fn
        self.target = target
        self.lane_loads = LaneLoads(fn, target.vector_bits) if target.multiplies_by_lane else None
        self.bound: dict[str, int | Value] = {}
        self.ranges: dict[str, affine.Range] = {}
        self.vector: tuple[str, int] | None = None
        self.mask: Value | None = None
        self.buffers: dict[str, Buffer] = {}
        self.pointers: dict[str, str] = {}
        self.scopes: list[dict] = [{}]
        self.memo: dict[Expr, Value] = {}
        self.error_slot: str | None = None
        self._linear: dict[Expr, Linear] = {}
        self._flat: dict[tuple[str, tuple[int, ...], tuple[Expr, ...]], Linear] = {}

    @abstractmethod
    def expr(self, e: Expr) -> Value:
        """The value of any expression."""

    @abstractmethod
    def binary(self, e: Binary) -> Value:
        """The value of an operation whose operands are not collected into a linear form."""

    # --- indices ----------------------------------------------------------------------------------------

    def linear(self, e: Expr) -> Linear:
        form = self._linear.get(e)
        if form is None:
            form = self._linear[e] = affine.linear(e)
        return form

    def difference(self, e: Binary) -> Linear:
        """Of the sides of a comparison."""
        form = self._linear.get(e)
        if form is None:
            form = self._linear[e] = affine.linear(Binary("sub", e.a, e.b))
        return form

    def flat(self, buffer: Buffer, idx: tuple[Expr, ...]) -> Linear:
        """The element's distance from the start of its buffer."""
        key = (buffer.name, buffer.shape, idx)
        form = self._flat.get(key)
        if form is None:
            terms: dict[Expr, int] = {}
            offset = 0
            for e, stride in zip(idx, buffer.strides):
                one = self.linear(e)
                offset += one.offset * stride
                for atom, c in one.terms:
                    terms[atom] = terms.get(atom, 0) + c * stride
            form = self._flat[key] = Linear(offset, tuple((a, c) for a, c in terms.items() if c))
        return form

    def resolve(self, form: Linear) -> tuple[int, Terms, int]:
        """(constant, terms of SSA values, coefficient of the vector variable)."""
        offset, lane_step = form.offset, 0
        terms: list[tuple[Value, int]] = []
        for atom, c in form.terms:
            if isinstance(atom, Var):
                value = self.bound.get(atom.name)
                if isinstance(value, int):
                    offset += value * c
                    continue
                if value is None:
                    if self.vector is None or self.vector[0] != atom.name:
                        raise InternalError(f"code generation: variable {atom.name} is not bound")
                    lane_step += c
                    continue
            else:
                value = self.expr(atom)
                if value.const is not None:
                    offset += int(value.const) * c
                    continue
            terms.append((value, c))
        return offset, tuple(terms), lane_step

    def remember(self, key: object, make) -> object:
        for scope in reversed(self.scopes):
            if key in scope:
                return scope[key]
        result = self.scopes[-1][key] = make()
        return result

    def sum_terms(self, terms: Terms, lanes: int, flags: str = "nsw ") -> Value | None:
        """Σ coefficient · value, shared between uses in the same scope. No flags: it may wrap around."""
        total: Value | None = None
        for n, (v, c) in enumerate(terms):
            previous = total

            def make(v: Value = v, c: int = c, previous: Value | None = previous) -> Value:
                wide = broadcast(self.fn, v, lanes) if lanes > 1 else v
                factor = broadcast(self.fn, index(c), lanes) if lanes > 1 else index(c)
                product = (
                    wide if c == 1 else self.fn.assign(f"mul {flags}{wide.typed}, {factor.text}", I64, lanes)
                )
                if previous is None:
                    return product
                return self.fn.assign(f"add {flags}{previous.typed}, {product.text}", I64, lanes)

            key = ("sum", lanes, flags, tuple((t.text, k) for t, k in terms[: n + 1]))
            total = self.remember(key, make)  # type: ignore[assignment]
        return total

    def index_value(self, e: Expr) -> Value:
        """The value of an i64 expression, with all that is linear in variables and other atoms collected."""
        form = self.linear(e)
        if form.terms == ((e, 1),) and isinstance(e, Binary):
            return self.binary(e)
        offset, terms, step = self.resolve(form)
        flags = "" if any(is_data(atom) for atom, _ in form.terms) else "nsw "
        lanes = self.vector[1] if self.vector and (step or any(v.lanes > 1 for v, _ in terms)) else 1
        total = self.sum_terms(terms, lanes, flags)
        if step:
            steps = ", ".join(f"i64 {index(offset + step * n).text}" for n in range(lanes))
            ramp = Value(f"<{steps}>", I64, lanes)
            return (
                ramp
                if total is None
                else self.fn.assign(f"add {flags}{total.typed}, {ramp.text}", I64, lanes)
            )
        if total is None:
            return index(offset)
        if offset == 0:
            return total
        add = broadcast(self.fn, index(offset), lanes) if lanes > 1 else index(offset)
        return self.fn.assign(f"add {flags}{total.typed}, {add.text}", I64, lanes)

    def origin(self, buffer: Buffer, terms: Terms) -> str:
        """The variable part of an address, which is shared."""

        def make() -> str:
            total = self.sum_terms(terms, 1)
            name = self.fn.fresh("p")
            assert total is not None
            start = self.pointers[buffer.name]
            self.fn.emit(f"{name} = getelementptr {memory_type(buffer.dtype)}, ptr {start}, {total.typed}")
            return name

        if not terms:
            return self.pointers[buffer.name]
        return self.remember(("ptr", buffer.name, tuple((t.text, c) for t, c in terms)), make)  # type: ignore[return-value]

    def pointer(self, buffer: Buffer, offset: int, terms: Terms) -> str:
        """The address of one element: the variable part is shared, the constant part is an immediate."""
        base = self.origin(buffer, terms)
        if offset == 0:
            return base
        nbytes = offset * buffer.dtype.bytes

        def shift() -> str:
            name = self.fn.fresh("p")
            self.fn.emit(f"{name} = getelementptr i8, ptr {base}, i64 {nbytes}")
            return name

        return self.remember(("at", base, nbytes), shift)  # type: ignore[return-value]

    def forget_loads(self) -> None:
        """Passes the addresses in use through an empty assembly statement, so that LLVM cannot tell that
        later loads read the same elements, and does not keep them all in registers."""
        for key, pointer in list(self.scopes[-1].items()):
            if key[0] == "ptr" and self.buffers[key[1]].scope != "register":
                fresh = self.fn.fresh("p")
                self.fn.emit(f'{fresh} = call ptr asm sideeffect "", "=r,0"(ptr {pointer})')
                self.scopes[-1][key] = fresh

    # --- memory -----------------------------------------------------------------------------------------

    def inside(self, buffer: Buffer, idx: tuple[Expr, ...]) -> bool:
        """Whether every index is provably within the buffer, whatever the guard says."""
        ranges = dict(self.ranges)
        if self.vector:
            ranges[self.vector[0]] = (0, self.vector[1] - 1)
        ranges.update({n: (v, v) for n, v in self.bound.items() if isinstance(v, int)})
        for e, extent in zip(idx, buffer.shape):
            lo, hi = affine.bounds(e, ranges)
            if lo < 0 or hi >= extent:
                return False
        return True

    def load(self, e: Load) -> Value:
        buffer = self.buffers[e.tensor]
        if buffer.size == 0:
            self.check(e.index)
            return constant(0, e.type)
        offset, terms, step = self.resolve(self.flat(buffer, e.index))
        mask = self.mask if self.mask is not None and not self.inside(buffer, e.index) else None
        if any(v.lanes > 1 for v, _ in terms) or step not in (0, 1):
            if mask is None and not terms and self.is_square(buffer, step):
                return self.column(buffer, offset)
            flags = flags_of(mask or constant(True, BOOL), self.vector[1]) if self.vector else None
            if flags and any(flags) and 1 < step <= MOST_STRIDE and all(v.lanes == 1 for v, _ in terms):
                return self.strided(buffer, offset, terms, step, flags)
            return self.gather(buffer, e.index, mask)
        lanes = self.vector[1] if self.vector and step else 1
        if mask is not None and mask.lanes > lanes:
            return self.gather(buffer, e.index, mask)
        if mask is not None and lanes > 1:
            pointer = self.pointer(buffer, offset, terms)
            wide = broadcast(self.fn, mask, lanes)
            mtype = memory_type(e.type, lanes)
            call = self.fn.intrinsic(
                f"llvm.masked.load.{memory_suffix(e.type, lanes)}.p0", mtype,
                [f"ptr align {e.type.bytes} {pointer}", wide.typed, f"{mtype} zeroinitializer"],
            )  # fmt: skip
            return self.from_memory(self.fn.assign(call, e.type, lanes), e.type, lanes)
        if mask is not None:  # scalar: read element 0 where the guard is false
            position = self.flat_value(offset, terms)
            safe = self.fn.assign(f"select {mask.typed}, {position.typed}, i64 0", I64)
            offset, terms = 0, ((safe, 1),)
        pointer = self.pointer(buffer, offset, terms)
        align = self.alignment(buffer, offset, terms)
        raw = self.fn.assign(
            f"load {memory_type(e.type, lanes)}, ptr {pointer}, align {align}", e.type, lanes
        )
        if self.lane_loads and lanes == 1 and buffer.scope != "register":
            self.lane_loads.note(buffer.name, self.origin(buffer, terms), offset, e.type, raw.text)
        return self.from_memory(raw, e.type, lanes)

    def strided(self, buffer: Buffer, offset: int, terms: Terms, step: int, flags: tuple[bool, ...]) -> Value:
        """Every `step`-th element in the lanes that have a flag, zero in the others.

        They are picked from vectors side by side, the last of which ends with the last element needed.
        """
        lanes, dtype = len(flags), buffer.dtype
        needed = [n * step for n in range(lanes) if flags[n]]
        end = needed[-1] + 1
        width = min(lanes, end - needed[0])
        part = f"<{width} x {memory_type(dtype)}>"
        result = Value("zeroinitializer", dtype, lanes)
        for begin in range(needed[0], end, width):
            start = min(begin, end - width)
            pointer = self.pointer(buffer, offset + start, terms)
            align = self.alignment(buffer, offset + start, terms)
            loaded = self.fn.assign(f"load {part}, ptr {pointer}, align {align}", dtype, width)
            new = range(begin - start, width)
            at = [n * step - start for n in range(lanes)]
            picked = [width + at[n] if flags[n] and at[n] in new else n % width for n in range(lanes)]
            order = ", ".join(f"i32 {n}" for n in picked)
            code = f"shufflevector {part} {result.text}, {part} {loaded.text}, <{lanes} x i32> <{order}>"
            result = self.fn.assign(code, dtype, lanes)
        return self.from_memory(result, dtype, lanes)

    def is_square(self, buffer: Buffer, step: int) -> bool:
        """Whether a load at this stride reads a column of a square of registers."""
        lanes = self.vector[1] if self.vector else 0
        whole = step == lanes and buffer.size == lanes * lanes and buffer.shape[-1] == lanes
        return buffer.scope == "register" and whole and lanes & (lanes - 1) == 0

    def column(self, buffer: Buffer, at: int) -> Value:
        """One column; all of them are made at once, and kept until something is stored to the square."""
        lanes = self.vector[1]  # type: ignore[index]
        key = ("columns", buffer.name)
        columns = next((scope[key] for scope in reversed(self.scopes) if scope.get(key)), None)
        if columns is None:
            rows = []
            for n in range(lanes):
                pointer = self.pointer(buffer, n * lanes, ())
                align = self.alignment(buffer, n * lanes, ())
                code = f"load {memory_type(buffer.dtype, lanes)}, ptr {pointer}, align {align}"
                rows.append(self.fn.assign(code, buffer.dtype, lanes))
            columns = self.scopes[-1][key] = transposed(self.fn, rows, buffer.dtype)
        return self.from_memory(columns[at], buffer.dtype, lanes)

    def alignment(self, buffer: Buffer, offset: int, terms: Terms) -> int:
        """Bytes. A param may be the application's own memory, aligned to its elements only."""
        if buffer.scope == "param":
            return buffer.dtype.bytes
        step = math.gcd(offset, *(c for _, c in terms), 64) * buffer.dtype.bytes
        return math.gcd(step, 64)

    def flat_value(self, offset: int, terms: Terms) -> Value:
        total = self.sum_terms(terms, 1)
        if total is None:
            return index(offset)
        return self.fn.assign(f"add nsw {total.typed}, {offset}", I64) if offset else total

    def flat_lanes(self, buffer: Buffer, idx: tuple[Expr, ...]) -> Value:
        """Element positions in every lane."""
        lanes = self.vector[1]  # type: ignore[index]
        total: Value | None = None
        for e, stride in zip(idx, buffer.strides):
            v = broadcast(self.fn, self.index_value(e), lanes)
            factor = broadcast(self.fn, index(stride), lanes)
            v = v if stride == 1 else self.fn.assign(f"mul nsw {v.typed}, {factor.text}", I64, lanes)
            total = v if total is None else self.fn.assign(f"add nsw {total.typed}, {v.text}", I64, lanes)
        return broadcast(self.fn, index(0), lanes) if total is None else total

    def lane_pointers(self, buffer: Buffer, idx: tuple[Expr, ...]) -> str:
        lanes = self.vector[1]  # type: ignore[index]
        positions = self.flat_lanes(buffer, idx)
        name = self.fn.fresh("ps")
        base = self.pointers[buffer.name]
        self.fn.emit(f"{name} = getelementptr {memory_type(buffer.dtype)}, ptr {base}, {positions.typed}")
        return f"<{lanes} x ptr> {name}"

    def gather(self, buffer: Buffer, idx: tuple[Expr, ...], mask: Value | None) -> Value:
        lanes = self.vector[1]  # type: ignore[index]
        wide = broadcast(self.fn, mask or constant(True, BOOL), lanes)
        mtype = memory_type(buffer.dtype, lanes)
        call = self.fn.intrinsic(
            f"llvm.masked.gather.{memory_suffix(buffer.dtype, lanes)}.v{lanes}p0", mtype,
            [self.lane_pointers(buffer, idx), wide.typed, f"{mtype} zeroinitializer"],
        )  # fmt: skip
        return self.from_memory(self.fn.assign(call, buffer.dtype, lanes), buffer.dtype, lanes)

    def from_memory(self, raw: Value, dtype: DType, lanes: int) -> Value:
        if dtype is not BOOL:
            return raw
        zero = "zeroinitializer" if lanes > 1 else "0"
        return self.fn.assign(f"icmp ne {memory_type(dtype, lanes)} {raw.text}, {zero}", BOOL, lanes)

    def to_memory(self, v: Value) -> str:
        """The typed value as it stands in memory."""
        if v.dtype is not BOOL:
            return v.typed
        mtype = memory_type(BOOL, v.lanes)
        return f"{mtype} {self.fn.assign(f'zext {v.typed} to {mtype}', U8, v.lanes).text}"

    def check(self, index: tuple[Expr, ...]) -> None:
        """Nothing is there, but what is out of range says so."""
        for e in index:
            if touches_memory(e):
                self.expr(e)

    def store(self, buffer: Buffer, idx: tuple[Expr, ...], v: Value) -> None:
        if buffer.size == 0:
            return self.check(idx)
        for scope in self.scopes:
            scope.pop(("columns", buffer.name), None)
        if self.lane_loads:
            self.lane_loads.stored(buffer.name)
        offset, terms, step = self.resolve(self.flat(buffer, idx))
        mask = self.mask
        if self.vector and (step not in (0, 1) or any(t.lanes > 1 for t, _ in terms)):
            lanes = self.vector[1]
            wide = broadcast(self.fn, mask or constant(True, BOOL), lanes)
            value = self.to_memory(broadcast(self.fn, v, lanes))
            name = f"llvm.masked.scatter.{memory_suffix(buffer.dtype, lanes)}.v{lanes}p0"
            self.fn.emit(
                self.fn.intrinsic(name, "void", [value, self.lane_pointers(buffer, idx), wide.typed])
            )
            return
        lanes = self.vector[1] if self.vector and step else 1
        if v.lanes > lanes:
            raise InternalError(f"code generation: a vector is stored to one element of {buffer.name}")
        value = self.to_memory(broadcast(self.fn, v, lanes))
        pointer = self.pointer(buffer, offset, terms)
        if mask is not None:
            if lanes == 1:
                raise InternalError(f"code generation: a masked store to one element of {buffer.name}")
            wide = broadcast(self.fn, mask, lanes)
            if value_type(buffer.dtype) not in ("float", "double"):
                flags = flags_of(mask, lanes)
                if flags is not None:
                    self.store_runs(buffer, value, pointer, flags)
                    return
                wide = self.opaque(wide)
            name = f"llvm.masked.store.{memory_suffix(buffer.dtype, lanes)}.p0"
            pointer_arg = f"ptr align {buffer.dtype.bytes} {pointer}"
            self.fn.emit(self.fn.intrinsic(name, "void", [value, pointer_arg, wide.typed]))
            return
        self.fn.emit(f"store {value}, ptr {pointer}, align {self.alignment(buffer, offset, terms)}")

    def store_runs(self, buffer: Buffer, value: str, pointer: str, flags: tuple[bool, ...]) -> None:
        """Neighbouring lanes together."""
        lanes, size = len(flags), buffer.dtype.bytes
        edges = [n for n in range(lanes + 1) if (n < lanes and flags[n]) != (n > 0 and flags[n - 1])]
        for first, end in zip(edges[::2], edges[1::2]):
            count = end - first
            picked = ", ".join(f"i32 {n}" for n in range(first, end))
            part, at = self.fn.fresh("part"), self.fn.fresh("p")
            self.fn.emit(f"{part} = shufflevector {value}, {memory_type(buffer.dtype, lanes)} poison, "
                         f"<{count} x i32> <{picked}>")  # fmt: skip
            self.fn.emit(f"{at} = getelementptr i8, ptr {pointer}, i64 {first * size}")
            self.fn.emit(f"store <{count} x {memory_type(buffer.dtype)}> {part}, ptr {at}, align {size}")

    def opaque(self, mask: Value) -> Value:
        """A mask that LLVM cannot compute. For AVX-512, LLVM 22 turns the masked store of a truncated integer
        by a constant mask of one lane into a store of the integer as it was before it was truncated.
        """
        one = self.fn.assign('call i8 asm "", "=r,0"(i8 1)', U8)
        flag = self.fn.assign(f"icmp ne {one.typed}, 0", BOOL)
        wide = broadcast(self.fn, flag, mask.lanes)
        return self.fn.assign(f"and {mask.typed}, {wide.text}", BOOL, mask.lanes)


def memory_suffix(dtype: DType, lanes: int) -> str:
    return suffix(U8 if dtype is BOOL else dtype, lanes)
