"""The templates by name, and the algorithms that some of them offer to the planner.

A template has two halves: `params(task, cfg)` asks, `schedule(task, params)` builds.
"""

from __future__ import annotations

from types import ModuleType

from ...errors import InternalError
from ..kernel_task import KernelTask
from . import (
    direct,
    fourier,
    kn2row,
    map,
    matrix_tiles,
    naive,
    patches,
    recurrence,
    rows,
    strassen,
    strips,
    winograd,
)
from .algorithm import Algorithm
from .gpu import bind, blocks, cells, grid, tensor_cores, tiles, window
from .gpu import winograd as gpu_winograd

TEMPLATES: dict[str, ModuleType] = {
    "winograd": winograd,
    "strips": strips,
    "patches": patches,
    "fourier": fourier,
    "kn2row": kn2row,
    "strassen": strassen,
    "matrix_tiles": matrix_tiles,
    "recurrence": recurrence,
    "direct": direct,
    "rows": rows,
    "map": map,
    "naive": naive,
}
"""Those for CPUs, the most specific first."""

GPU_TEMPLATES: dict[str, ModuleType] = {
    "gpu_winograd": gpu_winograd,
    "tensor_cores": tensor_cores,
    "cells": cells,
    "tiles": tiles,
    "window": window,
    "blocks": blocks,
    "grid": grid,
    "bind": bind,
}

_OFFERED = [
    (algorithm, module)
    for module in (*TEMPLATES.values(), *GPU_TEMPLATES.values())
    for algorithm in getattr(module, "ALGORITHMS", ())
]
ALGORITHMS: dict[str, Algorithm] = {algorithm.name: algorithm for algorithm, _ in _OFFERED}
"""By name, which no two share, for whichever kind of target: those that a plan chooses from."""
_TEMPLATE_OF = {algorithm.name: module for algorithm, module in _OFFERED}


def template(task: KernelTask) -> ModuleType:
    return _module(task.algorithm)


def _module(algorithm: str) -> ModuleType:
    module = TEMPLATES.get(algorithm) or GPU_TEMPLATES.get(algorithm) or _TEMPLATE_OF.get(algorithm)
    if module is None:
        raise InternalError(f"no template for algorithm {algorithm!r}")
    return module


def algorithms(task: KernelTask) -> list[str]:
    """Names of the algorithms that fit the task, the most specific first.

    Where one was decided on, that one; if its template cannot take odd sizes, any that reads its layouts.
    """
    chosen = task.transformed
    if chosen and _module(chosen).matches(task):
        return [chosen]
    templates = GPU_TEMPLATES if task.target.kind == "gpu" else TEMPLATES
    return [name for name, module in templates.items() if module.matches(task)]
