"""Cases of the elementwise operators."""

import numpy as np
from burnish.compiler.ops.elementwise import BINARY, UNARY, Binary, BitCast, Cast, Rounded, Unary, Where

from .case import Case

DOMAIN = {
    "log": (0.1, 4), "sqrt": (0, 4), "rsqrt": (0.1, 4), "asin": (-1, 1), "acos": (-1, 1), "acosh": (1, 4),
    "atanh": (-0.9, 0.9), "reciprocal": (0.2, 3),
}  # fmt: skip
"""Where the function is defined, or at least not steep."""
PARAMS = {
    "isinf": (1.0, 0.0), "clip": (1.0, 2.0), "leaky_relu": (0.1,), "thresholded_relu": (1.0,), "elu": (0.7,),
    "celu": (1.5,), "selu": (1.67, 1.05), "hard_sigmoid": (0.2, 0.5), "swish": (1.5,), "shrink": (1.0, 1.5),
}  # fmt: skip
SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 80.0, -80.0], np.float32
)


def _unary() -> list[Case]:
    cases = []
    for fn, function in UNARY.items():
        params = PARAMS.get(fn, ())
        low, high = DOMAIN.get(fn, (-3.0, 3.0))
        types = {
            "float": ["f32[3,17]", "f64[5]", "f16[33]", "bf16[2,1]"],
            "int": ["i32[7]"],
            "uint": ["u8[9]"],
            "bool": ["bool[5]"],
        }
        for kind in function.kinds.split():
            for t in types[kind]:
                cases.append(Case(Unary(fn, params), (t,), low=low, high=high, widen=2))
        if "float" in function.kinds:
            cases.append(Case(Unary(fn, params), (SPECIAL,), "special values", widen=2))
        if fn in ("neg", "tanh"):  # what is empty or a scalar is so for all
            cases.append(Case(Unary(fn, params), ("f32[0,3]",)))
            cases.append(Case(Unary(fn, params), ("f32[]",), low=low, high=high, widen=2))
    cases.append(Case(Unary("isinf", (1.0, 1.0)), (SPECIAL,), "both signs"))
    cases.append(Case(Unary("isinf", (0.0, 1.0)), (SPECIAL,), "positive only"))
    cases.append(Case(Unary("clip", (-np.inf, 1.0)), (SPECIAL,), "no lower bound"))
    cases.append(Case(Unary("gelu"), ("f32[64]",), "wide range", low=-8, high=8))
    return cases


SHAPES = [("2,3", "2,3"), ("5", ""), ("4,1,3", "7,1"), ("2,17,5", "17,1"), ("1,1", "3,1,1")]


def _binary() -> list[Case]:
    cases = []
    for n, (fn, function) in enumerate(BINARY.items()):
        shapes = [*SHAPES, ("1", "0")] if fn == "add" else [SHAPES[n % len(SHAPES)]]  # all broadcast alike
        for a, b in shapes:
            dtype = "f32" if "float" in function.kinds else "i32" if "int" in function.kinds else "bool"
            low, high = (0.5, 3.0) if fn == "pow" else (0, 9) if fn in ("shl", "shr") else (-4, 4)
            cases.append(Case(Binary(fn), (f"{dtype}[{a}]", f"{dtype}[{b}]"), low=low, high=high, widen=4))
        for kind in function.kinds.split():
            for dtype in {"float": "f64 f16 bf16", "int": "i8 i64", "uint": "u8 u32", "bool": "bool"}[
                kind
            ].split():
                low, high = (0, 4) if fn in ("pow", "shl", "shr") else (-9, 9)
                cases.append(Case(Binary(fn), (f"{dtype}[3,5]", f"{dtype}[5]"), "dtypes", low=low, high=high))
        if "float" in function.kinds:
            cases.append(Case(Binary(fn), (SPECIAL[:, None], SPECIAL), "special values", widen=4))
    wide = np.array([-(2**31), 2**31 - 1, -7, 7, 0], np.int32)
    for fn in ("add", "mul", "div", "mod", "fmod", "shl", "shr", "pow"):
        cases.append(Case(Binary(fn), (wide[:, None], np.array([1, 2, 3, 0, 40], np.int32)), "overflow"))
    cases.append(Case(Binary("pow"), (SPECIAL, np.array(0.5, np.float32)), "no root of -inf"))
    return cases


VALUES = np.array([0.0, 0.9, -0.9, 1.5, -2.5, 300.0, -300.0, 7e4, -7e4, 3e9, -3e9], np.float32)


def _cast() -> list[Case]:
    names = ["f32", "f64", "f16", "bf16", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "bool"]
    cases = [Case(Cast(name), (VALUES,), "limits") for name in names]
    cases += [Case(Cast(to), (f"{of}[2,7]",), low=-100, high=100) for of in names for to in names]
    cases += [
        Case(Rounded(to), (x,), "rounded") for to in ("f16", "bf16") for x in ("f32[2,19]", VALUES, SPECIAL)
    ]
    sizes = [
        ("i8", "u8", "bool"),
        ("f16", "bf16", "i16", "u16"),
        ("f32", "i32", "u32"),
        ("f64", "i64", "u64"),
    ]
    cases += [Case(BitCast(to), (f"{of}[3,17]",)) for same in sizes for of in same for to in same]
    cases += [
        Case(BitCast("u32"), (SPECIAL,), "special values"),
        Case(BitCast("i64"), ("f64[]",), "a number"),
    ]
    return cases + [Case(Cast("i32"), (SPECIAL,), "special values"), Case(Cast("u8"), ("i64[0]",))]


CASES = [
    *_unary(),
    *_binary(),
    *_cast(),
    Case(Where(), ("bool[2,3]", "f32[2,3]", "f32[2,3]")),
    Case(Where(), ("bool[3,1]", "i64[1,5]", "i64[]")),
    Case(Where(), ("bool[]", "bf16[4,1]", "bf16[3]")),
    Case(Where(), ("bool[4]", SPECIAL[:, None], "f32[1]"), "NaN on one side"),
]
