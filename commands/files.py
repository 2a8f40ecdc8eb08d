"""Files that commands write: checked before long work, and never left half-written."""

from __future__ import annotations

import itertools
import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

from ..errors import InputError
from ..runtime.build import is_module_header
from ..runtime.whole_file import is_of_system, write_whole


def check_writable(path: Path, suffixes: Iterable[str] = ()) -> Path:
    """`path`, if a file can be put there; InputError if not, or if its name ends in none of `suffixes`."""
    allowed = tuple(suffixes)
    if allowed and path.suffix not in allowed:
        raise InputError(f"{path}: the name must end in {' or '.join(allowed)}")
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder")
    if path.exists() and not path.is_file():
        if not os.access(path, os.W_OK):
            raise InputError(f"cannot write {path}: it may only be read")
        return path
    if is_of_system(path):
        raise InputError(f"cannot write {path}: it is none of the user's files; give another name")
    place = Path(os.path.realpath(path)).parent if path.is_symlink() else path.parent
    if not place.is_dir():
        raise InputError(f"cannot write {path}: there is no folder {place}")
    _probe(place, path)
    return path


def check_header(path: Path) -> Path:
    """`path`, if a module's header can be put there; InputError if that would replace something else."""
    if path.is_file() and not is_module_header(path):
        raise InputError(f"{path} is no header of a module, and would be replaced by one: give another name")
    return check_writable(path)


def check_different(*paths: Path | None) -> None:
    """InputError if two of the files are one: what is written last would replace the other."""
    seen: set[Path] = set()
    for path in filter(None, paths):
        real = Path(os.path.realpath(path))
        if real in seen:
            raise InputError(f"{path} is named for two things; give each a file of its own")
        seen.add(real)


def file_names(values: Iterable[str]) -> list[str]:
    """Of values' names, each another one."""
    found: list[str] = []
    for value in values:
        name = file_name(value)
        others = (f"{name}_{n}" for n in itertools.count(1))
        found.append(next(n for n in itertools.chain([name], others) if n not in found))
    return found


def check_folder(path: Path) -> Path:
    """`path` as a folder that files can be written into; made if need be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {path}: {error.strerror}") from error
    _probe(path, path)
    return path


def _probe(folder: Path, path: Path) -> None:
    """InputError, with `path`, unless files can be made in the folder."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


def write_file(path: Path, data: bytes | str) -> None:
    """The whole file, or none and an InputError."""
    raw = data.encode(errors="replace") if isinstance(data, str) else data  # names of files may be no text
    write_whole(path, lambda file: file.write(raw))


def file_name(value: str) -> str:
    """A value's name as a file name."""
    return re.sub(r"[^\w.-]", "_", value).lstrip(".") or "_"


def megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f} MB" if nbytes >= 100_000 else f"{nbytes / 1e3:.1f} kB"
