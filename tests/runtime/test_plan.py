"""The Plan IR: text, verifier, numpy meaning."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from burnish.compiler.ir.plan import BufferRef, Copy, KernelCall, PlanIO, encode, interpret, parse, verify
from burnish.compiler.ir.types import F32, Layout, TensorType
from burnish.errors import InternalError, RunError

from .conftest import NBYTES, ROWS, WEIGHTS, chain_meaning, chain_plan, prepared_plan, some_rows

PYTHON_KERNELS = {
    "add_one": lambda b, begin, end, worker: np.add(_rows(b[0]), 1, out=_rows(b[1])) is None,
    "multiply": lambda b, begin, end, worker: np.multiply(_rows(b[0]), _rows(b[1]), out=_rows(b[2])) is None,
    "reverse": lambda b, begin, end, worker: np.copyto(_rows(b[1]), _rows(b[0])[:, ::-1]),
}


def _rows(buffer: np.ndarray) -> np.ndarray:
    return buffer.view(np.float32).reshape(-1, 16)


def test_text_parses_back():
    odd = PlanIO('a "quoted" näme\n', TensorType(F32, ()))
    copy = Copy(BufferRef.input(1, 4), BufferRef.arena(0, 4, 'v"1'), "Identity_3")
    gang = KernelCall("k", "n", (), (), tasks=0, gang=True, scratch=8, flops=9, bytes=10)
    plan = replace(chain_plan(("avx2", "fma")), inputs=(PlanIO("x", ROWS), odd))
    plan = replace(plan, steps=(*plan.steps, copy, gang))
    assert parse(str(plan)) == plan
    assert str(parse(str(plan))) == str(plan)
    assert parse(str(prepared_plan())) == prepared_plan()


@pytest.mark.parametrize(
    "text", ["", "plan", 'plan "a" target "b" features "" arena 0 weights 0 prepared 0\nfoo']
)
def test_text_that_does_not_parse(text):
    with pytest.raises(InternalError, match="plan text"):
        parse(text)


def _step(plan, number, **changes):
    steps = list(plan.steps)
    steps[number] = replace(steps[number], **changes)
    return replace(plan, steps=tuple(steps))


def _arg(plan, number, position, ref):
    args = list(plan.steps[number].args)
    args[position] = ref
    return _step(plan, number, args=tuple(args))


PLAN = chain_plan()
PREPARED = prepared_plan()


def _setup(number, **changes):
    setup = list(PREPARED.setup)
    setup[number] = replace(setup[number], **changes)
    return replace(PREPARED, setup=tuple(setup))


IN, OUT = BufferRef.input, BufferRef.output
BROKEN = {
    "outside": replace(PLAN, arena_size=NBYTES),
    "outside of its space of -1": _arg(PLAN, 0, 0, IN(1, NBYTES)),
    "not aligned": _arg(PLAN, 0, 1, BufferRef.arena(32, NBYTES)),
    "never written": replace(PLAN, steps=PLAN.steps[1:]),
    "output 'y'": replace(PLAN, steps=PLAN.steps[:-1]),
    "read-only": _step(PLAN, 0, writes=(0, 1)),
    "while it reads": _arg(PLAN, 1, 2, BufferRef.arena(64, NBYTES)),
    "of 3 arguments": _step(PLAN, 1, writes=(3,)),
    "must not be negative": _step(PLAN, 0, tasks=-1),
    "prepared 64, but the setup makes 0": replace(PLAN, prepared_size=64),
    "not there yet": _setup(0, args=(BufferRef.input(0, NBYTES), BufferRef.arena(0, NBYTES))),
    "writes to weights": _setup(2, args=(BufferRef.prepared(0, NBYTES), BufferRef.weights(0, NBYTES))),
    "writes to prepared": replace(PREPARED, steps=(PREPARED.setup[2], *PREPARED.steps)),
    r"setup step 0 .*never written": replace(PREPARED, setup=PREPARED.setup[1:]),
    "plain layout": replace(PLAN, inputs=(PlanIO("x", replace(ROWS, layout=Layout((1, 0)))),)),
}


@pytest.mark.parametrize("reason", BROKEN)
def test_verify_refuses(reason):
    verify(PLAN)
    verify(PREPARED)
    with pytest.raises(InternalError, match=reason):
        verify(BROKEN[reason])


def test_verify_finds_a_value_overwritten_while_needed():
    clobber = KernelCall("add_one", "Add", (IN(0, 64), BufferRef.arena(0, 64, "other")), (1,))
    with pytest.raises(InternalError, match="overwritten by the value 'other'"):
        verify(replace(PLAN, steps=(PLAN.steps[0], clobber, *PLAN.steps[1:])))


def test_interpret_is_the_meaning():
    x = some_rows()
    got = interpret(PLAN, PYTHON_KERNELS, {"x": x}, WEIGHTS.tobytes())["y"]
    np.testing.assert_array_equal(got, chain_meaning(x))
    got = interpret(PREPARED, PYTHON_KERNELS, {"x": x}, WEIGHTS.tobytes())["y"]
    np.testing.assert_array_equal(got, chain_meaning(x, WEIGHTS + 1))


def test_interpret_names_the_failing_node():
    failing = {**PYTHON_KERNELS, "multiply": lambda *_: 1}
    with pytest.raises(RunError, match="Mul_1"):
        interpret(PLAN, failing, {"x": some_rows()}, WEIGHTS)


def test_encode_is_deterministic_and_documented():
    blob = encode(PLAN)
    assert blob == encode(parse(str(PLAN)))
    assert blob[:8] == b"BURNPLAN"
    assert int.from_bytes(blob[16:24], "little") == len(blob)
