"""A tuning that is killed leaves records that can be read, and no process."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path

from burnish.compiler.ops.matmul import MatMul
from burnish.op_tuner.apart import Apart, Process
from burnish.op_tuner.records import Records, read
from burnish.op_tuner.tuned_task import Wanted
from burnish.op_tuner.tuner import Tuner

from .tasks import op_task, wait_until

MOMENTS, LATEST = 5, 2.5  # seconds


def product():
    """Of more configs than are measured here."""
    return op_task(MatMul(), "f32[8,32]", "f32[32,64]")


def tune(path, trials=1000):
    """As the command: candidates are of a process of their own, as is what chooses where a core is spare."""
    strategy = "annealing" if find_spec("xgboost") else "random"
    with closing(Process()) as process:
        how = {"threads": 1, "strategy": strategy, "measure": Apart(process, 1, seconds=0.001)}
        Tuner([Wanted(product(), 1, 1)], Records(path, shipped=False), **how).run(trials)


def processes(session):
    """Those of a session that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, own = stat.read_text().rpartition(")")[2].split()[:4]
            found += [stat.parent.name] if int(own) == session and state not in "ZX" else []
    return found


def killed(path, after):
    """Whether it was while it ran."""
    pid = os.fork()
    if pid == 0:  # no pytest in here
        try:
            os.setsid()
            tune(path)
        finally:
            os._exit(0)
    time.sleep(after)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    wait_until(lambda: not processes(pid), 10)
    return os.WIFSIGNALED(status)


def test_whenever_a_tuning_is_killed(tmp_path):
    moments, path, known = random.Random(0), tmp_path / "records.jsonl", 0
    path.touch()
    ends = []
    for _ in range(MOMENTS):
        ends.append(killed(path, moments.uniform(0.1, LATEST)))
        records, *_ = read(path)
        assert len(records) >= known
        known = len(records)
    assert all(ends) and known
    tune(path, trials=2)
    assert len(read(path)[0]) > known
