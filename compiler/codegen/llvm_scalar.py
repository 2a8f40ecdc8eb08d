"""Scalar expressions → LLVM instructions, over scalars or over the lanes of a vector loop."""

from __future__ import annotations

import math
import operator
from dataclasses import replace

from ...errors import InternalError
from ..ir.scalar import (
    COMPARE,
    COMPARISONS,
    DOTS,
    LOGICAL,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Var,
    children,
    is_data,
    walk,
)
from ..ir.types import BOOL, F16, F32, F64, I32, I64, DType
from ..lower.dots import expanded_word
from .llvm_dots import dot4, interleaved
from .llvm_values import Value, broadcast, constant, flags_of, mask_of, suffix, value_type, wrapped
from .llvm_words import Words


class _Padding(float):
    """The zero that a guarded read gives outside its tensor."""


PADDING = _Padding(0.0)


class Scalars(Words):
    """Values of expressions, at the same point."""

    def expr(self, e: Expr) -> Value:
        """The value of `e` here. Equal subexpressions of one statement are computed once."""
        known = self.memo.get(e)
        if known is None:
            known = self.memo[e] = self._expr(e)
        return known

    def _expr(self, e: Expr) -> Value:
        match e:
            case Const(value=v, type=t):
                return constant(v, t)
            case Var():
                return self.index_value(e)
            case Load():
                return self.load(e)
            case Binary(op="add" | "sub") if e.dtype is I64:
                return self.index_value(e)
            case Binary(op="mul") if e.dtype is I64 and (isinstance(e.a, Const) or isinstance(e.b, Const)):
                return self.index_value(e)
            case Binary(op=op) if op in COMPARISONS and e.a.dtype is I64:
                return self.compare_indices(e)
            case Binary():
                return self.binary(e)
            case Select():
                return self.select(e)
            case Cast():
                found = _rounded(e) if self.target.arch == "x86_64" else None
                if found is not None:
                    return self.saturated(self.expr(found[0]), e.type, whole=False, shift=found[1])
                return self.cast(self.expr(e.value), e.type)
            case Call():
                return self.call(e)
        raise InternalError(f"code generation: {e!r}")

    def compare_indices(self, e: Binary) -> Value:
        offset, terms, step = self.resolve(self.difference(e))
        if not (terms or is_data(e.a) or is_data(e.b)):
            lanes = self.vector[1] if self.vector else 1
            return mask_of([COMPARE[e.op](offset + step * n, 0) for n in range(lanes)])
        a, b = self.unify(self.expr(e.a), self.expr(e.b))
        code = {"eq": "eq", "ne": "ne"}.get(e.op, "s" + e.op)
        return self.fn.assign(f"icmp {code} {a.typed}, {b.text}", BOOL, a.lanes)

    def unify(self, *values: Value) -> tuple[Value, ...]:
        lanes = max(v.lanes for v in values)
        return tuple(broadcast(self.fn, v, lanes) if v.lanes < lanes else v for v in values)

    def binary(self, e: Binary) -> Value:
        dtype = e.a.dtype
        if e.op == "add" and dtype.is_float:
            fused = self.contract(e)
            if fused is not None:
                return fused
        if e.op == "add" and dtype is I32:
            fused = self.accumulate(e)
            if fused is not None:
                return fused
        a = self.expr(e.a)
        if e.op in ("and", "or") and a.const is not None and a.dtype is BOOL:
            return a if bool(a.const) == (e.op == "or") else self.expr(e.b)
        b = self.expr(e.b)
        if dtype.is_float and e.op == "mul" and (is_zero(a) or is_zero(b)):
            return a if is_zero(a) else b
        if dtype.is_float and e.op == "add" and (is_zero(a) or is_zero(b)):
            return b if is_zero(a) else a
        if e.op in ("min", "max") and dtype.is_float:
            for v in (a, b):
                if v.const is not None and math.isnan(v.const):
                    return v
        a, b = self.unify(a, b)
        if e.op in COMPARISONS:
            return self.fn.assign(f"{compare_code(e.op, dtype)} {a.typed}, {b.text}", BOOL, a.lanes)
        if e.op in ("min", "max"):
            return self.extremum(e.op, a, b)
        if e.op in LOGICAL:
            if dtype is BOOL:
                return self.logical(e.op, a, b)
            return self.fn.assign(f"{e.op} {a.typed}, {b.text}", dtype, a.lanes)
        if dtype.is_float:
            code = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}.get(e.op)
            if code:
                return self.fn.assign(f"{code} {a.typed}, {b.text}", dtype, a.lanes)
            if e.op == "rem":  # exact, so that its f64 value is the f32 value
                wide = self.libm("fmod", (self.cast(a, F64), self.cast(b, F64)))
                return self.cast(wide, dtype)
            raise InternalError(f"code generation: {e.op} on {dtype} must be expanded before")
        return self.integer(e.op, a, b, dtype)

    def contract(self, e: Binary) -> Value | None:
        """a·b + c as one fused multiply-add; a constant-zero factor (a padding tap) drops out. No difference:
        what is 0 where both sides are rounded (x - floor(x/y)·y, E[x²] - E[x]²) would be less than 0 where
        one is not, and its root no number."""
        for product, addend in ((e.a, e.b), (e.b, e.a)):
            if not (isinstance(product, Binary) and product.op == "mul"):
                continue
            x = self.expr(product.a)
            if is_zero(x):
                return self.expr(addend)
            y = self.expr(product.b)
            if is_zero(y):
                return self.expr(addend)
            return self.fma(x, y, self.expr(addend))
        return None

    def accumulate(self, e: Binary) -> Value | None:
        """c + dot4(a, b) as one instruction."""
        for product, addend in ((e.a, e.b), (e.b, e.a)):
            if isinstance(product, Call) and product.op in DOTS:
                a, b = (self.expr(x) for x in product.args)
                return dot4(self.fn, self.target, *self.unify(a, b, self.expr(addend)))
        return None

    def fma(self, x: Value, y: Value, c: Value) -> Value:
        x, y, c = self.unify(x, y, c)
        if not x.dtype.is_float:
            return self.integer("add", self.integer("mul", x, y, x.dtype), c, x.dtype)
        if not self.target.has_fma:
            product = self.fn.assign(f"fmul {x.typed}, {y.text}", x.dtype, x.lanes)
            return self.fn.assign(f"fadd {product.typed}, {c.text}", x.dtype, x.lanes)
        name = f"llvm.fma.{suffix(x.dtype, x.lanes)}"
        return self.fn.assign(self.fn.intrinsic(name, x.type, [x.typed, y.typed, c.typed]), x.dtype, x.lanes)

    def extremum(self, op: str, a: Value, b: Value) -> Value:
        """NaN if either is. One instruction on AArch64, and on x86 where one side is a constant."""
        dtype, lanes = a.dtype, a.lanes
        if not dtype.is_float:
            if dtype is BOOL:
                return self.fn.assign(f"{'and' if op == 'min' else 'or'} {a.typed}, {b.text}", dtype, lanes)
            sign = "u" if dtype.kind == "uint" else "s"
            name = f"llvm.{sign}{op}.{suffix(dtype, lanes)}"
            return self.fn.assign(self.fn.intrinsic(name, a.type, [a.typed, b.typed]), dtype, lanes)
        if self.target.arch == "aarch64":
            return self.float_intrinsic(f"{op}imum", a, b)
        if b.const is not None or b.text.startswith("splat"):
            a, b = b, a
        code = "fcmp olt" if op == "min" else "fcmp ogt"
        better = self.fn.assign(f"{code} {a.typed}, {b.text}", BOOL, lanes)
        picked = self.fn.assign(f"select {better.typed}, {a.typed}, {b.typed}", dtype, lanes)
        if a.const is not None or a.text.startswith("splat"):
            return picked
        broken = self.fn.assign(f"fcmp uno {a.typed}, {a.text}", BOOL, lanes)
        return self.fn.assign(f"select {broken.typed}, {a.typed}, {picked.typed}", dtype, lanes)

    def integer(self, op: str, a: Value, b: Value, dtype: DType) -> Value:
        signed = dtype.kind == "int"
        if op in ("add", "sub", "mul"):
            if dtype is BOOL:
                op = {"add": "or", "sub": "xor", "mul": "and"}[op]
            return self.fn.assign(f"{op} {a.typed}, {b.text}", dtype, a.lanes)
        if op in ("shl", "shr"):
            return self.shift(op, a, b, dtype)
        if op in ("div", "rem", "floordiv", "mod"):
            return self.divide(op, a, b, dtype, signed)
        raise InternalError(f"code generation: {op} on {dtype}")

    def shift(self, op: str, a: Value, b: Value, dtype: DType) -> Value:
        code = "shl" if op == "shl" else "ashr" if dtype.kind == "int" else "lshr"
        if b.const is not None and 0 <= b.const < dtype.bits:
            return self.fn.assign(f"{code} {a.typed}, {b.text}", dtype, a.lanes)
        limit = broadcast(self.fn, constant(dtype.bits, dtype), a.lanes)
        zero = broadcast(self.fn, constant(0, dtype), a.lanes)
        fits = self.fn.assign(f"icmp ult {b.typed}, {limit.text}", BOOL, a.lanes)
        safe = self.fn.assign(f"select {fits.typed}, {b.typed}, {zero.typed}", dtype, a.lanes)
        shifted = self.fn.assign(f"{code} {a.typed}, {safe.text}", dtype, a.lanes)
        return self.fn.assign(f"select {fits.typed}, {shifted.typed}, {zero.typed}", dtype, a.lanes)

    def divide(self, op: str, a: Value, b: Value, dtype: DType, signed: bool) -> Value:
        """Never traps: a zero divisor gives 0, the least integer divided by -1 wraps."""
        fn, lanes = self.fn, a.lanes
        if a.const is not None and b.const is not None and b.const > 0 and op in ("floordiv", "mod"):
            return constant(a.const // b.const if op == "floordiv" else a.const % b.const, dtype)  # type: ignore[operator]
        divisor_text = b.text.removeprefix("splat (").rstrip(")").split(" ")[-1]
        known = int(divisor_text) if divisor_text.lstrip("-").isdigit() else None
        zero = broadcast(fn, constant(0, dtype), lanes)
        one = broadcast(fn, constant(1, dtype), lanes)
        safe, special = b, None
        if known is None or known <= 0:
            special = fn.assign(f"icmp eq {b.typed}, {zero.text}", BOOL, lanes)
            if signed:
                minus = broadcast(fn, constant(-1, dtype), lanes)
                is_minus = fn.assign(f"icmp eq {b.typed}, {minus.text}", BOOL, lanes)
                unsafe = fn.assign(f"or {special.typed}, {is_minus.text}", BOOL, lanes)
            else:
                unsafe = special
            safe = fn.assign(f"select {unsafe.typed}, {one.typed}, {b.typed}", dtype, lanes)
        s = "s" if signed else "u"
        quotient = fn.assign(f"{s}div {a.typed}, {safe.text}", dtype, lanes)
        remainder = fn.assign(f"{s}rem {a.typed}, {safe.text}", dtype, lanes)
        if op in ("floordiv", "mod") and signed:
            nonzero = fn.assign(f"icmp ne {remainder.typed}, {zero.text}", BOOL, lanes)
            signs = fn.assign(f"xor {remainder.typed}, {safe.text}", dtype, lanes)
            opposite = fn.assign(f"icmp slt {signs.typed}, {zero.text}", BOOL, lanes)
            adjust = fn.assign(f"and {nonzero.typed}, {opposite.text}", BOOL, lanes)
            lower = fn.assign(f"sub {quotient.typed}, {one.text}", dtype, lanes)
            wrapped = fn.assign(f"add {remainder.typed}, {safe.text}", dtype, lanes)
            quotient = fn.assign(f"select {adjust.typed}, {lower.typed}, {quotient.typed}", dtype, lanes)
            remainder = fn.assign(f"select {adjust.typed}, {wrapped.typed}, {remainder.typed}", dtype, lanes)
        result = quotient if op in ("div", "floordiv") else remainder
        if special is None:
            return result
        if signed and op in ("div", "floordiv"):
            negated = fn.assign(f"sub {zero.typed}, {a.text}", dtype, lanes)
            result = fn.assign(f"select {is_minus.typed}, {negated.typed}, {result.typed}", dtype, lanes)
        return fn.assign(f"select {special.typed}, {zero.typed}, {result.typed}", dtype, lanes)

    def select(self, e: Select) -> Value:
        cond = self.expr(e.cond)
        if cond.const is not None:
            chosen = self.expr(e.then if cond.const else e.other)
            return replace(chosen, const=PADDING) if chosen.const == 0 and chosen.dtype.is_float else chosen
        self.hoist(e)
        then = self.masked(cond, e.then)
        other = self.masked(self.negation(cond), e.other)
        if cond.lanes > 1:
            cond, then, other = self.unify(cond, then, other)
        else:
            then, other = self.unify(then, other)
        return self.fn.assign(f"select {cond.typed}, {then.typed}, {other.typed}", then.dtype, then.lanes)

    def hoist(self, e: Select) -> None:
        """Computes before the branches what both of them need and what memory stands behind."""
        if not (self.touches_memory(e.then) and self.touches_memory(e.other)):
            return
        known: dict[Expr, frozenset[Expr]] = {}
        both = _certain(e.then, known) & _certain(e.other, known)
        for x in walk(e.then) if both else ():
            if x in both and not isinstance(x, (Const, Var)):
                self.expr(x)

    def masked(self, cond: Value, e: Expr) -> Value:
        """`e` where it is only needed under one more condition; what it computes is not valid elsewhere."""
        if not self.touches_memory(e):
            return self.expr(e)
        outer, memo = self.mask, self.memo
        self.mask, self.memo = self.conjunction(outer, cond), dict(memo)
        value = self.expr(e)
        self.mask, self.memo = outer, memo
        return value

    def touches_memory(self, e: Expr) -> bool:
        """Whether `e` needs a load or a check that has not been done yet."""
        seen: set[int] = set()
        stack = [e]
        while stack:
            x = stack.pop()
            if id(x) in seen or x in self.memo:
                continue
            seen.add(id(x))
            if isinstance(x, Call) and x.op == "checked":
                return True
            if isinstance(x, Load) and not self.inside(self.buffers[x.tensor], x.index):
                return True
            stack.extend(children(x))
        return False

    def conjunction(self, a: Value | None, b: Value) -> Value:
        return b if a is None else self.logical("and", a, b)

    def negation(self, a: Value) -> Value:
        return self.logical("xor", a, constant(True, BOOL))

    def logical(self, op: str, a: Value, b: Value) -> Value:
        """Of masks; those that are known when compiling stay known."""
        lanes = max(a.lanes, b.lanes)
        x, y = flags_of(a, lanes), flags_of(b, lanes)
        if x is not None and y is not None:
            of = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}[op]
            return mask_of([of(p, q) for p, q in zip(x, y)])
        a, b = self.unify(a, b)
        return self.fn.assign(f"{op} {a.typed}, {b.text}", BOOL, lanes)

    # --- functions and conversions ----------------------------------------------------------------------

    def call(self, e: Call) -> Value:
        fn = self.fn
        if e.op == "checked":
            return self.checked(self.expr(e.args[0]), self.expr(e.args[1]))
        if e.op == "word":
            found = self.words(e)
            if found is None and self.target.arch == "aarch64":
                found = interleaved(fn, self.unify(*(self.expr(a) for a in e.args)))
            return self.expr(expanded_word(e)) if found is None else found
        args = self.unify(*(self.expr(a) for a in e.args))
        a = args[0]
        if e.op in DOTS:
            return dot4(fn, self.target, a, args[1], broadcast(fn, constant(0, I32), a.lanes))
        if e.op == "fma":
            return self.fma(*args)
        if e.op == "neg":
            if a.dtype.is_float:
                return fn.assign(f"fneg {a.typed}", a.dtype, a.lanes)
            return fn.assign(
                f"sub {a.type} {'zeroinitializer' if a.lanes > 1 else 0}, {a.text}", a.dtype, a.lanes
            )
        if e.op == "not":
            ones = broadcast(fn, constant(True if a.dtype is BOOL else -1, a.dtype), a.lanes)
            return fn.assign(f"xor {a.typed}, {ones.text}", a.dtype, a.lanes)
        if e.op.startswith("bitcast_"):
            if value_type(e.dtype) == value_type(a.dtype):
                return replace(a, dtype=e.dtype) if a.const is None else Value(a.text, e.dtype, a.lanes)
            return fn.assign(f"bitcast {a.typed} to {value_type(e.dtype, a.lanes)}", e.dtype, a.lanes)
        if e.op == "isnan":
            return fn.assign(f"fcmp uno {a.typed}, {a.text}", BOOL, a.lanes)
        if e.op == "isinf":
            magnitude = self.float_intrinsic("fabs", a)
            limit = broadcast(fn, constant(math.inf, a.dtype), a.lanes)
            return fn.assign(f"fcmp oeq {magnitude.typed}, {limit.text}", BOOL, a.lanes)
        if e.op == "abs" and not a.dtype.is_float:
            if a.dtype.kind != "int":
                return a
            name = f"llvm.abs.{suffix(a.dtype, a.lanes)}"
            return fn.assign(fn.intrinsic(name, a.type, [a.typed, "i1 false"]), a.dtype, a.lanes)
        if e.op == "sign":
            return self.sign(a)
        if e.op in _FLOAT_INTRINSICS:
            return self.float_intrinsic(_FLOAT_INTRINSICS[e.op], *args)
        if e.op.startswith("libm."):
            return self.libm(e.op.removeprefix("libm."), args)
        raise InternalError(f"code generation: {e.op} on {a.dtype} must be expanded before")

    def float_intrinsic(self, name: str, *args: Value) -> Value:
        a = args[0]
        full = f"llvm.{name}.{suffix(a.dtype, a.lanes)}"
        return self.fn.assign(self.fn.intrinsic(full, a.type, [x.typed for x in args]), a.dtype, a.lanes)

    def libm(self, name: str, args: tuple[Value, ...]) -> Value:
        """A call of the C library per lane, in double precision."""
        dtype, lanes, fn = args[0].dtype, args[0].lanes, self.fn
        if dtype is not F64:
            raise InternalError(f"code generation: libm.{name} on {dtype}")
        if lanes == 1:
            return fn.assign(fn.intrinsic(name, "double", [a.typed for a in args]), dtype)
        result = Value("poison", dtype, lanes)
        for n in range(lanes):
            parts = [fn.assign(f"extractelement {a.typed}, i64 {n}", dtype) for a in args]
            one = fn.assign(fn.intrinsic(name, "double", [p.typed for p in parts]), dtype)
            result = fn.assign(f"insertelement {result.typed}, {one.typed}, i64 {n}", dtype, lanes)
        return result

    def sign(self, a: Value) -> Value:
        zero = broadcast(self.fn, constant(0, a.dtype), a.lanes)
        one = broadcast(self.fn, constant(1, a.dtype), a.lanes)
        minus = broadcast(self.fn, constant(-1, a.dtype), a.lanes) if a.dtype.kind != "uint" else zero
        above = self.fn.assign(f"{compare_code('gt', a.dtype)} {a.typed}, {zero.text}", BOOL, a.lanes)
        below = self.fn.assign(f"{compare_code('lt', a.dtype)} {a.typed}, {zero.text}", BOOL, a.lanes)
        rest = self.fn.assign(
            f"select {below.typed}, {minus.typed}, {a.typed}", a.dtype, a.lanes
        )  # ±0 and NaN stay
        return self.fn.assign(f"select {above.typed}, {one.typed}, {rest.typed}", a.dtype, a.lanes)

    def checked(self, position: Value, extent: Value) -> Value:
        """The index clamped to 0, with the error noted, where it is out of range."""
        fn = self.fn
        if self.error_slot is None:
            self.error_slot = fn.alloca("i32", 4)
        position, extent = self.unify(position, extent)
        lanes = position.lanes
        bad = fn.assign(f"icmp uge {position.typed}, {extent.text}", BOOL, lanes)
        needed = bad if self.mask is None else self.conjunction(self.mask, bad)
        any_bad = needed
        if needed.lanes > 1:
            name = f"llvm.vector.reduce.or.v{needed.lanes}i1"
            any_bad = fn.assign(fn.intrinsic(name, "i1", [needed.typed]), BOOL)
        flag = fn.assign(f"zext {any_bad.typed} to i32", I32)
        old = fn.assign(f"load i32, ptr {self.error_slot}, align 4", I32)
        new = fn.assign(f"or {old.typed}, {flag.text}", I32)
        fn.emit(f"store {new.typed}, ptr {self.error_slot}, align 4")
        zero = "zeroinitializer" if lanes > 1 else "0"
        return fn.assign(f"select {bad.typed}, {position.type} {zero}, {position.typed}", I64, lanes)

    def cast(self, a: Value, dtype: DType) -> Value:
        fn, source = self.fn, a.dtype
        result = value_type(dtype, a.lanes)
        if source is dtype:
            return a
        if isinstance(a.const, int) and (dtype in (F32, F64) or (dtype.is_integer and not source.is_float)):
            return constant(float(a.const) if dtype.is_float else wrapped(int(a.const), dtype), dtype)
        if dtype is BOOL:
            code = "fcmp une" if source.is_float else "icmp ne"
            return fn.assign(
                f"{code} {a.typed}, {'zeroinitializer' if a.lanes > 1 else zero_text(source)}", BOOL, a.lanes
            )
        if F16 in (source, dtype):
            return self.convert_half(a, dtype)
        if source.is_float and dtype.is_float:
            code = "fpext" if dtype.bits > source.bits else "fptrunc"
        elif source is F32 and dtype.bits <= 16 and self.target.arch == "x86_64":
            return self.saturated(a, dtype)
        elif source.is_float:
            name = "fptosi" if dtype.kind == "int" else "fptoui"
            full = f"llvm.{name}.sat.{suffix(dtype, a.lanes)}.{suffix(source, a.lanes)}"
            return fn.assign(fn.intrinsic(full, result, [a.typed]), dtype, a.lanes)
        elif dtype.is_float:
            code = "sitofp" if source.kind == "int" else "uitofp"
        elif value_type(dtype) == value_type(source):
            return Value(a.text, dtype, a.lanes)
        elif dtype.bits < source.bits:
            code = "trunc"
        else:
            code = "sext" if source.kind == "int" else "zext"
        return fn.assign(f"{code} {a.typed} to {result}", dtype, a.lanes)

    def saturated(self, a: Value, dtype: DType, whole: bool = True, shift: int = 0) -> Value:
        """f32 → 8 or 16 bits: bounded as f32, where x86 has the instructions; LLVM takes thrice as many.

        a + shift, truncated if `whole`, else rounded to even before: x86 rounds where it converts.
        """
        fn, lanes, least = self.fn, a.lanes, -(1 << dtype.bits - 1) if dtype.kind == "int" else 0
        low, high = (constant(float(v - shift), F32) for v in (least, least + (1 << dtype.bits) - 1))
        if least:  # else NaN is less than nothing, and becomes the lower bound
            zero = broadcast(fn, constant(float(-shift), F32), lanes)
            number = fn.assign(f"fcmp ord {a.typed}, {zero.text}", BOOL, lanes)
            a = fn.assign(f"select {number.typed}, {a.typed}, {zero.typed}", F32, lanes)
        for code, bound in (("ogt", low), ("olt", high)):
            limit = broadcast(fn, bound, lanes)
            inside = fn.assign(f"fcmp {code} {a.typed}, {limit.text}", BOOL, lanes)
            a = fn.assign(f"select {inside.typed}, {a.typed}, {limit.typed}", F32, lanes)
        type = value_type(I32, lanes)
        name = f"llvm.lrint.{suffix(I32, lanes)}.{suffix(F32, lanes)}"
        code = f"fptosi {a.typed} to {type}" if whole else fn.intrinsic(name, type, [a.typed])
        result = fn.assign(code, I32, lanes)
        if shift:
            by = broadcast(fn, constant(shift, I32), lanes)
            result = fn.assign(f"add {result.typed}, {by.text}", I32, lanes)
        return fn.assign(f"trunc {result.typed} to {value_type(dtype, lanes)}", dtype, lanes)

    def convert_half(self, a: Value, dtype: DType) -> Value:
        """f16 ↔ f32, which `lower.narrow` leaves only where the target has instructions for it."""
        half = "half" if a.lanes == 1 else f"<{a.lanes} x half>"
        result = value_type(dtype, a.lanes)
        if dtype is F16:
            rounded = self.fn.assign(f"fptrunc {a.typed} to {half}", dtype, a.lanes)
            return self.fn.assign(f"bitcast {half} {rounded.text} to {result}", dtype, a.lanes)
        bits = self.fn.assign(f"bitcast {a.typed} to {half}", dtype, a.lanes)
        return self.fn.assign(f"fpext {half} {bits.text} to {result}", dtype, a.lanes)


_FLOAT_INTRINSICS = {
    "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "roundeven", "abs": "fabs",
    "copysign": "copysign",
}  # fmt: skip


def _rounded(e: Cast) -> tuple[Expr, int] | None:
    """(x, n) of round(x) + n that becomes 8 or 16 bits, x an f32 and n so small that the sum is exact."""
    value, added = e.value, 0
    if isinstance(value, Binary) and value.op == "add" and isinstance(value.b, Const):
        number = float(value.b.value)
        if not (number.is_integer() and abs(number) < 1 << 16):
            return None
        value, added = value.a, int(number)
    if not isinstance(value, Call) or value.op != "round" or value.dtype is not F32:
        return None
    return (value.args[0], added) if e.type.is_integer and e.type.bits <= 16 else None


def _certain(e: Expr, known: dict[Expr, frozenset[Expr]]) -> frozenset[Expr]:
    """What is computed whenever `e` is."""
    if e not in known:
        parts = [_certain(c, known) for c in children(e)]
        if isinstance(e, Select):
            parts = [parts[0], parts[1] & parts[2]]
        known[e] = frozenset({e}).union(*parts)
    return known[e]


def is_zero(v: Value) -> bool:
    """A zero read from padding: its products are skipped (a zero of the model's own keeps NaN and inf)."""
    return v.const is PADDING


def zero_text(dtype: DType) -> str:
    return "0.0" if dtype.is_float else "0"


def compare_code(op: str, dtype: DType) -> str:
    """NaN compares unequal and unordered."""
    if dtype.is_float:
        return "fcmp une" if op == "ne" else f"fcmp o{op}"
    if op in ("eq", "ne"):
        return f"icmp {op}"
    return f"icmp {'s' if dtype.kind == 'int' else 'u'}{op}"
