"""Predicted costs of layouts and algorithms: arithmetic at the machine's rate against bytes to be moved.

The unit is the time of one multiply-add of one lane of one core; the figures stand in docs/performance.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..compiler.ir.graph import Graph, Node
from ..compiler.ir.types import Layout
from ..compiler.ops.conv import Conv
from ..compiler.ops.fused import FusedOp
from ..compiler.target import Target
from ..compiler.templates.algorithm import Work
from ..compiler.templates.registry import ALGORITHMS
from .alternatives import Decision, convolution

DIRECT_RATE = 0.95
PLAIN_RATE = 0.1  # convolutions that cannot fill vectors with channels
LAST_RATE = 0.85  # channels last: pixels are further apart
FIRST_RATE = 0.6  # few plain channels in, blocks out
MEMORY = 0.24  # bytes of weights from memory in the time of one unit
CACHE = 0.6  # bytes of activations
CONVERSION = 0.3  # bytes read and written while the layout changes


@dataclass(frozen=True)
class PredictedCost:
    target: Target
    threads: int

    def node(self, graph: Graph, node: Node, decision: Decision) -> float:
        if not isinstance(node.op, FusedOp):
            return 0.0
        conv = convolution(node)
        moved = sum(graph.types[v].nbytes for v in (*node.reads, *node.outputs) if v not in graph.constants)
        bytes = moved / CACHE / self.threads
        if conv is None:
            return bytes * (1.0 if decision.reads == decision.writes else CACHE / CONVERSION)
        return bytes + self._convolution(node.op, conv, decision)

    def conversion(self, graph: Graph, value: str, source: Layout | None, target: Layout | None) -> float:
        return 2 * graph.types[value].nbytes / CONVERSION / self.threads

    def _convolution(self, op: FusedOp, conv: Node, decision: Decision) -> float:
        if decision.algorithm in ALGORITHMS:
            return self._time(ALGORITHMS[decision.algorithm].work(op, self.target.lanes(4)))
        weights = op.graph.types[conv.inputs[1] or ""]
        out = op.graph.types[conv.outputs[0]]
        products = out.size * weights.size / weights.dims[0]
        assert isinstance(conv.op, Conv)
        for size, kernel, pad in zip(out.dims[2:], weights.dims[2:], conv.op.pads):
            products *= max(0.1, 1 - (pad > 0) * (kernel - 1) / max(kernel, 1) / size)  # taps on padding
        rate = DIRECT_RATE
        if decision.writes is None:
            rate = PLAIN_RATE
        elif decision.reads is None:
            rate = FIRST_RATE
        elif not decision.writes.blocks:
            rate = LAST_RATE
        return self._time(Work(products, rate, weights.nbytes))

    def _time(self, work: Work) -> float:
        """Weights come from memory while the arithmetic runs; two cores share some of that path."""
        arithmetic = (work.products / work.rate + work.other + work.moved / CACHE) / self.threads
        return max(arithmetic, work.streamed / MEMORY / min(self.threads, 1.4))
