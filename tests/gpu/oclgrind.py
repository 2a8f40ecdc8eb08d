"""Scripts run on oclgrind's device, which interprets kernels and reports races and stray accesses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def report(program: Path, folder: Path, *command: object, seconds: int = 250) -> str:
    """What oclgrind says, and what else goes wrong, while this Python runs the command; "" if all is well.

    `program` is the oclgrind executable, whose driver stands in a folder beside it.
    """
    driver = program.resolve().parents[1] / "lib/oclgrind/liboclgrind-rt-icd.so"
    (folder / "oclgrind.icd").write_text(f"{driver}\n")
    log = folder / "oclgrind.log"
    environment = {
        **os.environ,
        "OCL_ICD_VENDORS": str(folder),
        "OCLGRIND_DATA_RACES": "1",
        "OCLGRIND_CHECK_API": "1",
        "OCLGRIND_LOG": str(log),
    }
    full = [sys.executable, *map(str, command)]
    done = subprocess.run(full, env=environment, capture_output=True, text=True, timeout=seconds)
    found = log.read_text() if log.exists() else ""
    return found + (done.stdout + done.stderr if done.returncode else "")
