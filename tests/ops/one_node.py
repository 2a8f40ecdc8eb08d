"""A model of one node, compared with onnxruntime."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from burnish import pipeline
from burnish.compiler.ir.graph import interpret
from burnish.frontends.onnx.importer import import_onnx
from onnx import helper

RNG = np.random.default_rng(7)
Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Node:
    """One node. Inputs with fewer than two axes, but the first, are initializers: they may decide shapes.

    constant   whether all inputs are initializers
    stored     inputs that are, whatever their axes
    without    outputs that the node does not name
    tolerance  absolute and relative; for integers, how far they may be off
    """

    op: str
    inputs: tuple[Array | None, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    opset: int = 18
    tolerance: float = 1e-5
    domain: str = ""
    without: tuple[int, ...] = ()
    constant: bool = False
    stored: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.op}{self.opset} {self.attributes}"

    def feeds(self) -> dict[str, Array]:
        given = [(n, a) for n, a in enumerate(self.inputs) if a is not None and not self.constant]
        return {f"x{n}": a for n, a in given if n not in self.stored and (n == 0 or a.ndim > 1)}

    def model(self) -> onnx.ModelProto:
        names = ["" if a is None else f"x{n}" for n, a in enumerate(self.inputs)]
        feeds = self.feeds()
        results = ["" if n in self.without else f"y{n}" for n in range(self.outputs)]
        graph = helper.make_graph(
            [helper.make_node(self.op, names, results, "node", domain=self.domain, **self.attributes)],
            self.op,
            [value_info(name, a) for name, a in feeds.items()],
            [helper.make_empty_tensor_value_info(name) for name in results if name],
            [
                onnx.numpy_helper.from_array(a, n)
                for n, a in zip(names, self.inputs)
                if a is not None and n not in feeds
            ],
        )
        opsets = [helper.make_opsetid("", self.opset)]
        opsets += [helper.make_opsetid(self.domain, 1)] if self.domain else []
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def value_info(name: str, array: Array) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def f32(*shape: int) -> Array:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def floats(*values: float) -> Array:
    return np.array(values, np.float32)


def assert_agrees(node: Node) -> None:
    """The imported node's references, what is compiled, and onnxruntime give the same."""
    import onnxruntime

    model, feeds = node.model(), node.feeds()
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, feeds)
    for info, array in zip(model.graph.output, expected):
        info.CopyFrom(value_info(info.name, array))
    with np.errstate(all="ignore"):
        interpreted = interpret(import_onnx(model), feeds)
    compiled = pipeline.compile(model, cache=False).run(feeds)
    for how, actual in (("interpreted", interpreted), ("compiled", compiled)):
        assert len(actual) == len(expected)
        for name, want in zip(actual, expected):
            assert_close(actual[name], want, node.tolerance, f"{name}, {how}")


def assert_close(have: Array, want: Array, tolerance: float, what: str = "") -> None:
    """Of one type and shape, and within the tolerance, absolute and relative; integers absolute."""
    assert (have.dtype, have.shape) == (want.dtype, want.shape), what
    whole = want.dtype.kind in "iu"
    have, want = (a.astype(np.int64) if whole else a for a in (have, want))
    np.testing.assert_allclose(have, want, rtol=0 if whole else tolerance, atol=tolerance, err_msg=what)
