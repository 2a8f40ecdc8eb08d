"""`burnish worker`: this machine, or some of its cores, measures for a tuner elsewhere."""

from __future__ import annotations

import os
import re
import signal
import sys

import click

from ..errors import InputError
from ..op_tuner import device
from ..op_tuner.cores import pin
from ..op_tuner.hardware import this_hardware
from ..op_tuner.workers import LOOPBACK, checked_address, distributed, serve


@click.command("worker")
@click.argument("scheduler", required=False)
@click.option(
    "--listen",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Begin a scheduler here (0: any free port).",
)
@click.option(
    "--host",
    default=LOOPBACK,
    show_default=True,
    metavar="IP",
    help="Address of this machine to listen on. Whoever reaches it can run code here.",
)
@click.option("--cores", metavar="LIST", help="CPUs that are the device, such as 0-3,8 (default: all).")
def command(scheduler, listen, host, cores):
    """Measure for `burnish tune --workers`, one candidate at a time, until interrupted.

    SCHEDULER is the address (tcp://HOST:PORT) that the first worker printed, the one with --listen. Workers
    on one machine need --cores of their own.
    """
    if (scheduler is None) == (listen is None):
        raise InputError("expected the address of a scheduler, or --listen PORT to begin one")
    if scheduler is not None:
        checked_address(scheduler)
    distributed()
    if cores is not None:
        this_hardware()  # as it is, not as a process sees it that keeps to some cores
        pin(_cpus(cores))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    measuring = device.start()
    try:
        serve(scheduler, host, listen, lambda address: click.echo(f"measuring for {address}"))
    finally:
        measuring.close()


def _cpus(text: str) -> set[int]:
    """0-3,8 → {0, 1, 2, 3, 8}"""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not re.fullmatch(r"\d{1,6}", first) or (dash and not re.fullmatch(r"\d{1,6}", last)):
            raise InputError(f"--cores {text!r}: expected CPUs such as 0-3,8")
        if int(last or first) < int(first):
            raise InputError(f"--cores {text!r}: {part} ends before it begins")
        found |= set(range(int(first), int(last or first) + 1))
    allowed = os.sched_getaffinity(0)
    if not found or not found <= allowed:
        raise InputError(f"--cores {text!r}: expected some of {', '.join(map(str, sorted(allowed)))}")
    return found
