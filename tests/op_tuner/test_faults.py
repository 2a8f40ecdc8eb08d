"""A tuner among candidates that do what none should records each as what it is, and goes on."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from burnish.compiler.ir import loops as L
from burnish.compiler.ir import scalar as s
from burnish.compiler.ir.loops import Alloc, Buffer, For, If, Store
from burnish.compiler.ir.scalar import Load, Var, const
from burnish.compiler.ir.types import F32, I64
from burnish.compiler.kernel_task import DefaultConfig
from burnish.compiler.templates import naive, registry
from burnish.op_tuner import chooser, learner
from burnish.op_tuner.apart import Apart, Process
from burnish.op_tuner.costs import PASSING
from burnish.op_tuner.hardware import this_hardware
from burnish.op_tuner.isolate import Local, Spans
from burnish.op_tuner.learner import Learner
from burnish.op_tuner.measure import Measurement
from burnish.op_tuner.records import Records
from burnish.op_tuner.tuned_task import Wanted
from burnish.op_tuner.tuner import Tuner

from ..conftest import require_module
from .tasks import alive, double, hang, hoard, leave, wait_until

LIMIT = 4.0  # seconds
ORPHANS = [Path()]


def orphan():
    """A process of its own that goes on when the candidate has ended."""
    pid = os.fork()
    if pid == 0:
        time.sleep(1000)
    with ORPHANS[0].open("a") as file:
        file.write(f"{pid}\n")
    os._exit(0)


def babble(waits=False):
    """Says what no candidate says."""
    frame = sys._getframe()
    while "to_parent" not in frame.f_locals:
        frame = frame.f_back
    parent = frame.f_locals["to_parent"]
    for message in (7, None, [], [[]], ["act"], {}, {"built": 7}, {"built": {"kernel": {}}}, {"seconds": []}):
        parent.send(message)
    os.write(parent._stream, b"{\xff[\n")
    if waits:
        parent.wait()
    os._exit(0)


def changed(store):
    """Body → body with every store as `store` makes it."""

    def change(body):
        def one(st):
            if isinstance(st, Store):
                return store(st)
            if isinstance(st, If):
                return If(st.cond, change(st.then), change(st.other))
            return replace(st, body=change(st.body)) if isinstance(st, (For, Alloc)) else st

        return tuple(one(st) for st in body)

    return change


def far(body):
    """Writes terabytes away."""
    return changed(lambda st: replace(st, index=tuple(i * (1 << 42) for i in st.index)))(body)


def wrong(body):
    return changed(lambda st: replace(st, value=st.value + const(1.0, F32)))(body)


def outside(body):
    """Reads an element that is not there, which kernels say instead of doing."""
    place = s.call("checked", Load("numbers", (const(0),), I64), const(100, I64))
    numbers = Buffer("numbers", I64, (1,), "register")
    inside = changed(lambda st: replace(st, value=st.value + Load("x", (place,), F32)))(body)
    return (Alloc(numbers, (Store("numbers", (const(0),), const(100, I64)), *inside)),)


def unsteady(body):
    """Right in the first run, whose memory is NaN before; others add one to what they find."""

    def store(st):
        found = Load(st.buffer, st.index, F32)
        return replace(st, value=s.select(s.call("isnan", found), st.value, found + const(1.0, F32)))

    return changed(store)(body)


def endless(body):
    """For years: every round reads what the one before wrote."""
    grown = changed(
        lambda st: replace(st, value=Load(st.buffer, st.index, F32) * const(0.5, F32) + st.value)
    )(body)
    return (*body, L.loop("years", 1 << 55, *grown))


def huge(body):
    """Scratch memory of 16 TiB."""
    room = Buffer("room", F32, (1 << 42,), "local")
    first = (Var("n"),)
    return (Alloc(room, (L.loop("n", 1, Store("room", first, const(0.0, F32))), *body)),)


BUILDING = {
    "segfault": (lambda: os.kill(os.getpid(), signal.SIGSEGV), "crash", "SIGSEGV"),
    "abort": (os.abort, "crash", "SIGABRT"),
    "hang": (hang, "timeout", f"more than {LIMIT:g} s"),
    "exit": (leave, "exit", "code 3"),
    "quit": (sys.exit, "exit", "code 0"),
    "orphan": (orphan, "exit", "code 0"),
    "hoard": (hoard, "memory", ""),
    "babble": (babble, "exit", "code 0"),
    "babble and wait": (lambda: babble(waits=True), "exit", "no kernel"),
    "raise": (lambda: 1 / 0, "build", "ZeroDivisionError"),
}
RUNNING = {
    "far": (far, "crash", "SIGSEGV"),
    "endless": (endless, "timeout", "more than"),
    "wrong": (wrong, "wrong", "elements"),
    "unsteady": (unsteady, "wrong", "differ from run to run"),
    "outside": (outside, "run", "index"),
    "huge": (huge, "memory", ""),
}
GOOD = ("none", "well", "fine")


class Planted:
    """naive, with a question that is answered by what a candidate shall do."""

    def params(self, task, cfg):
        act = cfg.choose("act", (*GOOD, *BUILDING, *RUNNING), "none")
        return act, naive.params(task, cfg)

    def schedule(self, task, found):
        act, p = found
        if act in BUILDING:
            BUILDING[act][0]()
        program = naive.schedule(task, p)
        return replace(program, body=RUNNING[act][0](program.body)) if act in RUNNING else program


@pytest.fixture
def planted(monkeypatch, tmp_path):
    monkeypatch.setitem(registry.TEMPLATES, "naive", Planted())
    monkeypatch.setattr(naive, "lanes_of", lambda *a: 8)
    ORPHANS[0] = tmp_path / "orphans"
    ORPHANS[0].touch()
    yield
    for pid in map(int, ORPHANS[0].read_text().split()):
        wait_until(lambda pid=pid: not alive(pid), 5)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def points(acts):
    return [(("act", act), ("lanes", 8), ("grain", 4096)) for act in acts]


@contextmanager
def measurer(apart, **options):
    """In this process, or one of its own."""
    if not apart:
        yield Local(1, seconds=0.001, **options)
        return
    with closing(Process()) as process:
        yield Apart(process, 1, seconds=0.001, **options)
        assert not children(process.pid), "candidates of a tuner that has stopped"


def children(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@pytest.mark.parametrize(("in_turn", "apart"), [(True, False), (False, False), (False, True)])
def test_every_planted_fault_is_recorded_as_what_it_is(tmp_path, planted, monkeypatch, in_turn, apart):
    """All built before, or while others are measured where a core is spare."""
    monkeypatch.setattr(Local, "_in_turn", lambda self, cores: in_turn or not cores.spare)
    with measurer(apart, time_limit=LIMIT, memory=1 << 28) as measure:
        check_faults(tmp_path, monkeypatch, measure)


def check_faults(tmp_path, monkeypatch, measure):
    faults = {**BUILDING, **RUNNING}
    before = os.sched_getaffinity(0)
    records = Records(tmp_path / "records.jsonl", shipped=False)
    tuner = Tuner([Wanted(double(), 1, 1)], records, threads=1, strategy="random", measure=measure)
    wanted = iter([points(faults), points(GOOD[1:]), []])
    monkeypatch.setattr(tuner.tasks[0].strategy, "propose", lambda count: next(wanted))
    tuner.run(trials=len(faults) + len(GOOD))
    found = {r.config["act"]: r for r in records}
    assert {act: r.error for act, r in found.items()} == {
        **{act: error for act, (_, error, _) in faults.items()},
        **dict.fromkeys(GOOD),
    }
    for act, (_, _, detail) in faults.items():
        assert detail in found[act].detail and found[act].seconds is None, act
    assert all(dict(p) == found[dict(p)["act"]].config for p in points((*faults, *GOOD)))
    assert not tuner.interrupted and tuner.tasks[0].trials == len(faults) + len(GOOD)
    assert os.sched_getaffinity(0) == before and ORPHANS[0].read_text()
    spent = tuner.spent
    assert 0 < spent.overhead < spent.whole and spent.building > LIMIT and spent.running > 0.5
    again = Tuner([Wanted(double(), 1, 1)], records, threads=1, strategy="random")
    passing = [act for act in faults if found[act].error in PASSING]
    assert again.tasks[0].excused == set(points(passing)), "which may be asked once more"
    assert again.tasks[0].failed == set(points(faults)) - set(points(passing))
    for act in passing:
        again.tasks[0].learn(*points([act]), None, found[act].error, earlier=True)
    assert again.tasks[0].failed == set(points(faults))


class Acts:
    """Nothing is asked but what a candidate shall do."""

    def params(self, task, cfg):
        return cfg.choose("act", (*GOOD, *BUILDING, *RUNNING), "none"), naive.params(task, DefaultConfig())

    schedule = Planted.schedule


class Saying:
    """Measures nothing: says what candidates would have come to. There may be CPUs to spare."""

    def __init__(self, spare):
        self.hardware, self.spans, self.ready = this_hardware(), Spans(), 0
        self.idle = os.sched_getaffinity(0) if spare else ()

    def __call__(self, candidates, alone=False):
        for n, candidate in enumerate(candidates):
            act = candidate.config.choose("act", (*GOOD, *BUILDING, *RUNNING), "none")
            _, error, detail = {**BUILDING, **RUNNING}.get(act, (None, "", ""))
            good = (
                Measurement(1e-6 * (3 - GOOD.index(act)), 0.0, 5, config={"act": act}) if not error else None
            )
            yield n, good or Measurement.failed(error, detail, {})


@pytest.mark.parametrize("spare", [True, False])
def test_whoever_learns_survives_the_programs_that_it_makes(tmp_path, planted, monkeypatch, spare):
    """A config that ends the process that chooses is avoided by the next one, and measured all the same."""
    require_module("xgboost")
    monkeypatch.setitem(registry.TEMPLATES, "naive", Acts())
    monkeypatch.setattr(chooser, "LOWERING", 2.0)
    monkeypatch.setattr(chooser, "memory_limit", lambda: 1 << 29)
    monkeypatch.setattr(chooser._Remote, "chance", lambda self, count: [])  # it is waited for
    records = Records(tmp_path / "records.jsonl", shipped=False)
    tuner = Tuner([Wanted(double(), 1, 1)], records, threads=1, measure=Saying(spare))
    tuner.run(trials=len(GOOD + (*BUILDING, *RUNNING)))
    assert tuner.by_chance == "" and any(t.score is not None for t in tuner.history)
    assert {r.config["act"] for r in records} == {*GOOD, *BUILDING, *RUNNING}
    avoided = {dict(message)["act"] for what, _, message in tuner._choosing._chooser._told if what == "avoid"}
    assert avoided and avoided <= {"segfault", "abort", "hang", "exit", "orphan"}


def test_what_failed_to_be_made_is_not_made_again(planted, monkeypatch):
    """By whoever learns from it."""
    made = []
    monkeypatch.setattr(learner, "scheduled", lambda task, config: made.append(config))
    own = Learner().task(double())
    (point,) = points(["segfault"])
    for error in ("crash", "exit", "timeout", "memory", "build"):
        own.tell(point, None, error)
        assert own.samples() == [] and not made, error
    own.tell(point, None, "wrong")
    assert own.samples() == [] and len(made) == 1


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("act", ["hang", "endless"])
def test_a_tuner_that_is_stopped_leaves_no_process(tmp_path, planted, monkeypatch, act, apart):
    """While a candidate is built, or run."""
    with measurer(apart) as measure:
        check_stopped(tmp_path, monkeypatch, measure, act)


def check_stopped(tmp_path, monkeypatch, measure, act):
    records = Records(tmp_path / "records.jsonl", shipped=False)
    tuner = Tuner([Wanted(double(), 1, 1)], records, threads=1, strategy="random", measure=measure)
    monkeypatch.setattr(tuner.tasks[0].strategy, "propose", lambda count: points([act]))

    def stop(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    tuner.progress = lambda *_: signal.setitimer(signal.ITIMER_REAL, 1.0)
    try:
        tuner.run(trials=4)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert tuner.interrupted and {r.config["act"] for r in records} == {"none"}
