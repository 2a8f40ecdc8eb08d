"""Files and folders that are made whole or not at all; files of caches are read whole or not at all, too."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock

from ..errors import InputError, ToolError


def write_whole(path: Path, write: Callable[[BinaryIO], object], mode: int = 0o666) -> None:
    """What `write` writes becomes the file in one step, so that nobody sees half of it. Of a link it is the
    file that it leads to.

    A device or a pipe, such as /dev/stdout, is written to. InputError if that fails.
    """
    name = ""
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                write(file)
            return
        if is_of_system(path):
            raise InputError(f"cannot write {path}: it stands for a file here; name that one")
        path = Path(os.path.realpath(path))
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:60]}.")
        with os.fdopen(handle, "wb") as file:
            write(file)
        os.chmod(name, mode & ~_umask())
        os.replace(name, path)
    except BaseException as error:
        if name:
            Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise InputError(f"cannot write {path}: {error.strerror}") from error
        raise


def keep_whole(path: Path, data: bytes) -> None:
    """In a cache, for `read_kept`; a cache that cannot be written is no error."""
    with suppress(InputError, OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda file: file.write(hashlib.sha256(data).digest() + data))


def read_kept(path: Path) -> bytes | None:
    """None if it is not there or not whole."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, data = data[:32], data[32:]
    return data if hashlib.sha256(data).digest() == digest else None


def make_folder(
    path: Path, make: Callable[[Path], object], is_whole: Callable[[Path], bool] = Path.is_dir
) -> Path:
    """A folder in the cache, which `make` has filled: now, by one process while others wait, where it is not
    whole. ToolError if the cache cannot be written.
    """
    if is_whole(path):
        return path
    cache = path.parent
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (
            FileLock(str(cache / "lock")),
            tempfile.TemporaryDirectory(dir=cache, prefix="partial-") as name,
        ):
            if is_whole(path):
                return path
            made = Path(name, "made")
            made.mkdir()
            make(made)
            shutil.rmtree(path, ignore_errors=True)
            os.replace(made, path)
    except OSError as error:
        raise ToolError(
            f"cannot write to the cache folder {cache}: {error.strerror}; "
            "set BURNISH_CACHE_DIR to a folder that can be written"
        ) from error
    return path


def is_of_system(path: Path) -> bool:
    """Whether a path is among the system's own, such as /dev/stdout, where nothing may be put or replaced."""
    parts = Path(os.path.abspath(path)).parts
    return parts[:2] in (("/", "dev"), ("/", "proc"), ("/", "sys")) and parts[:3] != ("/", "dev", "shm")


def _umask() -> int:
    """Without changing it, as os.umask does for all threads."""
    try:
        status = Path("/proc/self/status").read_text(errors="replace")  # a process may have any name
    except OSError:
        return 0o022
    found = re.search(r"^Umask:\s*(\d+)", status, re.MULTILINE)
    return int(found[1], 8) if found else 0o022
