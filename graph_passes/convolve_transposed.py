"""Transposed convolutions with constant weights as convolutions, for which there are many ways to compute.

Along an axis of stride s, the outputs o with the same phase (o + pad) mod s read x with every s-th tap, side
by side: s convolutions of stride 1 with ceil(kernel / s) taps, whose outputs take turns. They are one, whose
channels are the phases (Shi et al. 2016, Real-time single image and video super-resolution using an
efficient sub-pixel convolutional neural network); a copy brings the outputs in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from ..compiler.ir.graph import Graph, Node
from ..compiler.ops.conv import Conv, ConvTranspose
from ..compiler.ops.elementwise import Unary
from ..compiler.ops.movement import Reshape, Slice, Transpose
from .rewrite import Rewriter, rule

_MOVES = (Slice, Reshape, Transpose)
MOST_GROWTH = 4  # of weights: phases that have fewer taps than others are filled with zeros


@dataclass(frozen=True)
class _Axis:
    """One spatial axis: sizes of input, output and kernel; the rest as of ConvTranspose."""

    size: int
    out: int
    kernel: int
    stride: int
    pad: int
    dilation: int

    @property
    def taps(self) -> int:
        """Of one phase."""
        return -(-self.kernel // self.stride)

    @property
    def first(self) -> int:
        """Which output of a phase's convolution without padding comes first."""
        return self.pad // self.stride

    @property
    def outs(self) -> int:
        """Of one phase."""
        return (self.out - 1 + self.pad) // self.stride - self.first + 1

    @property
    def pads(self) -> tuple[int, int]:
        reach = (self.taps - 1) * self.dilation
        before = reach - self.first
        return before, self.outs - self.size - before + reach

    @property
    def start(self) -> int:
        """Of the outputs among those of all phases."""
        return self.pad - self.first * self.stride

    @property
    def fits(self) -> bool:
        """Taps of a phase stand side by side, or are as far apart as all are; nothing is cut off before."""
        sizes = min(self.size, self.out, self.kernel)
        return sizes > 0 and 1 in (self.stride, self.dilation) and min(self.pads) >= 0


def convolve_transposed(graph: Graph) -> Graph:
    if not any(isinstance(node.op, ConvTranspose) for node in graph.nodes):
        return graph
    return Rewriter(graph).run((by_phases, before_turns))


@rule("conv_transpose(x, w) => in turns(conv(x, w of all phases))", ConvTranspose)
def by_phases(r: Rewriter, node: Node) -> str | None:
    op, (x, weights, *rest) = node.op, node.inputs
    bias = rest[0] if rest else None
    assert isinstance(op, ConvTranspose)
    w = r.const(weights)
    if (
        x is None
        or weights is None
        or w is None
        or not w.size
        or (bias is not None and r.const(bias) is None)
    ):
        return None
    sizes = r.type_of(x).dims[2:]
    each = (sizes, op.sizes, w.shape[2:], op.strides, op.pads, op.dilations)
    axes = [_Axis(*numbers) for numbers in zip(*each)]
    grown = prod(a.taps * a.stride for a in axes)
    if not all(axis.fits for axis in axes) or grown > MOST_GROWTH * prod(a.kernel for a in axes):
        return None
    conv = Conv(
        (1,) * len(axes),
        tuple(a.pads[0] for a in axes) + tuple(a.pads[1] for a in axes),
        tuple(a.dilation for a in axes),
        op.group,
    )
    inputs = [x, r.constant(_of_phases(w, axes, op.group), weights)]
    if bias is not None:
        phases = prod(a.stride for a in axes)
        of_groups = r.constants[bias].reshape(op.group, 1, -1)
        inputs.append(r.constant(of_groups.repeat(phases, 1).reshape(-1), bias))
    y = r.emit(conv, *inputs)
    return y if all(a.stride == 1 for a in axes) else _in_turns(r, y, axes, op.group)


@rule("f(in turns(conv(x))) => in turns(f(conv(x)))", Unary)
def before_turns(r: Rewriter, node: Node) -> str | None:
    """So that it is part of the convolution's kernel."""
    moves: list[Node] = []
    value = node.inputs[0]
    while (move := next(filter(None, (r.only_by(value, op) for op in _MOVES)), None)) is not None:
        moves.append(move)
        value = move.inputs[0]
    of_conv = r.only_by(value, Conv) or r.only_by(value, Unary)
    if not moves or of_conv is None:
        return None
    y = r.emit(node.op, value)
    for move in reversed(moves):
        y = r.emit(move.op, y, name=move.name)
    return y


def _of_phases(w: np.ndarray, axes: list[_Axis], group: int) -> np.ndarray:
    """Weights of the convolution: its channels are (group, phases, channels of the group)."""
    channels, per_group, *kernel = w.shape
    ends = [(0, a.taps * a.stride - k) for a, k in zip(axes, kernel)]
    w = np.pad(w, [(0, 0), (0, 0), *ends])
    w = w.reshape(group, channels // group, per_group, *(n for a in axes for n in (a.taps, a.stride)))
    taps = [3 + 2 * n for n in range(len(axes))]
    phases = [n + 1 for n in taps]
    w = np.flip(w, tuple(taps)).transpose(0, *phases, 2, 1, *taps)
    return np.ascontiguousarray(w.reshape(-1, channels // group, *(a.taps for a in axes)))


def _in_turns(r: Rewriter, y: str, axes: list[_Axis], group: int) -> str:
    """The phases of every axis take turns along it; what lies outside of the output is cut off."""
    batch, channels, *outs = r.type_of(y).dims
    strides, rank = [a.stride for a in axes], len(axes)
    per_group = channels // (group * prod(strides))
    y = r.emit(Reshape((batch, group, *strides, per_group, *outs)), y)
    pairs = (n for a in range(rank) for n in (3 + rank + a, 2 + a))
    y = r.emit(Transpose((0, 1, 2 + rank, *pairs)), y)
    whole = tuple(n * s for n, s in zip(outs, strides))
    y = r.emit(Reshape((batch, group * per_group, *whole)), y)
    starts, sizes = (0, 0, *(a.start for a in axes)), (batch, group * per_group, *(a.out for a in axes))
    if whole == sizes[2:]:
        return y
    return r.emit(Slice(starts, sizes, (1,) * len(sizes)), y)
