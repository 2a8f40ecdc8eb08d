"""Sessions of `bench` in child processes: a library that crashes is a row that says so, not the end of all.

Nothing is measured that another session's threads or memory could disturb, either.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection

from ..errors import BurnishError
from ..op_tuner.child import begin_server, kill_all
from .bench import Group, Session
from .peers import Peer


def compare_apart(session: Session, contestants: Sequence[Peer], versions: Mapping[str, str]) -> Group:
    """`session.compare`, begun anew without whoever ended the process.

    Raises BurnishError if it ends where nobody else's code runs.
    """
    failed = dict(session.failed)
    while True:
        group, name, ending = _in_child(replace(session, failed=failed), contestants, versions)
        if group is not None:
            return group
        if not name or name in failed:
            raise BurnishError(f"{session.network.name}: comparing {ending}")
        failed[name] = ending


def _in_child(
    session: Session, contestants: Sequence[Peer], versions: Mapping[str, str]
) -> tuple[Group | None, str, str]:
    """The child's answer, or whose code ran last and how the process ended."""

    def serve(parent: Connection) -> None:
        told = replace(
            session,
            progress=lambda message: parent.send(("progress", message)),
            begins=lambda name: parent.send(("begins", name)),
        )
        try:
            parent.send(("done", told.compare(contestants, versions)))
        except Exception as error:
            parent.send(("failed", error))

    pid, stream = begin_server(serve)
    name = ""
    try:
        with stream:
            while True:
                kind, value = stream.recv()
                if kind == "done":
                    return value, "", ""
                if kind == "failed":
                    raise value
                if kind == "begins":
                    name = value
                else:
                    session.progress(value)
    except (EOFError, ConnectionResetError):
        return None, name, _ending(os.waitpid(pid, 0)[1])
    finally:
        kill_all(pid)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _ending(status: int) -> str:
    if not os.WIFSIGNALED(status):
        return f"ended the process with code {os.waitstatus_to_exitcode(status)}"
    number = os.WTERMSIG(status)
    if number == signal.SIGKILL:
        return "killed, as the system does when memory ends"
    return f"crashed ({signal.Signals(number).name})"
