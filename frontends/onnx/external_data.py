"""External data of tensors, read from regular files inside the model's folder only
(onnx/docs/ExternalData.md), or beside the file that the model's own is a link to."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import BinaryIO

from onnx import TensorProto

from ...errors import ModelError


@dataclass(frozen=True)
class ModelFolder:
    """Where a model's file lies. Caches (of Hugging Face's hub) have links in it to files in a folder of
    their own, the model's and its data's alike."""

    path: Path
    linked: Path
    """The folder that the model's file really lies in; `path` is that by its name. Both are without links."""

    @classmethod
    def of(cls, model: Path) -> ModelFolder:
        return cls(Path(os.path.realpath(model.parent)), Path(os.path.realpath(model)).parent)

    def find(self, location: str, what: str) -> Path:
        """The real path of `location`; ModelError if it leads elsewhere, by its name or by a link."""
        parts = PurePosixPath(location).parts
        windows = PureWindowsPath(location)
        if not parts or "\0" in location or location.startswith("/") or windows.drive or windows.root:
            raise ModelError(
                f"{what}: its external data {location!r} must be a path relative to the model's folder"
            )
        if ".." in parts or ".." in windows.parts:
            raise ModelError(f"{what}: its external data {location!r} lies outside the model's folder")
        path = Path(os.path.realpath(self.path / location))
        if self.path not in path.parents and self.linked not in path.parents:
            raise ModelError(
                f"{what}: its external data {location!r} leads outside the model's folder by a link"
            )
        return path


def read_external(tensor: TensorProto, folder: ModelFolder | None, nbytes: int, what: str) -> bytes:
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
    path = folder.find(location, what)
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
