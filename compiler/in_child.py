"""Questions to drivers: one that was asked has threads, and what is forked afterwards cannot use it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any


def in_child(question: Callable[[], object]) -> Any:
    """What `question()` returns in a child process, as JSON gives it back; None if the child dies."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(theirs, json.dumps(question()).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as answer:
        text = answer.read()
    with suppress(ChildProcessError):  # where SIGCHLD is ignored, nothing is left of it
        os.waitpid(child, 0)
    return json.loads(text) if text else None


def is_loaded(library: str) -> bool:
    """Whether this process has loaded a library whose file's name contains this."""
    return library in Path("/proc/self/maps").read_text(errors="replace")
