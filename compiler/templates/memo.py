"""What a template finds out about a task before it asks anything, kept: a tuner asks thousands of times."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from typing import Any, TypeVar

from ..kernel_task import KernelTask

T = TypeVar("T")
TASKS = 256  # results that are kept


class _Key:
    """A task that is compared by digest and target."""

    __slots__ = ("task",)

    def __init__(self, task: KernelTask):
        self.task = task

    def __hash__(self) -> int:
        return hash(self.task.digest)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Key):
            return NotImplemented
        return self.task.digest == other.task.digest and self.task.target == other.task.target


def per_task(function: Callable[..., T]) -> Callable[..., T]:
    """The function of a task (and hashable arguments), computed once for equal tasks. Results are shared:
    nobody may change them."""

    @lru_cache(maxsize=TASKS)
    def kept(key: _Key, *args: Any) -> T:
        return function(key.task, *args)

    @wraps(function)
    def call(task: KernelTask, *args: Hashable) -> T:
        return kept(_Key(task), *args)

    return call
