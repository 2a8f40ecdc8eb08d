"""Answers of child processes."""

import os
import signal
from multiprocessing.connection import wait

import pytest
from burnish.errors import InputError
from burnish.op_tuner import child
from burnish.op_tuner.child import ChildEnded, answer_of


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
