"""Scalar expressions of loop programs → Python source, for `loops_interpreter`.

Integers and bools are Python's, floats are numpy scalars. Inside a vector loop an expression that differs
between lanes is a numpy array over the lanes, and what it reads is guarded by a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import InternalError
from . import loops_support as support
from . import scalar as s
from .affine import Range, bounds
from .loops import Buffer
from .numpy_scalar import apply_binary, apply_call, convert, dot4, word
from .scalar import DOTS, Binary, Call, Cast, Const, Expr, Load, Select, Var
from .types import BOOL, I64, DType

_SAFE = 1 << 62
_SIGNS = {op: sign for sign, op in s.SIGN_TO_OP.items()}
_BOOL_OPS = {"add": "|", "or": "|", "max": "|", "mul": "&", "and": "&", "min": "&", "xor": "^"}
_INT_HELPERS: dict[str, Callable] = {
    "div": support.int_div, "rem": support.int_rem, "floordiv": support.floor_div, "mod": support.floor_mod,
    "pow": support.int_pow,
}  # fmt: skip
_LONG = 400  # characters of an expression after which it gets a line of its own: Python nests 200 parentheses


@dataclass
class Slot:
    """The name of one buffer's Memory in the source; `checked`: some of its elements may be undefined."""

    buffer: Buffer
    name: str
    checked: bool
    per_lane: bool = False


@dataclass
class Lanes:
    """The vector loop around a statement: names of its lane values and of the mask ("None": all)."""

    values: str
    positions: str
    varying: set[str]
    mask: str = "None"


def _guarded(e: Expr) -> bool:
    """Whether evaluating the node itself may fail, so that it must wait for its guard."""
    return isinstance(e, Load) or (isinstance(e, Call) and e.op == "checked")


@dataclass
class Writer:
    """Python source under construction, and the objects that it names."""

    lines: list[str] = field(default_factory=list)
    depth: int = 1
    names: dict[str, str] = field(default_factory=dict)  # loop variables
    ranges: dict[str, Range] = field(default_factory=dict)
    slots: dict[str, Slot] = field(default_factory=dict)
    objects: dict[str, Any] = field(default_factory=dict)
    lanes: Lanes | None = None
    _known: dict[tuple[bool, Expr], str] = field(default_factory=dict)
    _uses: dict[Expr, int] = field(default_factory=dict)
    _certain: dict[Expr, frozenset[Expr]] = field(default_factory=dict)
    _count: int = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def fresh(self, prefix: str = "t") -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def temp(self, code: str) -> str:
        name = self.fresh()
        self.line(f"{name} = {code}")
        return name

    def object(self, value: Any, prefix: str = "c") -> str:
        """The name of `value` in the written source."""
        name = value.__name__ if callable(value) and hasattr(value, "__name__") else ""
        if not name.isidentifier() or self.objects.get(name, value) is not value:
            name = self.fresh(prefix)
        self.objects[name] = value
        return name

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """The lines written inside stand under `head`; values known inside are forgotten after it."""
        self.line(head)
        known, count = self._known, len(self.lines)
        self._known = dict(known)
        self.depth += 1
        yield
        if len(self.lines) == count:
            self.line("pass")
        self.depth -= 1
        self._known = known

    def start(self, *expressions: Expr) -> None:
        """Begins a statement: a value is computed once in it, loads included."""
        self._known = {}
        self._uses, self._certain = {}, {}
        seen: set[Expr] = set()
        stack = list(expressions)
        while stack:
            e = stack.pop()
            self._uses[e] = self._uses.get(e, 0) + 1
            if e not in seen:
                seen.add(e)
                stack.extend(s.children(e))

    # --- one value for all lanes --------------------------------------------------------------------------

    def value(self, e: Expr) -> str:
        """Code for a value that all lanes share."""
        return self._remember(e, False, self._scalar)

    def _remember(self, e: Expr, in_lanes: bool, write: Callable[[Expr], str]) -> str:
        key = (in_lanes, e)
        if key not in self._known:
            code = write(e)
            if (self._uses.get(e, 0) > 1 and s.children(e)) or len(code) > _LONG:
                code = self.temp(code)
            if code.isidentifier() or not s.children(e):
                self._known[key] = code
            else:
                return code
        return self._known[key]

    def _scalar(self, e: Expr) -> str:
        match e:
            case Const():
                return self._constant(e)
            case Var(name=n):
                if n not in self.names:
                    raise InternalError(f"variable {n} is not bound")
                return self.names[n]
            case Load():
                return self._load(e)
            case Binary():
                return self._binary(e)
            case Call():
                return self._call(e)
            case Select():
                return self._select(e)
            case Cast():
                return self._cast(e)
        raise InternalError(f"not a scalar expression: {e!r}")

    def _constant(self, e: Const) -> str:
        if e.type.is_float:
            return self.object(e.type.numpy.type(e.value), "c")
        return f"({e.value})" if e.value < 0 else str(e.value)

    def offset(self, slot: Slot, index: tuple[Expr, ...]) -> str:
        """Code for the position of an element; writes the checks that bounds do not make superfluous."""
        shape = slot.buffer.shape
        if len(index) != len(shape):
            raise InternalError(f"{slot.buffer.name} has {len(shape)} axes, indexed with {len(index)}")
        terms = []
        for axis, (i, extent, stride) in enumerate(zip(index, shape, slot.buffer.strides)):
            code = self.value(i)
            low, high = bounds(i, self.ranges)
            if low < 0 or high >= extent:
                code = self.temp(code)
                self.line(f"if not 0 <= {code} < {extent}: {slot.name}.outside({axis}, {code})")
            if code != "0":
                terms.append(code if stride == 1 else f"{code} * {stride}")
        return " + ".join(terms) or "0"

    def _load(self, e: Load) -> str:
        slot = self.slot(e.tensor)
        if slot.per_lane:
            raise InternalError(f"{e.tensor} differs between the lanes of a vector loop; expected one value")
        if e.type is not slot.buffer.dtype:
            raise InternalError(f"{s.text(e)}: the buffer holds {slot.buffer.dtype}")
        at = self.offset(slot, e.index)
        if slot.checked:
            at = self.temp(at) if not at.isalnum() else at
            self.line(f"if not {slot.name}_d[{at}]: {slot.name}.unread({at})")
        return self.temp(f"{slot.name}_v[{at}]" if e.type.is_float else f"{slot.name}_v.item({at})")

    def slot(self, name: str) -> Slot:
        if name not in self.slots:
            raise InternalError(f"buffer {name} is not defined here")
        return self.slots[name]

    def _wrap(self, code: str, e: Expr) -> str:
        """Wrap-around of integers, unless the value is plainly small."""
        dtype = e.dtype
        if dtype is I64 and all(isinstance(x, Var | Const | Binary) for x in s.walk(e)):
            low, high = bounds(e, self.ranges)
            if max(-low, high) < _SAFE:
                return f"({code})"
        bits = dtype.bits
        if dtype.kind == "uint":
            return f"(({code}) & {(1 << bits) - 1})"
        half = 1 << (bits - 1)
        return f"((({code}) + {half} & {(1 << bits) - 1}) - {half})"

    def _binary(self, e: Binary) -> str:
        a, b, dtype = self.value(e.a), self.value(e.b), e.a.dtype
        if e.op in s.COMPARISONS:
            return f"({a} {_SIGNS[e.op]} {b})"
        if dtype is BOOL:
            return f"({a} {_BOOL_OPS[e.op]} {b})"
        if e.op in ("min", "max"):
            return self._extreme(e.op, a, b)
        if dtype.is_float:
            if e.op in ("add", "sub", "mul", "div"):
                return f"({a} {_SIGNS[e.op]} {b})"
            return f"{self.object(apply_binary)}({e.op!r}, {a}, {b})[()]"
        if e.op in ("floordiv", "mod") and isinstance(e.b, Const) and e.b.value > 0:
            return f"({a} {_SIGNS[e.op]} {b})"
        if e.op in ("and", "or", "xor"):
            return f"({a} {_SIGNS[e.op]} {b})"
        if e.op in _INT_HELPERS:
            return self._wrap(f"{self.object(_INT_HELPERS[e.op])}({a}, {b})", e)
        if e.op in ("shl", "shr"):
            helper = support.shift_left if e.op == "shl" else support.shift_right
            return self._wrap(f"{self.object(helper)}({a}, {b}, {dtype.bits})", e)
        if e.op not in ("add", "sub", "mul"):
            raise InternalError(f"unknown scalar operator {e.op!r}")
        return self._wrap(f"{a} {_SIGNS[e.op]} {b}", e)

    def _extreme(self, op: str, a: str, b: str) -> str:
        a, b = (x if x.isidentifier() else self.temp(x) for x in (a, b))
        return f"({a} if {a} {'<' if op == 'min' else '>'} {b} or {a} != {a} else {b})"  # NaN wins

    def _call(self, e: Call) -> str:
        args = [self.value(a) for a in e.args]
        dtype = e.args[0].dtype
        match e.op:
            case "checked":
                i = self.temp(args[0])
                self.line(f"if not 0 <= {i} < {args[1]}: {self.object(support.out_of_range)}()")
                return i
            case "fma" if dtype.is_integer:
                return self._wrap(f"{args[0]} * {args[1]} + {args[2]}", e)
            case "fma" if dtype.name in ("f32", "f64"):
                return (
                    f"{self.object(dtype.numpy.type)}(float({args[0]}) * float({args[1]}) + float({args[2]}))"
                )
            case "word":
                return f"{self.object(word)}({', '.join(args)})"
            case "dot4_u8" | "dot4_i8":
                return f"{self.object(dot4)}({args[0]}, {args[1]}, {DOTS[e.op]})"
            case "not":
                return f"(not {args[0]})" if dtype is BOOL else self._wrap(f"~{args[0]}", e)
            case "neg" if dtype.is_integer:
                return self._wrap(f"-{args[0]}", e)
            case "abs" if dtype.is_integer:
                return self._wrap(f"abs({args[0]})", e)
            case "isnan" if dtype.is_float:
                x = self.temp(args[0])
                return f"({x} != {x})"
        if not dtype.is_float:
            args = [self._as_numpy(code, a.dtype) for code, a in zip(args, e.args)]
        code = f"{self.object(support.float_call(e.op), 'f')}({', '.join(args)})"
        return code if e.dtype.is_float else f"{code}.item()"

    def _select(self, e: Select) -> str:
        result, cond = self.fresh(), self.value(e.cond)
        self._share(e, self.value)
        with self.block(f"if {cond}:"):
            self.line(f"{result} = {self.value(e.then)}")
        with self.block("else:"):
            self.line(f"{result} = {self.value(e.other)}")
        return result

    def _share(self, e: Select, write: Callable[[Expr], str]) -> None:
        """Computes before the branches the loads that both need, and what several places make of them."""
        both = self._certain_loads(e.then) & self._certain_loads(e.other)
        for x in s.walk(e):
            if x in both:
                write(x)
        in_lanes = write == self.in_lanes
        safe: dict[Expr, bool] = {}

        def visit(x: Expr) -> bool:
            if x not in safe:
                if (in_lanes, x) in self._known:
                    safe[x] = True
                    return True
                below = [visit(c) for c in s.children(x)]
                safe[x] = all(below) and not _guarded(x)
                if safe[x] and below and self._uses.get(x, 0) > 1:
                    write(x)
            return safe[x]

        visit(e.then)
        visit(e.other)

    def _certain_loads(self, e: Expr) -> frozenset[Expr]:
        """The loads and checks that happen whenever `e` is evaluated."""
        if e not in self._certain:
            parts = [self._certain_loads(c) for c in s.children(e)]
            if isinstance(e, Select):
                found = parts[0] | (parts[1] & parts[2])
            else:
                found = frozenset({e} if _guarded(e) else ()).union(*parts)
            self._certain[e] = found
        return self._certain[e]

    def _as_numpy(self, code: str, dtype: DType) -> str:
        return code if dtype.is_float else f"{self.object(dtype.numpy.type)}({code})"

    def _cast(self, e: Cast) -> str:
        code, source, target = self.value(e.value), e.value.dtype, e.type
        if source is target:
            return code
        if target is BOOL:
            return f"({code} != 0)"
        if target.is_integer and source.is_float:
            low = 0 if target.kind == "uint" else -(1 << (target.bits - 1))
            high = (1 << (target.bits if target.kind == "uint" else target.bits - 1)) - 1
            return f"{self.object(support.saturate)}({code}, {low}, {high})"
        if target.is_integer:
            return f"int({code})" if source is BOOL else self._wrap(code, e)
        if source.is_float and target.name in ("f32", "f64"):
            return f"{self.object(target.numpy.type)}({code})"
        return f"{self.object(convert)}({self._as_numpy(code, source)}, {self.object(target)})[()]"

    # --- a value per lane -----------------------------------------------------------------------------------

    def varies(self, e: Expr) -> bool:
        """Whether lanes of the vector loop around may hold different values."""
        assert self.lanes
        for x in s.walk(e):
            if isinstance(x, Var) and x.name in self.lanes.varying:
                return True
            if isinstance(x, Load) and self.slot(x.tensor).per_lane:
                return True
        return False

    def in_lanes(self, e: Expr) -> str:
        """Code for a numpy array over the lanes, or for a numpy scalar where they agree."""
        return self._remember(e, True, self._lanes)

    def _lanes(self, e: Expr) -> str:
        assert self.lanes
        if not self.varies(e) and (self.lanes.mask == "None" or not any(map(_guarded, s.walk(e)))):
            return self._as_numpy(self.value(e), e.dtype)
        match e:
            case Var(name=n):
                return self.names[n]
            case Load():
                slot = self.slot(e.tensor)
                index = self.lane_index(slot, e.index)
                return self.temp(f"{self.object(support.lane_load)}({slot.name}, {index}, {self.lanes.mask})")
            case Binary(op=op, a=a, b=b):
                return f"{self.object(apply_binary)}({op!r}, {self.in_lanes(a)}, {self.in_lanes(b)})"
            case Call(op=op, args=args):
                values = ", ".join(map(self.in_lanes, args))
                return self.temp(f"{self.object(apply_call)}({op!r}, [{values}], {self.lanes.mask})")
            case Select():
                return self._lane_select(e)
            case Cast(value=v, type=t):
                return f"{self.object(convert)}({self.in_lanes(v)}, {self.object(t)})"
        raise InternalError(f"not a scalar expression: {e!r}")

    def lane_index(self, slot: Slot, index: tuple[Expr, ...]) -> str:
        assert self.lanes
        parts = [self.lanes.positions] if slot.per_lane else []
        parts += [self.in_lanes(i) for i in index]
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"

    def _lane_select(self, e: Select) -> str:
        cond = self.temp(self.in_lanes(e.cond))
        self._share(e, self.in_lanes)
        with self.masked(cond):
            then = self.temp(self.in_lanes(e.then))
        with self.masked(f"~{cond}"):
            other = self.temp(self.in_lanes(e.other))
        return f"{self.object(np.where)}({cond}, {then}, {other})"

    @contextmanager
    def masked(self, cond: str) -> Iterator[None]:
        """What is written inside concerns the lanes where `cond` holds."""
        assert self.lanes
        outer, known = self.lanes.mask, self._known
        self.lanes.mask = self.temp(f"{self.object(support.narrow)}({outer}, {cond})")
        self._known = dict(known)
        yield
        self.lanes.mask, self._known = outer, known
