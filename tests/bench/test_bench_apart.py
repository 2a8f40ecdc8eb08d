"""Contestants that end the process: theirs is a row that says so."""

import faulthandler
import os
import signal
from dataclasses import dataclass
from functools import partial

import pytest
from burnish.commands import bench as engine
from burnish.commands.bench import bench
from burnish.commands.bench_apart import compare_apart
from burnish.errors import BurnishError

from .networks import relu
from .test_bench import FakePeer, FakeRunner


def end(by):
    faulthandler.disable()  # pytest's
    os.kill(os.getpid(), by)


class Dying(FakeRunner):
    def bind(self, inputs):
        self.peer.die("run")
        return super().bind(inputs)

    def time(self, inputs, repeats):
        self.peer.die("time")
        return super().time(inputs, repeats)


@dataclass(eq=False)
class DyingPeer(FakePeer):
    when: str = ""
    by: int = signal.SIGSEGV

    def die(self, when):
        if when == self.when:
            end(self.by) if self.by else os._exit(3)

    def prepare(self, network, threads):
        self.die("prepare")
        return Dying(self)


def compare(*contestants, threads=(1,), **how):
    said = []
    found = bench(
        [("relu", relu())],
        contestants,
        threads=threads,
        rounds=3,
        min_seconds=0.01,
        progress=said.append,
        compare=partial(compare_apart, **how),
    )
    return found, said


@pytest.mark.parametrize("when", ["prepare", "run", "time"])
def test_others_are_measured_all_the_same(when):
    found, said = compare(
        FakePeer("burnish", 1.0, subject=True),
        DyingPeer("crashing", when=when),
        FakePeer("peer", 2.0),
        DyingPeer("leaving", when=when, by=0),
        DyingPeer("large", when=when, by=signal.SIGKILL),
        threads=(1, 2),
    )
    for group in found.groups:
        rows = {row.contestant: row for row in group.rows}
        assert group.checked and group.fastest_peer == "peer"
        assert rows["burnish"].speed.middle == pytest.approx(2.0)
        assert {name: row.reason for name, row in rows.items() if row.reason} == {
            "crashing": "crashed (SIGSEGV)",
            "leaving": "ended the process with code 3",
            "large": "killed, as the system does when memory ends",
        }
    assert "relu, 2 threads: preparing peer" in said


@dataclass(eq=False)
class SpoilingPeer(DyingPeer):
    """From where it fails on, so does everybody else in its process."""

    def die(self, when):
        if when == self.when:
            os.environ["SPOILT"] = "1"
        if os.environ.get("SPOILT"):
            raise RuntimeError("an illegal address was encountered")


@pytest.mark.parametrize("when", ["prepare", "run", "time"])
def test_others_are_measured_where_one_spoilt_the_process(when):
    def usable():
        return "SPOILT" not in os.environ

    found, _ = compare(
        FakePeer("burnish", 1.0, subject=True),
        SpoilingPeer("spoiling", when=when),
        SpoilingPeer("peer", 2.0),
        usable=usable,
    )
    (group,) = found.groups
    assert group.fastest_peer == "peer"
    reasons = [row.reason for row in group.rows]
    assert reasons == [None, "RuntimeError: an illegal address was encountered", None]
    assert usable()


@pytest.mark.parametrize("defined", [True, False])
def test_where_the_reference_crashes_definitions_judge_if_they_can(monkeypatch, defined):
    monkeypatch.setattr(engine, "reference_outputs", lambda *_: end(signal.SIGABRT))
    if not defined:
        monkeypatch.setattr(engine, "defined_outputs", lambda *_: None)
    found, _ = compare(FakePeer("burnish", 1.0, subject=True), FakePeer("peer", 2.0))
    (group,) = found.groups
    assert group.checked == defined
    assert [len(row.seconds) for row in group.rows] == [3, 3]


@pytest.mark.parametrize("reference", [True, False])
def test_definitions_that_end_the_process_are_nobodys_fault(monkeypatch, reference):
    monkeypatch.setattr(engine, "defined_outputs", lambda *_: end(signal.SIGKILL))
    if not reference:
        monkeypatch.setattr(engine, "reference_outputs", lambda *_: None)
    found, _ = compare(FakePeer("burnish", 1.0, subject=True, wrong_by=0.5), FakePeer("peer", 2.0))
    (group,) = found.groups
    own, peer = group.rows
    assert group.checked == reference and peer.reason is None and len(peer.seconds) == 3
    assert own.reason is None if not reference else own.reason.startswith("wrong: differs by")


def test_a_process_that_ends_by_itself_is_an_error(monkeypatch):
    monkeypatch.setattr(engine.Session, "compare", lambda *_: os._exit(4))
    with pytest.raises(BurnishError, match="relu: comparing ended the process with code 4"):
        compare(FakePeer("burnish"))


def test_errors_are_raised_here(monkeypatch):
    def refuse(*_):
        raise BurnishError("no such thing")

    monkeypatch.setattr(engine.Session, "compare", refuse)
    with pytest.raises(BurnishError, match="no such thing"):
        compare(FakePeer("burnish"))
