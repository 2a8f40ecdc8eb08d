"""Inputs and outputs of a model: symbolic sizes are resolved as the user said, declared types checked."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, OperatorSetIdProto, TensorShapeProto, TypeProto, ValueInfoProto

from ...compiler.ir.types import Dim, TensorType, dtype_of
from ...errors import InputError, ModelError, ModelWarning, UnsupportedError
from .tensors import checked_bytes, onnx_dtype


def is_fixed(d: TensorShapeProto.Dimension) -> bool:
    """Whether a size is said; negative ones are open, as some models write it."""
    return d.HasField("dim_value") and d.dim_value >= 0


def domain_of(node: NodeProto | OperatorSetIdProto) -> str:
    """ONNX's own domain, which has two names, as ''."""
    return "" if node.domain == "ai.onnx" else node.domain


def static_shape(info: ValueInfoProto) -> tuple[int, ...] | None:
    """The declared shape; None where a size, or all, is open."""
    tensor = info.type.tensor_type
    if not tensor.HasField("shape") or not all(map(is_fixed, tensor.shape.dim)):
        return None
    return tuple(d.dim_value for d in tensor.shape.dim)


def fed_inputs(graph: GraphProto) -> list[ValueInfoProto]:
    """The inputs that a caller has to give: those that are no initializers."""
    held = {tensor.name for tensor in graph.initializer}
    return [info for info in graph.input if info.name not in held]


def declared_type(info: ValueInfoProto, what: str) -> TensorType | None:
    """dtype and shape, unnamed sizes as '?'; None without a shape. UnsupportedError for non-tensors."""
    held = info.type.WhichOneof("value")
    if held is None:
        return None
    if held != "tensor_type":
        raise UnsupportedError(
            f"{what} is of the kind {held.removesuffix('_type')}, which is not supported; expected a tensor"
        )
    tensor: TypeProto.Tensor = info.type.tensor_type
    dtype = onnx_dtype(tensor.elem_type, what)
    if not tensor.HasField("shape"):
        return None
    dims: list[Dim] = []
    for d in tensor.shape.dim:
        if is_fixed(d):
            dims.append(d.dim_value)
        else:
            dims.append(d.dim_param or "?")
    return TensorType(dtype, tuple(dims))


def _shape_of(name: str, value: Any) -> tuple[int, ...]:
    try:
        return np.shape(value)
    except ValueError as error:
        raise InputError(f"the value given for {name!r} is no array: {error}") from None


def resolve_inputs(
    inputs: Sequence[ValueInfoProto],
    shapes: Mapping[str, tuple[int, ...]],
    dims: Mapping[str, int],
    values: Mapping[str, np.ndarray],
    readers: Mapping[str, str],
) -> tuple[dict[str, TensorType], dict[str, int]]:
    """Static types of the inputs, and the sizes of named dims. `readers`: input → a node that reads it.

    InputError if what the user gave contradicts the model, UnsupportedError if a size stays open.
    """
    names = {i.name for i in inputs}
    for option, given in (("shape", shapes), ("size", dims), ("value", values)):
        if not isinstance(given, Mapping):
            raise InputError(f"{option}s are given by name in a dict, not as {given.__class__.__name__}")
    for option, given in (("shape", shapes), ("value", values)):
        for name in given:
            if name not in names:
                raise InputError(
                    f"a {option} is given for {name!r}; the inputs are {', '.join(sorted(names)) or 'none'}"
                )
    calls = {n: f"input {n!r}" + (f" of {readers[n]}" if n in readers else "") for n in names}
    declared = {i.name: declared_type(i, calls[i.name]) for i in inputs}
    known = _known_dims(dims, declared)
    given_shapes = {n: _sizes(s, f"the shape given for {n!r}") for n, s in shapes.items()}
    given_shapes |= {n: _shape_of(n, v) for n, v in values.items()}
    for name, shape in given_shapes.items():
        _bind(name, shape, declared[name], known, dims)
    known = {dim: size for dim, size in known.items() if size != OPEN}
    types = {}
    for info in inputs:
        name, type = info.name, declared[info.name]
        if name in values:
            types[name] = _value_type(name, values[name], info)
        elif type is None and name not in given_shapes:
            raise UnsupportedError(f"input {name!r} declares no shape; give it with --shape {name}:…")
        else:
            dtype = onnx_dtype(info.type.tensor_type.elem_type, calls[name])
            shape = given_shapes.get(name) or _static_shape(name, type.shape if type else (), known)
            types[name] = TensorType(dtype, shape)
        checked_bytes(types[name].dtype, types[name].dims, f"input {name!r}")
    return types, known


def _size(size: Any, what: str) -> int:
    try:
        return operator.index(size)
    except TypeError:
        raise InputError(f"{what} is {size!r}, expected a whole number") from None


def _sizes(shape: Any, what: str) -> tuple[int, ...]:
    if not isinstance(shape, Iterable) or isinstance(shape, str):
        raise InputError(f"{what} is {shape!r}, expected a tuple of whole numbers")
    return tuple(_size(size, f"a size in {what}") for size in shape)


def _known_dims(dims: Mapping[str, int], declared: Mapping[str, TensorType | None]) -> dict[str, int]:
    symbols = {d for t in declared.values() if t for d in t.shape if isinstance(d, str) and d != "?"}
    known = {}
    for name, size in dims.items():
        if name not in symbols:
            raise InputError(
                f"the size {name!r} is given; the inputs name {', '.join(sorted(symbols)) or 'no sizes'}"
            )
        known[name] = _size(size, f"the size {name!r}")
        if known[name] < 0:
            raise InputError(f"the size {name!r} is {size}, expected 0 or more")
    return known


OPEN = -1
"""Of a name that has different sizes: exporters name sums like a part of them, or every size alike."""


def _bind(
    name: str, shape: tuple[int, ...], type: TensorType | None, known: dict[str, int], given: Container[str]
) -> None:
    """Checks a given shape against the declared one and learns the sizes of its symbols, but `given` ones."""
    if any(d < 0 for d in shape):
        raise InputError(f"the shape given for {name!r} is {list(shape)}; sizes must be 0 or more")
    if type is None:
        return
    fits = len(shape) == type.rank
    for size, dim in zip(shape, type.shape):
        if isinstance(dim, int):
            fits &= size == dim
        elif dim in given:
            fits &= known[dim] == size
        elif dim != "?" and known.setdefault(dim, size) != size:
            known[dim] = OPEN
    if not fits:
        bound = {d: known[d] for d in type.shape if isinstance(d, str) and d in known}
        where = f", where {', '.join(f'{k}={v}' for k, v in bound.items())}" if bound else ""
        raise InputError(f"input {name!r} is declared as {type}{where}; the shape {list(shape)} does not fit")


def _static_shape(name: str, shape: Sequence[Dim], known: Mapping[str, int]) -> tuple[int, ...]:
    result = []
    for d in shape:
        if isinstance(d, str) and d not in known:
            example = "x".join(
                "…" if e == "?" else str(known.get(e, e) if isinstance(e, str) else e) for e in shape
            )
            how = f"--shape {name}:{example}" if d == "?" else f"--dim {d}=… or --shape {name}:{example}"
            called = "an unnamed size" if d == "?" else f"the size {d!r}"
            raise UnsupportedError(f"input {name!r} has {called} that is not known; give it with {how}")
        result.append(known[d] if isinstance(d, str) else d)
    return tuple(result)


def _value_type(name: str, value: np.ndarray, info: ValueInfoProto) -> TensorType:
    dtype = onnx_dtype(info.type.tensor_type.elem_type, f"input {name!r}")
    array = np.asarray(value)
    if array.dtype != dtype.numpy:
        raise InputError(f"the value given for input {name!r} is {array.dtype}, expected {dtype.numpy}")
    return TensorType(dtype_of(array), array.shape)


def check_declared(
    infos: Sequence[ValueInfoProto],
    kind: str,
    inferred: Mapping[str, TensorType],
    makers: Mapping[str, str],
) -> None:
    """ModelError where the model declares another dtype than was inferred, ModelWarning where it declares
    another rank or fixed size: what is computed decides, as in other runtimes.

    Exporters declare 0 for what they do not know, and give one name to sizes that differ.
    """
    for info in infos:
        actual = inferred.get(info.name)
        if actual is None:
            continue
        what = f"{makers.get(info.name, kind)}: {kind} {info.name!r}"
        if info.type.WhichOneof("value") == "tensor_type" and info.type.tensor_type.elem_type not in (
            0,
            actual.dtype.code,
        ):
            dtype = onnx_dtype(info.type.tensor_type.elem_type, f"{kind} {info.name!r}")
            raise ModelError(f"{what} is declared as {dtype}, but computes {actual}")
        if info.type.WhichOneof("value") == "tensor_type" and not info.type.tensor_type.elem_type:
            continue
        declared = declared_type(info, what)
        if declared is None:
            continue
        same = (d in (a, 0) for d, a in zip(declared.shape, actual.dims) if isinstance(d, int))
        if declared.rank != actual.rank or not all(same):
            warnings.warn(
                f"{what} is declared as {declared}, but computes {actual}, which counts",
                ModelWarning,
                stacklevel=2,
            )
