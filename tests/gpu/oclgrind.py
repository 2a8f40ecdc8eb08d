"""What runs on oclgrind's device, which interprets kernels and reports races and stray accesses.

python -m tests.gpu.oclgrind [FILE…]   the tests in which kernels run on a device (minutes each)
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FILES = "blocks cells conversions tiles window winograd cases plans".split()
ON_A_DEVICE = "awkward or drawn or operators or any_plan"
"""Of the names of these files' tests."""


def report(program: Path, folder: Path, *command: object, seconds: int = 250) -> str:
    """What oclgrind says, and what else goes wrong, while this Python runs the command; "" if all is well.

    `program` is the oclgrind executable, whose driver stands in a folder beside it.
    """
    driver = program.resolve().parents[1] / "lib/oclgrind/liboclgrind-rt-icd.so"
    (folder / "oclgrind.icd").write_text(f"{driver}\n")
    log = folder / "oclgrind.log"
    log.unlink(missing_ok=True)
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


def main() -> int:
    program, wrong = shutil.which("oclgrind"), 0
    if program is None:
        sys.exit("oclgrind is not installed")
    for name in sys.argv[1:] or FILES:
        tests = "-m", "pytest", "-q", f"tests/gpu/test_{name}.py", "-k", ON_A_DEVICE
        with tempfile.TemporaryDirectory() as folder:
            found = report(Path(program), Path(folder), *tests, seconds=7200)
        print(f"{name}: {found or 'clean'}", flush=True)
        wrong += bool(found)
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
