"""`burnish cache`: what earlier compilations left on disk."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

import click

from ..errors import InputError
from ..op_tuner.clock import pace_path
from ..op_tuner.records import default_path
from ..settings import cache_dir
from .files import megabytes


@click.command("cache")
@click.option("--clear", is_flag=True, help="Delete what is compiled; the next compilations take longer.")
@click.option("--path", is_flag=True, help="Print only the folder.")
def command(clear, path):
    """Show where kernels, programs of GPUs and the compiled runtime are kept, and how much there is."""
    if clear and path:
        raise InputError("--path prints, --clear deletes; give one of them")
    root = cache_dir()
    if path:
        click.echo(root)
        return
    if not clear:
        click.echo(f"{root}{'' if root.is_dir() else ' (not there yet)'}")
    for name in ("kernels", "programs", "cuda", "runtime", "mali"):
        entries = _entries(root / name)
        size = megabytes(sum(_size(entry) for entry in entries))
        if clear:
            _delete(entries)
        click.echo(f"{'deleted ' if clear else ''}{name}: {len(entries)}, {size}")
    if not clear and default_path().is_file():
        size = megabytes(default_path().stat().st_size)
        click.echo(f"{default_path().name}: {size}, what was measured; no cache, and never deleted here")
    if not clear and pace_path().is_file():
        click.echo(f"{pace_path().name}: the pace that times of this machine are given at; it stays, too")


def _entries(folder: Path) -> list[Path]:
    """Only what Burnish itself names so: files and folders called by a hash, and unfinished ones."""
    if not folder.is_dir():
        return []
    ours = r"[0-9a-f]{24}|[0-9a-f]{64}|partial-\w+|\.[0-9a-f]{60}\.\w+"
    return sorted(entry for entry in folder.iterdir() if re.fullmatch(ours, entry.name))


def _size(entry: Path) -> int:
    """Bytes; of what another process finishes or deletes meanwhile, none."""
    total = 0
    for folder, _, names in os.walk(entry) if entry.is_dir() else [(entry.parent, (), [entry.name])]:
        for name in names:
            with suppress(FileNotFoundError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def _delete(entries: list[Path]) -> None:
    for entry in entries:
        try:
            if entry.is_dir():
                with suppress(FileNotFoundError):  # by whoever deletes it, too
                    shutil.rmtree(entry)
            else:
                entry.unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"cannot delete {entry}: {error.strerror}") from error
