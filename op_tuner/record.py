"""One measurement, as a line of JSON.

    {"format": 2, "task": DIGEST, "key": TEXT, "algorithm": …, "target": …, "threads": 2, "hardware": {…},
     "config": {KNOB: VALUE}, "evict": 0, "seconds": 1e-4, "spread": 0.01, "runs": 40, "error": null,
     "detail": "", "burnish": VERSION, "llvm": "22.1.2"}

Times of kernels inside of a network's module have two fields more: `network`, a digest of what it runs, and
`against`, the default config's seconds there in the same turns. Only these two are compared, never with times
of a kernel alone, and they decide where there are any.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, cached_property
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from ..compiler.code_version import compiler_version
from ..errors import InputError
from .hardware import Hardware

FORMAT = 2
METHOD = 2  # of measuring: since 2 caches hold the places of outputs and temporaries, as in a network
PLAN = "plan"  # what records of whole plans have for an algorithm (`whole_plans`)
NOISY = 0.15  # spread from which on the machine did other things, too
UNSURE = 0.1  # doubt from which on a measurement says little
COLD = 64 << 20  # bytes to evict of records of format 1, which had a field `cold` for it
_START = '{"format":'


@dataclass(frozen=True)
class Record:
    """One measurement. `seconds` is None where `error` says what happened instead."""

    task: str  # digest of the task's key
    key: str
    algorithm: str
    target: str
    threads: int
    hardware: Hardware
    config: Mapping[str, Any]  # the answers to the template's questions
    evict: int  # bytes of other memory that were read before every run, as a network does
    seconds: float | None  # as of a `Measurement`; of older records the median of the runs
    spread: float  # (upper - lower quartile) / median
    runs: int
    error: str | None
    detail: str  # of the error
    burnish: str  # see `version`
    llvm: str
    network: str = ""  # digest of the network inside which it was measured; "" for a kernel alone
    against: float | None = None  # seconds of the default config there; `spread` is that of the ratio

    @cached_property
    def line(self) -> str:
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        if not self.network:
            del data["network"], data["against"]
        data["hardware"] = self.hardware.to_json()
        data["config"] = {knob: plain(answer) for knob, answer in self.config.items()}
        return json.dumps({"format": FORMAT, **data}, allow_nan=False)

    @property
    def id(self) -> str:
        """What a plan calls it."""
        return hashlib.sha256(self.line.encode()).hexdigest()[:12]

    @property
    def made_by(self) -> str:
        return f"{self.burnish} {self.llvm}"

    @property
    def doubt(self) -> float:
        """By what share, about, chance may have moved the median of the runs."""
        return 2 * self.spread / max(1, self.runs) ** 0.5

    @property
    def sure(self) -> bool:
        """Whether it says what a config takes: few runs that differ may each have been anything."""
        return self.doubt <= UNSURE


def plain(value: Any) -> object:
    """A knob's answer as JSON can hold it: numbers, texts, and tuples of them for tuples and dataclasses."""
    if type(value) in (int, str, bool, float):
        return value
    if is_dataclass(value):
        return tuple(plain(getattr(value, f.name)) for f in fields(value))
    if isinstance(value, (tuple, list)):
        return tuple(map(plain, value))
    return value.item() if isinstance(value, np.generic) else value


def tuples(value: object) -> object:
    """An answer as read from JSON, which has no tuples."""
    return tuple(map(tuples, value)) if isinstance(value, list) else value


def parse_record(line: str, where: str) -> Record | None:
    """The record of a line; None if the line was torn. InputError, beginning with `where`, for another line
    that is none, or one of a newer format."""
    try:
        data = json.loads(line)
    except RecursionError:
        raise InputError(f"{where}: expected a record, found lists within lists") from None
    except ValueError:
        if line.startswith(_START) or _START.startswith(line) or "\0" in line:
            return None
        raise InputError(f"{where}: expected a record, a line beginning with {_START}") from None
    if not isinstance(data, dict) or not isinstance(data.get("format"), int):
        raise InputError(f"{where}: expected a record, a line beginning with {_START}")
    if not 1 <= data["format"] <= FORMAT:
        raise InputError(f"{where}: records of format {data['format']}; this Burnish reads format {FORMAT}")
    try:
        data = {"network": "", "against": None, **data}
        if data["format"] == 1:
            data["evict"] = COLD if data["cold"] else 0
        values = {f.name: data[f.name] for f in fields(Record)}
        values["hardware"] = Hardware.from_json(values["hardware"])
        values["config"] = {str(k): tuples(v) for k, v in values["config"].items()}
        _check(values)
    except KeyError as error:
        raise InputError(f"{where}: the record has no field {error}") from None
    except (TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise InputError(f"{where}: a field of the record is of the wrong kind: {error}") from None
    return Record(**values)


def _check(values: Mapping[str, Any]) -> None:
    for name in ("task", "key", "algorithm", "target", "detail", "burnish", "llvm", "network"):
        if not isinstance(values[name], str):
            raise TypeError(f"{name} is no text")
        values[name].encode()
    for name in ("threads", "runs", "evict"):
        if type(values[name]) is not int or not 0 <= values[name] < 1 << 62:
            raise TypeError(f"{name} is no whole number")
    seconds, error, against = values["seconds"], values["error"], values["against"]
    if (seconds is None) == (error is None) or not isinstance(error, str | None):
        raise TypeError("expected either seconds or an error")
    if not _is_size(values["spread"]):
        raise TypeError(f"the spread is {values['spread']!r}")
    if seconds is not None and not _is_size(seconds):
        raise TypeError(f"seconds are {seconds!r}")
    if bool(values["network"] and error is None) != (_is_size(against) and against > 0):
        raise TypeError(f"measured against {against!r} seconds")
    if values["network"] and error is None and not values["runs"]:
        raise TypeError("a network's time is of no run")
    for knob, answer in values["config"].items():
        _check_answer(knob, answer)


def _is_size(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= float(value) < math.inf


def _check_answer(knob: str, answer: Any) -> None:
    if isinstance(answer, tuple):
        for part in answer:
            _check_answer(knob, part)
    elif type(answer) not in (str, int, bool) and not (type(answer) is float and math.isfinite(answer)):
        raise TypeError(f"the answer to {knob} is {answer!r:.40}")


@cache
def version() -> str:
    """Of the compiler that made the code, and of how it was measured."""
    return hashlib.sha256(f"{compiler_version()} {METHOD}".encode()).hexdigest()[:16]


def made_by() -> str:
    """As `Record.made_by` of a record made now."""
    return f"{version()} {llvm_version()}"


def llvm_version() -> str:
    return ".".join(map(str, llvm.llvm_version_info))
