"""A score of programs before any is measured: the fewer loads a product takes, the better.

A register tile of P pixels and C vectors of channels takes P + C loads for P·C multiply-adds; today's cores
issue two of each in a cycle, and more sums under way hide more of their latency. In features: of each operand
of the heaviest nest, how often the loops inside use what they touch, as long as that fits the registers
(`RELATED`). Over direct convolutions (C7, C10, C12 on Zen 3) the logarithm of the loads correlates by 0.76 to
0.90 with that of their times. Nests that reuse nothing are all alike.
"""

from __future__ import annotations

import numpy as np

from .features import NAMES
from .nest_features import MAIN

RELATED = 8  # log2 of bytes: half of 16 registers of 32 bytes
WEIGHT = 2.0  # of the logarithm: as sure as a model is of one program being twice as fast as another
_AT = {name: n for n, name in enumerate(NAMES)}


class Analytic:
    """As the base of a `CostModel`. It has learnt nothing: `trained` is false."""

    trained = False

    def predict(self, rows: np.ndarray) -> np.ndarray:
        """(n,) scores of (n, features)."""
        return -WEIGHT * np.log2(np.maximum(loads(rows), 2.0**-10))


def loads(rows: np.ndarray) -> np.ndarray:
    """(n,) vectors that are loaded or broadcast for each vector that the heaviest nest computes, about."""
    lanes = _lanes(rows)
    total = np.zeros(len(rows))
    for b in range(1, MAIN.buffers):  # the first is the result
        used = rows[:, _AT[f"buffer{b}.bytes"]] > 0
        reuse = np.maximum(np.exp2(rows[:, _AT[f"reuse.{b}<2^{RELATED}"]]) - 1, 1)
        vector = rows[:, _AT[f"buffer{b}.vector_stride"]] > 0
        total += np.where(used, np.where(vector, 1, lanes) / reuse, 0)
    return total


def _lanes(rows: np.ndarray) -> np.ndarray:
    """(n,) iterations of the loops that are vectors."""
    found = np.ones(len(rows))
    for n in range(MAIN.loops):
        length = np.exp2(rows[:, _AT[f"loop{n}.length"]]) - 1
        found *= np.where(rows[:, _AT[f"loop{n}.vector"]] > 0, length, 1)
    return found
