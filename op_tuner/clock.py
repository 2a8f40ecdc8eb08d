"""The clock that times of kernels are given at, so that they compare from minute to minute and run to run.

A core's clock falls by some percent for minutes while other cores, or other tenants of the machine, are busy:
more than good configs differ by. Beside each candidate a chain of dependent multiply-adds is run (`measure`);
the pace of the first one that this machine ever measured is the usual one.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from ..errors import InputError
from ..settings import cache_dir
from .hardware import Hardware
from .measure import Measurement
from .records import append_lines


def pace_path() -> Path:
    return cache_dir() / "pace.jsonl"


def at_usual_pace(result: Measurement, hardware: Hardware) -> Measurement:
    """With the seconds that it would have taken at the usual pace."""
    if result.error or not result.pace:
        return result
    usual = _usual(hardware, pace_path(), result.pace)
    return replace(result, seconds=result.seconds * result.pace / usual)


def usual_pace(hardware: Hardware) -> float:
    """0 if it is not known yet."""
    return _told(hardware, pace_path()).get(hardware, 0.0)


def _usual(hardware: Hardware, path: Path, pace: float) -> float:
    """What the file says first of the hardware; it is told `pace` if it says nothing."""
    known = _told(hardware, path)
    if hardware not in known:
        line = json.dumps({"hardware": hardware.to_json(), "pace": pace})
        with suppress(InputError):  # then it holds for this process
            append_lines(path, [line])
            _read(path, known)  # another process may have been first
    return known.setdefault(hardware, pace)


def _told(hardware: Hardware, path: Path) -> dict[Hardware, float]:
    """What is known, the file having been asked about the hardware."""
    known = _known(path)
    if hardware not in known:
        _read(path, known)
    return known


@cache
def _known(path: Path) -> dict[Hardware, float]:
    return {}


def _read(path: Path, known: dict[Hardware, float]) -> None:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        with suppress(ValueError, KeyError, TypeError):  # torn, or not ours
            data = json.loads(line)
            pace = float(data["pace"])
            if pace > 0:
                known.setdefault(Hardware.from_json(data["hardware"]), pace)
