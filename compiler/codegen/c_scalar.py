"""Scalar expressions → C, over named constants of the statement that they stand in.

A subexpression that is used once is written where it is used; others get a name before the statement. Index
arithmetic is done in 32 bits wherever the ranges of the loops prove that it fits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import InternalError
from ..ir.affine import bounds, linear
from ..ir.loops import Buffer
from ..ir.scalar import (
    BITCASTS,
    COMPARISONS,
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
    const,
    substitute,
    touches_memory,
    variables,
    walk,
)
from ..ir.types import BF16, BOOL, DTYPES, F16, F32, F64, I64, DType
from .c_dialect import HELPERS, Dialect, identifier, value_type

INT = "i32"
"""The C type of index values that fit it."""
_LONG_TEXT = 90  # characters from which an operand gets a name
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^"}
_COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_FUNCTIONS = {
    "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "rint",
    "copysign": "copysign",
}  # fmt: skip


@dataclass(frozen=True)
class Operand:
    """C text and the C type of its value; `atom` if it can be repeated and stand in any expression."""

    text: str
    type: str
    atom: bool = False

    @property
    def inner(self) -> str:
        """As an operand of an operator."""
        return self.text if self.atom else f"({self.text})"


class Lines:
    """Indented lines under construction."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 1

    def emit(self, line: str) -> None:
        self.lines.append("  " * self.depth + line)

    def open(self, line: str) -> None:
        self.emit(line)
        self.depth += 1

    def close(self, line: str = "}") -> None:
        self.depth -= 1
        self.emit(line)


class Scalars:
    """Values of expressions at one point of a kernel."""

    def __init__(self, dialect: Dialect, has_fma: bool):
        self.dialect, self.has_fma = dialect, has_fma
        self.out = Lines()
        self.constants: dict[str, int] = {}  # unrolled variables
        self.names: dict[str, Operand] = {}  # other variables
        self.ranges: dict[str, tuple[int, int]] = {}
        self.buffers: dict[str, Buffer] = {}
        self.split: set[str] = set()  # register buffers whose elements are variables of their own
        self.helpers: dict[str, str] = {}
        self.reports = False  # whether the kernel may report an error
        self.memo: dict[Expr, Operand] = {}
        self.lanes: dict[Expr, Operand] = {}  # vector loads of the statement, picked apart
        self.uses: Counter[Expr] = Counter()
        self._count = 0

    # --- statements call these --------------------------------------------------------------------------

    def begin(self, *expressions: Expr) -> list[Expr]:
        """The expressions of the next statement, unrolled variables put in."""
        found = [self.resolved(e) for e in expressions]
        self.memo = {}
        self.uses = Counter()
        for x in {x: None for e in found for x in walk(e)}:
            self.uses.update(children(x))
        self.uses.update(found)
        return found

    def resolved(self, e: Expr) -> Expr:
        unrolled = {v: const(self.constants[v]) for v in variables(e) if v in self.constants}
        return substitute(e, unrolled) if unrolled else e  # type: ignore[arg-type]

    def fresh(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def place(self, buffer: Buffer, index: Sequence[Expr]) -> str:
        """The element as an lvalue."""
        if buffer.name in self.split:
            return element_name(buffer, index)
        return f"{identifier(buffer.name)}[{self.offset(buffer, index).text}]"

    def offset(self, buffer: Buffer, index: Sequence[Expr]) -> Operand:
        return self.expr(flat_index(buffer, index))

    def of_type(self, e: Expr) -> str:
        """The value in the C type of its dtype."""
        found = self.expr(e)
        wanted = value_type(e.dtype)
        return found.text if found.type == wanted else f"({wanted}){found.inner}"

    # --- expressions ------------------------------------------------------------------------------------

    def expr(self, e: Expr) -> Operand:
        known = self.lanes.get(e) or self.memo.get(e)
        if known is None:
            known = self._expr(e)
            if not known.atom and (self.uses[e] > 1 or len(known.text) > _LONG_TEXT):
                known = self.named(known)
            self.memo[e] = known
        return known

    def named(self, value: Operand) -> Operand:
        if value.atom:
            return value
        name = self.fresh()
        self.out.emit(f"const {value.type} {name} = {value.text};")
        return Operand(name, value.type, True)

    def fits(self, e: Expr) -> bool:
        low, high = bounds(e, self.ranges)
        return low >= -(1 << 31) and high < 1 << 31

    def _expr(self, e: Expr) -> Operand:
        match e:
            case Const(value=v, type=t):
                return constant(v, t)
            case Var(name=n):
                return self.names[n]
            case Load():
                buffer = self.buffers[e.tensor]
                text, atom = self.place(buffer, e.index), buffer.name in self.split
                if buffer.size == 0:  # nothing is there; indices are checked all the same
                    return self.expr(Const(0, e.dtype))
                if buffer.dtype is BOOL:
                    return Operand(text if atom else f"{text} != 0", "bool", atom)
                return Operand(text, value_type(buffer.dtype), True)
            case Binary(op=op) if op in COMPARISONS:
                return self.compare(e)
            case Binary():
                return self.index(e) if e.dtype is I64 else self.binary(e)
            case Select():
                return self.select(e)
            case Cast():
                return self.cast(e)
            case Call():
                return self.call(e)
        raise InternalError(f"code generation: {e!r}")

    def pair(self, a: Expr, b: Expr) -> tuple[Operand, Operand, str]:
        """Two operands of one type."""
        x, y = self.expr(a), self.expr(b)
        if x.type == y.type:
            return x, y, x.type
        return self.widened(x), self.widened(y), "i64"

    def widened(self, x: Operand) -> Operand:
        return x if x.type == "i64" else Operand(f"(i64){x.inner}", "i64")

    def compare(self, e: Binary) -> Operand:
        a, b, _ = self.pair(e.a, e.b)
        return Operand(f"{a.inner} {_COMPARE[e.op]} {b.inner}", "bool")

    def index(self, e: Binary) -> Operand:
        """i64 arithmetic: in 32 bits if operands and result fit, else in 64; wrapping if need be."""
        a, b = self.expr(e.a), self.expr(e.b)
        small = a.type == b.type == INT and self.fits(e)
        if not small:
            a, b = self.widened(a), self.widened(b)
        type = INT if small else "i64"
        if e.op in ("add", "sub", "mul"):
            low, high = bounds(e, self.ranges)
            if small or (low > -(1 << 62) and high < 1 << 62):
                return Operand(f"{a.inner} {_INFIX[e.op]} {b.inner}", type)
            return Operand(f"(i64)((u64){a.inner} {_INFIX[e.op]} (u64){b.inner})", type)
        positive = bounds(e.a, self.ranges)[0] >= 0 and bounds(e.b, self.ranges)[0] > 0
        if e.op in ("floordiv", "mod", "div", "rem") and positive:
            return Operand(f"{a.inner} {'/' if e.op.endswith('div') else '%'} {b.inner}", type)
        return self.arithmetic(e.op, a, b, DTYPES[type])

    def binary(self, e: Binary) -> Operand:
        dtype = e.a.dtype
        if e.op == "add" and dtype.is_float:
            fused = self.contract(e)
            if fused is not None:
                return fused
        return self.arithmetic(e.op, self.expr(e.a), self.expr(e.b), dtype)

    def contract(self, e: Binary) -> Operand | None:
        """a·b + c as one fused multiply-add, where the target has it; no difference, as in `llvm_scalar`."""
        for product, addend in ((e.a, e.b), (e.b, e.a)):
            if not (self.has_fma and isinstance(product, Binary) and product.op == "mul"):
                continue
            x, y, c = (self.expr(v) for v in (product.a, product.b, addend))
            return Operand(f"fma({x.inner}, {y.text}, {c.text})", c.type, True)
        return None

    def arithmetic(self, op: str, a: Operand, b: Operand, dtype: DType) -> Operand:
        type = value_type(dtype)
        if op in ("min", "max"):
            if dtype.is_float:
                return self.helper("least" if op == "min" else "greatest", dtype, a, b)
            if dtype is BOOL:
                return Operand(f"{a.inner} {'&' if op == 'min' else '|'} {b.inner}", "bool")
            a, b = self.named(a), self.named(b)
            return Operand(f"{a.text} {'<' if op == 'min' else '>'} {b.text} ? {a.text} : {b.text}", type)
        if dtype is BOOL:
            op = {"add": "or", "sub": "xor", "mul": "and"}.get(op, op)
            text = f"{a.inner} {'!=' if op == 'xor' else _INFIX[op] * 2} {b.inner}"
            return Operand(text, "bool")
        if dtype.is_float:
            return Operand(f"{a.inner} {_INFIX[op]} {b.inner}", type)
        if op in LOGICAL:
            return Operand(f"({type})({a.inner} {_INFIX[op]} {b.inner})", type)
        if op in ("add", "sub", "mul"):
            wide = "u64" if dtype.bits == 64 else "u32"
            text = f"({wide}){a.inner} {_INFIX[op]} ({wide}){b.inner}"
            return Operand(f"({type})({text})", type)
        if op in ("shl", "shr"):
            return self.helper(op, dtype, a, b)
        kind = "uint" if dtype.kind == "uint" else "int"
        name = {"floordiv": "div", "mod": "rem"}.get(op, op) if kind == "uint" else op
        return self.helper(f"{name}_{kind}", dtype, a, b)

    def helper(self, name: str, dtype: DType, *args: Operand, **more: str) -> Operand:
        """A call of a helper function, which the kernel's source then contains."""
        type = value_type(dtype)
        text = HELPERS[name].format(
            q=self.dialect.inline,
            t=type,
            u=type.replace("i", "u"),
            w="u64" if dtype.bits == 64 else "u32",
            bits=dtype.bits,
            **more,
        )
        function = text.partition("(")[0].rpartition(" ")[2]
        self.helpers[function] = text
        return Operand(f"{function}({', '.join(a.text for a in args)})", type, True)

    # --- select -----------------------------------------------------------------------------------------

    def select(self, e: Select) -> Operand:
        """What reads memory or reports errors is evaluated on the chosen side only."""
        cond = self.expr(e.cond)
        guarded = [touches_memory(x) for x in (e.then, e.other)]
        if all(guarded):
            self.hoist(e)
        if not any(guarded):
            then, other, type = self.pair(e.then, e.other)
            return Operand(f"{cond.inner} ? {then.inner} : {other.inner}", type)
        outer, memo = self.out, self.memo
        sides: list[tuple[Operand, list[str]]] = []
        for x in (e.then, e.other):
            self.out, self.memo = Lines(), dict(memo)
            self.out.depth = outer.depth + 1
            sides.append((self.expr(x), self.out.lines))
        self.out, self.memo = outer, memo
        type = sides[0][0].type if sides[0][0].type == sides[1][0].type else "i64"
        if not any(lines for _, lines in sides):
            return Operand(f"{cond.inner} ? {sides[0][0].inner} : {sides[1][0].inner}", type)
        name = self.fresh()
        self.out.emit(f"{type} {name};")
        self.out.emit(f"if ({cond.text}) {{")
        for n, (value, lines) in enumerate(sides):
            self.out.lines += lines
            self.out.emit(f"  {name} = {value.text};")
            self.out.emit("} else {" if n == 0 else "}")
        return Operand(name, type, True)

    def hoist(self, e: Select) -> None:
        """Computes before the branches what both of them need."""
        known: dict[Expr, frozenset[Expr]] = {}
        both = _certain(e.then, known) & _certain(e.other, known)
        for x in walk(e.then) if both else ():
            if x in both and not isinstance(x, Const | Var):
                self.memo[x] = self.named(self.expr(x))

    # --- functions and conversions ----------------------------------------------------------------------

    def call(self, e: Call) -> Operand:
        if e.op == "checked":
            return self.checked(e)
        args = [self.expr(a) for a in e.args]
        a, dtype = args[0], e.args[0].dtype
        type = value_type(dtype)
        if e.op == "fma":
            return self.fma(e, args)
        if e.op == "neg":
            return self.negated(a, dtype)
        if e.op == "not":
            return Operand(f"!{a.inner}", "bool") if dtype is BOOL else Operand(f"({type})~{a.inner}", type)
        if e.op in BITCASTS:
            if value_type(e.dtype) == type:
                return a
            return Operand(self.dialect.bitcast(a.text, dtype, e.dtype), value_type(e.dtype), True)
        if e.op == "isnan":
            a = self.named(a)
            return Operand(f"{a.text} != {a.text}", "bool")
        if e.op == "isinf":
            return Operand(f"fabs({a.text}) == INFINITY", "bool")
        if e.op == "abs":
            if dtype.is_float:
                return Operand(f"fabs({a.text})", type, True)
            a = self.named(a)
            negated = self.negated(a, dtype)
            return a if dtype.kind != "int" else Operand(f"{a.text} < 0 ? {negated.text} : {a.text}", a.type)
        if e.op == "sign":
            return self.helper("sign", dtype, a)
        if e.op in _FUNCTIONS or e.op.startswith("libm."):
            name = _FUNCTIONS.get(e.op) or e.op.removeprefix("libm.")
            return Operand(f"{name}({', '.join(x.text for x in args)})", type, True)
        raise InternalError(f"code generation: {e.op} on {dtype} must be expanded before")

    def fma(self, e: Call, args: Sequence[Operand]) -> Operand:
        if not e.dtype.is_float:
            product = self.arithmetic("mul", args[0], args[1], e.dtype)
            return self.arithmetic("add", product, args[2], e.dtype)
        x, y, c = args
        if self.has_fma:
            return Operand(f"fma({x.text}, {y.text}, {c.text})", value_type(e.dtype), True)
        return Operand(f"{x.inner} * {y.inner} + {c.inner}", value_type(e.dtype))

    def negated(self, a: Operand, dtype: DType) -> Operand:
        if dtype.is_float:
            return Operand(f"-{a.inner}", a.type)
        wide = "u64" if DTYPES[a.type].bits == 64 else "u32"
        return Operand(f"({a.type})(0 - ({wide}){a.inner})", a.type)

    def checked(self, e: Call) -> Operand:
        """The index clamped to 0, with the error noted, where it is out of range."""
        self.reports = True
        position, extent = self.expr(e.args[0]), self.expr(e.args[1])
        type = INT if self.fits(e) else "i64"
        wide, limit = self.named(self.widened(position)), self.widened(extent)
        good = self.named(Operand(f"(u64){wide.inner} < (u64){limit.inner}", "bool"))
        self.out.emit(f"if (!{good.text}) *error = 1;")
        return self.named(Operand(f"{good.text} ? ({type}){wide.inner} : 0", type))

    def cast(self, e: Cast) -> Operand:
        a, source, dtype = self.expr(e.value), e.value.dtype, e.type
        type = value_type(dtype)
        if dtype is BOOL:
            return Operand(f"{a.inner} != 0", "bool")
        if source.is_float and dtype.is_integer:
            return self.saturated(a, source, dtype)
        if F16 in (source, dtype) or BF16 in (source, dtype):
            name = f"{source}_to_{dtype}"
            if name not in self.dialect.conversions:
                raise InternalError(
                    f"code generation: a cast from {source} to {dtype} must be expanded before"
                )
            self.helpers[name] = self.dialect.conversions[name]
            return Operand(f"{name}({a.text})", type, True)
        return a if a.type == type else Operand(f"({type}){a.inner}", type)

    def saturated(self, a: Operand, source: DType, dtype: DType) -> Operand:
        limits = np.iinfo(dtype.numpy)
        return self.helper(
            "saturate",
            dtype,
            a,
            f=value_type(source),
            above=constant(float(int(limits.max) + 1), source).text,
            most=constant(int(limits.max), dtype).inner,
            least=constant(float(int(limits.min)), source).text,
            low=constant(int(limits.min), dtype).inner,
        )


def flat_index(buffer: Buffer, index: Sequence[Expr]) -> Expr:
    """The row-major offset of an element."""
    flat: Expr = const(0)
    for i, stride in zip(index, buffer.strides, strict=True):
        flat = flat + i * stride
    return linear(flat).expr()


def element_name(buffer: Buffer, index: Sequence[Expr]) -> str:
    """The variable that holds one element of a register buffer."""
    places = []
    for i in index:
        form = linear(i)
        if not form.is_const:
            raise InternalError(f"register buffer {buffer.name} is indexed by {i!r}")
        places.append(str(form.offset))
    return identifier("_".join([buffer.name, *places]))


def _certain(e: Expr, known: dict[Expr, frozenset[Expr]]) -> frozenset[Expr]:
    """What is computed whenever `e` is."""
    if e not in known:
        parts = [_certain(c, known) for c in children(e)]
        if isinstance(e, Select):
            parts = [parts[0], parts[1] & parts[2]]
        known[e] = frozenset({e}).union(*parts)
    return known[e]


_SUFFIX: Mapping[str, str] = {"u32": "u", "u64": "UL", "i64": "L"}


def constant(value: int | float | bool, dtype: DType) -> Operand:
    type = value_type(dtype)
    if dtype is BOOL:
        return Operand("true" if value else "false", "bool", True)
    if dtype in (F16, BF16):
        return Operand(str(int(np.asarray(value, dtype.numpy).view(np.uint16))), type, True)
    if dtype.is_float:
        return _float_constant(float(value), dtype)
    low = 1 << (dtype.bits - 1) if dtype.kind == "int" else 0
    wrapped = (int(value) + low) % (1 << dtype.bits) - low
    if dtype is I64 and -(1 << 31) < wrapped < 1 << 31:
        return Operand(str(wrapped), INT, wrapped >= 0)
    suffix = _SUFFIX.get(type, "")
    if wrapped == -(1 << (dtype.bits - 1)) and wrapped < 0:  # there is no literal of the least integer
        return Operand(f"({type})(-{-wrapped - 1}{suffix} - 1)", type)
    text = f"{wrapped}{suffix}"
    return Operand(text if dtype.bits >= 32 else f"({type}){text}", type, dtype.bits >= 32 and wrapped >= 0)


def _float_constant(value: float, dtype: DType) -> Operand:
    type = value_type(dtype)
    if math.isnan(value) or math.isinf(value):
        word = "NAN" if math.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"
        return Operand(word if dtype is F32 else f"({type}){word}", type)
    text = repr(dtype.numpy.type(value).item()) if dtype is F64 else str(np.float32(value))
    text = text if set(text) & {".", "e"} else f"{text}.0"
    return Operand(text + ("f" if dtype is F32 else ""), type, not text.startswith("-"))
