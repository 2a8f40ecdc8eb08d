"""What a planner knows of an algorithm: where it fits, on which layouts, what it makes of the weights, its
error and its work. An operator that is not fused is asked about as a fused one of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ..ir.types import Layout
from ..ops.fused import FusedOp

Pack = Callable[[np.ndarray], np.ndarray]
"""Where it is an operator, a compact module packs when it is opened and stores the original."""
Layouts = tuple[Layout | None, Layout | None]


@dataclass(frozen=True)
class Rounding:
    """A packing: in a layout, each number rounded, so that kernels need not do that whenever they read it."""

    layout: Layout
    rounded: Pack

    def __call__(self, array: np.ndarray) -> np.ndarray:
        return self.rounded(self.layout.pack(array))


@dataclass(frozen=True)
class Work:
    """What costs are predicted from.

    `products` multiply-adds at `rate` of the machine's peak, then `moved` bytes through caches and `streamed`
    bytes of weights from memory; `other` is time in units of one multiply-add of a lane. `cores` bounds how
    many take part (0: all), and they wait for each other `barriers` times. `parts` are shares of (products,
    streamed): weights arrive while products of the same part are computed.
    """

    products: float
    rate: float
    streamed: float
    other: float = 0.0
    moved: float = 0.0
    cores: int = 0
    barriers: int = 0
    parts: tuple[tuple[float, float], ...] = ((1.0, 1.0),)


@dataclass(frozen=True)
class Algorithm:
    """One way to compute a fused operator. Functions take (op, lanes).

    fits      whether it can; the others may only be asked if so
    layouts   (of the data that it reads, of its result), None meaning plain: each is an alternative
    weights   position of an operand that must be constant → how its logical array is packed for the template,
              or its layout, perhaps of rounded numbers
    error     largest error over the largest output, against float64 (the tests hold it); 0: that of any sum
    kind      of the targets whose template it is: cpu or gpu
    precision of the factors of its products; other than f32 only where the user asks for it or it holds them
    feature   that a target must have; "": none
    """

    name: str
    fits: Callable[[FusedOp, int], bool]
    layouts: Callable[[FusedOp, int], tuple[Layouts, ...]]
    weights: Callable[[FusedOp, int], Mapping[int, Pack | Layout]]
    work: Callable[[FusedOp, int], Work]
    error: float
    kind: str = "cpu"
    precision: str = "f32"
    feature: str = ""
