"""`burnish zoo`: the built-in networks as .onnx files."""

from __future__ import annotations

from pathlib import Path

import click

from ..errors import InputError
from ..models.zoo import build, names
from .files import check_writable, megabytes, write_file
from .options import LARGEST


@click.command("zoo")
@click.argument("name", required=False)
@click.option(
    "output",
    "-o",
    type=click.Path(path_type=Path),
    metavar="MODEL.onnx",
    help="File to write (default: NAME.onnx).",
)
@click.option(
    "--batch",
    type=click.IntRange(1, LARGEST),
    default=1,
    show_default=True,
    metavar="N",
    help="Inputs in one run.",
)
@click.option(
    "--image", type=click.IntRange(1, LARGEST), metavar="PIXELS", help="Height and width of the input image."
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, metavar="N", help="Of the random weights."
)
def command(name, output, batch, image, seed):
    """List the built-in networks, or write network NAME as an .onnx file.

    Weights are random, from a seed, but of a scale that keeps activations in range; those of `digits` are
    trained. Another model in NAME.onnx is replaced only if -o names it.
    """
    if name is None:
        if output or image or batch != 1:
            raise InputError("-o, --image and --batch are of one network: give its NAME")
        for known in names():
            click.echo(known)
        return
    path = check_writable(output or Path(f"{name}.onnx"))
    data = build(name, seed=seed, batch=batch, image=image).SerializeToString(deterministic=True)
    if output is None and path.is_file() and path.read_bytes() != data:
        raise InputError(f"{path} is there, and is another model: name it with -o to replace it")
    write_file(path, data)
    click.echo(f"wrote {path}: {megabytes(len(data))}")
