"""Predicted costs of layouts and algorithms: arithmetic at the machine's rate against bytes to be moved.

Both are counted in cycles of one core, arithmetic by the target's vectors; rates in bytes a cycle vary little
between machines (docs/performance.md has the figures), so that their balance follows from the target.
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

CLOCK = 3.5e9  # Hz; targets do not name theirs, and it scales all costs alike
DIRECT_RATE = 0.95  # of the peak
PLAIN_RATE = 0.1  # convolutions that cannot fill vectors with channels
LAST_RATE = 0.85  # channels last: pixels are further apart
FIRST_RATE = 0.6  # few plain channels in, blocks out
MEMORY = 7.7  # bytes of weights a cycle from memory to one core
MEMORY_CORES = 1.4  # times as much reaches all of them
OVERLAP = 0.8  # of the shorter of arithmetic and memory traffic hides behind the other
CACHE = 19.0  # bytes of activations a cycle and core
CONVERSION = 9.5  # the same, read and written while the layout changes


@dataclass(frozen=True)
class PredictedCost:
    """In seconds."""

    target: Target
    threads: int

    @property
    def multiply_adds(self) -> float:
        """Of all lanes of a core in a second: two vectors a cycle, one where that takes two instructions."""
        return self.target.lanes(4) * (2 if self.target.has_fma else 1) * CLOCK

    def node(self, graph: Graph, node: Node, decision: Decision) -> float:
        if not isinstance(node.op, FusedOp):
            return 0.0
        conv = convolution(node)
        moved = sum(graph.types[v].nbytes for v in (*node.reads, *node.outputs) if v not in graph.constants)
        bytes = self._cached(moved, CACHE)
        if conv is None:
            return bytes * (1.0 if decision.reads == decision.writes else CACHE / CONVERSION)
        return bytes + self._convolution(node.op, conv, decision)

    def conversion(self, graph: Graph, value: str, source: Layout | None, target: Layout | None) -> float:
        return self._cached(2 * graph.types[value].nbytes, CONVERSION)

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

    def _cached(self, bytes: float, rate: float) -> float:
        return bytes / (rate * CLOCK * self.threads)

    def _time(self, work: Work) -> float:
        """Weights come from memory while the arithmetic runs, as far as prefetches keep both busy."""
        lanes = (work.products / work.rate + work.other) / (self.multiply_adds * self.threads)
        computed = lanes + self._cached(work.moved, CACHE)
        streamed = work.streamed / (MEMORY * CLOCK * min(self.threads, MEMORY_CORES))
        return max(computed, streamed) + (1 - OVERLAP) * min(computed, streamed)
