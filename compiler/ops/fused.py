"""A fused operator: a small graph that becomes one kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ir.expr import ExprBuilder, Tensor, TensorExpr, Uniform
from ..ir.graph import Graph, interpret
from ..ir.types import TensorType
from .base import Op


@dataclass(frozen=True, eq=False)
class FusedOp(Op):
    """`graph` has this operator's inputs and outputs as its own. Weights are inputs; only one-element
    constants are inside. `algorithm`: the one of the templates' decided on; weights are packed for it.
    Equal only to itself.
    """

    graph: Graph
    algorithm: str = ""

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def label(self) -> str:
        """Names its operators: conv_add_relu."""
        return "_".join(_short(node.op) for node in self.graph.nodes)

    def attributes(self) -> dict[str, Any]:
        return {"ops": self.label}

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        return tuple(self.graph.types[o] for o in self.graph.outputs)

    def reference(self, *inputs: Any) -> tuple[np.ndarray, ...]:
        results = interpret(self.graph, dict(zip(self.graph.inputs, inputs)))
        return tuple(results[o] for o in self.graph.outputs)

    def compute(self, b: ExprBuilder, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        env: dict[str, Tensor] = {n: t for n, t in zip(self.graph.inputs, inputs) if t is not None}
        for name, array in self.graph.constants.items():
            type = self.graph.types[name]
            env[name] = Uniform(name, type.dtype, type.dims, array.reshape(-1)[0].item())
        for node in self.graph.nodes:
            results = node.op.compute(b, *(None if i is None else env[i] for i in node.inputs))
            env.update(zip(node.outputs, results))
        return tuple(env[o] for o in self.graph.outputs)


def expression(op: Op, inputs: tuple[TensorType | None, ...]) -> TensorExpr:
    """The tensor expression of an operator on plain operands; params are p0, p1, … for the present inputs."""
    b = ExprBuilder()
    tensors: list[Tensor | None] = []
    for type in inputs:
        tensors.append(None if type is None else b.param(f"p{len(b.params)}", type))
    return b.finish(op.compute(b, *tensors))


def _short(op: Op) -> str:
    fn = getattr(op, "fn", "")
    return fn if isinstance(fn, str) and fn else type(op).__name__.lower()
