"""`burnish settings`: Burnish's environment variables."""

from __future__ import annotations

import click

from ..settings import KNOBS


@click.command("settings")
def command():
    """List the environment variables that Burnish reads, their values and what they do."""
    for knob in KNOBS:
        value = f"{knob.value}" if knob.value is not None else f"{knob.default} (unset)"
        click.echo(f"{knob.name}={value}\n    {knob.meaning}")
