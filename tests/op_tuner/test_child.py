"""Answers of child processes."""

import os
import signal
import time
from contextlib import contextmanager
from multiprocessing.connection import wait

import pytest
from burnish.errors import InputError
from burnish.op_tuner import child
from burnish.op_tuner.child import Child, ChildEnded, answer_of


def test_what_is_told_comes_before_the_answer():
    told = []

    def question(tell):
        tell("one")
        tell({"two": 2})
        return os.getpid()

    assert answer_of(question, told.append) != os.getpid()
    assert told == ["one", {"two": 2}]


def test_errors_are_raised_here():
    def question(tell):
        raise InputError("no such thing")

    with pytest.raises(InputError, match="no such thing"):
        answer_of(question)


def test_an_answer_that_cannot_be_sent_is_an_error():
    with pytest.raises(Exception, match="pickle"):
        answer_of(lambda tell: lambda: None)


@pytest.mark.parametrize(
    "end, how",
    [
        (lambda: os.kill(os.getpid(), signal.SIGTERM), r"crashed \(SIGTERM\)"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "killed, as the system does when memory ends"),
        (lambda: os._exit(3), "ended the process with code 3"),
    ],
)
def test_a_child_that_ends_has_no_answer(end, how):
    with pytest.raises(ChildEnded, match=how):
        answer_of(lambda tell: end())


def test_one_that_ends_beside_what_it_has_started():
    """Which holds its end of the pipe."""

    def question(tell):
        if os.fork() == 0:
            signal.pause()
        os._exit(3)

    with pytest.raises(ChildEnded, match="code 3"):
        answer_of(question)


def test_one_that_talks_without_end(monkeypatch):
    def talking(what, seconds):
        def talk(parent):
            while True:
                os.write(parent._stream, what)

        return Child(talk, seconds=seconds, memory=1 << 30).outcome()

    late = talking(b"x" * 10, 0.3)
    assert late.error == "timeout" and late.seconds < 20
    monkeypatch.setattr(child, "_MOST", 1 << 20)
    for what in (b"x" * 1000, b"[1]\n" * 100):
        found = talking(what, 60.0)
        assert (found.error, found.messages) == ("exit", []) and "more than 1 MiB" in found.detail
        assert found.seconds < 20


def test_waiting_for_cpus_does_not_count_but_ends(monkeypatch):
    @contextmanager
    def reserved(cpus, patience):
        time.sleep(1.2)
        yield

    def act(parent):
        with parent.reserved((), 2.0):
            parent.send(1)

    monkeypatch.setattr(child, "reserved", reserved)
    for rest, error in ((3.0, "exit"), (0.2, "timeout")):
        ending = Child(act, seconds=0.8, memory=1 << 30, rest=rest).outcome()
        assert (ending.error, ending.messages) == (error, [1] if error == "exit" else [])


def test_where_there_can_be_no_more_processes(monkeypatch):
    """Nothing is left open."""

    def refuse():
        raise BlockingIOError

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, "fork", refuse)
    with pytest.raises(BlockingIOError):
        Child(lambda parent: None, seconds=1, memory=1 << 30)
    assert os.listdir("/proc/self/fd") == before


def test_nothing_is_left_of_a_child():
    ours, theirs = os.pipe()

    def question(tell):
        if os.fork() == 0:
            signal.pause()
        return True

    assert answer_of(question)
    os.close(theirs)
    assert wait([ours], 10) and os.read(ours, 1) == b""  # nobody has the other end
    os.close(ours)


def test_what_a_container_keeps_of_files_is_free(monkeypatch, tmp_path):
    """The system gives it back when memory is asked for."""
    monkeypatch.setattr(child, "_GROUP", tmp_path)
    monkeypatch.setattr(child, "_kilobytes", lambda file, name: 10 << 20)
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text(f"{(4 << 30) - (1 << 20)}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {2 << 30}\nactive_file {1 << 30}\n")
    assert child.memory_limit() == 5 << 30
    (tmp_path / "memory.max").write_text(f"{4 << 30}\n")
    assert child.memory_limit() == ((3 << 30) + (1 << 20)) // 2
    (tmp_path / "memory.stat").write_text("anon 5\n")
    assert child.memory_limit() == 1 << 19
