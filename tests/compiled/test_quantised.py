"""A quantised network on every target that this CPU runs."""

import numpy as np
import pytest
from burnish import pipeline
from burnish.compiler.ops.conv import ConvInteger
from burnish.compiler.target import get_target
from burnish.graph_passes.make_tasks import kernel_tasks

from ..ops.case import Case, build_graph
from .kernels import runnable_targets
from .quantised import check


@pytest.mark.parametrize("target", runnable_targets())
@pytest.mark.parametrize("plan", ["global", "fixed"])
def test_a_quantised_network(target: str, plan: str) -> None:
    check(target, plan)


@pytest.mark.parametrize("target", ["host", "cortex-a72"])
def test_integer_convolutions_that_are_none_of_words_stay_plain(target: str) -> None:
    """No template reads their weights in blocks: a kernel, and no conversions around it."""
    machine = get_target(target)
    op = ConvInteger((1, 1), (1, 1, 1, 1), (1, 1), 64)
    graph = build_graph(Case(op, ("u8[1,64,14,14]", np.ones((128, 1, 3, 3), np.int8))))
    (task,) = kernel_tasks(pipeline.optimise(graph, machine, 1), machine, 1).values()
    assert task.algorithm == "direct" and not task.layouts
