"""`burnish targets`: the machines that code can be generated for."""

from __future__ import annotations

import click

from ..compiler.target import TARGETS, Target, get_target, host, this_cuda
from ..errors import InputError


@click.command("targets")
@click.argument("name", required=False)
def command(name):
    """List all targets, or print everything that is known of target NAME.

    A CUDA GPU that is elsewhere has its number of units behind its target: cuda-sm90:132.
    """
    if name is not None:
        click.echo(get_target(name).text())
        return
    for own, find in (("host", host), ("cuda", this_cuda)):
        try:
            click.echo(_line(find(), own))
        except InputError as error:
            click.echo(f"{own:<12} {error}")
    for target in TARGETS.values():
        click.echo(_line(target, target.name))


def _line(target: Target, name: str) -> str:
    return f"{name:<12} {target.kind}, {target.cpu}, vectors of {target.vector_bits} bits"
