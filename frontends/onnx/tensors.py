"""Tensors of a model as numpy arrays: types are known and sizes checked before memory is taken."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from ...compiler.ir.types import DTYPES, DType, dtype_by_code
from ...errors import ModelError, UnsupportedError
from .external_data import ModelFolder, read_external

MAX_RANK = 64  # of numpy's arrays
MAX_BYTES = 64 << 30
"""No single value of a model may be larger."""
MAX_MADE_BYTES = 256 << 20
"""Nor may a constant that the importer makes up, such as a range: the file does not hold its data."""


def onnx_dtype(code: int, what: str) -> DType:
    """The DType of ONNX's number `code`; UnsupportedError naming `what` where Burnish has none."""
    try:
        return dtype_by_code(code)
    except KeyError:
        known = TensorProto.DataType.values()
        name = TensorProto.DataType.Name(code).lower() if code in known else f"number {code}"
        raise UnsupportedError(
            f"{what} has the element type {name}, which is not supported; supported are {', '.join(DTYPES)}"
        ) from None


def numpy_dtype(code: int, what: str) -> np.dtype:
    """numpy's, of any number that ONNX has; UnsupportedError naming `what` of others."""
    try:
        return np.dtype(helper.tensor_dtype_to_np_dtype(code))
    except KeyError:
        return onnx_dtype(code, what).numpy


def checked_bytes(dtype: DType, shape: Iterable[int], what: str, limit: int = MAX_BYTES) -> int:
    """Bytes of a tensor; ModelError if a size is negative or the product beyond the limit."""
    shape = tuple(shape)
    if len(shape) > MAX_RANK:
        raise ModelError(f"{what} has {len(shape)} axes; at most {MAX_RANK} are supported")
    if min(shape, default=0) < 0:
        raise ModelError(f"{what} has the negative size {min(shape)} in its shape {list(shape)}")
    size = dtype.bytes * math.prod(d for d in shape if d)  # numpy refuses sizes beside a 0, too
    if size > limit:
        raise ModelError(f"{what} claims {dtype}{list(shape)}, {size:,} bytes; the limit is {limit:,}")
    return 0 if 0 in shape else size


def native(value: Any) -> np.ndarray:
    """What numpy makes of a value, in this machine's byte order."""
    array = np.asarray(value)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def tensor_array(tensor: TensorProto, folder: ModelFolder | None, what: str) -> np.ndarray:
    """The data of `tensor`, read-only. `folder` is the model's, or None if it was not read from a file.

    ModelError if the data does not fit the shape, UnsupportedError for a dtype that Burnish lacks.
    """
    dtype = onnx_dtype(tensor.data_type, what)
    shape = tuple(tensor.dims)
    nbytes = checked_bytes(dtype, shape, what)
    if tensor.data_location == TensorProto.EXTERNAL:
        raw = read_external(tensor, folder, nbytes, what)
    elif tensor.HasField("raw_data"):
        raw = tensor.raw_data
    else:
        return _typed_data(tensor, dtype, shape, what)
    if len(raw) != nbytes:
        raise ModelError(f"{what}: {dtype}{list(shape)} takes {nbytes} bytes, but {len(raw)} are there")
    return np.frombuffer(raw, dtype.numpy.newbyteorder("<")).astype(dtype.numpy, copy=False).reshape(shape)


def _typed_data(tensor: TensorProto, dtype: DType, shape: tuple[int, ...], what: str) -> np.ndarray:
    field = getattr(tensor, onnx.helper.tensor_dtype_to_field(tensor.data_type))
    expected = int(np.prod(shape, dtype=object)) if shape else 1
    if len(field) != expected:
        raise ModelError(f"{what}: shape {list(shape)} has {expected} elements, but {len(field)} are there")
    try:
        array = onnx.numpy_helper.to_array(tensor)
    except (ValueError, TypeError, OverflowError) as error:
        raise ModelError(f"{what}: its data cannot be read: {error}") from None
    array.setflags(write=False)
    return array
