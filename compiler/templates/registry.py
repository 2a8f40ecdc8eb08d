"""The templates by algorithm name. A template has two halves: `params(task, cfg)` asks, `schedule(task,
params)` builds.
"""

from __future__ import annotations

from types import ModuleType

from ...errors import InternalError
from ..kernel_task import KernelTask
from . import direct, map, naive, recurrence, rows, winograd

TEMPLATES: dict[str, ModuleType] = {
    "winograd": winograd,
    "recurrence": recurrence,
    "direct": direct,
    "rows": rows,
    "map": map,
    "naive": naive,
}


def template(task: KernelTask) -> ModuleType:
    if task.algorithm not in TEMPLATES:
        raise InternalError(f"no template for algorithm {task.algorithm!r}")
    return TEMPLATES[task.algorithm]


def algorithms(task: KernelTask) -> list[str]:
    """Names of the templates that fit the task, the most specific first."""
    if task.transformed:  # the weights are no longer those of the expression
        return ["winograd"]
    return [name for name, module in TEMPLATES.items() if module.matches(task)]
