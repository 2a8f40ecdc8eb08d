"""Every operator that is given as a loop program: its interpreted program against its numpy reference."""

import numpy as np
import pytest
from burnish.compiler.ir.loops_interpreter import ORDERS, interpret

from .case import Case, all_cases, assert_outputs


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("case", [c for c in all_cases() if c.op.has("loops")], ids=lambda case: case.id)
def test_reference(case: Case, order: str) -> None:
    inputs = case.types
    program = case.op.loops(inputs, case.op.infer(*inputs))
    arrays = [a for a in case.arrays() if a is not None]
    outputs = program.params[len(arrays) :]
    blank = [np.zeros(p.shape, p.dtype.numpy) for p in outputs]
    assert_outputs(case, interpret(program, [*arrays, *blank], order=order))
