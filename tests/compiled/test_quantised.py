"""A quantised network on every target that this CPU runs."""

import pytest

from .kernels import runnable_targets
from .quantised import check


@pytest.mark.parametrize("target", runnable_targets())
@pytest.mark.parametrize("plan", ["global", "fixed"])
def test_a_quantised_network(target: str, plan: str) -> None:
    check(target, plan)
