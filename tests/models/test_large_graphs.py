"""Graphs that are wide, deep or full of shared values: compiling must not nest or grow with them."""

from __future__ import annotations

import numpy as np
import pytest
from burnish import pipeline

from .net import Net
from .test_realistic_networks import expected


def concatenation_of_300_inputs(n: Net) -> None:
    n.output(n.concat(*(n.input(2, 3) for _ in range(300)), axis=1))


def one_value_concatenated_300_times(n: Net) -> None:
    n.output(n.concat(*[n.input(2, 3)] * 300, axis=0))


def sum_of_300_inputs(n: Net) -> None:
    n.output(n.op("Sum", *(n.input(3, 5) for _ in range(300))))


def value_used_twice_at_each_of_60_levels(n: Net) -> None:
    x = n.input(2, 3)
    for level in range(60):
        x = n.op("Sub", x, n.op("Mul", x, x)) if level % 2 else n.op("Clip", x, n.const(-0.5), n.const(0.5))
    n.output(x)


def chain_of_1500_functions(n: Net) -> None:
    x = n.input(2, 40)
    for level in range(1500):
        x = n.op(("Tanh", "Sigmoid", "Relu", "Neg", "Erf", "Sin")[level % 6], x)
    n.output(x)


def recurrence_unrolled_for_100_steps(n: Net) -> None:
    sequence, state = n.input(2, 100, 8), n.input(2, 1, 8)
    inputs, states = n.normal(8, 8, scale=0.3), n.normal(8, 8, scale=0.3)
    steps = []
    for t in range(100):
        step = n.op("MatMul", n.slice(sequence, 1, t, t + 1), inputs)
        state = n.op("Tanh", n.op("Add", step, n.op("MatMul", state, states)))
        steps.append(state)
    n.output(n.concat(*steps, axis=1))


@pytest.mark.parametrize(
    "describe",
    [
        concatenation_of_300_inputs,
        one_value_concatenated_300_times,
        sum_of_300_inputs,
        value_used_twice_at_each_of_60_levels,
        chain_of_1500_functions,
        recurrence_unrolled_for_100_steps,
    ],
)
def test_large_graph(describe) -> None:
    net = Net()
    describe(net)
    (want,) = expected(net.model(), net.feeds).values()
    (got,) = pipeline.compile(net.model(), threads=2).run(net.feeds).values()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
