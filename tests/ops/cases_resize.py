"""Cases of compiler/ops/resize.py."""

from __future__ import annotations

import numpy as np
from burnish.compiler.ops.resize import COORDINATES, NEAREST, Interpolate, Pick, Repeat, Resize

from .case import Case

INDEX = np.array([4, 0, 0, 2], np.int64)
TAPS = np.array([[0, 1], [4, 4], [2, 0]], np.int64)
SHARES = np.array([[0.25, 0.75], [1, 0], [-0.5, 1.5]], np.float32)
MANY = np.tile(np.arange(5), (3, 2))
ROI = (0.0, 0.0, 0.1, -0.3, 1.0, 1.0, 0.9, 1.2)
UP = ((1, 2, 7, 9), (1.0, 1.0, 1.75, 1.8))
DOWN = ((1, 2, 3, 2), (1.0, 1.0, 0.6, 0.4))
X = "f32[1,2,4,5]"

CASES = [
    Case(Repeat((1, 2, 3)), ("f32[2,3,5]",)),
    Case(Repeat((1, 1)), ("i8[0,3]",)),
    Case(Pick((1,)), ("u8[2,5,3]", INDEX)),
    Case(Pick((0, 2)), ("f16[5,1,5]", INDEX, INDEX)),
    Case(Pick((1,), 9.0), ("f32[2,5]", INDEX - 1)),
    Case(Interpolate(1), ("f32[2,5,3]", TAPS, SHARES), widen=4),
    Case(Interpolate(0, 2.5), ("f32[5,2]", TAPS - 1, SHARES), widen=4),
    Case(Interpolate(0), ("f64[5]", MANY, MANY / 10.0), "as a reduction"),
    *(Case(Resize(*UP, coordinates=c, nearest=n), (X,)) for c in COORDINATES[:-2] for n in NEAREST[:4]),
    *(
        Case(Resize(*to, mode=mode, coordinates=c, roi=ROI, extrapolation=7.0), (X,), widen=10)
        for to in (UP, DOWN)
        for mode in ("linear", "cubic")
        for c in COORDINATES
    ),
    *(
        Case(Resize(*to, mode=mode, exclude_outside=exclude, antialias=antialias), (X,), widen=10)
        for to in (UP, DOWN)
        for mode in ("linear", "cubic")
        for exclude, antialias in ((True, False), (False, True), (True, True))
    ),
    Case(Resize(*UP, coordinates="tf_crop_and_resize", roi=ROI, extrapolation=7.0), (X,), "nearest"),
    Case(Resize((2, 6, 15), (1.0, 2.0, 3.0), coordinates="asymmetric", nearest="simple"), ("f32[2,3,5]",)),
    Case(Resize((2, 6, 15), (1.0, 2.0, 3.0)), ("i32[2,3,5]",)),
    Case(Resize((2, 1, 2), (1.0, 0.4, 0.5), coordinates="asymmetric", nearest="simple"), ("f32[2,3,5]",)),
    Case(Resize((2, 3), (1.0, 1.0), "linear"), ("f32[2,3]",), "no change"),
    Case(Resize((2, 6), (1.0, 2.0), "linear"), ("u8[2,3]",), high=200),
    Case(Resize((2, 6), (1.0, 2.0), "cubic"), ("f16[2,3]",)),
    Case(Resize((2, 6), (1.0, 2.0), "linear"), ("bf16[2,3]",)),
    Case(Resize((2, 2, 5, 6, 7), (1.0, 1.0, 2.5, 2.0, 1.75), "linear"), ("f64[2,2,2,3,4]",)),
    Case(Resize((0, 6), (1.0, 2.0), "linear"), ("f32[0,3]",)),
]
