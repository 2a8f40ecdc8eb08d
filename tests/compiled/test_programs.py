"""Loop programs of every operator case, verified and interpreted, as scheduled and as lowered."""

import pytest

from ..ops.case import Case, all_cases
from .programs import check_programs


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.id)
def test_programs_keep_the_meaning(case: Case) -> None:
    check_programs(case, "x86-64")
