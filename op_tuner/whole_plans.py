"""What networks say of whole plans: one that was made from times of kernels alone may be slower in the
network than the plan that is made without measuring. Each has the best configs that are known, as it would be
compiled.

Such a record is one of a network (`records`). Its task is the name of the plan that is made without
measuring, its config that of the other one: of the kernels that a plan runs and their configs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from ..compiler.kernel_task import Config, KernelTask
from .hardware import Hardware
from .records import PLAN, Record, Records, confirmed


@dataclass(frozen=True)
class PlanPair:
    """Names of the plan that is made without measuring and of another one with its configs; `heard` are the
    records in which networks compared them on one machine."""

    first: str
    other: str
    heard: tuple[Record, ...]

    @property
    def refused(self) -> bool:
        """Whether the other one was not faster beyond doubt."""
        found = confirmed(self.heard)
        return bool(self.heard) and (found is None or found.share >= 1)


def plan_pair(
    first: Iterable[KernelTask],
    other: Iterable[KernelTask],
    records: Records,
    machine: Hardware,
    evict: int | None = None,
) -> PlanPair:
    """Of two plans by the tasks that they run, each as often as it runs; configs are what records say of such
    measurements (`evict`)."""
    plain, name = (
        _digest(f"{task.digest} {_answers(records.pick_config(task, evict))}" for task in tasks)
        for tasks in (first, other)
    )
    said = [r for r in records.in_networks(plain) if r.hardware == machine and r.config == {PLAN: name}]
    return PlanPair(plain, name, tuple(r for r in said if r.seconds is not None))


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]


def _answers(config: Config) -> str:
    return json.dumps(getattr(config, "answers", {}), sort_keys=True)
