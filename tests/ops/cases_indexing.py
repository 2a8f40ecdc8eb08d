"""Cases of operators that read or write where another tensor says, of sorting and running sums."""

import numpy as np
from burnish.compiler.ops.indexing import (
    Gather,
    GatherElements,
    GatherND,
    OneHot,
    ReverseSequence,
    ScatterElements,
    ScatterND,
    TensorScatter,
)
from burnish.compiler.ops.sorting import Cumulative, Det, TopK

from .case import Case


def _at(*values: object, dtype: type = np.int64) -> np.ndarray:
    return np.array(values, dtype)


REPEATED = _at([0, 2], [2, 2], [-1, 0])
TIES = np.array([[1, 3, 3, 0, 3], [2, 2, 2, 2, 2]], np.float32)
HOLES = np.array([np.nan, 1, -np.inf, np.inf, np.nan, 0], np.float32)

GATHERS = [
    Case(Gather(0), ("f32[5,3]", _at([0, -1], [4, 2]))),
    Case(Gather(1), ("f32[2,7,3]", _at(6, 0, -7))),
    Case(Gather(-1), ("i64[2,3]", _at([1]))),
    Case(Gather(0), ("bf16[4]", np.array(-4, np.int32)), "scalar index"),
    Case(Gather(0), ("f32[4,3]", np.zeros((0,), np.int64)), "no index"),
    Case(GatherElements(1), ("f32[3,5]", _at([0, -1], [4, 2], [1, 1]))),
    Case(GatherElements(0), ("i32[4,2]", _at([3, 0], dtype=np.int32))),
    Case(GatherND(), ("f32[3,4]", _at([0, 1], [-1, -4]))),
    Case(GatherND(), ("f32[3,4]", _at([2], [0]))),
    Case(GatherND(1), ("f32[2,3,4]", _at([[1], [0]], [[-1], [2]]))),
    Case(GatherND(2), ("f16[2,1,4]", _at([[3]], [[-3]]))),
    Case(OneHot(-1, 5), (_at(0, -1, 7, 4, -6), "f32[2]")),
    Case(OneHot(0, 3), (_at([0, 2], [1, -3], dtype=np.int32), "i32[2]")),
    Case(OneHot(1, 4), (np.array([0.0, 3.0], np.float32), "f64[2]"), "float indices"),
    Case(OneHot(-1, 3), (np.array([(1 << 64) - 1, 1, 3], np.uint64), "f32[2]"), "no negative ones"),
    Case(ReverseSequence(1, 0), ("f32[5,3]", _at(1, 5, 3))),
    Case(ReverseSequence(0, 1), ("i32[2,4,3]", _at(0, 2))),
    Case(TensorScatter(2), ("f32[2,3,7,2]", "f32[2,3,2,2]", _at(5, 0))),
    Case(TensorScatter(1, True), ("f32[2,4,3]", "f32[2,3,3]", _at(3, 1))),
    Case(TensorScatter(1, True), ("f32[3,4,3]", "f32[3,4,3]", _at(4, 11, -1)), "around"),
    Case(TensorScatter(1), ("f32[1,4,3]", "f32[1,2,3]", None)),
]
REDUCTIONS = ("none", "add", "mul", "max", "min")
SCATTERS = [
    *(Case(ScatterElements(0, r), ("f32[4,2]", REPEATED, "f32[3,2]"), widen=4) for r in REDUCTIONS),
    Case(ScatterElements(1, "add"), ("i32[3,5]", REPEATED, "i32[3,2]")),
    Case(ScatterElements(0), ("f32[5]", _at(4, -5, 4), "f32[3]"), "the last write stays"),
    Case(ScatterElements(0, "max"), ("f16[4,2]", REPEATED, "f16[3,2]")),
    Case(ScatterElements(0), ("f32[4]", np.zeros((0,), np.int64), "f32[0]"), "nothing to write"),
    *(Case(ScatterND(r), ("f32[4,3]", _at([1], [-1], [1]), "f32[3,3]"), widen=4) for r in REDUCTIONS),
    Case(ScatterND(), ("f32[4,3]", _at([1, 2], [-1, -3]), "f32[2]")),
    Case(ScatterND("add"), ("i64[7]", _at([0], [6], [0], dtype=np.int64), "i64[3]")),
    Case(ScatterND(), ("bool[2,2]", _at([1]), "bool[1,2]")),
]  # fmt: skip
SORTS = [
    *(Case(TopK(1, k, largest), (TIES,)) for k in (0, 1, 3, 5) for largest in (True, False)),
    *(Case(TopK(0, 6, largest), (HOLES,), "NaN") for largest in (True, False)),
    Case(TopK(1, 4), ("f32[2,33,3]",)),
    Case(TopK(-1, 7, False), ("i64[3,7]",), low=-5, high=5),
    Case(TopK(0, 2), ("u8[5,1]",), high=255),
    Case(TopK(0, 2), ("f16[9]",)),
    Case(TopK(0, 1), ("f32[1]",)),
    *(
        Case(Cumulative(fn, 1, exclusive, reverse), ("f32[3,5,2]",), widen=20)
        for fn in ("sum", "prod")
        for exclusive in (False, True)
        for reverse in (False, True)
    ),
    Case(Cumulative("sum", 0), ("i32[7]",)),
    Case(Cumulative("sum", -1), ("bf16[2,9]",)),
    Case(Cumulative("sum", 0), ("f64[0,2]",)),
    Case(Cumulative("prod", 0), ("u8[6]",), "wraps around", high=255),
    *(Case(Det(), (t,), widen=50) for t in ("f32[1,1]", "f32[2,2]", "f32[2,3,5,5]", "f64[3,3]", "f16[2,2]")),
    Case(Det(), (np.array([[0, 1, 2], [1, 0, 3], [4, -3, 8]], np.float32),), "pivots", widen=10),
    Case(Det(), (np.array([[1, 2], [2, 4]], np.float32),), "singular"),
]
CASES = [*GATHERS, *SCATTERS, *SORTS]
