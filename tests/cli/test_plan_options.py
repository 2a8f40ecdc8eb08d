"""Options that bound what a plan may choose: --accuracy."""

from __future__ import annotations

import pytest
from burnish.errors import InputError
from burnish.graph_passes.plan_layout import PlanOptions

TARGET = ("--target", "x86-64-v3", "--threads", 1)


def test_accuracy_bounds_the_algorithms(burnish):
    graph = ("resnet18", "--stop-after", "assign_layouts", *TARGET)
    assert "winograd" in burnish("compile", *graph).output
    assert "winograd" not in burnish("compile", *graph, "--accuracy", "1e-7").output
    assert "winograd" in burnish("plan", "resnet18", *TARGET).output
    assert "winograd" not in burnish("plan", "resnet18", *TARGET, "--accuracy", 0).output


@pytest.mark.parametrize("bound", ["-1", "much"])
def test_accuracy_that_is_none(error, bound):
    assert "--accuracy" in error("plan", "resnet18", "--accuracy", bound, code=2)


def test_options_are_checked():
    with pytest.raises(InputError, match="expected an error from 0 on"):
        PlanOptions(accuracy=float("nan"))
