"""Every operator's tensor expression, decomposition or loop program against its numpy reference."""

import pytest

from .case import Case, all_cases, run_reference_vs_expr, run_reference_vs_loops


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.id)
def test_reference(case: Case) -> None:
    if case.op.has("loops"):
        run_reference_vs_loops(case)
    else:
        run_reference_vs_expr(case)
