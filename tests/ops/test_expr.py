"""Every operator's tensor expression or decomposition against its numpy reference."""

import pytest

from .case import all_cases, run_reference_vs_expr


@pytest.mark.parametrize(
    "case", [case for case in all_cases() if not case.op.has("loops")], ids=lambda case: case.id
)
def test_reference(case):
    run_reference_vs_expr(case)
