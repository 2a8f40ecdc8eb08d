"""Printed representations read back as what they were, and errors say where and what."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from burnish.compiler.ir.expr import print_expr
from burnish.compiler.ir.graph import Graph, Node, print_graph
from burnish.compiler.ir.loops import Alloc, Buffer, If, Prefetch, Program, Store, loop, print_program
from burnish.compiler.ir.scalar import Const, Load, Var, text
from burnish.compiler.ir.text import parse_expr, parse_graph, parse_program, parse_scalar
from burnish.compiler.ir.types import BOOL, F32, TensorType
from burnish.compiler.ops.base import OPS
from burnish.compiler.ops.movement import Identity
from burnish.errors import InternalError
from hypothesis import given, settings

from ..ops.case import all_cases, build_expr, build_graph
from .programs import ALL, ZERO
from .strategies import any_scalar
from .test_expr import padded_window, softmax
from .test_graph import network


@settings(max_examples=150, deadline=None)
@given(any_scalar())
def test_scalars(e):
    printed = text(e)
    assert parse_scalar(printed) == e
    assert text(parse_scalar(printed)) == printed


@pytest.mark.parametrize(
    "printed",
    ["-1.5:f32", "-inf:f64", "nan:bf16", "1e-05:f32", "1e+20:f16", "-7", "(i + -3)", "-3:i8", "x[]",
     "checked(x[i]:i64, 5)", "libm.pow(x[]:f64, 2.0:f64)", "min(i, 3)", "shr(i, 1)", "bitcast_i32(x[])",
     "cast((x[i]:u8 & 3:u8), bool)", "not(True)"],
)  # fmt: skip
def test_scalar_texts(printed):
    assert text(parse_scalar(printed)) == printed


SPECIAL = Program(
    "every.kind_of/statement",
    (Buffer("param", F32, ()), Buffer("for", F32, (2, 0, 3))),
    (
        If(
            Load("flag", (), BOOL),
            (Prefetch("param", ()), Prefetch("once", (Var("i"),), True)),
            (Store("param", (), ZERO),),
        ),
        If(Const(True, BOOL), (loop("i", Var("n"), begin=Var("i0"), kind="unroll"),)),
        Alloc(Buffer("barrier", F32, (3,), "scratch"), (Store("barrier", (Var("i"),), ZERO),)),
        Store("for", (), ZERO),
    ),
    (Buffer("flag", BOOL, (), "global"), Buffer("once", F32, (4,), "global")),
)


@pytest.mark.parametrize("program", [*ALL, SPECIAL], ids=lambda p: p.name)
def test_programs(program):
    printed = print_program(program)
    assert parse_program(printed) == program
    assert print_program(parse_program(printed)) == printed


@pytest.mark.parametrize("expression", [softmax(), padded_window()])
def test_expressions(expression):
    assert parse_expr(print_expr(expression)) == expression


def test_expressions_of_every_operator():
    for case in all_cases():
        if case.op.has("compute"):
            expression = build_expr(case)
            assert parse_expr(print_expr(expression)) == expression, case.id


def test_graphs_of_every_operator():
    for case in all_cases():
        graph = build_graph(case)
        printed = print_graph(graph)
        parsed = parse_graph(printed, OPS, graph.constants)
        assert print_graph(parsed) == printed
        assert (parsed.nodes, parsed.types) == (graph.nodes, dict(graph.types)), case.id


def test_graph_constants_are_given_or_zero():
    graph = network()
    parsed = parse_graph(print_graph(graph), OPS)
    assert not parsed.constants["w"].any() and parsed.constants["w"].shape == (2, 3)
    given_back = parse_graph(print_graph(graph), OPS, graph.constants)
    np.testing.assert_array_equal(given_back.constants["w"], graph.constants["w"])


def test_graph_names_may_be_anything():
    names = ("a b", "it's", '"', "_", "x,y: f32[1]", "back\\slash", "ünïcode", "12")
    types = {n: TensorType(F32, (1,)) for n in names}
    nodes = tuple(Node(Identity(), (a,), (b,), f"node {b}") for a, b in pairwise(names))
    graph = Graph("const x", names[:1], names[-1:], nodes, types)
    parsed = parse_graph(print_graph(graph), OPS)
    assert (parsed.nodes, parsed.inputs, parsed.outputs) == (nodes, names[:1], names[-1:])


@pytest.mark.parametrize(
    ("parse", "wrong", "message"),
    [
        (parse_scalar, "(a b)", r"line 1: expected an operator, found 'b\)'"),
        (parse_scalar, "x[i", r"expected ',' or '\]', found the end of the line"),
        (parse_scalar, "cast(i, f33)", r"expected a dtype \(f32, .*, found 'f33\)'"),
        (parse_scalar, "frobnicate(i)", "frobnicate of 1"),
        (parse_scalar, "i j", "expected the end of the line, found 'j'"),
        (parse_scalar, "1.5", "dtype of a number"),
        (parse_expr, "param x: f32[3]\ny[i < ]: f32 = x[i]", "line 2: expected an integer"),
        (parse_expr, "param x: f32[3]", "expected a last line"),
        (parse_program, "program p\n  param x: f32[3] param\n for i in [0, 3) vector", "3: expected ':'"),
        (parse_program, "program p\n  x[0] = 0.0:f32\n    x[1] = 0.0:f32\n", "line 3: .*indentation"),
        (parse_program, "prog p", "line 1: expected 'program'"),
        (parse_program, "", "found nothing"),
        (lambda t: parse_graph(t, OPS), "graph g(x: f32[1]) -> y\n y: f32[1] = Frob(x) {}", "Frob is none"),
        (lambda t: parse_graph(t, OPS), "graph g(x: f32[1] -> y", r"expected ',' or '\)'"),
    ],
)  # fmt: skip
def test_errors_say_where_and_what(parse, wrong, message):
    with pytest.raises(InternalError, match=message):
        parse(wrong)
