"""Small graphs for tests of passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from burnish.compiler.ir.graph import Graph, interpret, verify
from burnish.compiler.ir.types import TensorType
from burnish.compiler.ops.base import Decomposer


def make(inputs: dict[str, str], body: Callable[..., str | Sequence[str]]) -> Graph:
    """The graph whose outputs `body(g, *inputs)` returns; `inputs` are types as text, such as "f32[2,3]"."""
    types = {name: TensorType.parse(text) for name, text in inputs.items()}
    g = Decomposer("n", dict(types), {})
    outputs = body(g, *inputs)
    named = (outputs,) if isinstance(outputs, str) else tuple(outputs)
    graph = Graph("test", tuple(inputs), named, tuple(g.nodes), g.types, g.constants)
    verify(graph)
    return graph


def feed(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Of integers of 8 bits all, of other types some around 0."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for name in graph.inputs:
        type = graph.types[name]
        if type.dtype.is_integer and type.dtype.bits == 8:
            info = np.iinfo(type.dtype.numpy)
            arrays[name] = rng.integers(info.min, info.max + 1, type.dims).astype(type.dtype.numpy)
            continue
        values = rng.normal(size=type.dims) * 3
        arrays[name] = values.astype(type.dtype.numpy)
    return arrays


def scale_of(expected: np.ndarray) -> float:
    """The largest finite size: what is infinite lends others no tolerance."""
    sizes = np.abs(expected.astype(np.float64))
    return float(sizes[np.isfinite(sizes)].max(initial=1e-30))


def assert_same(before: Graph, after: Graph, rtol: float = 2e-6) -> None:
    """Both are valid, have the same interface, and compute the same on random inputs."""
    verify(after)
    assert (after.inputs, after.outputs) == (before.inputs, before.outputs)
    for output in before.outputs:
        assert (before.types[output].dtype, before.types[output].shape) == (
            after.types[output].dtype,
            after.types[output].shape,
        )
    arrays = feed(before)
    expected, actual = interpret(before, arrays), interpret(after, arrays)
    for output in before.outputs:
        atol = rtol * scale_of(expected[output])
        np.testing.assert_allclose(actual[output], expected[output], rtol=rtol, atol=atol)


def op_names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]
