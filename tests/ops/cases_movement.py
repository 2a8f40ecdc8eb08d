"""Cases of the operators that move elements."""

import numpy as np
from burnish.compiler.ops.movement import (
    BlockedFlatten,
    Concat,
    Expand,
    Identity,
    Pad,
    Reshape,
    Slice,
    Tile,
    Transpose,
    Trilu,
)

from .case import Case

RESHAPES = [
    ((2, 3), (3, 2)), ((2, 3, 4), (6, 4)), ((6, 4), (2, 3, 4)), ((2, 3, 4), (2, 12)), ((1, 5, 1), (5,)),
    ((5,), (1, 1, 5, 1)), ((7, 11), (77,)), ((4, 6, 5), (3, 8, 5)), ((0, 3), (3, 0, 2)), ((), (1, 1)),
    ((1, 1), ()), ((2, 3, 4, 5), (2, 4, 3, 5)), ((12, 35), (4, 15, 7)), ((8, 1, 9), (2, 36)),
    ((1, 6), (6, 1)),
]  # fmt: skip


def _type(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


CASES = [
    Case(Identity(), ("f32[2,3]",)),
    Case(Identity(), ("bool[]",)),
    Case(Transpose((1, 0)), ("f32[3,5]",)),
    Case(Transpose((2, 0, 1)), ("i64[2,3,17]",)),
    Case(Transpose((0, 2, 3, 1)), ("f16[1,7,5,4]",)),
    Case(Transpose(()), ("f32[]",)),
    Case(Transpose((1, 0)), ("f32[0,5]",)),
    *(Case(Reshape(to), (_type("f32", of),)) for of, to in RESHAPES),
    Case(Concat(0), ("f32[2,3]", "f32[1,3]", "f32[4,3]")),
    Case(Concat(-1), ("i8[2,3]", "i8[2,0]", "i8[2,1]")),
    Case(Concat(1), ("f32[0,3]", "f32[0,2]")),
    Case(Concat(0), ("f32[0,3]", "f32[0,3]"), "nothing at all"),
    Case(Concat(0), ("f32[5]",), "one input"),
    Case(Slice((1, 4), (2, 3), (1, -2)), ("f32[3,5]",)),
    Case(Slice((0,), (0,), (1,)), ("f32[5]",)),
    Case(Slice((6, 0, 2), (7, 3, 1), (-1, 2, 1)), ("i32[7,5,3]",)),
    Case(Slice((), (), ()), ("f32[]",)),
    Case(Expand((2, 3, 4)), ("f32[3,1]",)),
    Case(Expand((1, 1)), ("f32[3,4]",), "x is larger"),
    Case(Expand((0, 3)), ("f32[1,3]",)),
    Case(Expand((3, 5)), ("bool[]",)),
    Case(Tile((2, 3)), ("f32[3,5]",)),
    Case(Tile((1, 0, 2)), ("i64[2,3,1]",)),
    Case(Tile(()), ("f32[]",)),
    Case(Pad((1, 2), (0, 3)), ("f32[3,4]",)),
    Case(Pad((1, 2), (0, 3)), ("f32[3,4]", "f32[]")),
    Case(Pad((0, -1), (2, -1)), ("i32[3,4]", "i32[1]"), "cut"),
    Case(Pad((-2,), (3,)), ("f32[2]",), "all cut"),
    Case(Pad((2,), (3,)), ("f32[0]", "f32[]")),
    *(Case(Pad((0, 2, 5), (0, 3, 1), mode), ("f32[2,4,3]",)) for mode in ("reflect", "edge", "wrap")),
    *(
        Case(Pad((0, 7), (3, 9), mode), ("f32[1,3]",), "farther than the axis")
        for mode in ("reflect", "edge", "wrap")
    ),
    *(Case(Pad((1, -1), (2, 2), mode), ("f32[3,5]",), "grown and cut") for mode in ("reflect", "edge")),
    *(Case(Trilu(upper, k), ("f32[3,5]",)) for upper in (True, False) for k in (-2, 0, 1, 7)),
    Case(Trilu(True), ("i64[2,4,4]",)),
    Case(Trilu(False), ("bool[2,0,3]",)),
    Case(Pad((0,), (2,)), (np.array([True, False]),)),
    Case(BlockedFlatten("aBcd4b"), ("f32[2,8,3,5]",)),
]
