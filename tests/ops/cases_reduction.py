"""Cases of reductions and the softmax family."""

import numpy as np
from burnish.compiler.ops.reduction import REDUCTIONS, ArgReduce, Hardmax, Reduce, Softmax

from .case import Case

TIES = np.array([[1, 3, 3, 0], [2, 2, 2, 2], [5, -1, -1, 5]], np.float32)
MASKED = np.array([[-np.inf, 1, 2], [-np.inf, -np.inf, 5]], np.float32)


def _reductions() -> list[Case]:
    cases = []
    for fn, rule in REDUCTIONS.items():
        low = 0.2 if fn == "log_sum" else -2.0
        for axes, keepdims, shape in (
            ((1,), True, "3,17"), ((0,), False, "7,5"), ((0, 2), True, "2,3,5"), ((-1, 0), False, "4,1,3"),
            ((0, 1, 2), False, "2,3,4"), ((), True, "2,3"), ((1,), True, "0,3"), ((1,), False, "1,1,1"),
        ):  # fmt: skip
            cases.append(Case(Reduce(fn, axes, keepdims), (f"f32[{shape}]",), low=low, high=2, widen=10))
        for dtype in ("f64", "f16", "bf16"):
            cases.append(Case(Reduce(fn, (1,)), (f"{dtype}[3,7]",), low=low, high=2, widen=10))
        if "int" in rule.kinds:
            cases.append(Case(Reduce(fn, (0,)), ("i32[5,3]",), low=-9, high=9))
            cases.append(Case(Reduce(fn, (0,)), ("i64[5,3]",), low=-9, high=9))
            cases.append(Case(Reduce(fn, (1,), False), ("u8[2,4]",), high=255))
        if "bool" in rule.kinds:
            cases.append(Case(Reduce(fn, (1,)), ("bool[3,4]",)))
        cases.append(Case(Reduce(fn, (0,)), ("f32[0,3]",), "no elements"))
    return cases


CASES = [
    *_reductions(),
    Case(Reduce("log_sum_exp", (1,)), (MASKED,), "with -inf", widen=4),
    Case(Reduce("log_sum_exp", (0,)), (np.full((2, 2), -np.inf, np.float32),), "only -inf"),
    Case(Reduce("log_sum_exp", (1,)), ("f32[2,33]",), "large", low=-200, high=200),
    Case(Reduce("max", (0,)), (np.array([1, np.nan, 3], np.float32),), "NaN"),
    *(
        Case(ArgReduce(fn, axis, keepdims, last), (data,))
        for fn in ("argmax", "argmin")
        for axis, keepdims, last, data in (
            (1, True, False, TIES), (1, False, True, TIES), (0, True, False, "f32[7,1,5]"),
            (-1, False, False, "i32[2,3,11]"), (0, False, True, "f16[13]"), (1, True, False, "u8[3,9]"),
        )
    ),
    *(
        Case(Softmax(axis, log), (data,), low=-9, high=9, widen=8)
        for log in (False, True)
        for axis, data in (
            (1, "f32[3,17]"), (0, "f32[5,4]"), (1, "f32[2,3,5]"), (-1, "f32[2,3,1]"), (-1, "f32[0,3]"),
            (1, "f64[2,9]"), (-1, "f16[3,7]"), (0, "bf16[5,2]"), (0, "f32[1]"), (-1, MASKED),
        )
    ),
    *(Case(Softmax(-1, log), ("f32[2,9]",), "large", low=500, high=900, widen=8) for log in (False, True)),
    *(Case(Hardmax(axis), (data,)) for axis, data in ((1, TIES), (0, "f32[3,5]"), (1, "f16[2,3,4]"))),
    Case(Hardmax(1), ("f32[0,3]",)),
]  # fmt: skip
