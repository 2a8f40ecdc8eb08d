"""Sessions of `bench` in child processes: a library that crashes is a row that says so, not the end of all.

Nothing is measured that another session's threads or memory could disturb, either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ..errors import BurnishError
from ..op_tuner.child import ChildEnded, answer_of
from .bench import Group, Session, SpoiltError
from .peers import Peer


def compare_apart(
    session: Session,
    contestants: Sequence[Peer],
    versions: Mapping[str, str],
    usable: Callable[[], bool] = lambda: True,
) -> Group:
    """`session.compare`, begun anew without whoever ended the process, or left it no longer `usable`.

    Raises BurnishError if it ends where nobody else's code runs.
    """
    failed = dict(session.failed)
    running = ""

    def in_child(tell: Callable[[object], None]) -> Group:
        told = replace(
            session,
            failed=failed,
            usable=usable,
            progress=lambda message: tell(("progress", message)),
            begins=lambda name: tell(("begins", name)),
        )
        return told.compare(contestants, versions)

    def heard(message: tuple[str, str]) -> None:
        nonlocal running
        kind, text = message
        if kind == "begins":
            running = text
        else:
            session.progress(text)

    while True:
        try:
            return answer_of(in_child, heard)
        except ChildEnded as ending:
            if not running or running in failed:
                raise BurnishError(f"{session.network.name}: comparing {ending}") from None
            failed[running] = str(ending)
            running = ""
        except SpoiltError as spoilt:
            name, failed[name] = spoilt.args
