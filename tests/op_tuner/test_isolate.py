"""Whatever a candidate does is recorded as what it is, and leaves no process behind."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from threading import Timer
from typing import Any

import pytest
from burnish.compiler.ir.loops import Buffer, Program, Store, loop
from burnish.compiler.ir.scalar import Load, Var, const
from burnish.compiler.ir.types import F32
from burnish.compiler.kernel_task import Config, DefaultConfig, FixedConfig, KernelTask
from burnish.compiler.ops.sorting import TopK
from burnish.compiler.target import host
from burnish.errors import RunError
from burnish.op_tuner import device, isolate, own_cores
from burnish.op_tuner.child import Child
from burnish.op_tuner.isolate import TIME_LIMIT, Candidate, Local
from burnish.op_tuner.measure import Measurement

from .tasks import Doing, alive, double, hang, hoard, leave, op_task

QUICK = {"threads": 1, "seconds": 0.001}


def measure_isolated(task: KernelTask, config: Config, **options: Any) -> Measurement:
    """One candidate."""
    return next(Local(**options)([Candidate(task, config)]))[1]


@pytest.fixture(autouse=True)
def no_child_is_left():
    yield
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_good_candidate():
    found = measure_isolated(double(), FixedConfig({"lanes": 4}), **QUICK)
    assert found.error is None and found.runs >= 3 and 0 < found.seconds < 0.01
    assert found.config["lanes"] == 4


def test_where_the_system_takes_ended_children_away():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        found = measure_isolated(double(), FixedConfig({"lanes": 4}), **QUICK)
        ended = measure_isolated(double(), Doing(leave), **QUICK)
        late = measure_isolated(double(), Doing(hang), time_limit=1.0, **QUICK)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert (found.error, ended.error, late.error) == (None, "exit", "timeout")


def test_with_more_open_files_than_select_takes():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, limits[1]), limits[1]))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        found = measure_isolated(double(), FixedConfig({"lanes": 4}), **QUICK)
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert found.error is None


def test_candidates_wait_for_cores_of_their_own_a_share_of_the_time(monkeypatch):
    monkeypatch.setattr(own_cores, "crowding", lambda threads: 2.0)
    local = Local(1, seconds=0.001)
    candidate = Candidate(double(), FixedConfig({"lanes": 4}))
    ((_, first),) = local([candidate])
    assert first.error is None and first.waited == 0 and local.crowding == 2.0, "it may always be so"
    local.crowding, local.patience, waits = 1.0, 1.0, []
    for _ in range(4):
        ((_, found),) = local([candidate])
        assert found.error is None and found.crowding == 1.0
        waits.append(found.waited)
    assert 1.0 <= waits[0] < 1.5 and sum(waits[2:]) < 0.5, waits
    local.patience = 1.0
    batch = [found.waited for _, found in local([candidate] * 4, alone=True)]
    assert 1.0 <= sum(batch) < 2.0, "they have it together"


def test_a_worker_is_as_patient_as_its_last_request_left_it(monkeypatch):
    monkeypatch.setattr(own_cores, "crowding", lambda threads: 2.0)
    monkeypatch.setattr(device, "_cores", {1: (1.0, 0.5)})
    candidates = [Candidate(double(), FixedConfig({"lanes": 4}))]
    request = device.Request(candidates, False, {"threads": 1, "seconds": 0.001}, device.this_device(host()))
    ((_, found),) = device.measure_here(request).results
    assert found.error is None and found.waited >= 0.5
    assert device._cores[1][0] == 1.0 and device._cores[1][1] < 0.25


def refusing(monkeypatch, times):
    """So many children cannot begin."""
    left = iter(range(times))

    def child(*args, **options):
        if next(left, None) is not None:
            raise BlockingIOError("no more processes")
        return Child(*args, **options)

    monkeypatch.setattr(isolate, "Child", child)
    child.wait = Child.wait


def test_where_no_process_can_begin_for_a_while(monkeypatch):
    refusing(monkeypatch, 2)
    found = dict(Local(**QUICK)([Candidate(double(), FixedConfig({"lanes": n})) for n in (4, 8)]))
    assert [found[n].error for n in range(2)] == [None, None]
    refusing(monkeypatch, 1000)
    monkeypatch.setattr(isolate, "STUCK", 0.3)
    with pytest.raises(RunError, match="no process can begin: no more processes"):
        list(Local(**QUICK)([Candidate(double(), FixedConfig({"lanes": 4}))]))


def test_a_task_without_operands_fails_alone(monkeypatch):
    odd, known = replace(double(), name="odd"), isolate.operands

    def operands(task, check):
        if task.name == "odd":
            raise MemoryError
        return known(task, check)

    monkeypatch.setattr(isolate, "operands", operands)
    found = dict(Local(**QUICK)([Candidate(t, FixedConfig({"lanes": 4})) for t in (odd, double(), odd)]))
    assert [found[n].error for n in range(3)] == ["memory", None, "memory"]


HOLD = """
import sys
from pathlib import Path
from burnish.op_tuner import cores
from burnish.op_tuner.cores import divide, reserved
cores.cache_dir = lambda: Path(sys.argv[1])
with reserved(divide(1).measuring, 0):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_two_tuners_take_turns(monkeypatch, tmp_path):
    monkeypatch.setattr("burnish.op_tuner.cores.cache_dir", lambda: tmp_path)
    monkeypatch.setattr(isolate, "TURN", 0.5 / TIME_LIMIT)
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], **pipe) as other:
        assert other.stdout.readline() == "held\n"
        start = time.monotonic()
        found = measure_isolated(double(), FixedConfig({"lanes": 4}), **QUICK)
        assert found.error is None and time.monotonic() > start + 0.5, "nobody is waited for for ever"
        monkeypatch.setattr(isolate, "TURN", 2)
        Timer(0.5, print, (), {"file": other.stdin, "flush": True}).start()
        start = time.monotonic()
        found = measure_isolated(double(), FixedConfig({"lanes": 4}), **QUICK)
        assert found.error is None and start + 0.5 < time.monotonic() < start + 30
    assert found.running < 0.4, "waiting is not running"


def test_waiting_for_another_tuner_does_not_count(monkeypatch, tmp_path):
    monkeypatch.setattr("burnish.op_tuner.cores.cache_dir", lambda: tmp_path)
    monkeypatch.setattr(isolate, "TURN", 10)
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], **pipe) as other:
        assert other.stdout.readline() == "held\n"
        Timer(5.0, print, (), {"file": other.stdin, "flush": True}).start()
        found = measure_isolated(double(), FixedConfig({"lanes": 4}), time_limit=4.0, **QUICK)
    assert found.error is None


def test_what_is_built_is_only_run():
    """The config is not asked."""
    first = measure_isolated(double(), FixedConfig({"lanes": 4}), **QUICK)
    ((_, again),) = Local(**QUICK)([Candidate(double(), Doing(leave), built=first.built)])
    assert (again.error, again.config, again.building) == (None, first.config, 0) and again.seconds > 0
    short = replace(first.built, sizes=(4, 4))
    ((_, wrong),) = Local(**QUICK)([Candidate(double(), Doing(leave), built=short)])
    assert wrong.error == "build" and "operand 0 has" in wrong.detail
    assert measure_isolated(double(), Doing(leave), **QUICK).error == "exit"


@pytest.mark.parametrize(
    ("act", "error", "detail"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "crash", "SIGSEGV"),
        (os.abort, "crash", "SIGABRT"),
        (hang, "timeout", "more than 2 s"),
        (leave, "exit", "code 3"),
        (hoard, "memory", ""),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "memory", "killed"),
        (lambda: 1 / 0, "build", "ZeroDivisionError"),
    ],
)
def test_planted_failures(act, error, detail):
    limits = {"time_limit": 2.0 if act is hang else 20, "memory": 1 << 30}
    found = measure_isolated(double(), Doing(act), **limits, **QUICK)
    assert found.error == error and detail in found.detail
    assert found.seconds == float("inf") and "lanes" in found.config, "answers given before are known"


def test_a_kernel_that_writes_far_outside_or_never_ends():
    n = Var("n")
    x, y = Buffer("x", F32, (4,)), Buffer("y", F32, (4,))
    far = Program("f", (x, y), (loop("n", 4, Store("y", (n * (1 << 40),), Load("x", (n,), F32))),))
    task = replace(op_task(TopK(1, 2), "f32[4,9]"), op=None, types=(), output_types=(), name="f")
    crashed = measure_isolated(replace(task, program=far), DefaultConfig(), check=False, **QUICK)
    assert (crashed.error, crashed.detail) == ("crash", "SIGSEGV")
    add = Store("y", (n,), Load("y", (n,), F32) * Load("x", (n,), F32))
    endless = Program(
        "f", (x, y), (loop("m", 1 << 50, loop("n", 4, Store("y", (n,), const(1.0, F32)), add)),)
    )
    late = measure_isolated(
        replace(task, program=endless), DefaultConfig(), check=False, time_limit=1.0, **QUICK
    )
    assert late.error == "timeout"


def test_a_wrong_result():
    task, other = op_task(TopK(1, 2), "f32[4,9]"), op_task(TopK(1, 2, largest=False), "f32[4,9]")
    found = measure_isolated(replace(task, program=other.program), DefaultConfig(), **QUICK)
    assert found.error == "wrong"


def test_the_child_ends_with_its_parent():
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:  # no pytest in here

        def tell() -> None:
            os.write(writing, str(os.getpid()).encode())
            hang()

        try:
            os.setpgid(0, 0)
            measure_isolated(double(), Doing(tell), **QUICK)
        finally:
            os._exit(1)
    child = int(os.read(reading, 20))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    for _ in range(100):
        if not alive(child):
            break
        time.sleep(0.02)
    assert not alive(child)


def test_an_interrupt_while_forking():
    """It is neither lost, as in what Python calls around a fork, nor does the child stay."""
    interrupt = [True]
    os.register_at_fork(before=lambda: interrupt and os.kill(os.getpid(), interrupt.pop() * signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            Child(lambda send: time.sleep(60), seconds=60, memory=1 << 30)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not interrupt
