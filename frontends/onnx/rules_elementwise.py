"""Import of arithmetic, activations, comparisons, logic and casts."""

from __future__ import annotations

import numpy as np

from ...compiler.ir.types import BOOL, F32, DType
from ...compiler.ops.elementwise import Binary, BitCast, Cast, Unary, Where
from ...compiler.ops.movement import Identity
from ...errors import ModelError
from .registry import NodeContext, onnx
from .tensors import onnx_dtype

UNARY_NAMES = {
    "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh", "Atan": "atan",
    "Atanh": "atanh", "BitwiseNot": "not", "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh", "Erf": "erf",
    "Exp": "exp", "Floor": "floor", "HardSwish": "hard_swish", "IsNaN": "isnan", "Log": "log", "Mish": "mish",
    "Neg": "neg", "Reciprocal": "reciprocal", "Relu": "relu", "Round": "round",
    "Sigmoid": "sigmoid", "Sign": "sign", "Sin": "sin", "Sinh": "sinh", "Softplus": "softplus",
    "Softsign": "softsign", "Sqrt": "sqrt", "Tan": "tan", "Tanh": "tanh",
}  # fmt: skip
BINARY_NAMES = {
    "Add": "add", "BitwiseAnd": "and", "BitwiseOr": "or", "BitwiseXor": "xor", "Div": "div",
    "Equal": "eq", "Greater": "gt", "GreaterOrEqual": "ge", "Less": "lt", "LessOrEqual": "le", "Mul": "mul",
    "PRelu": "prelu", "Sub": "sub",
}  # fmt: skip
LOGICAL_NAMES = {"And": "and", "Not": "not", "Or": "or", "Xor": "xor"}
PARAMETERS: dict[str, tuple[str, dict[str, float]]] = {
    "Celu": ("celu", {"alpha": 1.0}),
    "Elu": ("elu", {"alpha": 1.0}),
    "HardSigmoid": ("hard_sigmoid", {"alpha": 0.2, "beta": 0.5}),
    "IsInf": ("isinf", {"detect_negative": 1, "detect_positive": 1}),
    "LeakyRelu": ("leaky_relu", {"alpha": 0.01}),
    "Selu": ("selu", {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}),
    "Swish": ("swish", {"alpha": 1.0}),
    "ThresholdedRelu": ("thresholded_relu", {"alpha": 1.0}),
}
"""ONNX operator → (function, its attributes in the order of the function's parameters, with defaults)."""


def _unary_rule(fn: str):
    return lambda c, x: c.emit(Unary(fn), x)


def _binary_rule(fn: str):
    return lambda c, a, b: c.emit(Binary(fn), a, b)


def _logical_rule(fn: str):
    def rule(c: NodeContext, *values: str):
        if wrong := [c.type(x) for x in values if c.type(x).dtype is not BOOL]:
            raise ModelError(f"{c.label}: an input is {wrong[0]}, expected bool")
        return c.emit(Unary(fn) if len(values) == 1 else Binary(fn), *values)

    return rule


def _parameter_rule(fn: str, attributes: dict[str, float]):
    def rule(c: NodeContext, x: str):
        params = tuple(float(c.attr(key, default)) for key, default in attributes.items())
        return c.emit(Unary(fn, params), x)

    return rule


def _variadic_rule(fn: str):
    return lambda c, first, *others: _fold(c, fn, (first, *others))


for _name, _fn in UNARY_NAMES.items():
    onnx(_name)(_unary_rule(_fn))
for _name, _fn in BINARY_NAMES.items():
    onnx(_name)(_binary_rule(_fn))
for _name, _fn in LOGICAL_NAMES.items():
    onnx(_name)(_logical_rule(_fn))
for _name, (_fn, _attributes) in PARAMETERS.items():
    onnx(_name)(_parameter_rule(_fn, _attributes))
for _name, _fn in (("Max", "max"), ("Min", "min"), ("Sum", "add")):
    onnx(_name)(_variadic_rule(_fn))


def _fold(c: NodeContext, fn: str, values: tuple[str, ...]) -> str:
    """The values combined one after the other."""
    total = values[0]
    for value in values[1:]:
        total = c.one(Binary(fn), total, value)
    return total if len(values) > 1 else c.one(Identity(), total)


@onnx("Mean")
def mean(c: NodeContext, first: str, *others: str):
    total = _fold(c, "add", (first, *others))
    return c.emit(Binary("div"), total, c.const(np.array(1 + len(others), c.type(total).dtype.numpy)))


@onnx("Pow")
def pow_(c: NodeContext, base: str, exponent: str):
    base_type, exponent_type = c.type(base).dtype, c.type(exponent).dtype
    if base_type is exponent_type:
        return c.emit(Binary("pow"), base, exponent)
    if base_type.is_integer and exponent_type.is_float:  # ONNX: computed in the exponent's type
        power = c.one(Binary("pow"), c.one(Cast("f64"), base), c.one(Cast("f64"), exponent))
        return c.emit(Cast(base_type.name), power)
    larger = exponent_type.bits + (exponent_type.kind == "uint") > base_type.bits + (base_type.kind == "uint")
    if base_type.is_integer and larger:
        power = c.one(Binary("pow"), c.one(Cast("i64"), base), c.one(Cast("i64"), exponent))
        return c.emit(Cast(base_type.name), power)
    if base_type.is_integer or _all_are(c, exponent, base_type):
        return c.emit(Binary("pow"), base, c.one(Cast(base_type.name), exponent))
    wide = "f32" if max(base_type.bytes, exponent_type.bytes) <= 2 or exponent_type is F32 else "f64"
    power = c.one(Binary("pow"), c.one(Cast(wide), base), c.one(Cast(wide), exponent))
    return c.emit(Cast(base_type.name), power)


def _all_are(c: NodeContext, value: str, dtype: DType) -> bool:
    """Whether a floating-point type has all numbers of a value's type, or those that a constant holds."""
    type = c.type(value).dtype
    known = c.g.constants.get(value)
    if known is not None:
        wide = known.astype(np.float64)
        return bool(((wide.astype(dtype.numpy).astype(np.float64) == wide) | np.isnan(wide)).all())
    digits = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}
    own = digits[type.name] if type.is_float else type.bits - (type.kind == "int")
    return own <= digits[dtype.name] and (not type.is_float or type.bytes < dtype.bytes)


@onnx("Mod")
def mod(c: NodeContext, a: str, b: str):
    return c.emit(Binary("fmod" if c.attr("fmod", 0) else "mod"), a, b)


@onnx("BitShift")
def bit_shift(c: NodeContext, x: str, count: str):
    directions = {"LEFT": "shl", "RIGHT": "shr"}
    if c.required("direction") not in directions:
        raise c.unsupported(f"direction {c.attr('direction')!r}", "it must be LEFT or RIGHT")
    return c.emit(Binary(directions[c.attr("direction")]), x, count)


@onnx("Shrink")
def shrink(c: NodeContext, x: str):
    """Of integers in f64, which knows halves, and less than 0."""
    dtype, fn = c.type(x).dtype, Unary("shrink", (float(c.attr("bias", 0.0)), float(c.attr("lambd", 0.5))))
    if dtype.is_float:
        return c.emit(fn, x)
    return c.emit(Cast(dtype.name), c.one(fn, c.one(Cast("f64"), x)))


@onnx("Gelu")
def gelu(c: NodeContext, x: str):
    functions = {"none": "gelu", "tanh": "gelu_tanh"}
    approximate = c.attr("approximate", "none")
    if approximate not in functions:
        raise c.unsupported(f"approximate={approximate!r}", "it must be none or tanh")
    return c.emit(Unary(functions[approximate]), x)


@onnx("Clip")
def clip_attributes(c: NodeContext, x: str):
    """Bounds that are left out are those of f32."""
    if not c.type(x).dtype.is_float:
        raise ModelError(f"{c.label}: x is {c.type(x)}, expected floats; others are clipped from opset 12 on")
    most = float(np.finfo(np.float32).max) if c.type(x).dtype.bits >= 32 else np.inf
    return c.emit(Unary("clip", (float(c.attr("min", -most)), float(c.attr("max", most)))), x)


@onnx("Clip", since=11)
def clip(c: NodeContext, x: str, low: str | None = None, high: str | None = None):
    dtype = c.type(x).dtype
    known = [None if v is None else c.g.constants.get(v) for v in (low, high)]
    if dtype.is_float and all(v is None or k is not None for v, k in zip((low, high), known)):
        bounds = [limit if k is None else k.item() for limit, k in zip((-np.inf, np.inf), known)]
        return c.emit(Unary("clip", tuple(bounds)), x)
    for bound, fn in ((low, "max"), (high, "min")):
        x = x if bound is None else c.one(Binary(fn), x, bound)
    return x if low or high else c.one(Identity(), x)


@onnx("Where")
def where(c: NodeContext, condition: str, x: str, y: str):
    return c.emit(Where(), condition, x, y)


@onnx("Cast")
def cast(c: NodeContext, x: str):
    return c.emit(Cast(onnx_dtype(c.required("to"), c.label).name), x)


@onnx("BitCast", since=26)
def bit_cast(c: NodeContext, x: str):
    return c.emit(BitCast(onnx_dtype(c.required("to"), c.label).name), x)


@onnx("CastLike")
def cast_like(c: NodeContext, x: str, like: str):
    return c.emit(Cast(c.type(like).dtype.name), x)
