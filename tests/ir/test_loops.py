"""The verifier of loop programs: what it accepts and what it refuses, and helpers that walk programs."""

from __future__ import annotations

import pytest
from burnish.compiler.ir import scalar as s
from burnish.compiler.ir.loops import (
    Alloc,
    Barrier,
    Buffer,
    For,
    If,
    Prefetch,
    Program,
    Store,
    expressions,
    loop,
    map_expressions,
    substitute,
    walk,
)
from burnish.compiler.ir.loops_verifier import verify
from burnish.compiler.ir.scalar import Binary, Call, Const, Load, Select, Var
from burnish.compiler.ir.types import BOOL, F32, F64, I64
from burnish.errors import InternalError

from .programs import ALL, ZERO, naive_matmul, read, register_tiled_matmul, write

I, J, V = Var("i"), Var("j"), Var("v")
X, Y = Buffer("x", F32, (8,)), Buffer("y", F32, (8,))
R = Buffer("r", F32, (4,), "register")
SHARED = Buffer("s", F32, (4,), "shared")
COPY = write(Y, I, value=read(X, I))


def program(*body, params=(X, Y), temps=(), gang=False):
    return Program("test", params, body, temps, gang)


@pytest.mark.parametrize("correct", ALL, ids=lambda p: p.name)
def test_accepts(correct):
    verify(correct, outputs=[correct.params[-1].name])


def blocks(*body):
    return loop("bx", 2, *body, kind="block.x")


def threads(*body, axis="x"):
    return loop(f"t{axis}", 4, *body, kind=f"thread.{axis}")


WRONG = {
    "variable j is not bound": loop("i", 8, write(Y, J, value=ZERO)),
    "z is not defined here": loop("i", 8, write(Y, I, value=Load("z", (I,), F32))),
    "buffer z is not defined": loop("i", 8, Store("z", (I,), ZERO)),
    "x holds f32 and has 1 axes": loop("i", 8, write(Y, I, value=Load("x", (I, I), F32))),
    "y takes 1 i64 indices": loop("i", 8, write(Y, I, I, value=ZERO)),
    "stores f64 into f32": loop("i", 8, write(Y, I, value=Const(0.0, F64))),
    "operands are f32 and f64": loop("i", 8, write(Y, I, value=Binary("add", ZERO, Const(0.0, F64)))),
    "condition is i64": If(Const(1, I64), (write(Y, 0, value=ZERO),)),
    "condition is f32": write(Y, 0, value=Select(ZERO, ZERO, ZERO)),
    "unknown function frobnicate": write(Y, 0, value=Call("frobnicate", (ZERO,))),
    "fma takes 3 arguments": write(Y, 0, value=Call("fma", (ZERO, ZERO))),
    "exp of i64": loop("i", 8, write(Y, Call("exp", (I,)), value=ZERO)),
    "i shadows": loop("i", 8, loop("i", 8, COPY)),
    "unknown kind 'sideways'": loop("i", 8, COPY, kind="sideways"),
    "bounds of loop i are not i64": For("i", ZERO, Const(8, I64), (COPY,)),
    r"index \(i \+ 1\) of axis 0 of y reaches 1…8": loop("i", 8, write(Y, I + 1, value=ZERO)),
    r"index i of axis 0 of x reaches 0…8": loop("i", 9, If(s.lt(V, 8), (COPY,))) and loop("i", 9, COPY),
    r"index 9 of axis 0 of x reaches 9…9": loop("i", 8, If(s.lt(I, 5), (write(Y, I, value=read(X, 9)),))),
    r"index \(i - 9\)": loop("i", 8, write(Y, I, value=s.select(s.lt(I, 5), read(X, I - 9), ZERO))),
    "stands inside of a vector loop": loop("v", 4, loop("i", 8, COPY), kind="vector"),
    "stands inside of a GPU block": blocks(loop("i", 8, COPY, kind="parallel")),
    "stands inside of another kind": loop("i", 8, blocks(COPY), kind="parallel"),
    "does not just repeat it": loop("i", 8, blocks(COPY)),
    "stands outside of a block loop": threads(write(Y, 0, value=ZERO)),
    "another one of its kind": blocks(threads(loop("i", 4, COPY, kind="thread.x"))),
    "depends? on i, which is not unrolled": loop("i", 8, loop("u", I, kind="unroll")),
    "r is indexed by i, whose loop is serial": Alloc(R, (loop("i", 4, write(R, I, value=ZERO)),)),
    "r is read, but never written": Alloc(R, (write(Y, 0, value=read(R, 0)),)),
    "its place is inside of the block loops": Alloc(SHARED, (write(SHARED, 0, value=ZERO),)),
    "outside of the thread loops": blocks(threads(Alloc(SHARED, (write(SHARED, 0, value=ZERO),)))),
    "register around thread loops": blocks(Alloc(R, (threads(write(R, 0, value=ZERO)),))),
    "has scope global": Alloc(Buffer("g", F32, (4,), "global"), (write(Y, 0, value=ZERO),)),
    "r is already defined": Alloc(R, (Alloc(R, (write(R, 0, value=ZERO),)),)),
    "two different buffers are called y": Alloc(Buffer("y", F32, (4,), "register"), ()),
    "block barrier outside": loop("i", 8, COPY, Barrier("block")),
    "gang barrier in a program that is no gang": loop("i", 8, COPY, Barrier("gang")),
    "barrier inside of a vector loop": blocks(loop("v", 4, Barrier("block"), kind="vector")),
    "whose length differs between threads": blocks(threads(loop("i", Var("tx"), Barrier("block")))),
    "may go different ways": blocks(threads(If(s.lt(Var("tx"), 3), (Barrier("block"),)))),
    "grid barrier outside": loop("i", 8, COPY, Barrier("grid")),
    "where blocks may go": blocks(threads(If(s.lt(Var("bx"), 3), (Barrier("grid"),)))),
    "grid barrier where blocks": blocks(threads(loop("i", Var("bx"), Barrier("grid")))),
    "unknown barrier 'world'": Barrier("world"),
}


@pytest.mark.parametrize("message", WRONG)
def test_refuses(message):
    with pytest.raises(InternalError, match="loop program test: .*" + message):
        verify(program(WRONG[message]))


def test_refuses_buffers_that_collide_or_stand_in_the_wrong_place():
    with pytest.raises(InternalError, match="x is defined twice"):
        verify(program(params=(X, X)))
    with pytest.raises(InternalError, match="r has scope register, expected param"):
        verify(program(params=(R,)))
    with pytest.raises(InternalError, match="y has scope param, expected global"):
        verify(program(params=(X,), temps=(Y,)))
    with pytest.raises(InternalError, match=r"writes y, expected x"):
        verify(program(loop("i", 8, COPY)), outputs=["x"])


TAIL = Var("o") * 4 + V
GUARDED = {
    "select": loop("i", 8, write(Y, I, value=s.select(s.within(I + 3, 8), read(X, I + 3), ZERO))),
    "if": loop("i", 9, If(s.lt(I, 8), (COPY,))),
    "else": loop("i", 9, If(s.ge(I, 8), (), (COPY,))),
    "both": loop("i", 12, If(s.both(s.ge(I, 2), s.lt(I, 8)), (write(Y, I - 2, value=read(X, I)),))),
    "tail": loop("o", 3, loop("v", 4, If(s.lt(TAIL, 8), (write(Y, TAIL, value=ZERO),)))),
    "data": loop("i", 8, write(Y, I, value=read(X, s.cast(read(X, I), I64)))),
    "dead": If(Const(False, BOOL), (write(Y, 40, value=ZERO),)),
    "empty": loop("i", 0, write(Y, I + 40, value=ZERO)),
    "order": loop("v", 8, Barrier("order"), write(Y, V, value=ZERO), kind="vector"),
    "prefetch": loop("i", 8, Prefetch("x", (I + 7,)), COPY),
}  # fmt: skip


@pytest.mark.parametrize("name", GUARDED)
def test_accepts_what_is_guarded_or_unknown(name):
    verify(program(GUARDED[name]))


def test_gang_programs_know_their_worker():
    mine = write(Y, Var("worker"), value=s.cast(Var("workers"), F32))
    verify(program(mine, gang=True))
    with pytest.raises(InternalError, match="variable worker"):
        verify(program(mine))


def test_register_indices_may_use_loops_of_one_iteration():
    verify(program(Alloc(R, (loop("i", 1, write(R, I, value=ZERO)), COPY_ONE))))


COPY_ONE = write(Y, 0, value=read(R, 0))


def test_siblings_may_reuse_names():
    part = Alloc(R, (write(R, 0, value=ZERO), COPY_ONE))
    verify(program(part, part, loop("i", 8, COPY), loop("i", 8, COPY)))


def test_walk_and_buffers():
    tiled = register_tiled_matmul()
    kinds = [st.kind for st in walk(tiled.body) if isinstance(st, For)]
    assert kinds.count("vector") == kinds.count("unroll") == 3 and kinds[0] == "parallel"
    assert tiled.buffers()["acc"].scope == "register"
    assert tiled.written() == {"C", "acc"} and naive_matmul().written() == {"C"}
    buffer = Buffer("b", F32, (2, 3, 4))
    assert (buffer.size, buffer.strides, buffer.nbytes) == (24, (12, 4, 1), 96)


def test_substitute_reaches_every_expression():
    body = (loop("j", I, If(s.lt(J, I), (write(Y, I, value=read(X, I)), Prefetch("x", (I,))))),)
    fixed = substitute(body, {"i": s.const(3)})
    left = {v for st in walk(fixed) for e in expressions(st) for v in s.variables(e)}
    assert left == {"j"}
    assert map_expressions(body, lambda e: e) == body
    assert loop("i", 5, begin=2).extent == 3 and loop("i", I).extent is None
