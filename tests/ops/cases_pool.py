"""Cases of compiler/ops/pool.py."""

from __future__ import annotations

import numpy as np
from burnish.compiler.ops.pool import (
    AveragePool,
    GlobalAveragePool,
    GlobalLpPool,
    GlobalMaxPool,
    LpPool,
    MaxPool,
)

from .case import Case

WINDOWS = [  # kernel, strides, pads, dilations, ceil_mode, input shape
    ((3,), (1,), (0, 0), (1,), False, "2,3,11"),
    ((2,), (2,), (1, 0), (3,), True, "1,3,13"),
    ((3, 3), (2, 2), (1, 1, 1, 1), (1, 1), False, "2,5,11,13"),
    ((2, 2), (2, 2), (0, 0, 0, 0), (1, 1), True, "1,17,7,9"),
    ((3, 2), (1, 3), (0, 1, 2, 1), (2, 1), False, "1,3,8,10"),
    ((3, 3), (3, 2), (1, 0, 1, 2), (1, 2), True, "1,3,8,8"),
    ((1, 1), (1, 1), (0, 0, 0, 0), (1, 1), False, "1,1,1,1"),
    ((2, 3, 2), (1, 2, 2), (1, 0, 1, 0, 1, 1), (1, 1, 2), False, "1,2,4,6,7"),
    ((2, 2), (1, 1), (0, 0, 0, 0), (1, 1), False, "0,3,4,4"),
]

CASES = [
    *(Case(MaxPool(*w), (f"f32[{shape}]",)) for *w, shape in WINDOWS),
    *(Case(MaxPool(*w, 0, True), (f"f32[{shape}]",)) for *w, shape in WINDOWS),
    *(Case(AveragePool(*w), (f"f32[{shape}]",), widen=4) for *w, shape in WINDOWS),
    *(Case(AveragePool(*w, True), (f"f32[{shape}]",), widen=4) for *w, shape in WINDOWS),
    *(Case(LpPool(*w), (f"f32[{shape}]",), widen=4) for *w, shape in WINDOWS),
    Case(LpPool(*WINDOWS[2][:-1], 1), ("f32[2,5,11,13]",), widen=4),
    Case(LpPool(*WINDOWS[2][:-1], 3), ("f32[2,5,11,13]",), widen=4),
    *(
        Case(MaxPool(*WINDOWS[4][:-1]), (f"{t}[1,3,8,10]",), low=-128, high=127)
        for t in ("i8", "u8", "f16", "bf16", "f64")
    ),
    Case(MaxPool(*WINDOWS[4][:-1], 1, True), ("i8[2,3,8,10]",), "ties", low=0, high=3),
    *(
        Case(MaxPool(*w, 0, True), (np.full([int(n) for n in shape.split(",")], least, np.float32),), "least")
        for *w, shape in WINDOWS
        for least in (-np.inf, np.nan)
    ),
    *(Case(MaxPool(*WINDOWS[n][:-1], 0, True), ("u8[1,3,8,10]",), "least", low=0, high=1) for n in (2, 4, 5)),
    Case(MaxPool(*WINDOWS[7][:-1], 1, True), ("f32[1,2,4,6,7]",)),
    *(Case(AveragePool(*WINDOWS[4][:-1]), (f"{t}[1,3,8,10]",), widen=4) for t in ("f16", "bf16", "f64")),
    *(
        Case(op, (f"{t}[{shape}]",), widen=10)
        for op in (GlobalAveragePool(), GlobalMaxPool(), GlobalLpPool(2), GlobalLpPool(1), GlobalLpPool(3))
        for t, shape in (
            ("f32", "2,5,7,9"),
            ("f32", "1,1,1"),
            ("f16", "1,3,5,4"),
            ("f64", "1,3,2,3,4"),
            ("f32", "0,3,4,4"),
        )
    ),
    Case(GlobalMaxPool(), ("f32[2,3]",), "no spatial axes"),
]
