"""benchmarks/plans.py runs, and global is never planned dearer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "plans.py"


def test_a_row_for_each_plan(tmp_path):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "digits", "--rounds", "2", "--no-measure"],
        capture_output=True,
        text=True,
        env={**os.environ, "BURNISH_CACHE_DIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| digits")]
    assert [(row[1], row[2]) for row in rows] == [
        ("predicted", mode) for mode in ("global", "local", "fixed")
    ]
    for row in rows:
        assert float(row[4]) > 0 and (row[7] == "yes") == (row[2] == "global")
    assert "global is planned dearer than: none" in done.stdout
