"""A process that measures: what it answers, how it is stopped, and what becomes of it."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing
from dataclasses import replace

import pytest
from burnish.compiler.kernel_task import FixedConfig
from burnish.errors import InputError, RunError
from burnish.op_tuner.apart import Apart, Process
from burnish.op_tuner.isolate import Candidate, Local

from .tasks import alive, double

QUICK = {"seconds": 0.001}


@pytest.fixture
def process():
    with closing(Process()) as found:
        yield found
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def candidates(*lanes):
    return [Candidate(double(), FixedConfig({"lanes": n})) for n in lanes]


def test_it_measures_as_local_does(process):
    apart, local = Apart(process, 1, **QUICK), Local(1, **QUICK)
    assert (apart.hardware, apart.idle) == (local.hardware, local.idle)
    before = os.sched_getaffinity(0)
    for measure in (apart, local):
        found = dict(measure(candidates(4, 8, 3)))
        assert [found[n].config["lanes"] for n in range(2)] == [4, 8]
        assert [found[n].error is None for n in range(3)] == [True, True, False]
        assert all(found[n].built and found[n].building > 0 < found[n].running for n in range(2))
        assert 0 < measure.spans.seconds <= sum(r.building + r.running for r in found.values())
    assert os.sched_getaffinity(0) == before


def test_what_is_built_is_not_built_again(process):
    measure = Apart(process, 1, **QUICK)
    first = [found for _, found in measure(candidates(4, 8))]
    again = dict(measure([replace(c, built=f.built) for c, f in zip(candidates(4, 8), first)], alone=True))
    assert [(again[n].error, again[n].config["lanes"]) for n in range(2)] == [(None, 4), (None, 8)]
    assert all(found.building == 0 < found.running for found in again.values())


def test_whoever_stops_listening_may_ask_again(process):
    measure = Apart(process, 1, **QUICK)
    with closing(measure(candidates(1, 2, 4, 8))) as results:
        next(results)
    with closing(measure(candidates(4))):
        pass
    assert len(dict(measure(candidates(2, 4), alone=True))) == 2


def test_errors_of_the_user_are_raised_here(process):
    measure = Apart(process, 1, **QUICK)
    target = replace(double().target, name="other", features=("avx9",))
    other = Candidate(replace(double(), target=target), FixedConfig({}))
    with pytest.raises(InputError, match="lacks avx9"):
        list(measure([other]))
    assert len(dict(measure(candidates(4)))) == 1


def test_another_one_goes_on_where_a_process_was_killed(process):
    measure = Apart(process, 1, **QUICK)
    os.kill(process.pid, signal.SIGKILL)
    with closing(measure(candidates(4, 8, 2))) as results:
        found = dict([next(results)])
        os.kill(process.pid, signal.SIGKILL)
        found |= dict(results)
    assert [found[n].config["lanes"] for n in range(3)] == [4, 8, 2]
    with closing(measure(candidates(4, 8))) as results:
        next(results)
        os.kill(process.pid, signal.SIGKILL)
    assert len(dict(measure(candidates(4)))) == 1


def test_one_that_is_killed_again_and_again(process, monkeypatch):
    measure = Apart(process, 1, **QUICK)
    ask = process.ask
    monkeypatch.setattr(process, "ask", lambda what: os.kill(process.pid, signal.SIGKILL) or ask(what))
    with pytest.raises(RunError, match="has ended"):
        list(measure(candidates(4)))
    monkeypatch.undo()
    assert len(dict(measure(candidates(4)))) == 1


def test_it_ends_with_its_parent():
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:  # no pytest in here
        try:
            process = Process()
            os.write(writing, str(process.pid).encode())
            time.sleep(1000)
        finally:
            os._exit(1)
    child = int(os.read(reading, 20))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    for _ in range(200):
        if not alive(child):
            break
        time.sleep(0.02)
    assert not alive(child)
