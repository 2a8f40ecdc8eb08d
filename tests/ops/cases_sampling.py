"""Cases of compiler/ops/sampling.py and regions.py."""

from __future__ import annotations

import numpy as np
from burnish.compiler.ops.regions import Col2Im, MaxRoiPool, MaxUnpool, RoiAlign
from burnish.compiler.ops.sampling import MODES, PADDINGS, DeformConv, GridSample

from .case import Case

ROIS = np.array([[1, 1, 6, 5], [0, 0, 3.5, 8], [-2, 2, 4, 2.5], [5, 5, 2, 2]], np.float32)
IMAGES = np.array([0, 1, 1, 0], np.int64)
MANY = np.concatenate([IMAGES[:, None].astype(np.float32), ROIS], axis=1)
PLACES = np.array([[[0, 5], [7, 2]], [[13, 9], [10, 17]]], np.int64)


def grid(*shape: int) -> np.ndarray:
    """Positions inside and well outside."""
    return np.random.default_rng(5).uniform(-1.7, 1.7, shape).astype(np.float32)


CASES = [
    *(
        Case(GridSample(mode, padding, align), ("f32[2,3,4,5]", grid(2, 3, 7, 2)), widen=60)
        for mode in MODES
        for padding in PADDINGS
        for align in (False, True)
    ),
    *(
        Case(GridSample(mode, "reflection"), ("f32[1,2,3,4,5]", grid(1, 2, 3, 2, 3)), widen=60)
        for mode in MODES
    ),
    *(
        Case(GridSample("linear", p, True), ("f32[1,1,1,1]", grid(1, 3, 3, 2)), "one element", widen=4)
        for p in PADDINGS
    ),
    Case(GridSample("cubic"), ("f32[1,2,9]", grid(1, 7, 1)), "one axis", widen=60),
    Case(GridSample(), ("f16[1,2,4,5]", grid(1, 3, 3, 2))),
    Case(GridSample(), ("f64[1,2,4,5]", grid(1, 3, 3, 2)), widen=10),
    Case(GridSample("nearest", "border"), ("i32[1,2,4,5]", grid(1, 3, 3, 2))),
    Case(GridSample(), ("f32[0,2,4,5]", "f32[0,3,3,2]")),
    Case(
        DeformConv((1, 1), (1, 1, 1, 1), (1, 1)),
        ("f32[1,3,5,6]", "f32[4,3,3,3]", "f32[1,18,5,6]", "f32[4]", "f32[1,9,5,6]"),
        widen=100,
    ),
    Case(
        DeformConv((2, 1), (0, 1, 1, 0), (1, 2), 2, 2),
        ("f32[2,4,6,7]", "f32[6,2,2,2]", "f32[2,16,3,6]", None, None),
        widen=100,
    ),
    Case(DeformConv((1,), (0, 0), (1,)), ("f32[1,2,7]", "f32[3,2,3]", "f32[1,3,5]", "f32[3]"), widen=100),
    *(
        Case(RoiAlign(3, 2, sampling, 0.75, mode, shift), ("f32[2,3,7,9]", ROIS, IMAGES), widen=20)
        for sampling in (0, 2)
        for mode in ("avg", "max")
        for shift in (False, True)
    ),
    Case(RoiAlign(), ("f32[2,3,1,1]", ROIS, IMAGES), "one element", widen=20),
    Case(RoiAlign(2, 2), ("f32[2,3,4,4]", ROIS[:0], IMAGES[:0]), "no regions"),
    Case(MaxRoiPool(3, 2), ("f32[2,3,7,9]", MANY)),
    Case(MaxRoiPool(2, 2, 0.3), ("f32[2,3,7,9]", MANY)),
    Case(MaxUnpool((2, 3, 3)), ("f32[2,2,2]", PLACES)),
    Case(MaxUnpool((2, 2, 5)), ("u8[2,2,2]", PLACES), high=99),
    Case(Col2Im((5, 5), (1, 5), (1, 1), (0, 0, 0, 0), (1, 1)), ("f32[1,5,5]",)),
    Case(Col2Im((6, 7), (2, 3), (2, 1), (1, 0, 1, 2), (1, 2)), ("f32[2,18,20]",), widen=10),
    Case(Col2Im((4, 5, 6), (2, 2, 2), (1, 2, 2), (0, 1, 0, 1, 0, 0), (1, 1, 1)), ("f32[1,16,36]",), widen=10),
    Case(Col2Im((4, 4), (2, 2), (1, 1), (0, 0, 0, 0), (1, 1)), ("i32[1,4,9]",)),
    Case(Col2Im((4, 4), (2, 2), (1, 1), (0, 0, 0, 0), (1, 1)), ("f16[1,4,9]",)),
]
