"""Kernels compiled once: by task and config within a compilation, and across compilations in the user's
cache folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import llvmlite

from . import __version__
from .compiler.build_kernel import Kernel, build_kernel
from .compiler.code_version import compiler_version
from .compiler.codegen.kernel_code import Launch, Step
from .compiler.kernel_task import Config, KernelTask
from .runtime.whole_file import keep_whole, read_kept
from .settings import cache_dir

K = TypeVar("K")
Progress = Callable[[str, int, int], None]


class KernelStore:
    """Builds the kernels of a model; equal tasks share one."""

    def __init__(self, enabled: bool = True, folder: Path | None = None):
        self.folder = (folder or cache_dir() / "kernels") if enabled else None

    def build_all(
        self,
        tasks: Mapping[K, KernelTask],
        pick_config: Callable[[KernelTask], Config],
        progress: Progress | None = None,
    ) -> dict[K, Kernel]:
        built: dict[str, Kernel] = {}
        result: dict[K, Kernel] = {}
        for done, (n, task) in enumerate(tasks.items()):
            if task.key not in built:
                built[task.key] = self._get(task, pick_config(task))
            result[n] = built[task.key]
            if progress:
                progress(f"compiling {task.name}", done + 1, len(tasks))
        return result

    def put(self, task: KernelTask, cfg: Config, kernel: Kernel) -> None:
        """Keeps what was built elsewhere, with the symbols that `symbol` says."""
        if (path := self._path(task, cfg)) is not None:
            _write(path, kernel)

    def _get(self, task: KernelTask, cfg: Config) -> Kernel:
        path = self._path(task, cfg)
        kernel = None if path is None else _read(path)
        if kernel is None:
            kernel = build_kernel(task, cfg, symbol(task))
            if path is not None:
                _write(path, kernel)
        return kernel

    def _path(self, task: KernelTask, cfg: Config) -> Path | None:
        if self.folder is None or not getattr(cfg, "keyed", False):  # some config of a caller's own
            return None
        answers = json.dumps(cfg.answers, sort_keys=True)  # type: ignore[attr-defined]
        target = repr(task.target)  # `host` may be another machine tomorrow, and so may `opencl` and `cuda`
        text = "\n".join((task.key, target, answers, code_version(), llvmlite.__version__))
        return self.folder / hashlib.sha256(text.encode()).hexdigest()


def symbol(task: KernelTask) -> str:
    """What the names of a task's functions begin with."""
    return f"{task.name}_{task.digest[:8]}"


def code_version() -> str:
    """Changes with every change of Burnish that may change generated code."""
    return f"{__version__} {compiler_version()}"


def _read(path: Path) -> Kernel | None:
    """A kernel from the cache; None if it is not there or not whole."""
    data = read_kept(path)
    if data is None:
        return None
    head, _, code = data.partition(b"\n")
    try:
        meta = json.loads(head)
        steps = tuple(_step(**s) for s in meta["steps"])
        return Kernel(meta["name"], code, steps, tuple(meta["temps"]), meta["gang"])
    except (ValueError, KeyError, TypeError):
        return None


def _step(launch: Mapping[str, Any] | None, **fields: Any) -> Step:
    if launch is None:
        return Step(**fields)
    shape: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in launch.items()
    }
    return Step(**fields, launch=Launch(**shape))


def _write(path: Path, kernel: Kernel) -> None:
    meta = {
        "name": kernel.name,
        "steps": [asdict(s) for s in kernel.steps],
        "temps": list(kernel.temps),
        "gang": kernel.gang,
    }
    keep_whole(path, json.dumps(meta).encode() + b"\n" + kernel.object)
