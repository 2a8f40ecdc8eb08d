"""Import of matrix products, Gemm, Einsum and AffineGrid."""

from __future__ import annotations

import string
from collections.abc import Callable
from functools import partial

import numpy as np

from ...compiler.ir.types import F64
from ...compiler.ops.elementwise import Binary, Cast
from ...compiler.ops.matmul import Einsum, MatMul, MatMulInteger
from ...compiler.ops.movement import Reshape
from ...compiler.ops.shapes import broadcast_shape
from ...errors import ModelError
from .registry import NodeContext, onnx
from .tensors import MAX_MADE_BYTES, checked_bytes


@onnx("MatMul")
def matmul(c: NodeContext, a: str, b: str):
    return matrix_product(c, partial(c.one, MatMul()), a, b)


def matrix_product(c: NodeContext, multiply: Callable[[str, str], str], a: str, b: str) -> str:
    """`multiply` of matrices: as in numpy a vector at the left is a row, at the right a column; its axis of 1
    goes away."""
    x, y = c.type(a).dims, c.type(b).dims
    if not x or not y:
        raise ModelError(f"{c.label}: a scalar cannot be a factor of a matrix product")
    left = c.one(Reshape((1, *x)), a) if len(x) == 1 else a
    right = c.one(Reshape((*y, 1)), b) if len(y) == 1 else b
    product = multiply(left, right)
    if len(x) > 1 and len(y) > 1:
        return product
    shape = list(c.type(product).dims)
    if len(y) == 1:
        del shape[-1]
    if len(x) == 1:
        del shape[-1 if len(y) == 1 else -2]
    return c.one(Reshape(tuple(shape)), product)


@onnx("MatMulInteger")
def matmul_integer(c: NodeContext, a: str, b: str, a_zero: str | None = None, b_zero: str | None = None):
    """A vector of zero points has one for each row of a, or column of b."""
    if a_zero is not None and len(shape := c.type(a_zero).dims) == 1 and shape != (1,):
        a_zero = c.one(Reshape((*shape, 1)), a_zero)
    return matrix_product(c, lambda a, b: c.one(MatMulInteger(), a, b, a_zero, b_zero), a, b)


@onnx("Gemm")
def gemm(c: NodeContext, a: str, b: str, bias: str | None = None):
    if c.type(a).rank != 2 or c.type(b).rank != 2:
        raise ModelError(f"{c.label}: inputs {c.type(a)} and {c.type(b)}, expected two matrices")
    product = c.one(MatMul(bool(c.attr("transA", 0)), bool(c.attr("transB", 0))), a, b)
    dtype, dims = c.type(product).dtype, c.type(product).dims
    if bias is not None and broadcast_shape(dims, c.type(bias).dims) != dims:
        raise ModelError(f"{c.label}: C is {c.type(bias)}, which does not broadcast to {list(dims)}")
    whole = all(float(c.attr(factor, 1.0)).is_integer() for factor in ("alpha", "beta"))
    if dtype.is_float or whole:
        return affine(c, product, bias)
    if bias is not None:
        bias = c.one(Cast("f64"), bias)
    return c.emit(Cast(dtype.name), affine(c, c.one(Cast("f64"), product), bias))


def affine(c: NodeContext, product: str, bias: str | None) -> str:
    """alpha · product + beta · bias."""
    product = scaled(c, product, "alpha")
    if bias is None or c.attr("beta", 1.0) == 0:
        return product
    return c.one(Binary("add"), product, scaled(c, bias, "beta"))


def scaled(c: NodeContext, x: str, factor: str) -> str:
    """x times the attribute of that name."""
    value = c.attr(factor, 1.0)
    return x if value == 1 else c.one(Binary("mul"), x, c.const(np.array(value, c.type(x).dtype.numpy)))


@onnx("Einsum")
def einsum(c: NodeContext, *operands: str):
    ranks = [c.type(x).rank for x in operands]
    try:
        equation = explicit_equation(c.required("equation"), ranks)
    except ValueError as error:
        raise ModelError(f"{c.label}: {error}") from None
    return c.emit(Einsum(equation), *operands)


def explicit_equation(equation: str, ranks: list[int]) -> str:
    """The equation with letters for every ellipsis, and with its result spelt out."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ValueError(f"equation {equation!r} names {len(terms)} operands, but {len(ranks)} are given")
    used = {letter for letter in left + right if letter.isalpha()}
    free = [letter for letter in string.ascii_letters if letter not in used]
    covered = [
        rank - len(term.replace("...", "")) if "..." in term else 0 for term, rank in zip(terms, ranks)
    ]
    if any(n < 0 for n in covered) or max(covered, default=0) > len(free):
        raise ValueError(f"equation {equation!r} names more axes than an operand has")
    dots = "".join(free[: max(covered, default=0)])
    if arrow and dots and "..." not in right:
        raise ValueError(f"equation {equation!r} has an ellipsis in its operands, but none in its result")
    full = [term.replace("...", dots[len(dots) - n :]) for term, n in zip(terms, covered)]
    if not arrow:
        every = "".join(terms).replace(".", "")
        right = "..." * bool(dots) + "".join(
            sorted(letter for letter in set(every) if every.count(letter) == 1)
        )
    return f"{','.join(full)}->{right.replace('...', dots)}"


@onnx("AffineGrid")
def affine_grid(c: NodeContext, theta: str, size: str):
    batch, _, *spatial = c.ints(size, "size")
    rank = len(spatial)
    if c.type(theta).dims != (batch, rank, rank + 1):
        raise ModelError(f"{c.label}: theta is {c.type(theta)}, expected the shape {[batch, rank, rank + 1]}")
    checked_bytes(F64, (*spatial, rank + 1), f"{c.label}: its points", MAX_MADE_BYTES)
    align = bool(c.attr("align_corners", 0))
    lines = [np.linspace(-1, 1, n) if align else (2 * np.arange(n) + 1) / n - 1 for n in spatial]
    grid = np.meshgrid(*lines, indexing="ij")
    # a row of the base is (x, y, …, 1): the last axis comes first
    base = (
        np.stack([*reversed(grid), np.ones(spatial)], -1)
        .reshape(-1, rank + 1)
        .astype(c.type(theta).dtype.numpy)
    )
    points = c.one(MatMul(trans_b=True), c.const(base), theta)
    return c.emit(Reshape((batch, *spatial, rank)), points)
