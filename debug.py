"""What a compilation says about itself: BURNISH_DEBUG on standard error, and a folder with every rung.

1  passes over the graph, with their times     2  kernels
3  the config chosen for each kernel           4  its loop program and LLVM IR
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from .compiler.explain import answers, rungs
from .compiler.ir.graph import Graph, print_graph
from .compiler.ir.plan import Plan
from .compiler.kernel_task import Config, KernelTask
from .errors import InputError
from .settings import debug_level

PickConfig = Callable[[KernelTask], Config]
_SOURCES = ("schedule", "llvm")


class Log:
    """Follows one compilation. `dump` is a folder, made if need be; `keep` holds every graph in `graphs`."""

    def __init__(self, dump: Path | None = None, keep: bool = False):
        self.level = debug_level()
        self.folder = dump
        self.graphs: list[tuple[str, Graph]] | None = [] if keep else None
        self._number = 0
        self._seen: set[str] = set()
        self._text = ""

    def step(self, name: str, make: Callable[[], Graph]) -> Graph:
        """The graph that a step makes."""
        start = time.perf_counter()
        graph = make()
        seconds = time.perf_counter() - start
        if self.graphs is not None:
            self.graphs.append((name, graph))
        if self.level or self.folder:
            text = print_graph(graph)
            note = " (unchanged)" if text == self._text else ""
            self._text = text
            self.say(1, f"{name:<16}{seconds * 1e3:9.1f} ms  {len(graph.nodes)} nodes{note}")
            self._write(f"{self._number:02}-{name}.txt", text)
            self._number += 1
        return graph

    def watch(self, pick_config: PickConfig) -> PickConfig:
        """The same choice, told and dumped."""
        if self.level < 2 and self.folder is None:
            return pick_config

        def pick(task: KernelTask) -> Config:
            cfg = pick_config(task)
            if task.key not in self._seen:
                self._seen.add(task.key)
                self._kernel(task, cfg)
            return cfg

        return pick

    def plan(self, plan: Plan) -> None:
        if self.folder:
            self._write("plan.txt", str(plan))

    def say(self, level: int, text: str) -> None:
        if self.level >= level:
            print(text, file=sys.stderr)

    def _kernel(self, task: KernelTask, cfg: Config) -> None:
        self.say(2, f"kernel {task.name} ({task.algorithm}, {task.digest[:8]})")
        if self.level >= 3:
            origin = getattr(cfg, "origin", "")
            source = f", measured on {origin}" if origin else ""
            self.say(3, f"  config {answers(task, cfg) or 'nothing to choose'}{source}")
        if self.level >= 4:
            for rung, title, text in rungs(task, cfg):
                if rung in _SOURCES:
                    self.say(4, f"  {title}\n{text}")
        if self.folder:
            text = "\n\n".join(f"# {title}\n{text}" for _, title, text in rungs(task, cfg))
            self._write(f"kernels/{task.name}_{task.digest[:8]}.txt", text)

    def _write(self, name: str, text: str) -> None:
        if self.folder is None:
            return
        path = self.folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror}") from error
