"""Reads back what the printers of the representations write: print → parse → print is equal.

    scalar   e := 5 | -1.5:f32 | inf:f32 | True | i | t[e, …] | t[e, …]:i64 | (e + e) | f(e, …)
    others   see print_expr (expr.py), print_program (loops.py), print_graph (graph.py)

Errors are InternalErrors that name the line, what was expected and what was found.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ...errors import InternalError
from . import scalar as s
from .expr import REDUCERS, Axis, Reduce, Stage, TensorExpr
from .graph import Graph, Node
from .loops import Alloc, Barrier, Body, Buffer, For, If, Intrinsic, Prefetch, Program, Stmt, Store
from .scalar import Binary, Call, Cast, Const, Expr, Load, Select, Var
from .types import BOOL, DTYPES, F32, I64, DType, Layout, TensorType

T = TypeVar("T")

_NAME = r"[A-Za-z_]\w*(?:\.\w+)*"
_NUMBER = r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_TYPE = r"\w+\[[^\]]*\](?::[A-Za-z0-9]+)?"
_SIGN = "|".join(re.escape(sign) for sign in sorted(s.SIGN_TO_OP, key=len, reverse=True))


class Cursor:
    """A place in one line of text."""

    def __init__(self, text: str, number: int = 1, ops: Mapping[str, type] | None = None):
        self.text, self.number, self.at = text, number, 0
        self.ops = ops or {}

    def error(self, expected: str) -> InternalError:
        found = self.text[self.at :].strip()
        shown = repr(found[:40]) if found else "the end of the line"
        return InternalError(f"line {self.number}: expected {expected}, found {shown}")

    def take(self, pattern: str) -> str | None:
        """The text that matches here, which is passed over, or None."""
        match = re.compile(r"\s*(" + pattern + ")").match(self.text, self.at)
        if not match:
            return None
        self.at = match.end()
        return match[1]

    def looking_at(self, pattern: str) -> bool:
        return re.compile(r"\s*(?:" + pattern + ")").match(self.text, self.at) is not None

    def expect(self, pattern: str, what: str) -> str:
        found = self.take(pattern)
        if found is None:
            raise self.error(what)
        return found

    def symbol(self, text: str) -> None:
        self.expect(re.escape(text), f"'{text}'")

    def items(self, close: str, item: Callable[[], T]) -> tuple[T, ...]:
        """item, item … up to `close`, which is passed over."""
        found: list[T] = []
        if self.take(re.escape(close)):
            return ()
        while True:
            found.append(item())
            if self.take(re.escape(close)):
                return tuple(found)
            self.expect(",", f"',' or '{close}'")

    def end(self) -> None:
        if self.text[self.at :].strip():
            raise self.error("the end of the line")

    def name(self) -> str:
        return self.expect(_NAME, "a name")

    def integer(self) -> int:
        return int(self.expect(r"-?\d+", "an integer"))

    def dtype(self) -> DType:
        name = self.expect(r"\w+", "a dtype")
        if name not in DTYPES:
            self.at -= len(name)
            raise self.error(f"a dtype ({', '.join(DTYPES)})")
        return DTYPES[name]

    def type(self) -> TensorType:
        return TensorType.parse(self.expect(_TYPE, "a type such as f32[1,64]"))


# --- scalar expressions -----------------------------------------------------------------------------------


def parse_scalar(text: str) -> Expr:
    cursor = Cursor(text)
    e = _scalar(cursor)
    cursor.end()
    return e


def _scalar(c: Cursor) -> Expr:
    if c.take(r"\("):
        a = _scalar(c)
        op = s.SIGN_TO_OP[c.expect(_SIGN, "an operator")]
        b = _scalar(c)
        c.symbol(")")
        return Binary(op, a, b)
    if c.looking_at(r"-?(?:\d|(?:inf|nan):)"):
        return _number(c)
    name = c.expect(_NAME, "a scalar expression")
    if name in ("True", "False"):
        return Const(name == "True", BOOL)
    if c.take(r"\["):
        index = c.items("]", lambda: _scalar(c))
        suffix = c.take(rf":(?:{'|'.join(DTYPES)})\b")
        return Load(name, index, DTYPES[suffix[1:]] if suffix else F32)
    if not c.take(r"\("):
        return Var(name)
    if name == "cast":
        value = _scalar(c)
        c.symbol(",")
        type = c.dtype()
        c.symbol(")")
        return Cast(value, type)
    return _applied(c, name, c.items(")", lambda: _scalar(c)))


def _applied(c: Cursor, name: str, args: tuple[Expr, ...]) -> Expr:
    if name == "select" and len(args) == 3:
        return Select(*args)
    if name in s.FUNCTIONS and args:
        return Call(name, args)
    if name in s.ARITHMETIC and len(args) == 2:
        return Binary(name, *args)
    raise c.error(f"a scalar function and its arguments before this, not {name} of {len(args)}")


def _number(c: Cursor) -> Const:
    text = c.expect(rf"-?(?:{_NUMBER}|inf|nan)", "a number")
    if not c.take(":"):
        if not text.lstrip("-").isdigit():
            raise c.error("':' and the dtype of a number that is no integer")
        return Const(int(text), I64)
    dtype = c.dtype()
    if dtype.is_float:
        return Const(float(text), dtype)
    if not text.lstrip("-").isdigit():
        raise c.error(f"an integer for {dtype} before this")
    return Const(int(text), dtype)


# --- tensor expressions -----------------------------------------------------------------------------------


def _lines(text: str, ops: Mapping[str, type] | None = None) -> Iterator[Cursor]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield Cursor(line, number, ops)


def parse_expr(text: str) -> TensorExpr:
    params: list[tuple[str, TensorType]] = []
    stages: list[Stage] = []
    outputs: tuple[str, ...] | None = None
    for c in _lines(text):
        if outputs is not None:
            raise c.error("nothing after the outputs")
        if c.take(r"param\b(?!\s*\[)"):
            name = c.name()
            c.symbol(":")
            params.append((name, c.type()))
        elif c.take("->"):
            outputs = tuple(n.strip() for n in c.expect(".*", "outputs").split(",") if n.strip())
        else:
            stages.append(_stage(c))
        c.end()
    if outputs is None:
        raise InternalError("tensor expression: expected a last line '-> outputs'")
    return TensorExpr(tuple(params), tuple(stages), outputs)


def _stage(c: Cursor) -> Stage:
    name = c.expect(_NAME, "a stage such as 'y[i < 4]: f32 = …'")
    c.symbol("[")
    axes = c.items("]", lambda: _axis(c))
    c.symbol(":")
    dtype = c.dtype()
    c.symbol("=")
    reduce = None
    if c.looking_at(rf"(?:{'|'.join(sorted(REDUCERS))})\((?:\)|{_NAME} < )"):
        op = c.name()
        c.symbol("(")
        reduce = Reduce(op, c.items(")", lambda: _axis(c)))
    return Stage(name, dtype, axes, _scalar(c), reduce)


def _axis(c: Cursor) -> Axis:
    name = c.name()
    c.symbol("<")
    return Axis(name, c.integer())


# --- loop programs ----------------------------------------------------------------------------------------


def parse_program(text: str) -> Program:
    lines = list(_lines(text))
    if not lines:
        raise InternalError("loop program: expected 'program NAME', found nothing")
    head = lines[0]
    head.expect(r"program\b", "'program'")
    name = head.expect(r"\S+", "the program's name")
    gang = bool(head.take(r"gang\b"))
    head.end()
    groups: dict[str, list[Buffer]] = {"param": [], "temp": []}
    at = 1
    while at < len(lines) and (word := lines[at].take(r"param\b(?!\s*\[)|temp\b(?!\s*\[)")):
        groups[word].append(_buffer(lines[at]))
        lines[at].end()
        at += 1
    reader = _ProgramReader(lines, at)
    body = reader.body(0)
    if reader.at < len(lines):
        raise lines[reader.at].error("an indentation that fits")
    return Program(name, tuple(groups["param"]), body, tuple(groups["temp"]), gang)


def _buffer(c: Cursor) -> Buffer:
    name = c.name()
    c.symbol(":")
    dtype = c.dtype()
    c.symbol("[")
    shape = c.items("]", c.integer)
    return Buffer(name, dtype, shape, c.name())


def _indent(c: Cursor) -> int:
    return len(c.text) - len(c.text.lstrip())


@dataclass
class _ProgramReader:
    lines: list[Cursor]
    at: int

    def body(self, outer: int) -> Body:
        """The statements that stand deeper than `outer`, all at one depth."""
        found: list[Stmt] = []
        depth = _indent(self.lines[self.at]) if self.at < len(self.lines) else 0
        while self.at < len(self.lines) and _indent(self.lines[self.at]) == depth > outer:
            if self.lines[self.at].looking_at(r"else:"):
                break
            found.append(self.statement(self.next(), depth))
        return tuple(found)

    def next(self) -> Cursor:
        self.at += 1
        return self.lines[self.at - 1]

    def statement(self, c: Cursor, depth: int) -> Stmt:
        if c.take(r"for\b(?!\s*\[)"):
            return self.loop(c, depth)
        if c.take(r"if\b(?!\s*\[)"):
            cond = _scalar(c)
            self.opens(c)
            then = self.body(depth)
            other: Body = ()
            following = self.lines[self.at] if self.at < len(self.lines) else None
            if following and _indent(following) == depth and following.take("else:"):
                self.next().end()
                other = self.body(depth)
            return If(cond, then, other)
        if c.take(r"alloc\b(?!\s*\[)"):
            buffer = _buffer(c)
            self.opens(c)
            return Alloc(buffer, self.body(depth))
        if c.take(r"barrier\b(?!\s*\[)"):
            scope = c.name()
            c.end()
            return Barrier(scope)
        if c.take(r"intrinsic\b(?!\s*\[)"):
            name = c.name()
            c.symbol("(")
            operands = c.items(")", lambda: _scalar(c))
            self.opens(c)
            return Intrinsic(name, operands, self.body(depth))
        prefetch = c.take(r"prefetch\b(?!\s*\[)")
        once = bool(prefetch and c.take(r"once\b(?!\s*\[)"))
        buffer_name = c.expect(_NAME, "a statement")
        c.symbol("[")
        index = c.items("]", lambda: _scalar(c))
        if prefetch:
            c.end()
            return Prefetch(buffer_name, index, once)
        c.symbol("=")
        value = _scalar(c)
        c.end()
        return Store(buffer_name, index, value)

    def loop(self, c: Cursor, depth: int) -> For:
        var = c.name()
        c.expect(r"in\b", "'in'")
        c.symbol("[")
        begin = _scalar(c)
        c.symbol(",")
        end = _scalar(c)
        c.symbol(")")
        kind = c.take(_NAME) or "serial"
        self.opens(c)
        return For(var, begin, end, self.body(depth), kind)

    def opens(self, c: Cursor) -> None:
        c.symbol(":")
        c.end()


# --- graphs -----------------------------------------------------------------------------------------------

_VALUE = r"""[\w./]+|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""


def parse_graph(
    text: str, ops: Mapping[str, type], constants: Mapping[str, np.ndarray] | None = None
) -> Graph:
    """`ops` gives the operator classes by name (ops.base.OPS); constants not given are zeros."""
    lines = list(_lines(text, ops))
    if not lines:
        raise InternalError("graph: expected 'graph NAME(inputs) -> outputs', found nothing")
    types: dict[str, TensorType] = {}
    head = lines[0]
    head.expect(r"graph\b", "'graph'")
    name = _value_name(head)
    head.symbol("(")
    inputs = head.items(")", lambda: _typed(head, types))
    head.symbol("->")
    outputs = _listed(head, lambda: _value_name(head))
    arrays: dict[str, np.ndarray] = {}
    nodes: list[Node] = []
    for c in lines[1:]:
        if c.take(r"const\b(?=\s+\S+\s*:)"):
            constant = _typed(c, types)
            c.end()
            type = types[constant]
            given = (constants or {}).get(constant)
            arrays[constant] = np.zeros(type.physical_shape, type.dtype.numpy) if given is None else given
        else:
            nodes.append(_node(c, types))
    return Graph(name, inputs, outputs, tuple(nodes), types, arrays)


def _value_name(c: Cursor) -> str:
    found = c.expect(_VALUE, "the name of a value")
    return ast.literal_eval(found) if found[0] in "'\"" else found


def _typed(c: Cursor, types: dict[str, TensorType]) -> str:
    name = _value_name(c)
    c.symbol(":")
    types[name] = c.type()
    return name


def _listed(c: Cursor, item: Callable[[], str]) -> tuple[str, ...]:
    found = [item()]
    while c.take(","):
        found.append(item())
    return tuple(found)


def _node(c: Cursor, types: dict[str, TensorType]) -> Node:
    outputs = _listed(c, lambda: _typed(c, types))
    c.symbol("=")
    operator = c.name()
    if operator not in c.ops:
        raise c.error(f"an operator before this; {operator} is none")
    c.symbol("(")
    inputs = c.items(")", lambda: None if c.take(r"_(?=\s*[,)])") else _value_name(c))
    c.symbol("{")
    fields = dict(c.items("}", lambda: _field(c, ":")))
    name = _value_name(c) if c.looking_at("['\"]") else ""
    c.end()
    return Node(c.ops[operator](**fields), inputs, outputs, name)


def _field(c: Cursor, sign: str) -> tuple[str, Any]:
    name = c.name()
    c.symbol(sign)
    return name, _literal(c, name)


def _pair(c: Cursor, field: str) -> tuple[Any, Any]:
    key = _literal(c, field)
    c.symbol(":")
    return key, _literal(c, field)


def _literal(c: Cursor, field: str) -> Any:
    """A Python value as `repr` writes it; dtypes, layouts, tensor types and operators too."""
    for start, close, build in (("(", ")", tuple), ("[", "]", list)):
        if c.take(re.escape(start)):
            found = []
            while not c.take(re.escape(close)):
                found.append(_literal(c, field))
                if not c.looking_at(re.escape(close)):
                    c.symbol(",")
            return build(found)
    if c.take(r"\{"):
        return dict(c.items("}", lambda: _pair(c, field)))
    number = c.take(rf"-?(?:{_NUMBER}|inf\b|nan\b)(?![\w.])")
    if number is not None:
        return int(number) if number.lstrip("-").isdigit() else float(number)
    if c.looking_at(r"b?['\"]"):
        return ast.literal_eval(c.expect(r"b?(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")", "a string"))
    if c.looking_at(r"\w+\["):
        return c.type()
    if c.looking_at(rf"(?:{'|'.join(c.ops)})\("):
        operator = c.name()
        c.symbol("(")
        return c.ops[operator](**dict(c.items(")", lambda: _field(c, "="))))
    word = c.expect(r"\w+(?![\w(])", f"a value of {field} that can be read back")
    known = {"None": None, "True": True, "False": False, **DTYPES}
    return known[word] if word in known else Layout.parse(word)
