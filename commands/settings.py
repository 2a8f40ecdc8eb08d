"""`burnish settings`: Burnish's environment variables."""

from __future__ import annotations

import click

from ..settings import KNOBS


@click.command("settings")
def command():
    """List Burnish's environment variables, its value and what it does."""
    for knob in KNOBS:
        value = f"{knob.value}" if knob.value is not None else f"{knob.default} (unset)"
        click.echo(f"{knob.name}={value}\n    {knob.meaning}")
