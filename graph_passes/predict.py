"""Predicted costs of layouts and algorithms: arithmetic at the machine's rate against bytes to be moved.

Both are counted in cycles of one core, arithmetic by the target's vectors; rates in bytes a cycle vary little
between machines (docs/performance.md has the figures), so that their balance follows from the target.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ..compiler.ir.graph import Graph, Node
from ..compiler.ir.types import Layout
from ..compiler.ops.byte_products import DotDepthwise
from ..compiler.ops.conv import Conv
from ..compiler.ops.fused import FusedOp, expression
from ..compiler.ops.matmul import MatMul
from ..compiler.price import Price
from ..compiler.target import Target
from ..compiler.templates.algorithm import Work
from ..compiler.templates.products import block_product, blocks_work, product, sizes
from ..compiler.templates.registry import ALGORITHMS
from ..compiler.templates.strips import best_rows
from .alternatives import Decision, decides, first_half, fused
from .fuse import is_window
from .pairs import KEPT, convolution
from .views import joins_in_place, words_in_place

MODEL = "analytic-6"
"""The model's name; its number changes with what it predicts."""
CLOCK = 3.5e9  # Hz; targets do not name theirs, and it scales all costs alike
DIRECT_RATE = 0.95  # of the peak
PRODUCT_RATE = 0.4  # of matrices as they are: rows of the right one are far apart
STRIDED = 1.5  # the time of weights that lie row after row, over that of packed ones
COPY = 6.0  # cycles of an element while a matrix is transposed
SERIAL = 4.0  # cycles of a product in a sum that fills no vectors
BARRIER = 1500.0  # cycles until all cores are there
TAP = 2.0  # cycles of a vector in a pooling window
PLAIN_RATE = 0.75  # plain to plain: vectors along the width, as far as it fills them
WORDS, WORDS_ALONE = 3.5, 7.0  # multiply-adds of a word made of bytes; the second where taps share none
RAGGED = 0.75  # where the last vector of each row is partial
GROUPED_RATE = 0.35  # the same for groups of channels
SCALAR_RATE = 0.05  # convolutions that fill no vectors
LAST_RATE = 0.86  # channels last, over channels in blocks: the taps' pixels are further apart
NARROW, NARROW_FIRST = 0.7, 4.0  # pixels of a row that are lost at its ends; the second where plain channels
# are read, but for windows that no padding cuts
SKIPPING = 0.9  # pointwise with a stride: a part of each cache line is used
FIRST_RATE = 0.86  # plain channels in, blocks out
ONE_BY_ONE = 0.7  # channels that fill no vector, where multiply-adds take a lane of one
MEMORY = 7.7  # bytes of weights a cycle from memory to one core
LAST_CACHE = 20.0  # the same from the last cache
MEMORY_CORES = 1.4  # times as much reaches all of them
OVERLAP = 0.75  # of the shorter of arithmetic and memory traffic hides behind the other
CACHE = 19.0  # bytes of activations a cycle and core
CONVERSION = 9.5  # the same, read and written while the layout changes
PAIRED = 1.02  # times the two kernels' time, the bytes that a pair saves aside
SCATTERED = 0.6  # of a depthwise convolution's input, more time to read it in strips than as a whole


@dataclass(frozen=True)
class PredictedCost:
    """In seconds."""

    target: Target
    threads: int

    @property
    def kind(self) -> str:
        return self.target.kind

    @property
    def features(self) -> tuple[str, ...]:
        return self.target.features

    @property
    def model(self) -> str:
        return MODEL

    @property
    def per_cycle(self) -> float:
        """Multiply-adds of all lanes of a core; one vector where that takes two instructions."""
        multiply_adds = self.target.multiply_adds if self.target.has_fma else 1.0
        return self.target.lanes(4) * multiply_adds

    def node(self, graph: Graph, node: Node, decision: Decision) -> float:
        """0 for operators that the model does not know."""
        if not decides(node) or decision.writes == KEPT:  # the second of a pair costs both
            return 0.0
        if decision.reads == KEPT:
            return self._pair(graph, node, decision)
        if decision.reads == decision.writes and joins_in_place(graph, node, decision.reads):
            return 0.0
        if words_in_place(graph, node, decision.reads, decision.writes):
            return 0.0
        op = fused(graph, node)
        moved = sum(graph.types[v].nbytes for v in (*node.reads, *node.outputs) if v not in graph.constants)
        bytes = self._cached(moved, CACHE)
        if decision.algorithm in ALGORITHMS:
            return bytes + self._time(graph, ALGORITHMS[decision.algorithm].work(op, self.target.lanes(4)))
        if not isinstance(node.op, FusedOp):
            return bytes + self._loops(graph, op)
        conv = convolution(node)
        if product(op) is not None:
            return bytes + self._product(graph, node, op)
        if block_product(op) is not None:
            return bytes + self._blocks(graph, op)
        if conv is None:
            converted = 1.0 if decision.reads == decision.writes else CACHE / CONVERSION
            return bytes * converted + self._windows(graph, node, decision)
        return bytes + self._convolution(graph, op, conv, decision)

    def conversion(self, graph: Graph, value: str, source: Layout | None, target: Layout | None) -> float:
        return self._cached(2 * graph.types[value].nbytes, CONVERSION)

    def price(self, graph: Graph, node: Node, decision: Decision) -> Price:
        return Price(self.node(graph, node, decision), "predicted", self.model)

    def price_conversion(
        self, graph: Graph, value: str, source: Layout | None, target: Layout | None
    ) -> Price:
        return Price(self.conversion(graph, value, source, target), "predicted", self.model)

    def _pair(self, graph: Graph, node: Node, decision: Decision) -> float:
        """Both alone, less the value between them, which is neither written nor read from memory."""
        before, its = first_half(graph, node, decision, self.target.lanes(4))
        alone = Decision(its.reads, decision.writes)
        values = [graph.types[v] for v in (before.reads[0], *before.outputs, *node.outputs)]
        nbytes = sum(t.nbytes for t in values)
        _, slower = best_rows(values[1].dims, nbytes, self.target, self.threads)
        saved = self._cached(2 * values[1].nbytes - SCATTERED * values[0].nbytes, CACHE)
        apart = self.node(graph, before, alone) + self.node(graph, node, alone)
        return apart * slower * PAIRED - saved

    def _windows(self, graph: Graph, node: Node, decision: Decision) -> float:
        """Of pooling: channels that lie side by side are compared in vectors."""
        stages = expression(fused(graph, node), graph.input_types(node)).stages
        taps = sum(prod(a.extent for a in st.all_axes) for st in stages if is_window(st))
        lanes = 1 if decision.reads is None else self.target.lanes(4)
        return taps * TAP / (lanes * CLOCK * self.threads)

    def _convolution(self, graph: Graph, op: FusedOp, conv: Node, decision: Decision) -> float:
        weights = op.graph.types[conv.inputs[1] or ""]
        out = op.graph.types[conv.outputs[0]]
        if not out.size:
            return 0.0
        products = out.size * weights.size / weights.dims[0]
        assert isinstance(conv.op, Conv)
        extents = (op.graph.types[conv.inputs[0] or ""].dims[2:], out.dims[2:], weights.dims[2:])
        for window in zip(*extents, conv.op.strides, conv.op.dilations, conv.op.pads):
            products *= _taps_inside(*window)
        if isinstance(conv.op, DotDepthwise):
            products *= WORDS_ALONE if decision.writes is None else WORDS
        rate = DIRECT_RATE * _whole(out.dims[-1], NARROW)
        if conv.op.strides[-1] > 1 and weights.dims[-1] == 1:
            rate *= SKIPPING
        channels = weights.dims[1]
        grouped = conv.op.group > 1 and channels > 1
        if decision.writes is None and decision.reads is None:
            width, lanes = out.dims[-1], self.target.lanes(4)
            rate = GROUPED_RATE if grouped else PLAIN_RATE
            rate *= width / (-(-width // lanes) * lanes) * (RAGGED if width % lanes else 1.0)
        elif decision.writes is None or grouped:
            rate = SCALAR_RATE
        elif decision.reads is None:
            uncut = weights.dims[-1] > 1 and not any(conv.op.pads)
            rate = FIRST_RATE * _whole(out.dims[-1], NARROW if uncut else NARROW_FIRST)
        elif self.target.multiplies_by_lane and channels > 1 and channels % self.target.lanes(4):
            rate *= ONE_BY_ONE
        elif not decision.writes.blocks and weights.dims[-1] > 1:
            rate *= LAST_RATE
        return self._time(graph, Work(products, rate, weights.nbytes))

    def _product(self, graph: Graph, node: Node, op: FusedOp) -> float:
        """Of matrices as they are; one that is stored transposed is copied first. A vector of columns is
        multiplied whole; one column is a dot product a row."""
        inner = product(op)
        assert inner is not None and isinstance(inner.op, MatMul)
        batch, m, n, k = sizes(op)
        matrix = op.graph.types[inner.inputs[1] or ""]
        streamed = matrix.nbytes * STRIDED if inner.inputs[1] in node.reads else 0
        copied = matrix.size * COPY * self.per_cycle if inner.op.trans_b else 0.0
        columns = max(n, self.target.lanes(4)) if n > 1 else n
        return self._time(graph, Work(batch * m * columns * k, PRODUCT_RATE, streamed, other=copied))

    def _blocks(self, graph: Graph, op: FusedOp) -> float:
        """Of weights as they are stored: they are copied first."""
        work = blocks_work(op, self.target.lanes(4))
        return self._time(graph, replace(work, other=work.other + work.streamed * COPY * self.per_cycle))

    def _loops(self, graph: Graph, op: FusedOp) -> float:
        """Of a recurrence in plain loops: one product after another, the rows of the batch at once."""
        share, weights = (op.graph.types[v] for v in op.graph.inputs[:2])
        steps, batch, _ = share.dims
        cycles = SERIAL * steps * batch * weights.size
        return self._time(graph, Work(0.0, 1.0, weights.nbytes, other=cycles * self.per_cycle, cores=batch))

    def _cached(self, bytes: float, rate: float, cores: int = 0) -> float:
        return bytes / (rate * CLOCK * (cores or self.threads))

    def _time(self, graph: Graph, work: Work) -> float:
        """Weights come while the arithmetic runs, as far as prefetches keep both busy.

        From memory, unless those of all the network stay in the last cache from one run to the next.
        """
        cores = min(self.threads, work.cores or self.threads)
        lanes = (work.products / work.rate + work.other) / (self.per_cycle * cores * CLOCK)
        waits = work.barriers * BARRIER / CLOCK if cores > 1 else 0.0
        computed = lanes + self._cached(work.moved, CACHE, cores) + waits
        if max(graph.constant_bytes, work.streamed) > self.target.l3 / 2:  # activations stay there, too
            streamed = work.streamed / (MEMORY * CLOCK * min(cores, MEMORY_CORES))
        else:
            streamed = self._cached(work.streamed, LAST_CACHE, cores)
        hidden = sum(min(computed * p, streamed * w) for p, w in work.parts)
        return computed + streamed - OVERLAP * hidden


def _whole(width: int, lost: float) -> float:
    """The share of a row's time that is not lost at its ends."""
    return width / (width + lost)


def _taps_inside(size: int, outputs: int, kernel: int, stride: int, dilation: int, pad: int) -> float:
    """The share of a window's taps along one axis that do not fall on padding: only these are computed."""
    if not outputs or not kernel:
        return 1.0
    first = np.arange(kernel) * dilation - pad  # where a tap begins
    begin, end = (np.clip(-((first - at) // stride), 0, outputs) for at in (0, size))
    return int(np.maximum(end - begin, 0).sum()) / (outputs * kernel)
