"""External data of tensors, read from regular files inside the model's folder only
(onnx/docs/ExternalData.md)."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import BinaryIO

from onnx import TensorProto

from ...errors import ModelError


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
