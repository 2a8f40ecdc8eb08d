"""The template's own numbers."""

from dataclasses import replace

import pytest
from burnish.compiler.kernel_task import DefaultConfig
from burnish.compiler.target import KIB, MIB, get_target
from burnish.compiler.templates.winograd import params

from ..compiled.test_winograd import Shape, convolution, task_for


@pytest.mark.parametrize(("l2", "fused"), [(2 * MIB, False), (4 * MIB, True)])
def test_tiles_of_a_whole_image_are_made_at_once_where_l2_holds_them_and_not_the_weights(l2, fused):
    """V takes 1.6 MB, the weights as much, a task's rows of tiles 0.7 MB."""
    task = task_for(convolution("polyphase3", Shape(1, 64, 128, 56, 56)), "polyphase3", "x86-64-v4")
    task = replace(task, target=replace(get_target("x86-64-v4"), l1=48 * KIB, l2=l2), threads=1)
    assert params(task, DefaultConfig()).fused is fused
