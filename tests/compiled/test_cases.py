"""Every operator case as machine code for every target that this CPU runs, between guard pages."""

from functools import cache

import pytest

from ..ops.case import Case, all_cases
from .cases import check_compiled
from .forked import run_forked
from .kernels import runnable_targets


def cases_by_operator() -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = {}
    for case in all_cases():
        found.setdefault(case.op.name, []).append(case)
    return found


@cache
def results(operator: str, target: str) -> dict[str, str | None]:
    """What became of every case of an operator, by id."""
    group = cases_by_operator()[operator]
    every = target == "host"
    found = run_forked(group, lambda c: check_compiled(c, target, every), processes=2)
    return dict(zip((c.id for c in group), found))


@pytest.mark.parametrize("target", runnable_targets())
@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.id)
def test_compiled(case: Case, target: str) -> None:
    message = results(case.op.name, target)[case.id]
    assert message is None, message


@pytest.mark.parametrize("operator", cases_by_operator())
def test_drawn_configurations(operator: str) -> None:
    """Whatever a template lets a tuner choose is right."""
    group = cases_by_operator()[operator]
    found = run_forked(group, lambda c: check_compiled(c, "host", every=False, drawn=True), processes=2)
    failed = {case.id: message for case, message in zip(group, found) if message}
    assert not failed, "\n".join(f"{name}: {message}" for name, message in failed.items())
