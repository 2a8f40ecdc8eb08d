"""Scalar expressions, shared by tensor expressions and loop programs.

    e := 1.5:f32 | i | t[e, …] | (e op e) | f(e, …) | select(e, e, e) | cast(e, dtype)

Meaning: integers wrap around; integer division by zero gives 0; `floordiv` and `mod` round towards minus
infinity; `div` on integers truncates, `rem` is its remainder. `min` and `max` return NaN when either side
is NaN. `select` evaluates only the chosen side, so a guarded load may have an index out of bounds where its
guard is false. `checked(i, n)` is i when 0 <= i < n, else the kernel reports "index out of range".
`word(a, b, c, d)` is the i32 whose bytes are four 8-bit integers, the first the lowest. `dot4_u8(a, b)` and
`dot4_i8(a, b)` sum the products of two words' bytes: those of b are signed, those of a as the name says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Generic, TypeVar

import numpy as np

from ...errors import InternalError
from .types import BOOL, DTYPES, F32, I32, I64, DType, wrapped

T = TypeVar("T")

COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
LOGICAL = frozenset({"and", "or", "xor"})  # bitwise on integers, logical on bool
ARITHMETIC = frozenset(
    {"add", "sub", "mul", "div", "floordiv", "mod", "rem", "min", "max", "pow", "shl", "shr"}
)
FLOAT_FUNCTIONS = frozenset(
    "exp log log1p expm1 sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf sigmoid "
    "floor ceil round trunc".split()
)
BITCASTS = {
    f"bitcast_{name}": DTYPES[name]
    for name in ("u16", "f16", "bf16", "i32", "u32", "f32", "i64", "u64", "f64")
}
"""The same bits as another type of the same size; they and `libm.*` (f64) appear when code is generated."""
LIBM = frozenset(
    f"libm.{name}"
    for name in (FLOAT_FUNCTIONS | {"pow", "fmod"})
    - {"sqrt", "rsqrt", "sigmoid", "floor", "ceil", "round", "trunc"}
)
DOTS = {"dot4_u8": False, "dot4_i8": True}
"""Sums of four products of bytes, by whether those of the first operand are signed."""
FUNCTIONS = (
    FLOAT_FUNCTIONS
    | frozenset({"neg", "abs", "not", "fma", "isnan", "isinf", "checked", "sign", "copysign", "word"})
    | LIBM
    | frozenset(BITCASTS)
    | frozenset(DOTS)
)


_RESULTS = {"isnan": BOOL, "isinf": BOOL, "word": I32, **BITCASTS}


class _kept(Generic[T]):
    """As functools.cached_property, without its lock."""

    def __init__(self, function: Callable[[Any], T]):
        self.function, self.name = function, function.__name__

    def __get__(self, owner: Any, kind: type | None = None) -> T:
        value = owner.__dict__[self.name] = self.function(owner)
        return value


@dataclass(frozen=True, eq=False, repr=False)
class Expr:
    """Base of scalar expressions. `dtype` is the element type of the value.

    Equal by value. An expression may use one object several times (there is no `let`): hashes are kept, and
    comparing and the traversals below visit each object once, so that their cost is that of the graph.
    """

    def __hash__(self) -> int:
        known: int | None = self.__dict__.get("_hash")
        return _hashed(self) if known is None else known

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Expr) and hash(self) == hash(other) and _same(self, other))

    def __getstate__(self) -> dict[str, object]:  # hashes of strings differ between processes
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def __repr__(self) -> str:
        return abbreviated(self, most=500)

    @property
    def dtype(self) -> DType:
        raise NotImplementedError

    @property
    def children(self) -> tuple[Expr, ...]:
        return ()

    def __add__(self, other: ExprLike) -> Expr:
        return binary("add", self, other)

    def __radd__(self, other: ExprLike) -> Expr:
        return binary("add", other, self)

    def __sub__(self, other: ExprLike) -> Expr:
        return binary("sub", self, other)

    def __rsub__(self, other: ExprLike) -> Expr:
        return binary("sub", other, self)

    def __mul__(self, other: ExprLike) -> Expr:
        return binary("mul", self, other)

    def __rmul__(self, other: ExprLike) -> Expr:
        return binary("mul", other, self)

    def __truediv__(self, other: ExprLike) -> Expr:
        return binary("div", self, other)

    def __rtruediv__(self, other: ExprLike) -> Expr:
        return binary("div", other, self)

    def __floordiv__(self, other: ExprLike) -> Expr:
        return binary("floordiv", self, other)

    def __mod__(self, other: ExprLike) -> Expr:
        return binary("mod", self, other)

    def __neg__(self) -> Expr:
        return call("neg", self)


ExprLike = Expr | int | float | bool


@dataclass(frozen=True, eq=False, repr=False)
class Const(Expr):
    """0.0 and -0.0 differ; NaN equals NaN."""

    value: int | float | bool
    type: DType

    @property
    def dtype(self) -> DType:
        return self.type


@dataclass(frozen=True, eq=False, repr=False)
class Var(Expr):
    """A loop index or an axis, always i64."""

    name: str

    @property
    def dtype(self) -> DType:
        return I64


@dataclass(frozen=True, eq=False, repr=False)
class Load(Expr):
    """One element of a tensor (tensor expressions) or buffer (loop programs)."""

    tensor: str
    index: tuple[Expr, ...]
    type: DType

    @property
    def dtype(self) -> DType:
        return self.type

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.index


@dataclass(frozen=True, eq=False, repr=False)
class Binary(Expr):
    op: str
    a: Expr
    b: Expr

    @_kept
    def dtype(self) -> DType:
        return BOOL if self.op in COMPARISONS else self.a.dtype

    @_kept
    def children(self) -> tuple[Expr, ...]:
        return (self.a, self.b)


@dataclass(frozen=True, eq=False, repr=False)
class Call(Expr):
    op: str
    args: tuple[Expr, ...]

    @_kept
    def dtype(self) -> DType:
        return _RESULTS.get(self.op) or self.args[0].dtype

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.args


@dataclass(frozen=True, eq=False, repr=False)
class Select(Expr):
    cond: Expr
    then: Expr
    other: Expr

    @_kept
    def dtype(self) -> DType:
        return self.then.dtype

    @_kept
    def children(self) -> tuple[Expr, ...]:
        return (self.cond, self.then, self.other)


@dataclass(frozen=True, eq=False, repr=False)
class Cast(Expr):
    """Conversion. float → int truncates, saturates, NaN gives 0; int → int wraps; any → bool is `!= 0`."""

    value: Expr
    type: DType

    @property
    def dtype(self) -> DType:
        return self.type

    @_kept
    def children(self) -> tuple[Expr, ...]:
        return (self.value,)


# --- construction ---------------------------------------------------------------------------------------


@lru_cache(maxsize=1 << 14)
def _index(value: int) -> Const:
    return Const(value, I64)


def const(value: int | float | bool, dtype: DType = I64) -> Const:
    if dtype is I64:
        return _index(int(value))
    if dtype.kind == "bool":
        return Const(bool(value), dtype)
    if dtype.is_integer:
        return Const(int(value), dtype)
    return Const(float(value), dtype)


def as_expr(value: ExprLike, like: DType = I64) -> Expr:
    return value if isinstance(value, Expr) else const(value, like)


_INT_FOLD: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b if b else 0,
    "mod": lambda a, b: a % b if b else 0,
    "min": min,
    "max": max,
}
COMPARE: dict[str, Callable] = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}


def binary(op: str, a: ExprLike, b: ExprLike) -> Expr:
    """a op b, folding i64 constants and the neutral elements of i64 arithmetic."""
    like = a.dtype if isinstance(a, Expr) else b.dtype if isinstance(b, Expr) else I64
    x, y = as_expr(a, like), as_expr(b, like)
    if x.dtype is not y.dtype:
        raise InternalError(f"{op}: operand types differ: {x.dtype} and {y.dtype}")
    if x.dtype is I64:
        cx = x.value if isinstance(x, Const) else None
        cy = y.value if isinstance(y, Const) else None
        if cx is not None and cy is not None:
            if op in _INT_FOLD:
                return const(wrapped(_INT_FOLD[op](int(cx), int(cy)), I64))
            if op in COMPARE:
                return const(COMPARE[op](cx, cy), BOOL)
        if cy == 0 and op in ("add", "sub"):
            return x
        if cx == 0 and op == "add":
            return y
        if (cy == 1 and op in ("mul", "floordiv")) or (cy == 0 and op in ("shl", "shr")):
            return x
        if cx == 1 and op == "mul":
            return y
        if (op == "mul" and (cx == 0 or cy == 0)) or (op == "mod" and cy == 1):
            return const(0)
    elif x.dtype is BOOL and op in ("and", "or"):
        if x is y:
            return x
        absorbing = op == "or"
        for p, q in ((x, y), (y, x)):
            if isinstance(p, Const):
                return p if p.value == absorbing else q
    return Binary(op, x, y)


def call(op: str, *args: ExprLike) -> Expr:
    if op not in FUNCTIONS:
        raise InternalError(f"unknown scalar function {op!r}")
    like = next((a.dtype for a in args if isinstance(a, Expr)), F32)
    exprs = tuple(as_expr(a, like) for a in args)
    if op == "not" and isinstance(exprs[0], Const) and exprs[0].type is BOOL:
        return const(not exprs[0].value, BOOL)
    return Call(op, exprs)


def select(cond: Expr, then: ExprLike, other: ExprLike) -> Expr:
    like = then.dtype if isinstance(then, Expr) else other.dtype if isinstance(other, Expr) else F32
    x, y = as_expr(then, like), as_expr(other, like)
    if x.dtype is not y.dtype:
        raise InternalError(f"select: branch types differ: {x.dtype} and {y.dtype}")
    if isinstance(cond, Const):
        return x if cond.value else y
    return Select(cond, x, y)


def cast(value: Expr, dtype: DType) -> Expr:
    if value.dtype is dtype:
        return value
    if isinstance(value, Const) and dtype.is_float and value.type.kind != "bool" and abs(value.value) < 2048:
        return const(float(value.type.numpy.type(value.value)), dtype)
    return Cast(value, dtype)


def lt(a: ExprLike, b: ExprLike) -> Expr:
    return binary("lt", a, b)


def le(a: ExprLike, b: ExprLike) -> Expr:
    return binary("le", a, b)


def ge(a: ExprLike, b: ExprLike) -> Expr:
    return binary("ge", a, b)


def eq(a: ExprLike, b: ExprLike) -> Expr:
    return binary("eq", a, b)


def both(*conditions: Expr) -> Expr:
    """The conjunction; true for none."""
    result: Expr = const(True, BOOL)
    for c in conditions:
        result = binary("and", result, c)
    return result


def minimum(a: ExprLike, b: ExprLike) -> Expr:
    return binary("min", a, b)


def maximum(a: ExprLike, b: ExprLike) -> Expr:
    return binary("max", a, b)


def within(index: Expr, extent: int) -> Expr:
    """0 <= index < extent."""
    return both(binary("ge", index, 0), binary("lt", index, extent))


def lowest(dtype: DType) -> Const:
    """The identity of max: -inf for floats, the least integer, False."""
    if dtype.is_float:
        return const(-np.inf, dtype)
    return const(False, dtype) if dtype is BOOL else const(int(np.iinfo(dtype.numpy).min), dtype)


def highest(dtype: DType) -> Const:
    """The identity of min."""
    if dtype.is_float:
        return const(np.inf, dtype)
    return const(True, dtype) if dtype is BOOL else const(int(np.iinfo(dtype.numpy).max), dtype)


# --- traversal ------------------------------------------------------------------------------------------


def children(e: Expr) -> tuple[Expr, ...]:
    return e.children


def _label(e: Expr) -> object:
    """What distinguishes a node besides its class and its children."""
    match e:
        case Const(value=v, type=d):
            return (repr(v), d.code)
        case Var(name=n):
            return n
        case Load(tensor=t, type=d):
            return (t, d.code)
        case Binary(op=op) | Call(op=op):
            return op
        case Cast(type=d):
            return d.code
    return None


def _hashed(e: Expr) -> int:
    """The hash of an expression, kept in every object of it."""
    stack = [e]
    while "_hash" not in e.__dict__:
        top = stack[-1]
        missing = [c for c in top.children if "_hash" not in c.__dict__]
        stack.extend(missing)
        if not missing:
            top.__dict__["_hash"] = hash((type(top).__name__, _label(top), top.children))
            stack.pop()
    return int(e.__dict__["_hash"])


def _same(a: Expr, b: Expr) -> bool:
    """Equality by value, each pair of objects compared once."""
    seen: set[tuple[int, int]] = set()
    stack = [(a, b)]
    while stack:
        x, y = stack.pop()
        if x is y or (id(x), id(y)) in seen:
            continue
        seen.add((id(x), id(y)))
        below, others = children(x), children(y)
        if type(x) is not type(y) or _label(x) != _label(y) or len(below) != len(others):
            return False
        stack.extend(zip(below, others))
    return True


def rebuild(e: Expr, parts: tuple[Expr, ...]) -> Expr:
    """`e` with other children, constants folded."""
    match e:
        case Load():
            return Load(e.tensor, parts, e.type)
        case Binary():
            return binary(e.op, *parts)
        case Call():
            return call(e.op, *parts)
        case Select():
            return select(*parts)
        case Cast():
            return cast(parts[0], e.type)
    return e


def transform(e: Expr, fn: Callable[[Expr], Expr | None]) -> Expr:
    """Rewrites from the leaves up: each rebuilt node becomes fn(node), or stays where fn gives None.

    fn is asked once per object, and shared objects stay shared.
    """
    done: dict[int, Expr] = {}
    stack = [e]
    while stack:
        top = stack[-1]
        parts = children(top)
        missing = [p for p in parts if id(p) not in done]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        if id(top) in done:
            continue
        new = tuple(done[id(p)] for p in parts)
        rebuilt = rebuild(top, new) if any(n is not p for n, p in zip(new, parts)) else top
        result = fn(rebuilt)
        done[id(top)] = rebuilt if result is None else result
    return done[id(e)]


def substitute(e: Expr, values: Mapping[str, Expr]) -> Expr:
    """Replaces variables by name."""
    if variables(e).isdisjoint(values):
        return e
    return transform(e, lambda x: values.get(x.name) if isinstance(x, Var) else None)


def walk(*expressions: Expr) -> Iterator[Expr]:
    """Every object of the expressions, once, in each of them parents before children."""
    seen: set[int] = set()
    stack = [*reversed(expressions)]
    while stack:
        top = stack.pop()
        if id(top) not in seen:
            seen.add(id(top))
            yield top
            stack.extend(reversed(children(top)))


def variables(e: Expr) -> frozenset[str]:
    stack = [e]
    while "_variables" not in e.__dict__:
        top = stack[-1]
        missing = [c for c in top.children if "_variables" not in c.__dict__]
        stack.extend(missing)
        if not missing:
            below = [c.__dict__["_variables"] for c in top.children]
            own = frozenset((top.name,)) if isinstance(top, Var) else frozenset[str]().union(*below)
            object.__setattr__(top, "_variables", own)
            stack.pop()
    return e.__dict__["_variables"]


def guards(e: Expr) -> tuple[Expr, ...]:
    """The conditions of all its selects."""
    found: tuple[Expr, ...] | None = e.__dict__.get("_guards")
    if found is None:
        found = tuple(x.cond for x in walk(e) if isinstance(x, Select))
        object.__setattr__(e, "_guards", found)
    return found


def is_data(e: Expr) -> bool:
    """Whether it depends on values that are read and may be anything, so that its integers may wrap."""
    found: bool | None = e.__dict__.get("_data")
    if found is None:
        checked = isinstance(e, Call) and e.op == "checked"
        found = not checked and (isinstance(e, Load) or any(map(is_data, children(e))))
        object.__setattr__(e, "_data", found)
    return found


def checks(e: Expr) -> bool:
    """Whether computing it reports an index that is out of range."""
    return any(isinstance(x, Call) and x.op == "checked" for x in walk(e))


def touches_memory(e: Expr) -> bool:
    """Whether computing it reads memory, or reports what is out of range."""
    return any(isinstance(x, Load) or (isinstance(x, Call) and x.op == "checked") for x in walk(e))


def loads(*expressions: Expr) -> list[Load]:
    return [x for x in walk(*expressions) if isinstance(x, Load)]


# --- text -----------------------------------------------------------------------------------------------

_SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "and": "&", "or": "|", "xor": "^",
}  # fmt: skip
SIGN_TO_OP = {sign: op for op, sign in _SIGNS.items()}


def text(e: Expr) -> str:
    """Parsed back by `text.parse_scalar`."""
    match e:
        case Const(value=v, type=t):
            return str(v) if t is I64 or t is BOOL else f"{v!r}:{t}"
        case Var(name=n):
            return n
        case Load(tensor=t, index=i, type=d):
            suffix = "" if d is F32 else f":{d}"
            return f"{t}[{', '.join(map(text, i))}]{suffix}"
        case Binary(op=op, a=a, b=b) if op in _SIGNS:
            return f"({text(a)} {_SIGNS[op]} {text(b)})"
        case Binary(op=op, a=a, b=b):
            return f"{op}({text(a)}, {text(b)})"
        case Call(op=op, args=args):
            return f"{op}({', '.join(map(text, args))})"
        case Select(cond=c, then=t, other=o):
            return f"select({text(c)}, {text(t)}, {text(o)})"
        case Cast(value=v, type=t):
            return f"cast({text(v)}, {t})"
    raise InternalError(f"not a scalar expression: {e!r}")


def abbreviated(e: Expr, most: int) -> str:
    """`text`; or how many objects share parts, where they are more than `most` nodes as a tree."""
    stack, count = [e], 0
    while stack and count < most:
        stack.extend(children(stack.pop()))
        count += 1
    return f"<{e.dtype} expression of {sum(1 for _ in walk(e))} objects>" if stack else text(e)


def dtype_named(name: str) -> DType:
    if name not in DTYPES:
        raise InternalError(f"unknown dtype {name!r}; known: {', '.join(DTYPES)}")
    return DTYPES[name]
