"""Tensors of a model file as numpy arrays: sizes are checked before memory is taken, and external data is
read from regular files inside the model's folder only (onnx/docs/ExternalData.md)."""

from __future__ import annotations

import errno
import math
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import BinaryIO

import numpy as np
import onnx
from onnx import TensorProto, helper

from ...compiler.ir.types import DTYPES, DType, dtype_by_code
from ...errors import ModelError, UnsupportedError

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


def tensor_array(tensor: TensorProto, folder: Path | None, what: str) -> np.ndarray:
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


def read_external(tensor: TensorProto, folder: Path | None, nbytes: int, what: str) -> bytes:
    """The `nbytes` bytes that an external tensor refers to; ModelError if they are not safely there."""
    entries = {e.key: e.value for e in tensor.external_data}
    if not all(isinstance(text, str) for entry in entries.items() for text in entry):
        raise ModelError(f"{what}: where its external data is, is not UTF-8 text")
    location = entries.get("location", "")
    if folder is None:
        raise ModelError(
            f"{what} keeps its data in the file {location!r}, but the model was given without a path"
        )
    offset = _count(entries.get("offset", "0"), "offset", what)
    length = _count(entries.get("length", str(nbytes)), "length", what)
    if length != nbytes:
        raise ModelError(f"{what} takes {nbytes} bytes, but its external data claims the length {length}")
    path = _inside(location, folder, what)
    try:
        with open_regular(path, getattr(os, "O_NOFOLLOW", 0)) as file:
            size = os.fstat(file.fileno()).st_size
            if offset + length > size:
                raise ModelError(
                    f"{what}: its external data ends at byte {offset + length} of {location!r}, "
                    f"which has only {size}"
                )
            file.seek(offset)
            return file.read(length)
    except OSError as error:
        raise ModelError(f"{what}: cannot open its external data {location!r}: {error.strerror}") from None


@contextmanager
def open_regular(path: Path, flags: int = 0) -> Iterator[BinaryIO]:
    """Opens a file to be read; OSError if it is no regular one, such as a device or pipe without an end."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def _count(text: str, key: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise ModelError(f"{what}: the {key} of its external data is {text[:40]!r}, expected a byte count")
    return int(text)


def _inside(location: str, folder: Path, what: str) -> Path:
    """The real path of `location`; ModelError if it leads out of `folder`, by its name or by a link."""
    parts = PurePosixPath(location).parts
    windows = PureWindowsPath(location)
    if not parts or "\0" in location or location.startswith("/") or windows.drive or windows.root:
        raise ModelError(
            f"{what}: its external data {location!r} must be a path relative to the model's folder"
        )
    if ".." in parts or ".." in windows.parts:
        raise ModelError(f"{what}: its external data {location!r} lies outside the model's folder")
    root = Path(os.path.realpath(folder))
    path = Path(os.path.realpath(root / location))
    if root not in path.parents:
        raise ModelError(f"{what}: its external data {location!r} leads outside the model's folder by a link")
    return path
