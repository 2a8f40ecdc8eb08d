"""What networks say of whole plans: one that was made from times of kernels alone may be slower in the
network than the plan that is made without measuring. Each has the best configs that are known, as it would be
compiled.

Such a record is one of a network (`records`). Its task is the name of the plan that is made without
measuring, its config that of the other one: of the kernels that a plan runs and their configs. Its key names
the kernels alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..compiler.kernel_task import Config, KernelTask
from .hardware import Hardware
from .record import PLAN, Record, made_by
from .records import Records
from .verdict import confirmed


@dataclass(frozen=True)
class PlanPair:
    """The plan that is made without measuring and another one.

    first, other  names of both with their configs
    key           names of their kernels
    heard         records in which networks compared them on one machine, made by this compiler
    before        such records of other plans beside the same kernels, with other configs, or made by older
                  compilers; the latest last
    """

    first: str
    other: str
    key: str
    heard: tuple[Record, ...]
    before: tuple[Record, ...]

    @property
    def refused(self) -> bool:
        """Whether the other one, with these configs, failed or was not faster beyond doubt."""
        return _refused(self.heard)

    @property
    def given_up(self) -> bool:
        """Whether the other one is not to be taken: it is refused, or nothing is known of it, and what was
        compared last, other kernels or the same with other configs, was refused. What is made from the same
        times of kernels alone is as likely to be slower."""
        if self.heard or not self.before:
            return self.refused
        last = self.before[-1]
        return _refused([r for r in self.before if _compared(r) == _compared(last)])


def _compared(record: Record) -> tuple[object, ...]:
    return record.task, record.config, record.made_by


def _refused(heard: Sequence[Record]) -> bool:
    found = confirmed(heard)
    return bool(heard) and (found is None or found.share >= 1 or any(r.error for r in heard))


def plan_pair(
    first: Iterable[KernelTask],
    other: Iterable[KernelTask],
    records: Records,
    machine: Hardware,
    evict: int | None = None,
) -> PlanPair:
    """Of two plans by the tasks that they run, each as often as it runs; configs are what records say of such
    measurements (`evict`)."""
    plans = [list(first), list(other)]
    kernels = [_digest(task.digest for task in tasks) for tasks in plans]
    plain, name = (
        _digest(f"{task.digest} {_answers(records.pick_config(task, evict))}" for task in tasks)
        for tasks in plans
    )
    said = [r for r in records.of_plans if r.hardware == machine]
    heard = tuple(r for r in said if _compared(r) == (plain, {PLAN: name}, made_by()))
    beside = f"{PLAN} {kernels[0]} "
    before = tuple(r for r in said if r.key.startswith(beside) and r not in heard)
    return PlanPair(plain, name, beside + kernels[1], heard, before)


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]


def _answers(config: Config) -> str:
    return json.dumps(getattr(config, "answers", {}), sort_keys=True)
