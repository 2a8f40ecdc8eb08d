"""`burnish run`: a module or a model, once, on files or random inputs."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import click
import numpy as np

from ..errors import InputError
from .files import check_folder, file_names, write_file
from .options import SEED, THREADS, compile_options, parse_files
from .source import find_source, load_npy, open_module, random_feeds


@click.command("run")
@click.argument("source", metavar="MODULE|MODEL")
@click.option(
    "files",
    "--input",
    multiple=True,
    callback=parse_files,
    metavar="NAME=FILE",
    help="An input, as .npy or as .raw bytes; inputs without a file get random values.",
)
@click.option(
    "--output", type=click.Path(path_type=Path), metavar="DIR", help="Write each output there as .npy."
)
@compile_options
@THREADS
@SEED
def command(source, files, output, shapes, dims, values, target, cache, threads, seed):
    """Run a module (.so), or compile and run a model (.onnx or a name from the zoo)."""
    found = find_source(source, dims, values=values)
    for path in files.values():
        if not path.is_file():
            wrong = f"{path} is no regular file" if path.exists() else f"there is no file {path}"
            raise InputError(f"--input: {wrong}")
    if output:
        check_folder(output)
    module = open_module(found, shapes, dims, threads, target=target, cache=cache)
    known = {info.name: info for info in module.inputs}
    for name in files:
        if name not in known:
            raise InputError(f"--input: there is no input {name!r}; expected {', '.join(known) or 'none'}")
    feeds = random_feeds(found, module.inputs, seed) if len(files) < len(known) else {}
    feeds |= {name: read_array(path, known[name]) for name, path in files.items()}
    for name in known:
        made = f"from {files[name]}" if name in files else f"random, seed {seed}"
        click.echo(f"input  {known[name]}  {made}")
    names = file_names(info.name for info in module.outputs)
    for info, name, array in zip(module.outputs, names, module.run(feeds).values()):
        click.echo(f"output {info}  {summary(array)}")
        if output:
            path = output / f"{name}.npy"
            write_file(path, npy_bytes(array))
            click.echo(f"  wrote {path}")


def read_array(path: Path, info: Any) -> np.ndarray:
    """The array of an .npy file, or of raw bytes in the input's dtype and shape."""
    if path.suffix != ".npy":
        data = path.read_bytes()
        if len(data) != info.nbytes:
            raise InputError(f"{path} has {len(data)} bytes; the input {info} has {info.nbytes}")
        return np.frombuffer(data, info.dtype).reshape(info.shape)
    return load_npy(path, info.dtype)


def npy_bytes(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def summary(array: np.ndarray) -> str:
    """Range, mean and first values, and how many are not finite."""
    if not array.size:
        return "empty"
    values = array.astype(np.float64).reshape(-1)
    finite = values[np.isfinite(values)]
    lost = f"  {values.size - finite.size} not finite" if finite.size < values.size else ""
    whole = array.dtype.kind in "iu"
    first = " ".join(map(str, array.flat[:6]) if whole else (f"{v:.4g}" for v in values[:6]))
    first += " …" * (values.size > 6)
    if not finite.size:
        return f"[{first}]{lost}"
    if whole:
        return f"min {array.min()}  mean {finite.mean():.4g}  max {array.max()}  [{first}]"
    return f"min {finite.min():.4g}  mean {finite.mean():.4g}  max {finite.max():.4g}{lost}  [{first}]"
