"""Neural-network operators: the tensor expression or loop program against the numpy reference."""

from __future__ import annotations

import pytest

from . import cases_conv, cases_pool
from .case import Case, run_reference_vs_expr

MODULES = (cases_conv, cases_pool)


@pytest.mark.parametrize("case", [c for m in MODULES for c in m.CASES], ids=lambda c: c.id)
def test_matches_reference(case: Case) -> None:
    run_reference_vs_expr(case)
