"""Cases of compiler/ops/normalization.py."""

from __future__ import annotations

import numpy as np
from burnish.compiler.ops.normalization import (
    LRN,
    BatchNormalization,
    GroupNormalization,
    LayerNormalization,
    LpNormalization,
    MeanVarianceNormalization,
    RMSNormalization,
)

from .case import Case


def batch(x: str, params: str, **fields: float) -> Case:
    """Variances are positive."""
    return Case(BatchNormalization(**fields), (x, params, params, params, params), low=0.1, widen=20)


FAR = np.linspace(1000, 1001, 256, dtype=np.float32).reshape(4, 64)

CASES = [
    batch("f32[2,5,3,7]", "f32[5]"),
    batch("f32[1,1,1]", "f32[1]", epsilon=0.01),
    batch("f32[3,4]", "f32[4]"),
    batch("f32[0,4,3]", "f32[4]"),
    batch("f16[2,3,4,4]", "f16[3]"),
    batch("bf16[2,3,4]", "f32[3]"),
    batch("f64[2,3,2,2,2]", "f64[3]"),
    *(
        Case(LayerNormalization(axis, eps, statistics), (x, p, q), widen=10)
        for axis, eps, statistics, x, p, q in (
            (-1, 1e-5, "", "f32[2,3,17]", "f32[17]", "f32[17]"),
            (-1, 1e-5, "f32", "f32[5,13]", "f32[13]", None),
            (1, 1e-2, "f32", "f32[2,3,4,5]", "f32[3,4,5]", "f32[1,5]"),
            (0, 1e-5, "", "f32[7]", "f32[1]", "f32[7]"),
            (-1, 1e-5, "", "f32[0,7]", "f32[7]", "f32[7]"),
            (-1, 1e-5, "f32", "f16[3,16]", "f16[16]", "f16[16]"),
            (-1, 1e-5, "f32", "bf16[3,16]", "bf16[16]", "bf16[16]"),
            (-2, 1e-5, "", "f64[3,4,5]", "f64[4,5]", None),
        )
    ),
    Case(LayerNormalization(), (FAR, "f32[64]", "f32[64]"), "far from zero", widen=15000),
    Case(RMSNormalization(), ("f32[2,3,17]", "f32[17]"), widen=10),
    Case(RMSNormalization(1, 1e-3), ("f32[2,3,5]", "f32[1,5]"), widen=10),
    Case(RMSNormalization(), ("f16[2,5]", "f16[5]")),
    Case(GroupNormalization(2), ("f32[2,6,3,5]", "f32[6]", "f32[6]"), widen=10),
    Case(GroupNormalization(2), ("f32[2,6,3,5]", "f32[2]", "f32[2]"), "by group", widen=10),
    Case(GroupNormalization(3, 0.01), ("f32[1,3,7]", "f32[3]", "f32[3]"), "instance", widen=10),
    Case(GroupNormalization(1), ("f32[2,5,3,2,2]", "f32[5]", "f32[5]"), "layer", widen=10),
    Case(GroupNormalization(2), ("f16[1,4,3]", "f16[4]", "f16[4]")),
    Case(GroupNormalization(2), ("f32[0,4,3]", "f32[4]", "f32[4]")),
    Case(MeanVarianceNormalization(), ("f32[2,3,5,7]",), widen=10),
    Case(MeanVarianceNormalization((1, -1)), ("f32[2,3,5]",), widen=10),
    Case(MeanVarianceNormalization((0,)), ("f16[7,2]",)),
    Case(LpNormalization(), ("f32[3,7]",), widen=4),
    Case(LpNormalization(0, 1), ("f32[3,5,2]",), widen=4),
    Case(LpNormalization(1), (np.zeros((2, 3, 2), np.float32),), "zero norm"),
    Case(LpNormalization(1, 1), ("f16[2,3,2]",)),
    Case(LRN(3), ("f32[2,7,3,5]",), widen=4),
    Case(LRN(4, 0.5, 0.6, 2.0), ("f32[1,5,2]",), "even size", widen=4),
    Case(LRN(9, 0.1), ("f32[1,3,2,2,2]",), "wider than the channels", widen=4),
    Case(LRN(1), ("f16[1,3,2,2]",)),
]
